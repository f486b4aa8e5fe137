// SPDX-License-Identifier: Apache-2.0
#include "core/cost/alike_steps.h"

#include <algorithm>
#include <array>

namespace weir::cost {

namespace {

constexpr uint32_t kRunStepsMin = 4 * (2 * kStepsKeptAtEnds + kStepsMeasured);

// Whether both steps have the same operations, up to chunks and peers.
bool alike(const std::vector<sched::Op>& a, const std::vector<sched::Op>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].code != b[i].code || a[i].lane != b[i].lane || a[i].count != b[i].count ||
        a[i].operand_count != b[i].operand_count) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::vector<StepRange> alike_steps(const algo::Algorithm& algorithm, const algo::Problem& problem) {
  const Rank n = problem.rank_count;
  const uint32_t step_count = algorithm.step_count(problem, 0);
  if (step_count < kRunStepsMin) return {};
  for (Rank rank = 1; rank < n; ++rank) {
    if (algorithm.step_count(problem, rank) != step_count) return {};
  }
  const std::array<Rank, 3> sampled = {0, n / 2, n - 1};
  std::array<std::vector<sched::Op>, 3> before;
  std::vector<sched::Op> ops;
  std::vector<sched::Ref> operands;
  std::vector<StepRange> runs;
  StepRange run;
  for (uint32_t step = 0; step <= step_count; ++step) {
    bool goes_on = step < step_count;
    for (size_t i = 0; i < sampled.size() && step < step_count; ++i) {
      ops.clear();
      operands.clear();
      sched::Builder builder(sampled[i], &ops, &operands);
      algorithm.step(problem, sampled[i], step, builder);
      goes_on = goes_on && step > 0 && alike(ops, before[i]);
      before[i].swap(ops);
    }
    if (goes_on) continue;
    run.end = step;
    if (run.end - run.begin >= kRunStepsMin) runs.push_back(run);
    run.begin = step;
  }
  return runs;
}

std::vector<StepRange> left_out(const std::vector<StepRange>& runs, bool measured) {
  uint64_t steps = 0;
  for (const StepRange& run : runs) steps += run.end - run.begin - 2 * kStepsKeptAtEnds;
  std::vector<StepRange> ranges;
  for (const StepRange& run : runs) {
    const uint32_t begin = run.begin + kStepsKeptAtEnds;
    const uint32_t end = run.end - kStepsKeptAtEnds;
    if (!measured) {
      ranges.push_back({begin, end});
    } else {
      const uint64_t share = kStepsMeasured * runs.size() * (end - begin);
      const auto kept = std::max(1u, static_cast<uint32_t>((share + steps / 2) / steps));
      // Spread over the run: what a rank does in some neighbouring steps, such as messages within
      // its host, it may not do in others.
      uint32_t from = begin;
      for (uint32_t i = 0; i < kept; ++i) {
        const auto step =
            static_cast<uint32_t>(begin + uint64_t{2 * i + 1} * (end - begin) / (2 * kept));
        if (step > from) ranges.push_back({from, step});
        from = step + 1;
      }
      if (from < end) ranges.push_back({from, end});
    }
  }
  return ranges;
}

}  // namespace weir::cost
