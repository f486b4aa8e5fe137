// SPDX-License-Identifier: Apache-2.0
#include "core/cost/memory_ports.h"

#include <map>
#include <utility>

#include "core/topo/estimates.h"

namespace weir::cost {

MemoryLinks usual_memory_links(uint32_t package_link_mbs) {
  const auto ns_per_byte = [](double gbs) { return gbs > 0 ? 1 / gbs : 0; };
  return {.package_ns_per_byte = ns_per_byte(package_link_mbs / 1e3),
          .node_ns_per_byte = ns_per_byte(topo::numa_edge().bandwidth_gbs),
          .memory_ns_per_byte = ns_per_byte(topo::kNumaMemoryGbs)};
}

MemoryPorts::MemoryPorts(const RankLayout& layout, Rank rank_count) : links_(layout.memory_links) {
  if (links_ == MemoryLinks() || layout.spans_hosts()) return;
  if (layout.numa_of_rank.empty() && layout.socket_of_rank.empty()) return;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> known;
  std::map<uint32_t, uint32_t> packages;
  for (Rank rank = 0; rank < rank_count; ++rank) {
    const uint32_t package = layout.socket_of_rank.empty() ? 0 : layout.socket_of_rank[rank];
    const uint32_t numa = layout.numa_of_rank.empty() ? 0 : layout.numa_of_rank[rank];
    const auto [node, is_new] = known.try_emplace({package, numa}, known.size());
    node_of_.push_back(node->second);
    if (!is_new) continue;
    first_of_node_.push_back(rank);
    package_of_node_.push_back(packages.try_emplace(package, packages.size()).first->second);
  }
  node_count_ = static_cast<uint32_t>(known.size());
  // A node that is a whole package has one way to the others.
  if (known.size() == packages.size() && packages.size() > 1) links_.node_ns_per_byte = 0;
  count_ = node_count_ > 1 ? 5 * node_count_ : 0;
}

}  // namespace weir::cost
