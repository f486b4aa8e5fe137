// SPDX-License-Identifier: Apache-2.0
#include "core/topo/cluster.h"

#include <fmt/format.h>

namespace weir::topo {
namespace {

// Copies the part of `from` below and including `top` (or all, for kNoNode) under `parent`.
void copy(const Topology& from, NodeId top, Topology* to, NodeId parent) {
  std::vector<NodeId> new_id(from.node_count(), kNoNode);
  for (NodeId id = 0; id < from.node_count(); ++id) {
    const Node& node = from.node(id);
    const bool inside = id == top || (node.parent != kNoNode && new_id[node.parent] != kNoNode);
    if (inside) new_id[id] = to->add(id == top ? parent : new_id[node.parent], node);
  }
  for (Link link : from.links()) {
    link.a = new_id[link.a];
    link.b = new_id[link.b];
    if (link.a != kNoNode && link.b != kNoNode) to->add_link(link);
  }
}

}  // namespace

Result<Topology> join(std::span<const Topology> parts) {
  if (parts.empty()) return invalid_argument("join() needs at least one topology");
  size_t node_count = 1;
  for (const Topology& part : parts) {
    if (part.empty()) return invalid_argument("join() of a topology without nodes");
    node_count += part.node_count();
  }
  if (node_count > kNodeCountMax) {
    return invalid_argument(fmt::format("{} nodes are more than the limit of {} for one topology",
                                        node_count, kNodeCountMax));
  }
  Topology whole;
  Node network;
  network.kind = NodeKind::kNetwork;
  whole.add(kNoNode, network);
  for (const Topology& part : parts) {
    for (const NodeId id : part.all(NodeKind::kMachine)) copy(part, id, &whole, 0);
    for (const Note& note : part.notes()) whole.add_note(note.where, note.text);
  }
  WEIR_RETURN_IF_ERROR(whole.finish());
  return whole;
}

Result<Topology> machine(const Topology& topology, uint32_t index) {
  const std::vector<NodeId> machines = topology.all(NodeKind::kMachine);
  if (index >= machines.size()) {
    return invalid_argument(
        fmt::format("machine {} of {}: the first is 0", index, machines.size()));
  }
  Topology alone;
  copy(topology, machines[index], &alone, kNoNode);
  WEIR_RETURN_IF_ERROR(alone.finish());
  return alone;
}

}  // namespace weir::topo
