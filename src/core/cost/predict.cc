// SPDX-License-Identifier: Apache-2.0
#include "core/cost/predict.h"

#include <algorithm>
#include <array>
#include <vector>

#include "core/base/check.h"
#include "core/cost/alike_steps.h"
#include "core/cost/critical_path.h"
#include "core/cost/fold.h"
#include "core/cost/prediction_memo.h"
#include "core/cost/task_costs.h"

namespace weir::cost {

namespace {

// Following an operation takes about 0.05 us. A choice has up to eight candidates and should take
// 20 ms for 128 ranks, 200 ms for 4,096.
constexpr uint64_t kOperationsMax = 30'000;
constexpr uint64_t kOperationsMaxPerRank = 60;
// Programs without long runs of alike steps are followed up to this many times more, or up to this
// many operations of each rank.
constexpr uint64_t kOperationsTolerated = 4;
constexpr uint64_t kLongOperationsMax = 800'000;
constexpr uint64_t kLongOperationsMaxPerRank = 1'000;

class Prediction {
 public:
  Prediction(const algo::Algorithm& algorithm, const Workload& work, const Table& table)
      : algorithm_(algorithm),
        work_(work),
        costs_(work, table),
        fold_(algorithm, work),
        slice_count_(ChunkBytes(work.problem.collective, work.problem.rank_count, work.bytes,
                                algorithm.shape(work.problem).chunk_count, work.slicing.slice_bytes)
                         .slice_count()),
        in_flight_(std::max(1u, work.slicing.in_flight)),
        budget_(kOperationsMax + kOperationsMaxPerRank * work.problem.rank_count),
        per_slice_(operations_per_slice()) {}

  Predicted made() {
    uint64_t rounds = 0;
    if (slice_count_ > 3 * in_flight_) {
      rounds = per_slice_ * 5 * in_flight_ > budget_ ? 2 : 3;
    }
    // Those of `rounds`, and of one less.
    const uint64_t slices = rounds == 0 ? slice_count_ : (2 * rounds - 1) * in_flight_;
    uint64_t operations = per_slice_ * slices;
    double ns = -1;
    if (operations > budget_) ns = of_few_steps(rounds);
    if (ns < 0 && operations > tolerated() && rounds == 2) {
      rounds = 1;
      operations = per_slice_ * in_flight_;
    }
    if (ns < 0 && operations <= tolerated()) ns = followed(rounds, {}).ns;
    if (ns < 0) ns = in_lockstep();
    return {costs_.call_ns() + ns, operations_};
  }

 private:
  // Of the ranks that are followed, from a few of them.
  uint64_t operations_per_slice() const {
    const algo::Problem& problem = work_.problem;
    const Rank followed = fold_.followed();
    const auto of = [&](Rank rank) {
      return uint64_t{algo::compile(algorithm_, problem, rank).ops.size()};
    };
    if (followed < work_.problem.rank_count) return of(0) * followed;
    constexpr Rank kSampled = 8;
    if (followed <= kSampled) {
      uint64_t sum = 0;
      for (Rank rank = 0; rank < followed; ++rank) sum += of(rank);
      return sum;
    }
    uint64_t sum = 0;
    for (Rank i = 0; i < kSampled; ++i) {
      // Odd and even ones.
      const Rank rank = static_cast<Rank>(uint64_t{i} * followed / kSampled + i % 2);
      sum += of(rank == problem.root ? (rank + 1) % followed : rank);
    }
    return of(problem.root) + sum * (followed - 1) / kSampled;
  }

  uint64_t tolerated() const {
    const uint64_t by_ranks = kLongOperationsMaxPerRank * work_.problem.rank_count;
    return std::max(kOperationsTolerated * budget_, std::min(kLongOperationsMax, by_ranks));
  }

  // The time of a part of the program, and that of its busiest core or card.
  struct Estimate {
    double ns = -1;  // negative: the programs do not end
    double busy_ns = 0;
  };

  PathTime follow(uint64_t slices, std::span<const StepRange> left_out) {
    Part part;
    part.left_out = left_out;
    part.slices_max = slices;
    const PathTime time = critical_path(algorithm_, work_, costs_, fold_, part);
    operations_ += time.operations;
    return time;
  }

  // Once the pipeline of slices is full, each round of them costs the same, and no less than it
  // occupies a core or a card. `rounds`: that are followed, and one less; 0: all slices.
  Estimate followed(uint64_t rounds, std::span<const StepRange> left_out) {
    const uint64_t first = rounds == 0 ? slice_count_ : rounds * in_flight_;
    const PathTime time = follow(first, left_out);
    if (rounds == 0 || time.ns < 0) return {time.ns, time.busy_ns};
    // After one round alone only the busiest core or card counts.
    const PathTime before = rounds == 1 ? time : follow(first - in_flight_, left_out);
    const double busy_ns = time.busy_ns / static_cast<double>(first);  // of a slice
    const double slice_ns =
        std::max((time.ns - before.ns) / static_cast<double>(in_flight_), busy_ns);
    const auto slices = static_cast<double>(slice_count_);
    return {time.ns + slice_ns * (slices - static_cast<double>(first)), busy_ns * slices};
  }

  // Negative: the steps are too few, or too different.
  double of_few_steps(uint64_t rounds) {
    const std::vector<StepRange> runs = alike_steps(algorithm_, work_.problem);
    if (runs.empty()) return -1;
    uint64_t steps = 0;
    for (const StepRange& run : runs) {
      steps += run.end - run.begin - 2 * kStepsKeptAtEnds - kStepsMeasured;
    }
    const Estimate ends = followed(rounds, left_out(runs, 0));
    const Estimate more = followed(rounds, left_out(runs, kStepsMeasured));
    if (ends.ns < 0 || more.ns < 0) return -1;
    const double times =
        static_cast<double>(steps) / static_cast<double>(kStepsMeasured * runs.size());
    return std::max(more.ns + std::max(0.0, more.ns - ends.ns) * times,
                    more.busy_ns + (more.busy_ns - ends.busy_ns) * times);
  }

  double in_lockstep() const {
    const Rank n = work_.problem.rank_count;
    const uint64_t slices = std::min(slice_count_, 2 * in_flight_);
    double most = 0;
    for (Rank rank : {Rank{0}, Rank{1}, n / 2, n - 1, work_.problem.root}) {
      if (rank >= n) continue;
      most = std::max(most, lockstep_ns(algorithm_, work_, costs_, rank, slices));
    }
    return most * static_cast<double>(slice_count_) / static_cast<double>(slices);
  }

  const algo::Algorithm& algorithm_;
  const Workload& work_;
  TaskCosts costs_;
  Fold fold_;
  uint64_t slice_count_;
  uint64_t in_flight_;
  uint64_t budget_;
  uint64_t per_slice_;
  uint64_t operations_ = 0;
};

}  // namespace

Predicted predict_anew(const algo::Algorithm& algorithm, const Workload& work, const Table& table) {
  WEIR_CHECK(algorithm.supports(work.problem), "only algorithms that can be used are predicted");
  return Prediction(algorithm, work, table).made();
}

double predict(const algo::Algorithm& algorithm, const Workload& work, const Table& table) {
  const PredictionMemo::Key key = PredictionMemo::key_of(algorithm, work, table);
  if (!key) return predict_anew(algorithm, work, table).ns;
  PredictionMemo& memo = PredictionMemo::of_process();
  if (const auto kept = memo.find(*key)) return *kept;
  const double ns = predict_anew(algorithm, work, table).ns;
  memo.keep(*key, ns);
  return ns;
}

}  // namespace weir::cost
