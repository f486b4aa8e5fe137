// SPDX-License-Identifier: Apache-2.0
// DecisionLog: the decisions of a communicator, and the times that then resulted. Bounded: the
// oldest records are dropped. Owned by a communicator and used under its lock; not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "core/cost/router.h"

namespace weir::cost {

struct DecisionRecord {
  uint64_t id = 0;  // counts from 1
  Collective collective = Collective::kAllReduce;
  algo::BlockLengths lengths = algo::BlockLengths::kEqual;
  Rank rank_count = 1;
  bool in_place = false;
  uint64_t bytes = 0;
  DataType type = DataType::kFloat32;
  Decision decision;

  uint64_t measured_count = 0;
  double measured_first_ns = 0;
  double measured_least_ns = 0;
  double measured_sum_ns = 0;
};

class DecisionLog {
 public:
  explicit DecisionLog(size_t records_max = 256) : records_max_(records_max) {}

  // Returns the record's id.
  uint64_t add(const Request& request, const Decision& decision);
  // Records one more execution, which took `ns`. Does nothing when the record has been dropped.
  void measured(uint64_t id, double ns);

  // nullptr when it has been dropped. Valid until the next add().
  const DecisionRecord* find(uint64_t id) const;
  const std::deque<DecisionRecord>& records() const { return records_; }
  uint64_t dropped_count() const { return dropped_count_; }

 private:
  size_t records_max_;
  uint64_t dropped_count_ = 0;
  std::deque<DecisionRecord> records_;
};

// How far the measured times are from the predicted ones, where they disagree for long.
struct Disagreement {
  double measured_over_predicted = 1;  // the median over decisions
  uint64_t decision_count = 0;
  uint64_t call_count = 0;
};
// Of each decision that was measured at least 5 times the least time counts: ranks that come late
// only add time. No value: there are less than 3 such decisions or 50 calls of them, or the median
// is within a factor of 3.
std::optional<Disagreement> disagreement(const DecisionLog& log);

// Text for WEIR_EXPLAIN, several lines: the call, the candidates with their predicted time or why
// they are excluded, the reason, and the measured time if there is one.
std::string explain(const DecisionRecord& record);

// One line, for after the first execution: predicted and measured time.
std::string explain_measured(const DecisionRecord& record);

}  // namespace weir::cost
