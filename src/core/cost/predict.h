// SPDX-License-Identifier: Apache-2.0
// Predicts the time of an algorithm from the table of task times. For small problems it follows the
// program along its longest chain of dependences. For large ones it uses the algorithm's closed
// form where one is known, otherwise the programs of a few ranks, with all others in lockstep.
// Deterministic: all ranks get the same figure from the same table. Pure functions; thread-safe.
#pragma once

#include <cstdint>

#include "core/algo/algorithm.h"
#include "core/cost/chunk_bytes.h"
#include "core/cost/rank_layout.h"
#include "core/cost/table.h"

namespace weir::cost {

// The call to predict. `bytes`: the largest buffer of a rank (chunk_bytes.h).
struct Workload {
  algo::Problem problem;
  uint64_t bytes = 0;
  Slicing slicing;
  RankLayout layout;
};

// Nanoseconds from the call to the return of the last rank. The algorithm must support the problem.
double predict(const algo::Algorithm& algorithm, const Workload& work, const Table& table);

}  // namespace weir::cost
