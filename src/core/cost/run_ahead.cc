// SPDX-License-Identifier: Apache-2.0
#include "core/cost/run_ahead.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "core/cost/chunk_bytes.h"
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
                                   const Table& table, uint64_t* operations) {
  const algo::Problem& problem = work.problem;
  const Rank n = problem.rank_count;
  // Without a root each rank waits for all others.
  if (!is_rooted(problem.collective) || algo::uses_messages(algorithm) || problem.inputs_mapped ||
      n < 2 || n > kRankCountMax) {
    return std::nullopt;
  }
  const TaskCosts costs(work, table);
  std::vector<Rank> ranks(n);
  std::iota(ranks.begin(), ranks.end(), 0u);
  std::vector<std::vector<Rank>> waited(n);
  std::vector<Picoseconds> cores(n, 0);
  // False: the programs are too long.
  const auto add = [&](Part part, uint64_t times, std::vector<std::vector<Rank>>* waits) {
    OpStream stream(algorithm, problem, work.bytes, work.slicing, costs, kPendingMax, part);
    const Loads loads = loads_of(&stream, ranks, work, costs, waits);
    if (operations != nullptr) *operations += stream.operations();
    for (Rank rank = 0; rank < n; ++rank) cores[rank] += times * loads.cores[rank];
    return stream.status().ok();
  };
  // Ranks do and wait for the same in every slice, and most slices have the same bytes.
  const ChunkBytes chunks(problem.collective, n, work.bytes, algorithm.shape(problem).chunk_count,
                          work.slicing.slice_bytes);
  const uint64_t alike = std::max<uint64_t>(1, chunks.alike_slice_count());
  if (!add({.slices_max = 1}, alike, &waited) || !flows_one_way(waited)) return std::nullopt;
  if (alike < chunks.slice_count() && !add({.slices_begin = alike}, 1, nullptr)) {
    return std::nullopt;
  }
  return costs.call_ns() + static_cast<double>(*std::ranges::max_element(cores)) / 1000;
}

}  // namespace weir::cost
