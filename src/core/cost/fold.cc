// SPDX-License-Identifier: Apache-2.0
#include "core/cost/fold.h"

#include <algorithm>
#include <bit>
#include <unordered_map>

namespace weir::cost {

namespace {

// Whether no group has ranks of two blocks of `period` ranks.
bool stays_in_blocks(std::span<const uint32_t> of_rank, Rank period) {
  std::unordered_map<uint32_t, size_t> block_of_group;
  for (size_t rank = 0; rank < of_rank.size(); ++rank) {
    if (block_of_group.emplace(of_rank[rank], rank / period).first->second != rank / period) {
      return false;
    }
  }
  return true;
}

// Whether `of_rank` divides every block of `period` ranks in the same way.
bool repeats(std::span<const uint32_t> of_rank, Rank period) {
  if (!stays_in_blocks(of_rank, period)) return false;
  for (size_t rank = period; rank < of_rank.size(); ++rank) {
    // The first rank of the group is at the same place in both blocks.
    const size_t begin = rank - rank % period;
    const auto first = [&](size_t block, size_t at) {
      size_t i = block;
      while (of_rank[i] != of_rank[at]) ++i;
      return i - block;
    };
    if (first(begin, rank) != first(begin - period, rank - period)) return false;
  }
  return true;
}

// The ranks of each host, if all have as many, in blocks; 0: they do not.
Rank ranks_per_host(std::span<const uint32_t> host_of_rank, Rank rank_count) {
  if (host_of_rank.empty()) return rank_count;
  Rank count = 1;
  while (count < rank_count && host_of_rank[count] == host_of_rank[0]) ++count;
  if (rank_count % count != 0 || !stays_in_blocks(host_of_rank, count)) return 0;
  for (Rank rank = count; rank < rank_count; ++rank) {
    const bool starts_host = rank % count == 0;
    if ((host_of_rank[rank] == host_of_rank[rank - 1]) == starts_host) return 0;
  }
  return count;
}

}  // namespace

Fold::Fold(const algo::Algorithm& algorithm, const Workload& work) : Fold(work.problem.rank_count) {
  const RankLayout& layout = work.layout;
  if (algorithm.symmetry == algo::Symmetry::kNone || rank_count_ < 2) return;
  if (layout.ways != nullptr) return;  // which ranks use a link together, the graph says
  if (algorithm.symmetry == algo::Symmetry::kXor && !std::has_single_bit(rank_count_)) return;
  const std::span<const double> wires = layout.wire_of_host;
  const bool wires_alike =
      std::all_of(wires.begin(), wires.end(), [&](double wire) { return wire == wires[0]; });
  if (!wires_alike) return;
  const Rank per_host = ranks_per_host(layout.host_of_rank, rank_count_);
  const bool one_host = per_host == rank_count_;
  const bool nodes_alike =
      !algorithm.uses_nodes ||
      ranks_per_host(work.problem.node_of_rank, rank_count_) == (one_host ? rank_count_ : per_host);
  if (per_host == 0 || !nodes_alike) return;
  const bool links_alike = layout.socket_of_rank.empty() && layout.cache_of_rank.empty();
  const Rank period = one_host && links_alike && !algorithm.uses_nodes ? 1 : per_host;
  if (!repeats(layout.socket_of_rank, period) || !repeats(layout.cache_of_rank, period) ||
      !repeats(layout.card_of_rank, period)) {
    return;
  }
  // Nor are ranks of one host alike that share its links, but whole hosts are.
  if (layout.memory_ways != nullptr && period != per_host) return;
  symmetry_ = algorithm.symmetry;
  followed_ = period;
}

}  // namespace weir::cost
