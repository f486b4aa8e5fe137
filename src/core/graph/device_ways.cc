// SPDX-License-Identifier: Apache-2.0
#include "core/graph/device_ways.h"

#include <fmt/format.h>

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

std::string describe(const DeviceWays& ways) {
  if (!ways.rings_are_faster()) return "";
  return fmt::format(
      "; collectives on device memory: along {} rings, by the links alone, takes {:.2f} of the "
      "time of straight from all others",
      ways.rings.orders.size(), ways.rings_ns_per_byte / ways.straight_ns_per_byte);
}

}  // namespace weir::graph
