// SPDX-License-Identifier: Apache-2.0
// Nodes: the ranks of a problem by node, for the hierarchical algorithms. Rebuilt for each step, in
// O(n). A *rail* is one of `width` disjoint lines through all nodes, where width is the size of the
// largest node: it carries the share of the work that crosses between nodes through one rank per
// node. With even nodes every rank carries one rail; a smaller node's ranks carry several.
#pragma once

#include <cstdint>
#include <vector>

#include "core/algo/algorithm.h"

namespace weir::algo {

class Nodes {
 public:
  explicit Nodes(const Problem& problem) : Nodes(problem.node_of_rank, problem.rank_count) {}
  // By any other grouping, numbered in the same way.
  Nodes(std::span<const uint32_t> node_of_rank, Rank rank_count);

  uint32_t count() const { return static_cast<uint32_t>(first_.size() - 1); }
  uint32_t width() const { return width_; }
  uint32_t size(uint32_t node) const { return first_[node + 1] - first_[node]; }
  // The number of ranks that come before those of the node, in node order.
  uint32_t first(uint32_t node) const { return first_[node]; }
  uint32_t node_of(Rank rank) const { return node_of_.empty() ? 0 : node_of_[rank]; }
  // Index of the rank among those of its node, in rank order.
  uint32_t local_of(Rank rank) const { return local_of_[rank]; }
  Rank member(uint32_t node, uint32_t local) const { return members_[first_[node] + local]; }

  // Two ways to spread rails over a node's ranks. Dealt: rail j to local rank j mod size, so that
  // rail j passes through local rank j where there is one. In blocks: local rank l has the rails
  // [block_first(l), block_first(l + 1)), so that its share is contiguous.
  uint32_t dealt(uint32_t node, uint32_t rail) const { return rail % size(node); }
  uint32_t block_first(uint32_t node, uint32_t local) const {
    const uint64_t size_of_node = size(node);
    return static_cast<uint32_t>((uint64_t{local} * width_ + size_of_node - 1) / size_of_node);
  }
  uint32_t block_owner(uint32_t node, uint32_t rail) const {
    return static_cast<uint32_t>(uint64_t{rail} * size(node) / width_);
  }

  // The ranks, on all nodes, whose local index is a rail that local rank `local` of `node` carries
  // when rails are dealt; rail by rail, and node by node within a rail.
  std::vector<Rank> carried_ranks(uint32_t node, uint32_t local) const;

 private:
  std::span<const uint32_t> node_of_;
  uint32_t width_ = 0;
  std::vector<uint32_t> first_;
  std::vector<Rank> members_;
  std::vector<uint32_t> local_of_;
};

// `node_of_rank` is empty, or names a node for each rank, numbered in order of appearance.
bool are_numbered(std::span<const uint32_t> node_of_rank, Rank rank_count);
// supports(): that of the problem is so.
bool well_formed_nodes(const Problem& problem);

}  // namespace weir::algo
