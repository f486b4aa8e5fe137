// SPDX-License-Identifier: Apache-2.0
#include "core/algo/nodes.h"

#include <algorithm>

namespace weir::algo {

Nodes::Nodes(std::span<const uint32_t> node_of_rank, Rank rank_count) : node_of_(node_of_rank) {
  uint32_t node_count = 1;
  for (uint32_t node : node_of_) node_count = std::max(node_count, node + 1);
  Ranks made;
  made.members.resize(rank_count);
  made.local_of.resize(rank_count);
  made.first.assign(node_count + 1, 0);
  for (Rank rank = 0; rank < rank_count; ++rank) {
    made.local_of[rank] = made.first[node_of(rank) + 1]++;
  }
  for (uint32_t node = 0; node < node_count; ++node) {
    made.width = std::max(made.width, made.first[node + 1]);
    made.first[node + 1] += made.first[node];
  }
  for (Rank rank = 0; rank < rank_count; ++rank) {
    made.members[made.first[node_of(rank)] + made.local_of[rank]] = rank;
  }
  made.rail_size.assign(made.width, 0);
  made.index_in_rail.resize(rank_count);
  for (const Rank rank : made.members) {  // node by node
    made.index_in_rail[rank] = made.rail_size[made.local_of[rank]]++;
  }
  ranks_ = std::make_shared<const Ranks>(std::move(made));
}

std::vector<Rank> Nodes::carried_ranks(uint32_t node, uint32_t local) const {
  std::vector<Rank> ranks;
  ranks.reserve(carried_count(node, local));
  for (uint32_t rail = local; rail < width(); rail += size(node)) {
    for (uint32_t other = 0; other < count(); ++other) {
      if (rail < size(other)) ranks.push_back(member(other, rail));
    }
  }
  return ranks;
}

uint32_t Nodes::carried_count(uint32_t node, uint32_t local) const {
  uint32_t count = 0;
  for (uint32_t rail = local; rail < width(); rail += size(node)) count += ranks_->rail_size[rail];
  return count;
}

uint32_t Nodes::carried_index(uint32_t node, Rank rank) const {
  const uint32_t rail = local_of(rank);
  uint32_t index = ranks_->index_in_rail[rank];
  for (uint32_t before = rail % size(node); before < rail; before += size(node)) {
    index += ranks_->rail_size[before];
  }
  return index;
}

bool well_formed_nodes(const Problem& problem) {
  return are_numbered(problem.node_of_rank, problem.rank_count);
}

bool are_single_ranks(const Problem& problem) {
  // Nodes are numbered in the order of their first ranks.
  return !problem.node_of_rank.empty() && problem.node_of_rank.back() + 1 == problem.rank_count;
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
