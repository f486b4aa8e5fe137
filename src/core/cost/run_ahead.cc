// SPDX-License-Identifier: Apache-2.0
#include "core/cost/run_ahead.h"

#include <numeric>
#include <vector>

#include "core/cost/loads.h"
#include "core/cost/op_stream.h"
#include "core/cost/task_costs.h"

namespace weir::cost {

namespace {

// More ranks do not share memory and a root in practice; their programs are long.
constexpr Rank kRankCountMax = 256;
constexpr uint64_t kPendingMax = 1'000'000;

// Whether no rank waits for itself; `waited`: by rank, for whom it waits.
bool flows_one_way(const std::vector<std::vector<Rank>>& waited) {
  std::vector<uint32_t> waiters(waited.size(), 0);
  for (const auto& ranks : waited) {
    for (const Rank rank : ranks) ++waiters[rank];
  }
  std::vector<Rank> free;
  for (Rank rank = 0; rank < waited.size(); ++rank) {
    if (waiters[rank] == 0) free.push_back(rank);
  }
  size_t done = 0;
  while (!free.empty()) {
    const Rank rank = free.back();
    free.pop_back();
    ++done;
    for (const Rank other : waited[rank]) {
      if (--waiters[other] == 0) free.push_back(other);
    }
  }
  return done == waited.size();
}

}  // namespace

std::optional<double> run_ahead_ns(const algo::Algorithm& algorithm, const Workload& work,
                                   const Table& table) {
  const algo::Problem& problem = work.problem;
  const Rank n = problem.rank_count;
  // Without a root each rank waits for all others.
  if (!is_rooted(problem.collective) || algo::uses_messages(algorithm) || problem.inputs_mapped ||
      n < 2 || n > kRankCountMax) {
    return std::nullopt;
  }
  const TaskCosts costs(work, table);
  OpStream stream(algorithm, problem, work.bytes, work.slicing, costs, kPendingMax);
  std::vector<Rank> ranks(n);
  std::iota(ranks.begin(), ranks.end(), 0u);
  std::vector<std::vector<Rank>> waited(n);
  const Picoseconds busiest = loads_of(&stream, ranks, work, costs, &waited).busiest();
  if (!stream.status().ok() || !flows_one_way(waited)) return std::nullopt;
  return costs.call_ns() + static_cast<double>(busiest) / 1000;
}

}  // namespace weir::cost
