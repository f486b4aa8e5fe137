// SPDX-License-Identifier: Apache-2.0
#include "core/cost/predict.h"

#include <algorithm>
#include <array>

#include "core/base/check.h"
#include "core/cost/closed_form.h"
#include "core/cost/critical_path.h"
#include "core/cost/task_costs.h"

namespace weir::cost {

namespace {

// Following a program takes about 0.2 us per operation; a decision should take milliseconds.
constexpr uint64_t kFollowedOperationsMax = 24'000;

// Estimates the operations of all ranks from those of three.
uint64_t estimate_operations(const algo::Algorithm& algorithm, const algo::Problem& problem) {
  uint64_t most = 0;
  for (Rank rank : {Rank{0}, problem.root, problem.rank_count - 1}) {
    most = std::max<uint64_t>(most, algo::compile(algorithm, problem, rank).ops.size());
  }
  return most * problem.rank_count;
}

// `time_of(k)`: the time of the first k slices. Once the pipeline is full, each round of slices
// costs the same.
template <typename TimeOf>
double extrapolate(uint64_t slice_count, uint64_t in_flight, TimeOf&& time_of) {
  const uint64_t full = 2 * in_flight;
  const uint64_t more = 3 * in_flight;
  if (slice_count <= more) return time_of(slice_count);
  const double at_full = time_of(full);
  const double at_more = time_of(more);
  return at_more + (at_more - at_full) / static_cast<double>(more - full) *
                       static_cast<double>(slice_count - more);
}

}  // namespace

double predict(const algo::Algorithm& algorithm, const Workload& work, const Table& table) {
  WEIR_CHECK(algorithm.supports(work.problem), "only algorithms that can be used are predicted");
  const TaskCosts costs(work, table);
  const Rank n = work.problem.rank_count;
  const ChunkBytes chunks(work.problem.collective, n, work.bytes,
                          algorithm.shape(work.problem).chunk_count, work.slicing.slice_bytes);
  const uint64_t in_flight = std::max(1u, work.slicing.in_flight);
  const uint64_t slices_followed = std::min(chunks.slice_count(), 3 * in_flight);
  const bool follow = n <= 512 && estimate_operations(algorithm, work.problem) * slices_followed <=
                                      kFollowedOperationsMax;
  if (n > 1 && !follow && chunks.slice_count() == 1) {
    if (const auto figures = costs.like_links()) {
      const auto closed = closed_form(algorithm, work.problem, work.bytes, *figures);
      if (closed) return costs.call_ns() + closed->ns;
    }
  }
  const double ns = extrapolate(chunks.slice_count(), in_flight, [&](uint64_t slices) {
    if (follow) {
      const double path = critical_path_ns(algorithm, work, costs, slices);
      WEIR_CHECK(path >= 0, "a verified program ends");
      return path;
    }
    double most = 0;
    for (Rank rank : {Rank{0}, Rank{1}, n / 2, n - 1, work.problem.root}) {
      if (rank < n) most = std::max(most, lockstep_ns(algorithm, work, costs, rank, slices));
    }
    return most;
  });
  return costs.call_ns() + ns;
}

}  // namespace weir::cost
