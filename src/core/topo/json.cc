// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/topo/print.h"

namespace weir::topo {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kPathDeviceCountMax = 512;

Json edge_json(const Edge& edge) {
  Json json = {{"source", name_of(edge.source)}};
  if (edge.source >= Source::kEstimated) json["bandwidth_gbs"] = edge.bandwidth_gbs;
  json["latency_us"] = edge.latency_us;
  return json;
}

const char* name_of_role(BridgeRole role) {
  switch (role) {
    case BridgeRole::kRootPort:
      return "root_port";
    case BridgeRole::kUpstreamPort:
      return "upstream_port";
    case BridgeRole::kDownstreamPort:
      return "downstream_port";
    case BridgeRole::kSwitch:
      return "switch";
  }
  return "switch";
}

Json pci_json(const PciInfo& pci) {
  Json json = {{"address", pci.address.text()},
               {"class", fmt::format("{:06x}", pci.class_code)},
               {"vendor", fmt::format("{:04x}", pci.vendor)},
               {"device", fmt::format("{:04x}", pci.device)}};
  if (pci.speed_gts_max > 0) json["speed_gts_max"] = pci.speed_gts_max;
  if (pci.width_max > 0) json["width_max"] = pci.width_max;
  if (pci.speed_gts_current > 0) json["speed_gts_current"] = pci.speed_gts_current;
  if (pci.width_current > 0) json["width_current"] = pci.width_current;
  return json;
}

Json gpu_json(const GpuInfo& gpu) {
  Json json = {{"index", gpu.index}};
  if (gpu.dev) json["dev"] = *gpu.dev;
  if (gpu.rank) json["rank"] = *gpu.rank;
  if (gpu.compute_capability > 0) json["compute_capability"] = gpu.compute_capability;
  if (!gpu.gcn.empty()) json["gcn"] = gpu.gcn;
  if (!gpu.arch.empty()) json["arch"] = gpu.arch;
  if (!gpu.uuid.empty()) json["uuid"] = gpu.uuid;
  if (gpu.memory_bytes > 0) json["memory_bytes"] = gpu.memory_bytes;
  if (gpu.gdr) json["gdr"] = *gpu.gdr;
  return json;
}

Json nic_json(const NicInfo& nic) {
  Json json = {{"index", nic.index}, {"speed_mbps", nic.speed_mbps()}, {"ports", Json::array()}};
  for (const NetPort& port : nic.ports) {
    Json one = {{"name", port.name},
                {"kind", port.infiniband ? "verbs" : "interface"},
                {"port", port.port},
                {"speed_mbps", port.speed_mbps}};
    if (port.dev) one["dev"] = *port.dev;
    if (port.latency_us) one["latency_us"] = *port.latency_us;
    if (!port.guid.empty()) one["guid"] = port.guid;
    if (port.gdr) one["gdr"] = *port.gdr;
    json["ports"].push_back(std::move(one));
  }
  return json;
}

Json node_json(const Topology& topology, NodeId id) {
  const Node& node = topology.node(id);
  Json json = {{"id", id}, {"kind", name_of(node.kind)}, {"label", topology.label(id)}};
  if (node.parent != kNoNode) {
    json["parent"] = node.parent;
    json["up"] = edge_json(node.up);
  }
  if (!node.name.empty()) json["name"] = node.name;
  if (node.os_index >= 0) json["os_index"] = node.os_index;
  if (!node.cpus.empty()) json["cpus"] = node.cpus.list();
  if (node.memory_bytes > 0) json["memory_bytes"] = node.memory_bytes;
  if (node.cache) json["cache"] = {{"level", node.cache->level}, {"bytes", node.cache->bytes}};
  if (node.cpu) {
    json["cpu"] = {{"arch", node.cpu->arch},
                   {"vendor", node.cpu->vendor},
                   {"model", node.cpu->model},
                   {"family_id", node.cpu->family_id},
                   {"model_id", node.cpu->model_id}};
  }
  if (node.pci) json["pci"] = pci_json(*node.pci);
  if (node.kind == NodeKind::kPciBridge) json["role"] = name_of_role(node.bridge);
  if (node.gpu) json["gpu"] = gpu_json(*node.gpu);
  if (node.nic) json["nic"] = nic_json(*node.nic);
  return json;
}

Json path_json(const Topology& topology, NodeId a, NodeId b) {
  const Path path = find_path(topology, a, b);
  Json json = {{"a", a}, {"b", b}, {"class", name_of(path.path_class)}, {"label", path.label()}};
  if (path.link_count > 0) json["link_count"] = path.link_count;
  if (path.bandwidth_gbs > 0) json["bandwidth_gbs"] = path.bandwidth_gbs;
  json["estimated"] = path.estimated;
  json["latency_us"] = path.latency_us;
  json["way"] = path.way;
  return json;
}

}  // namespace

std::string to_json(const Topology& topology) {
  Json json = {{"format", "weir-topology"},
               {"version", 1},
               {"hash", fmt::format("{:016x}", topology.hash())},
               {"nodes", Json::array()},
               {"links", Json::array()},
               {"paths", Json::array()},
               {"notes", Json::array()}};
  for (NodeId id = 0; id < topology.node_count(); ++id) {
    json["nodes"].push_back(node_json(topology, id));
  }
  for (const Link& link : topology.links()) {
    json["links"].push_back({{"a", link.a},
                             {"b", link.b},
                             {"kind", name_of(link.kind)},
                             {"count", link.count},
                             {"edge", edge_json(link.edge)}});
  }
  std::vector<NodeId> devices = topology.all(NodeKind::kGpu);
  const std::vector<NodeId> nics = topology.all(NodeKind::kNic);
  devices.insert(devices.end(), nics.begin(), nics.end());
  const size_t device_count = devices.size();
  if (device_count > kPathDeviceCountMax) devices.clear();
  for (size_t i = 0; i < devices.size(); ++i) {
    for (size_t j = i + 1; j < devices.size(); ++j) {
      json["paths"].push_back(path_json(topology, devices[i], devices[j]));
    }
  }
  for (const Note& note : topology.notes()) {
    json["notes"].push_back({{"where", note.where}, {"text", note.text}});
  }
  if (device_count > kPathDeviceCountMax) {
    json["notes"].push_back(
        {{"where", "paths"},
         {"text",
          fmt::format("left out: {} GPUs and network cards are more than the {} whose paths "
                      "are listed; weir-topo --path A B shows one",
                      device_count, kPathDeviceCountMax)}});
  }
  // Names come from files and devices: invalid UTF-8 must not stop the output.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace weir::topo
