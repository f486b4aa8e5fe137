// SPDX-License-Identifier: Apache-2.0
// Prediction: of the time of one algorithm (predict.h), in two steps, so that a choice among many
// need not predict those that are too slow: first a lower bound, in little time, then the figure
// itself, which ends as soon as it is known to be above a limit. One thread at a time.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "core/algo/nodes.h"
#include "core/algo/tree_links.h"
#include "core/cost/alike_steps.h"
#include "core/cost/critical_path.h"
#include "core/cost/fold.h"
#include "core/cost/loads.h"
#include "core/cost/predict.h"
#include "core/cost/task_costs.h"

namespace weir::cost {

class Prediction {
 public:
  // Both must outlive it, and what `work` refers to. The algorithm must support the problem.
  Prediction(const algo::Algorithm& algorithm, const Workload& work, const Table& table);

  // No more than made() without a limit says.
  double bound_ns() const { return costs_.call_ns() + bound_ns_; }

  // About what made() will say, as far as can be seen in advance: for the order of predictions.
  double expected_ns() const;

  // Whether the program sends between ranks that RankLayout::ways joins through others only, as far
  // as was looked at: it cannot be used.
  bool has_no_way() const {
    return whole_.loads.has_no_way || ends_.loads.has_no_way || more_.loads.has_no_way;
  }

  // Whether made() takes milliseconds.
  bool is_long() const { return to_follow_ > kLong; }

  // `at_least` if and only if the prediction is above `ns_max`.
  Predicted made(double ns_max = std::numeric_limits<double>::infinity());

 private:
  static constexpr uint64_t kLong = 20'000;

  // A part of the program.
  struct ProgramPart {
    std::vector<StepRange> left_out;
    Loads loads;         // of one slice, or less
    double busy_ns = 0;  // the greatest of them
  };
  struct Estimate {
    double ns = -1;  // negative: the programs do not end
    bool at_least = false;
    double busy_ns = 0;
  };

  void count_operations();
  uint64_t few_steps_operations() const;
  void leave_out_folds();
  uint64_t tolerated() const;
  void add_loads(ProgramPart* part) const;
  void add_steps_left_out();
  double steps_left_out() const;  // for each that is measured
  Estimate followed(uint64_t rounds, const ProgramPart& of, double limit_ns);
  Estimate of_few_steps(double limit_ns);
  double in_lockstep() const;

  const algo::Algorithm& algorithm_;
  Workload work_;
  algo::Nodes nodes_;
  std::optional<algo::TreeLinks> tree_links_;
  TaskCosts costs_;
  Fold fold_;
  uint64_t slice_count_;
  uint64_t in_flight_;
  uint64_t budget_;
  std::vector<Rank> sampled_;
  std::vector<Rank> busiest_;  // some of the network card with the most to do; empty: all are alike
  uint64_t per_slice_ = 0;     // operations of the ranks that are followed
  uint64_t operands_per_slice_ = 0;
  // Folds of very many operands, which are not followed, and what one rank needs for them.
  std::vector<StepRange> folds_;
  double folds_ns_ = 0;
  uint64_t rounds_ = 0;  // of slices that are followed, and one less; 0: all slices
  uint64_t to_follow_ = 0;
  std::vector<StepRange> runs_;  // of steps of which only a few are followed
  ProgramPart whole_;
  ProgramPart ends_;  // of runs_
  ProgramPart more_;  // with some steps between them
  // Of a slice, in the steps that neither has: of the core or card that is the busiest of all.
  double left_ns_ = 0;
  double bound_ns_ = 0;
  uint64_t operations_ = 0;
};

}  // namespace weir::cost
