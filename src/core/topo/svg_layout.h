// SPDX-License-Identifier: Apache-2.0
// Places the nested boxes of the picture. Internal to core/topo; values, not synchronized.
#pragma once

#include <string>
#include <vector>

#include "core/topo/topology.h"

namespace weir::topo {

struct Box {
  // The nodes that the box represents: one, or several alike.
  std::vector<NodeId> nodes;
  NodeKind kind = NodeKind::kMachine;
  std::vector<std::string> titles;  // the first one is bold
  std::vector<Box> children;        // in one row
  bool card = false;                // a device: fixed height, text inside
  // If true, children are at the upper edge and the titles below them; otherwise the reverse.
  bool flipped = false;
  double x = 0;
  double y = 0;
  double width = 0;
  double height = 0;
};

inline constexpr double kTitleSize = 11;
inline constexpr double kTitleLine = 15;
inline constexpr double kPadding = 7;
inline constexpr double kGap = 7;

// The boxes of a machine's packages, NUMA nodes and other parts, with their sizes.
std::vector<Box> machine_boxes(const Topology& topology, NodeId machine);

// Places a box whose size is known, with at least its own height.
void place(Box* box, double x, double y, double height, bool flipped);

// Collects every card of `box`, where lines can end.
void collect_cards(const Box& box, std::vector<const Box*>* cards);

}  // namespace weir::topo
