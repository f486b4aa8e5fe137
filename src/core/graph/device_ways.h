// SPDX-License-Identifier: Apache-2.0
// How the links between the devices of one machine carry a collective: when each rank reads from
// all others at once, and when data go along rings that were found for the machine. Pure
// functions; thread-safe.
#pragma once

#include <string>

#include "core/graph/link_graph.h"
#include "core/graph/rings.h"

namespace weir::graph {

struct DeviceWays {
  // Of an all-gather, for each byte of all blocks together, as spread_ns_per_byte (forest_load.h);
  // infinite: some rank does not reach another one so.
  double straight_ns_per_byte = 0;
  double rings_ns_per_byte = 0;
  Rings rings;  // empty: none was found

  // By more than they cost in further steps, if the data are large.
  bool rings_are_faster() const { return rings_ns_per_byte * kRingsFaster < straight_ns_per_byte; }
  static constexpr double kRingsFaster = 1.1;
};

// Of a graph with two ranks or more.
DeviceWays device_ways(const LinkGraph& graph);

// "; collectives on device memory: along 3 rings, …"; "": rings are not faster.
std::string describe(const DeviceWays& ways);

}  // namespace weir::graph
