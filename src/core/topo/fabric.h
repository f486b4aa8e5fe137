// SPDX-License-Identifier: Apache-2.0
// The links between accelerators as a flow network: the bandwidth of two nodes through NVSwitches.
// Internal to core/topo; the caller excludes concurrent changes.
#pragma once

#include <vector>

#include "core/topo/topology.h"

namespace weir::topo {

struct FabricRoute {
  double bandwidth_gbs = 0;  // greatest flow from a to b
  double latency_us = 0;     // of `way`
  bool estimated = false;
  uint32_t link_count = 0;  // links of `a` that carry flow
  std::vector<NodeId> way;  // the shortest path, through switches only; empty: none
};

// Only NVSwitches may lie between a and b (shortest augmenting paths, Edmonds and Karp 1972).
FabricRoute route_through_switches(const Topology& topology, NodeId a, NodeId b);

// No driver reports the links between NVSwitches. Where a machine's switches form groups without
// links between them, adds estimated links as wide as those from the switches to their GPUs, which
// is how machines with several groups are built, and leaves a note.
void join_switch_groups(Topology* topology);

}  // namespace weir::topo
