// SPDX-License-Identifier: Apache-2.0
// DecisionLog: the decisions of a communicator, and the times that then resulted. Bounded: the
// oldest records are dropped. Owned by a communicator and used under its lock; not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/cost/measured_times.h"
#include "core/cost/router.h"

namespace weir::cost {

// Calls that ran an algorithm because it was its turn (WEIR_LEARN).
struct ExploredTimes {
  const algo::Algorithm* algorithm = nullptr;
  MeasuredTimes times;
};

struct DecisionRecord {
  uint64_t id = 0;  // counts from 1
  CallShape shape;
  uint64_t call_key = 0;  // Request::call_key
  Rank rank_count = 1;
  Decision decision;
  MeasuredTimes measured;  // of the calls that ran what was chosen
  // Of those that explored, by algorithm, with the one chosen: all in the same conditions.
  std::vector<ExploredTimes> explored;

  // nullptr: it had no turn.
  const MeasuredTimes* explored_of(const algo::Algorithm* algorithm) const;
};

class DecisionLog {
 public:
  explicit DecisionLog(size_t records_max = 256) : records_max_(records_max) {}

  // Returns the record's id.
  uint64_t add(const Request& request, const Decision& decision);
  // The id of a record of the same call with the same choice; 0: there is none. A plan that was
  // dropped and is made anew uses it again.
  uint64_t find_same(const Request& request, const Decision& decision) const;
  // Records one more execution, which took `ns`. `explored`: the algorithm whose turn it was;
  // nullptr: the call did not explore. Does nothing when the record has been dropped.
  void measured(uint64_t id, double ns, const algo::Algorithm* explored = nullptr);

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

// What all ranks have measured of one algorithm of a decision, as far as it is known here.
struct RanksTimes {
  Rank rank_count = 0;  // that were heard
  uint64_t call_count = 0;
  double least_ns = 0;
  double sum_ns = 0;
  double middle_ns = 0;  // the average over ranks of their medians
  double latest_ns = 0;  // the greatest of these

  void add(uint64_t count, double least, double sum, double middle);
  double average_ns() const {
    return call_count == 0 ? 0 : sum_ns / static_cast<double>(call_count);
  }
};

// A number for the times of a decision, or of an algorithm that was explored for it; the same on
// all ranks. `explored`: nullptr: of the calls that ran what was chosen.
uint64_t times_key(const DecisionRecord& record, const algo::Algorithm* explored);
using TimesByKey = std::map<uint64_t, RanksTimes>;

// Text for WEIR_EXPLAIN, several lines: the call, the candidates with their predicted time or why
// they are excluded, the reason, and the measured time if there is one.
std::string explain(const DecisionRecord& record);

// One line, for after the first execution: predicted and measured time.
std::string explain_measured(const DecisionRecord& record);

// One line: what the calls took on this rank and on all that were heard. `explored`: one of
// record.explored; nullptr: those that ran what was chosen. `all`: nullptr: nothing was heard.
std::string explain_total(const DecisionRecord& record, const ExploredTimes* explored,
                          const RanksTimes* all);

}  // namespace weir::cost
