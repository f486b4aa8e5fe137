// SPDX-License-Identifier: Apache-2.0
#include "core/graph/device_ways.h"

#include <limits>

#include "core/graph/routes.h"
#include "core/graph/usual_ways.h"

namespace weir::graph {

DeviceWays device_ways(const LinkGraph& graph) {
  Routes routes(graph);
  DeviceWays ways;
  ways.straight_ns_per_byte = straight_ns_per_byte(graph, &routes);
  ways.rings_ns_per_byte = std::numeric_limits<double>::infinity();
  auto found = find_rings(graph, &routes);
  if (!found.ok()) return ways;
  ways.rings = found.take();
  ways.rings_ns_per_byte = ring_ns_per_byte(graph, ways.rings, &routes);
  return ways;
}

}  // namespace weir::graph
