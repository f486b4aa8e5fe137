// SPDX-License-Identifier: Apache-2.0
#include "core/algo/nodes.h"

#include <algorithm>

namespace weir::algo {

Nodes::Nodes(std::span<const uint32_t> node_of_rank, Rank rank_count)
    : node_of_(node_of_rank), members_(rank_count), local_of_(rank_count) {
  uint32_t node_count = 1;
  for (uint32_t node : node_of_) node_count = std::max(node_count, node + 1);
  first_.assign(node_count + 1, 0);
  for (Rank rank = 0; rank < rank_count; ++rank) {
    local_of_[rank] = first_[node_of(rank) + 1]++;
  }
  for (uint32_t node = 0; node < node_count; ++node) {
    width_ = std::max(width_, first_[node + 1]);
    first_[node + 1] += first_[node];
  }
  for (Rank rank = 0; rank < rank_count; ++rank) {
    members_[first_[node_of(rank)] + local_of_[rank]] = rank;
  }
}

std::vector<Rank> Nodes::carried_ranks(uint32_t node, uint32_t local) const {
  std::vector<Rank> ranks;
  for (uint32_t rail = local; rail < width_; rail += size(node)) {
    for (uint32_t other = 0; other < count(); ++other) {
      if (rail < size(other)) ranks.push_back(member(other, rail));
    }
  }
  return ranks;
}

bool well_formed_nodes(const Problem& problem) {
  return are_numbered(problem.node_of_rank, problem.rank_count);
}

bool are_numbered(std::span<const uint32_t> node_of_rank, Rank rank_count) {
  if (node_of_rank.empty()) return true;
  if (node_of_rank.size() != rank_count) return false;
  uint32_t next = 0;
  for (uint32_t node : node_of_rank) {
    if (node > next) return false;
    if (node == next) ++next;
  }
  return true;
}

}  // namespace weir::algo
