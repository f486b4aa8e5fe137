// SPDX-License-Identifier: Apache-2.0
// MemoryPorts: what ranks of one host share when they read and write each other's memory: the
// memory of a NUMA node, and both directions of what joins it to the other nodes of its package and
// the package to the others. A value; thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "core/cost/op_stream.h"
#include "core/cost/rank_layout.h"

namespace weir::cost {

// By topo::package_link_mbs, and what is usual of NUMA nodes; 0: ranks share no such link.
MemoryLinks usual_memory_links(uint32_t package_link_mbs);

class MemoryPorts {
 public:
  // Without ports where nothing is shared by some ranks only, or no limit is known.
  MemoryPorts(const RankLayout& layout, Rank rank_count);

  bool empty() const { return count_ == 0; }
  uint32_t count() const { return count_; }
  Rank memory_of(Rank rank) const { return empty() ? rank : first_of_node_[node_of_[rank]]; }

  // Calls take(port, picoseconds) for each port that is taken when `self` reads (or writes) memory
  // of `owner`.
  template <typename Take>
  void for_each(Rank self, Rank owner, bool writes, uint64_t bytes, const Take& take) const {
    const uint32_t here = node_of_[self];
    const uint32_t there = node_of_[owner];
    if (links_.memory_ns_per_byte > 0) take(there, time(links_.memory_ns_per_byte, bytes));
    if (here == there) return;
    const uint32_t from = writes ? here : there;
    const uint32_t to = writes ? there : here;
    if (links_.node_ns_per_byte > 0) {
      take(node_out(from), time(links_.node_ns_per_byte, bytes));
      take(node_in(to), time(links_.node_ns_per_byte, bytes));
    }
    if (package_of_node_[from] != package_of_node_[to] && links_.package_ns_per_byte > 0) {
      take(package_out(from), time(links_.package_ns_per_byte, bytes));
      take(package_in(to), time(links_.package_ns_per_byte, bytes));
    }
  }

 private:
  static Picoseconds time(double ns_per_byte, uint64_t bytes) {
    return static_cast<Picoseconds>(static_cast<double>(bytes) * ns_per_byte * 1e3 + 0.5);
  }
  uint32_t node_out(uint32_t node) const { return node_count_ + node; }
  uint32_t node_in(uint32_t node) const { return 2 * node_count_ + node; }
  uint32_t package_out(uint32_t node) const { return 3 * node_count_ + package_of_node_[node]; }
  uint32_t package_in(uint32_t node) const { return 4 * node_count_ + package_of_node_[node]; }

  MemoryLinks links_;
  uint32_t node_count_ = 0;
  uint32_t count_ = 0;
  std::vector<uint32_t> node_of_;  // of each rank, from 0
  std::vector<uint32_t> package_of_node_;
  std::vector<Rank> first_of_node_;
};

}  // namespace weir::cost
