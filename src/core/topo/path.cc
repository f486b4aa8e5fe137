// SPDX-License-Identifier: Apache-2.0
#include "core/topo/path.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/topo/estimates.h"
#include "core/topo/fabric.h"

namespace weir::topo {
namespace {

void pass(Path& path, const Edge& edge) {
  path.latency_us += edge.latency_us;
  if (edge.source == Source::kNoLimit) return;
  path.estimated = path.estimated || edge.source != Source::kStated;
  if (edge.source == Source::kUnknown || edge.bandwidth_gbs <= 0) return;
  if (path.bandwidth_gbs == 0 || edge.bandwidth_gbs < path.bandwidth_gbs) {
    path.bandwidth_gbs = edge.bandwidth_gbs;
  }
}

std::vector<NodeId> to_root(const Topology& topology, NodeId id) {
  std::vector<NodeId> way;
  for (; id != kNoNode; id = topology.node(id).parent) way.push_back(id);
  return way;
}

bool is_switch(const Node& node) {
  return node.kind == NodeKind::kPciBridge &&
         (node.bridge == BridgeRole::kSwitch || node.bridge == BridgeRole::kUpstreamPort);
}

// Where a link to "the CPU" may end.
bool is_cpu_side(const Node& node) {
  return node.kind == NodeKind::kMachine || node.kind == NodeKind::kPackage ||
         node.kind == NodeKind::kNuma;
}

PathClass classify(const Topology& topology, const Path& path, NodeId meeting) {
  if (path.way.size() == 1) return PathClass::kSelf;
  size_t switches = 0;
  size_t numa_nodes = 0;
  for (const NodeId id : path.way) {
    switches += is_switch(topology.node(id)) ? 1 : 0;
    numa_nodes += topology.node(id).kind == NodeKind::kNuma ? 1 : 0;
  }
  switch (topology.node(meeting).kind) {
    case NodeKind::kPciBridge:
    case NodeKind::kGpu:
    case NodeKind::kNic:
    case NodeKind::kNvSwitch:
    case NodeKind::kPciDevice:
      return switches <= 1 ? PathClass::kPix : PathClass::kPxb;
    case NodeKind::kRootComplex:
      return PathClass::kPhb;
    case NodeKind::kNuma:
    case NodeKind::kCache:
    case NodeKind::kCore:
      // Two NUMA nodes below one cache are still two.
      if (topology.node(meeting).kind != NodeKind::kNuma && numa_nodes > 1) {
        return PathClass::kSystem;
      }
      // A device and its own NUMA node: only the root complex lies between.
      return meeting == path.way.front() || meeting == path.way.back() ? PathClass::kPhb
                                                                       : PathClass::kNode;
    default:
      // Where NUMA nodes are unknown, nothing shows that a boundary was crossed.
      return numa_nodes == 0 && topology.node(meeting).kind != NodeKind::kNetwork
                 ? PathClass::kNode
                 : PathClass::kSystem;
  }
}

// Up the tree from a, and down to b, without a class. In the same machine.
Path tree_path(const Topology& topology, NodeId a, NodeId b, NodeId* top) {
  std::vector<NodeId> up = to_root(topology, a);
  std::vector<NodeId> down = to_root(topology, b);
  NodeId meeting = up.back();
  while (!up.empty() && !down.empty() && up.back() == down.back()) {
    meeting = up.back();
    up.pop_back();
    down.pop_back();
  }
  Path path;
  for (const NodeId id : up) pass(path, topology.node(id).up);
  for (const NodeId id : down) pass(path, topology.node(id).up);
  path.way = std::move(up);
  path.way.push_back(meeting);
  path.way.insert(path.way.end(), down.rbegin(), down.rend());
  *top = meeting;
  return path;
}

// Whether `x` is the better path to the same place.
bool better(const Path& x, const Path& y) {
  if (x.path_class != y.path_class) return x.path_class < y.path_class;
  return x.bandwidth_gbs > y.bandwidth_gbs;
}

// How a device leaves towards the CPU: by the tree (no link), or by a link of its own to a CPU.
std::vector<const Link*> exits(const Topology& topology, NodeId id) {
  std::vector<const Link*> all{nullptr};
  for (const size_t i : topology.links_of(id)) {
    const Link& link = topology.links()[i];
    if (is_cpu_side(topology.node(link.a == id ? link.b : link.a))) all.push_back(&link);
  }
  return all;
}

NodeId far_end(const Link* link, NodeId id) {
  if (link == nullptr) return id;
  return link->a == id ? link->b : link->a;
}

// From a to b by these exits, both of which may be missing; they meet in the tree.
Path path_by(const Topology& topology, NodeId a, const Link* from_a, NodeId b, const Link* from_b) {
  NodeId meeting = kNoNode;
  Path path = tree_path(topology, far_end(from_a, a), far_end(from_b, b), &meeting);
  if (from_a != nullptr) {
    pass(path, from_a->edge);
    path.way.insert(path.way.begin(), a);
  }
  if (from_b != nullptr) {
    pass(path, from_b->edge);
    path.way.push_back(b);
  }
  path.path_class = classify(topology, path, meeting);
  return path;
}

// In the same machine, without links between accelerators: through the tree, or where it is better
// through the links that a device has to a CPU.
Path local_path(const Topology& topology, NodeId a, NodeId b, const PathOptions& options) {
  Path best = path_by(topology, a, nullptr, b, nullptr);
  if (!options.accelerator_links) return best;
  for (const Link* from_a : exits(topology, a)) {
    for (const Link* from_b : exits(topology, b)) {
      if (from_a == nullptr && from_b == nullptr) continue;
      // The link between a CPU and its own device is no way out of either.
      if (far_end(from_a, a) == b || far_end(from_b, b) == a) continue;
      Path path = path_by(topology, a, from_a, b, from_b);
      if (better(path, best)) best = std::move(path);
    }
  }
  return best;
}

// The path from `id` to the best NIC of its machine, and on to the network. `way` is empty when the
// machine has no NIC.
Path to_network(const Topology& topology, NodeId id, const PathOptions& options) {
  Path best;
  const NodeId machine = topology.machine_of(id);
  if (machine == kNoNode) {
    best.way.push_back(id);  // the network itself
    return best;
  }
  double best_limit_gbs = 0;
  for (const NodeId nic : topology.all(NodeKind::kNic)) {
    if (topology.machine_of(nic) != machine) continue;
    if (topology.node(id).kind == NodeKind::kNic && nic != id) continue;
    Path path = local_path(topology, id, nic, options);
    const double limit_gbs = network_edge(*topology.node(nic).nic).bandwidth_gbs;
    if (!best.way.empty() && !better(path, best) &&
        !(path.path_class == best.path_class && limit_gbs > best_limit_gbs)) {
      continue;
    }
    best = std::move(path);
    best_limit_gbs = limit_gbs;
  }
  if (!best.way.empty()) pass(best, network_edge(*topology.node(best.way.back()).nic));
  return best;
}

Path network_path(const Topology& topology, NodeId a, NodeId b, const PathOptions& options) {
  Path path = to_network(topology, a, options);
  Path other = to_network(topology, b, options);
  if (path.way.empty() || other.way.empty()) return Path();
  path.path_class = PathClass::kNetwork;
  path.estimated = path.estimated || other.estimated;
  path.latency_us += other.latency_us;
  if (path.bandwidth_gbs == 0 ||
      (other.bandwidth_gbs > 0 && other.bandwidth_gbs < path.bandwidth_gbs)) {
    path.bandwidth_gbs = other.bandwidth_gbs;
  }
  if (path.way.back() != 0 && other.way.back() != 0) path.way.push_back(0);
  path.way.insert(path.way.end(), other.way.rbegin(), other.way.rend());
  return path;
}

}  // namespace

std::string Path::label() const {
  switch (path_class) {
    case PathClass::kSelf:
      return "X";
    case PathClass::kLink:
      return fmt::format("{}{}",
                         link_kind == LinkKind::kXgmi     ? "XG"
                         : link_kind == LinkKind::kXelink ? "XL"
                         : link_kind == LinkKind::kC2c    ? "C2C"
                                                          : "NV",
                         link_count);
    case PathClass::kNvSwitch:
      return fmt::format("NVS{}", link_count);
    case PathClass::kPix:
      return "PIX";
    case PathClass::kPxb:
      return "PXB";
    case PathClass::kPhb:
      return "PHB";
    case PathClass::kNode:
      return "NODE";
    case PathClass::kSystem:
      return "SYS";
    case PathClass::kNetwork:
      return "NET";
    case PathClass::kNone:
      return "-";
  }
  return "-";
}

Path find_path(const Topology& topology, NodeId a, NodeId b, const PathOptions& options) {
  WEIR_CHECK(a < topology.node_count() && b < topology.node_count(), "node id out of range");
  if (a == b) {
    Path path;
    path.path_class = PathClass::kSelf;
    path.way = {a};
    return path;
  }
  const bool one_machine = topology.machine_of(a) == topology.machine_of(b);
  if (options.accelerator_links) {
    for (const size_t i : topology.links_of(a)) {
      const Link& link = topology.links()[i];
      if (link.a != b && link.b != b) continue;
      Path path;
      pass(path, link.edge);
      path.path_class = PathClass::kLink;
      path.link_kind = link.kind;
      path.link_count = link.count;
      path.way = {a, b};
      return path;
    }
    FabricRoute route = route_through_switches(topology, a, b);
    if (!route.way.empty()) {
      Path path;
      path.path_class = PathClass::kNvSwitch;
      path.link_count = route.link_count;
      path.bandwidth_gbs = route.bandwidth_gbs;
      path.estimated = route.estimated;
      path.latency_us = route.latency_us;
      path.way = std::move(route.way);
      return path;
    }
  }
  return one_machine ? local_path(topology, a, b, options) : network_path(topology, a, b, options);
}

const char* name_of(PathClass path_class) {
  switch (path_class) {
    case PathClass::kSelf:
      return "self";
    case PathClass::kLink:
      return "link";
    case PathClass::kNvSwitch:
      return "nvswitch";
    case PathClass::kPix:
      return "pix";
    case PathClass::kPxb:
      return "pxb";
    case PathClass::kPhb:
      return "phb";
    case PathClass::kNode:
      return "node";
    case PathClass::kSystem:
      return "sys";
    case PathClass::kNetwork:
      return "network";
    case PathClass::kNone:
      return "none";
  }
  return "none";
}

}  // namespace weir::topo
