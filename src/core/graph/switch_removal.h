// SPDX-License-Identifier: Apache-2.0
// Links with whole numbers of trees, and the removal of switches from them. Internal to
// core/graph. Pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/status.h"
#include "core/graph/link_graph.h"

namespace weir::graph {

// What links carry, between vertices of which the first `rank_count` are ranks.
class TreeCapacity {
 public:
  TreeCapacity(uint32_t vertex_count, uint32_t rank_count)
      : vertex_count_(vertex_count),
        rank_count_(rank_count),
        trees_(size_t{vertex_count} * vertex_count) {}
  uint32_t vertex_count() const { return vertex_count_; }
  uint32_t rank_count() const { return rank_count_; }
  int64_t& at(uint32_t from, uint32_t to) { return trees_[size_t{from} * vertex_count_ + to]; }
  int64_t at(uint32_t from, uint32_t to) const { return trees_[size_t{from} * vertex_count_ + to]; }

 private:
  uint32_t vertex_count_;
  uint32_t rank_count_;
  std::vector<int64_t> trees_;
};

// How many trees are wanted of each rank.
using Supply = std::vector<int64_t>;

// Counts runs of a maximum flow, and says when there are too many.
struct Steps {
  uint64_t left = 0;
  bool take() {
    if (left == 0) return false;
    --left;
    return true;
  }
};

// How many trees too few reach the rank that gets the fewest; 0: all have their trees. -1: no steps
// are left.
int64_t missing_trees(const TreeCapacity& capacity, const Supply& supply, Steps* steps);

// Takes from links of vertices that are no ranks what comes in and cannot leave, or the other way
// round.
void balance_switches(TreeCapacity* capacity);

// Replaces switches by links between ranks, such that no cut between ranks that matters gets
// smaller. False: no steps are left, or something of a switch could not be replaced and was needed.
bool remove_switches(TreeCapacity* capacity, const Supply& supply, Steps* steps);

}  // namespace weir::graph
