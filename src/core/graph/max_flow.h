// SPDX-License-Identifier: Apache-2.0
// MaxFlow: the largest flow between two vertices of a small network with integer capacities, and a
// smallest cut (Dinic, "Algorithm for solution of a problem of maximum flow in networks with power
// estimation", 1970). Capacities may change between runs. One thread at a time.
#pragma once

#include <cstdint>
#include <vector>

namespace weir::graph {

class MaxFlow {
 public:
  explicit MaxFlow(uint32_t vertex_count);

  uint32_t vertex_count() const { return static_cast<uint32_t>(from_.size()); }
  // The number of the arc, for set_capacity.
  uint32_t add_arc(uint32_t from, uint32_t to, int64_t capacity);
  void set_capacity(uint32_t arc, int64_t capacity) { capacity_[arc] = capacity; }
  int64_t capacity(uint32_t arc) const { return capacity_[arc]; }

  // The flow from `source` to `sink`, not more than `enough`: a search for more stops there.
  // Both differ.
  int64_t run(uint32_t source, uint32_t sink, int64_t enough);
  // After a run that found less than `enough`: the side of `source` of a smallest cut.
  std::vector<bool> source_side() const;

 private:
  struct Half {
    uint32_t to;
    uint32_t twin;  // the same arc backwards
    int64_t left;
  };

  bool find_levels(uint32_t source, uint32_t sink);
  int64_t push(uint32_t vertex, uint32_t sink, int64_t most);

  std::vector<std::vector<uint32_t>> from_;  // halves that leave the vertex
  std::vector<Half> halves_;                 // arc i is half 2 i
  std::vector<int64_t> capacity_;
  std::vector<uint32_t> level_, next_, queue_;
};

}  // namespace weir::graph
