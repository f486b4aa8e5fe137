// SPDX-License-Identifier: Apache-2.0
// Layout: which node each simulated rank is on, and which rail of the node's NIC it uses. A value.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/algo/algorithm.h"

namespace weir::sim {

class Layout {
 public:
  // The problem's node numbers are below rank_count.
  Layout(const algo::Problem& problem, uint32_t rails) : rails_(rails) {
    if (problem.node_of_rank.empty()) return;
    node_.assign(problem.node_of_rank.begin(), problem.node_of_rank.end());
    node_count_ = *std::max_element(node_.begin(), node_.end()) + 1;
    std::vector<uint32_t> population(node_count_, 0);
    port_.resize(node_.size());
    for (size_t rank = 0; rank < node_.size(); ++rank) {
      const uint32_t local = population[node_[rank]]++;
      port_[rank] = node_[rank] * rails + local % rails;
    }
    nic_shared_ = *std::max_element(population.begin(), population.end()) > rails;
  }

  uint32_t node_count() const { return node_count_; }
  // 0 within a node, 1 across nodes.
  uint32_t level(Rank a, Rank b) const { return node_.empty() || node_[a] == node_[b] ? 0 : 1; }
  // Index of the NIC port; valid only with more than one node.
  uint32_t nic_port(Rank rank) const { return port_[rank]; }
  uint32_t nic_port_count() const { return node_.empty() ? 0 : node_count_ * rails_; }
  // Whether a rail serves several ranks.
  bool nic_shared() const { return nic_shared_; }

 private:
  uint32_t rails_;
  uint32_t node_count_ = 1;
  bool nic_shared_ = false;
  std::vector<uint32_t> node_;
  std::vector<uint32_t> port_;
};

}  // namespace weir::sim
