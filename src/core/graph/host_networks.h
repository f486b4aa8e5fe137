// SPDX-License-Identifier: Apache-2.0
// The network of each host in a link graph: the links between its cards and the network, together.
// Pure functions; thread-safe.
#pragma once

#include <span>
#include <vector>

#include "core/graph/link_graph.h"

namespace weir::graph {

// What each host's ranks together can send to others, at most, by the links between its cards and
// the network; kUnlimited: a link without limit. Of each host of the graph.
std::vector<KilobytesPerSecond> network_of_hosts(const LinkGraph& graph);

// The same graph, where the links between the cards of each host and the network are scaled so that
// they have `bandwidth` (of each host) together; kUnlimited: they stay as they are.
LinkGraph with_network_of_hosts(const LinkGraph& graph,
                                std::span<const KilobytesPerSecond> bandwidth);

// A measured bandwidth on a grid of steps of 19 %, so that the same network has the same graph at
// each start, although no two measurements are equal.
KilobytesPerSecond on_grid(double ns_per_byte);

}  // namespace weir::graph
