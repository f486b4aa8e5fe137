// SPDX-License-Identifier: Apache-2.0
// Places the vertices of a link graph for the picture. Internal to core/sim; values, not
// synchronized.
#pragma once

#include <cstdint>
#include <vector>

#include "core/graph/link_graph.h"

namespace weir::sim {

struct PlacedVertex {
  graph::VertexId vertex = graph::kNone;
  double x = 0;
  double y = 0;
  double width = 0;
  double height = 0;
  // A bar that links end in where they meet it, instead of in its middle.
  bool is_bar = false;

  double middle() const { return x + width / 2; }
};

struct PlacedHost {
  uint32_t host = 0;
  double x = 0;
  double y = 0;
  double width = 0;
  double height = 0;
  bool flipped = false;  // the network is above it, and its name below its vertices
  std::vector<PlacedVertex> vertices;
};

struct MachineLayout {
  std::vector<PlacedHost> hosts;
  std::vector<PlacedVertex> networks;  // vertices of no host
  double width = 0;
  double height = 0;
  uint32_t hosts_left_out = 0;
};

inline constexpr double kVertexWidth = 62;
inline constexpr double kVertexHeight = 32;
// Of the lines between vertices of one row: ranks, and others.
inline constexpr double kArcDepth = 80;
inline constexpr double kUpperArcDepth = 40;

// The first hosts that fit into `width_max`, at least two: half of them above the network and half
// below, or all in one row where they fit. The rows of a host from the far side to the network:
// switches of accelerators, memory and PCIe, ranks (with the cards that hang from PCIe), cards that
// hang from ranks.
MachineLayout lay_out(const graph::LinkGraph& graph, double width_max);

}  // namespace weir::sim
