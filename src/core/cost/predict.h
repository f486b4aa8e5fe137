// SPDX-License-Identifier: Apache-2.0
// Predicts the time of an algorithm from the table of task times, by following its programs in
// virtual time: of all ranks or, where ranks are alike, of those that stand for the others; of the
// first slices, and of a few of many steps that are alike. Only programs that are still too long
// are estimated from a few ranks, with all others in lockstep. Deterministic: all ranks get the
// same figure from the same table. Thread-safe.
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
// A process keeps what it has predicted (prediction_memo.h).
double predict(const algo::Algorithm& algorithm, const Workload& work, const Table& table);

// The same, predicted anew.
struct Predicted {
  double ns = 0;
  bool at_least = false;    // it takes more than was asked about, and at least `ns`
  uint64_t operations = 0;  // that were followed: what the prediction cost
};
Predicted predict_anew(const algo::Algorithm& algorithm, const Workload& work, const Table& table);

}  // namespace weir::cost
