// SPDX-License-Identifier: Apache-2.0
// Nodes: the ranks of a problem by node, for the hierarchical algorithms. Made for each step, in
// O(n) unless the problem brings them along (Problem::nodes); compile() and cost::OpStream do. A
// *rail* is one of `width` disjoint lines through all nodes, where width is the size of the largest
// node: it carries the share of the work that crosses between nodes through one rank per node. With
// even nodes every rank carries one rail; a smaller node's ranks carry several.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/algo/algorithm.h"

namespace weir::algo {

class Nodes {
 public:
  explicit Nodes(const Problem& problem)
      : Nodes(problem.nodes != nullptr ? *problem.nodes
                                       : Nodes(problem.node_of_rank, problem.rank_count)) {}
  // By any other grouping, numbered in the same way.
  Nodes(std::span<const uint32_t> node_of_rank, Rank rank_count);

  uint32_t count() const { return static_cast<uint32_t>(ranks_->first.size() - 1); }
  uint32_t width() const { return ranks_->width; }
  uint32_t size(uint32_t node) const { return first(node + 1) - first(node); }
  // The number of ranks that come before those of the node, in node order.
  uint32_t first(uint32_t node) const { return ranks_->first[node]; }
  uint32_t node_of(Rank rank) const { return node_of_.empty() ? 0 : node_of_[rank]; }
  // Index of the rank among those of its node, in rank order.
  uint32_t local_of(Rank rank) const { return ranks_->local_of[rank]; }
  Rank member(uint32_t node, uint32_t local) const { return ranks_->members[first(node) + local]; }

  // Two ways to spread rails over a node's ranks. Dealt: rail j to local rank j mod size, so that
  // rail j passes through local rank j where there is one. In blocks: local rank l has the rails
  // [block_first(l), block_first(l + 1)), so that its share is contiguous.
  uint32_t dealt(uint32_t node, uint32_t rail) const { return rail % size(node); }
  // How many rails that gives a local rank.
  uint32_t dealt_count(uint32_t node, uint32_t local) const {
    return (width() - local + size(node) - 1) / size(node);
  }
  uint32_t block_first(uint32_t node, uint32_t local) const {
    const uint64_t size_of_node = size(node);
    return static_cast<uint32_t>((uint64_t{local} * width() + size_of_node - 1) / size_of_node);
  }
  uint32_t block_owner(uint32_t node, uint32_t rail) const {
    return static_cast<uint32_t>(uint64_t{rail} * size(node) / width());
  }

  // The ranks, on all nodes, whose local index is a rail that local rank `local` of `node` carries
  // when rails are dealt; rail by rail, and node by node within a rail.
  std::vector<Rank> carried_ranks(uint32_t node, uint32_t local) const;
  // How many these are, in O(width).
  uint32_t carried_count(uint32_t node, uint32_t local) const;
  // Where `rank` is in carried_ranks() of those who carry its rail, likewise.
  uint32_t carried_index(uint32_t node, Rank rank) const;

 private:
  struct Ranks {
    uint32_t width = 0;
    std::vector<uint32_t> rail_size;  // by rail: the number of nodes that have a rank there
    std::vector<uint32_t> first;
    std::vector<Rank> members;
    std::vector<uint32_t> local_of;
    std::vector<uint32_t> index_in_rail;  // of a rank among those with the same local index
  };
  std::span<const uint32_t> node_of_;
  std::shared_ptr<const Ranks> ranks_;  // of all copies
};

// `node_of_rank` is empty, or names a node for each rank, numbered in order of appearance.
bool are_numbered(std::span<const uint32_t> node_of_rank, Rank rank_count);
// Whether each node has one rank.
bool are_single_ranks(const Problem& problem);
// supports(): that of the problem is so.
bool well_formed_nodes(const Problem& problem);

}  // namespace weir::algo
