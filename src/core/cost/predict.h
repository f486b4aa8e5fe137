// SPDX-License-Identifier: Apache-2.0
// How long an algorithm will take, from the table of task times. Small problems: the program itself
// is followed along its longest chain of dependences. Large ones: the closed form of the algorithm
// where one is known, else the program of a few ranks with all others in step. Deterministic: all
// ranks get the same figure from the same table. Pure functions; thread-safe.
#pragma once

#include <cstdint>

#include "core/algo/algorithm.h"
#include "core/cost/chunk_bytes.h"
#include "core/cost/rank_layout.h"
#include "core/cost/table.h"

namespace weir::cost {

// What is to be predicted. `bytes`: the largest buffer of a rank (chunk_bytes.h).
struct Workload {
  algo::Problem problem;
  uint64_t bytes = 0;
  Slicing slicing;
  RankLayout layout;
};

// Nanoseconds from the call to the return of the last rank. The algorithm supports the problem.
double predict(const algo::Algorithm& algorithm, const Workload& work, const Table& table);

}  // namespace weir::cost
