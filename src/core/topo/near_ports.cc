// SPDX-License-Identifier: Apache-2.0
#include "core/topo/near_ports.h"

#include <fmt/format.h>

#include <algorithm>

namespace weir::topo {
namespace {

constexpr double kSlowPart = 2;

const char* words_of(PathClass path_class) {
  switch (path_class) {
    case PathClass::kPix:
      return "same PCIe switch as";
    case PathClass::kPxb:
      return "same tree of PCIe switches as";
    case PathClass::kPhb:
      return "same host bridge as";
    case PathClass::kNode:
      return "same NUMA node as";
    default:
      return "other NUMA node than";
  }
}

struct Port {
  std::string name;
  NodeId nic = kNoNode;
  double speed_mbps = 0;
};

NodeId nic_of(const Topology& topology, const PortName& port) {
  for (const std::string& text : {port.name, port.address}) {
    if (text.empty()) continue;
    const auto found = topology.find(text);
    if (found.ok() && topology.node(found.value()).kind == NodeKind::kNic) return found.value();
  }
  return kNoNode;
}

double speed_of(const Node& nic, const std::string& name) {
  for (const NetPort& port : nic.nic->ports) {
    if (port.name == name && port.speed_mbps > 0) return port.speed_mbps;
  }
  return 0;
}

// The device, or the NUMA nodes on which the rank may run; without either, the machine's packages.
std::vector<NodeId> places_of(const Topology& topology, const RankPlace& place) {
  if (!place.device.empty()) {
    const auto found = topology.find(place.device);
    if (found.ok() && topology.node(found.value()).kind == NodeKind::kGpu) return {found.value()};
  }
  for (const NodeKind kind : {NodeKind::kNuma, NodeKind::kPackage}) {
    std::vector<NodeId> found;
    for (const NodeId id : topology.all(kind)) {
      if (place.cpus.intersects(topology.node(id).cpus)) found.push_back(id);
    }
    if (!found.empty()) return found;
  }
  return {};
}

std::string name_places(const Topology& topology, const std::vector<NodeId>& places) {
  if (places.empty()) return "";
  std::string first = topology.label(places.front());
  if (places.size() == 1) return first;
  return fmt::format("{} to {}", first, topology.label(places.back()));
}

}  // namespace

std::string NearPorts::describe() const {
  if (path_class == PathClass::kNone || from.empty()) return "";
  Path path;
  path.path_class = path_class;
  return fmt::format("{} {} ({})", words_of(path_class), from, path.label());
}

NearPorts nearest_ports(const Topology& topology, const RankPlace& place,
                        const std::vector<PortName>& all) {
  NearPorts near;
  std::vector<Port> ports;
  double fastest = 0;
  for (const PortName& port : all) {
    near.names.push_back(port.name);
    const NodeId nic = nic_of(topology, port);
    if (nic == kNoNode) continue;
    ports.push_back({port.name, nic, speed_of(topology.node(nic), port.name)});
    fastest = std::max(fastest, ports.back().speed_mbps);
  }
  std::erase_if(ports, [&](const Port& port) {
    return port.speed_mbps > 0 && port.speed_mbps * kSlowPart < fastest;
  });
  const std::vector<NodeId> places = places_of(topology, place);
  if (ports.empty() || places.empty()) return near;
  near.names.clear();
  near.from = name_places(topology, places);
  for (const Port& port : ports) {
    PathClass best = PathClass::kNone;
    for (const NodeId id : places) {
      best = std::min(best, find_path(topology, id, port.nic).path_class);
    }
    if (best > near.path_class) continue;
    if (best < near.path_class) near.names.clear();
    near.path_class = best;
    near.names.push_back(port.name);
  }
  return near;
}

std::vector<std::string> share_of_ports(const std::vector<std::string>& names, size_t turn,
                                        size_t sharer_count) {
  if (names.empty()) return {};
  if (sharer_count >= names.size()) return {names[turn % names.size()]};
  std::vector<std::string> mine;
  for (size_t i = turn; i < names.size(); i += sharer_count) mine.push_back(names[i]);
  return mine;
}

}  // namespace weir::topo
