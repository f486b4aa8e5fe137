// SPDX-License-Identifier: Apache-2.0
#include "core/topo/topology.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <set>

#include "core/topo/estimates.h"
#include "core/topo/fabric.h"

namespace weir::topo {
namespace {

bool same_letters(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](unsigned char x, unsigned char y) {
    return std::tolower(x) == std::tolower(y);
  });
}

bool is_pci_port(const Node& node) {
  return node.kind == NodeKind::kPciBridge &&
         (node.bridge == BridgeRole::kRootPort || node.bridge == BridgeRole::kDownstreamPort);
}

// Devices emulated by a hypervisor have no link (the vendor of virtio).
bool is_virtual(const Node& node) { return node.pci && node.pci->vendor == 0x1af4; }

}  // namespace

double NicInfo::speed_mbps() const {
  // An adapter port appears as a verbs device and as a network interface: the kind with the larger
  // sum gives the bandwidth of the wire.
  double verbs = 0;
  double kernel = 0;
  for (const NetPort& port : ports) (port.infiniband ? verbs : kernel) += port.speed_mbps;
  return std::max(verbs, kernel);
}

NodeId Topology::add(NodeId parent, Node node) {
  WEIR_CHECK(nodes_.size() < kNodeCountMax, "the reader must bound the number of nodes");
  WEIR_CHECK(nodes_.empty() == (parent == kNoNode), "the root, and only the root, has no parent");
  const NodeId id = static_cast<NodeId>(nodes_.size());
  node.parent = parent;
  if (parent == kNoNode) node.up = Edge{};
  node.children.clear();
  nodes_.push_back(std::move(node));
  if (parent != kNoNode) mutable_node(parent).children.push_back(id);
  return id;
}

void Topology::add_link(const Link& link) {
  WEIR_CHECK(link.a < nodes_.size() && link.b < nodes_.size(), "a link needs two nodes");
  WEIR_CHECK(link.a != link.b, "a link joins two different nodes");
  const auto key = std::tuple(std::min(link.a, link.b), std::max(link.a, link.b), link.kind);
  const auto [place, is_new] = link_index_.try_emplace(key, links_.size());
  if (!is_new) {
    Link& old = links_[place->second];
    old.count = std::min(old.count + std::min(link.count, kLinkCountMax), kLinkCountMax);
    old.edge.bandwidth_gbs =
        std::min(old.edge.bandwidth_gbs + link.edge.bandwidth_gbs, kBandwidthMaxGbs);
    old.edge.source = std::min(old.edge.source, link.edge.source);
    return;
  }
  links_at_[link.a].push_back(links_.size());
  links_at_[link.b].push_back(links_.size());
  links_.push_back(link);
  links_.back().count = std::min(link.count, kLinkCountMax);
  links_.back().edge.bandwidth_gbs = std::min(link.edge.bandwidth_gbs, kBandwidthMaxGbs);
}

void Topology::add_note(std::string where, std::string text) {
  notes_.push_back({std::move(where), std::move(text)});
}

Status Topology::finish() {
  if (nodes_.empty()) return invalid_argument("the topology has no nodes");
  number_devices();
  std::map<std::pair<NodeId, NodeKind>, size_t> sibling_counts;
  // The NUMA nodes of a package are siblings, whatever is between.
  const auto group_of = [this](NodeId id) {
    const Node& item = nodes_[id];
    const NodeId package = ancestor(id, NodeKind::kPackage);
    return std::pair(item.kind == NodeKind::kNuma && package != kNoNode ? package : item.parent,
                     item.kind);
  };
  for (NodeId id = 0; id < nodes_.size(); ++id) ++sibling_counts[group_of(id)];
  for (NodeId id = 0; id < nodes_.size(); ++id) {
    Node& item = nodes_[id];
    if (item.parent == kNoNode || item.up.source != Source::kUnknown) continue;
    const size_t siblings = sibling_counts[group_of(id)];
    switch (item.kind) {
      case NodeKind::kPackage:
        item.up = siblings > 1 ? socket_edge(item.cpu.value_or(CpuInfo{})) : internal_edge();
        break;
      case NodeKind::kNuma:
        if (siblings == 1) {
          item.up = internal_edge();
        } else if (ancestor(id, NodeKind::kPackage) != kNoNode) {
          item.up = numa_edge();
        } else {
          item.up = socket_edge(item.cpu.value_or(CpuInfo{}));
        }
        break;
      case NodeKind::kPciBridge:
      case NodeKind::kGpu:
      case NodeKind::kNic:
      case NodeKind::kNvSwitch:
        if (is_pci_port(item) || !item.pci) {
          item.up = internal_edge();
        } else if (!is_virtual(item)) {
          item.up = pcie_edge_unknown();
        }
        break;
      case NodeKind::kPciDevice:
        break;
      default:
        item.up = internal_edge();
    }
  }
  WEIR_RETURN_IF_ERROR(check());
  join_switch_groups(this);
  return Status();
}

void Topology::number_devices() {
  std::map<std::pair<NodeId, NodeKind>, std::vector<NodeId>> groups;
  for (NodeId id = 0; id < nodes_.size(); ++id) {
    const NodeKind kind = nodes_[id].kind;
    if (kind == NodeKind::kGpu || kind == NodeKind::kNic || kind == NodeKind::kNvSwitch) {
      groups[{machine_of(id), kind}].push_back(id);
    }
  }
  for (auto& [key, ids] : groups) {
    // The order of PCI addresses, as in vendors' tools; devices outside PCI come last.
    std::stable_sort(ids.begin(), ids.end(), [this](NodeId a, NodeId b) {
      const Node& x = nodes_[a];
      const Node& y = nodes_[b];
      if (x.pci.has_value() != y.pci.has_value()) return x.pci.has_value();
      return x.pci && x.pci->address < y.pci->address;
    });
    // Given numbers are used only when they are different for all devices.
    std::set<int32_t> given;
    for (const NodeId id : ids) {
      const Node& node = nodes_[id];
      std::optional<int32_t> dev;
      if (node.gpu) dev = node.gpu->dev;
      if (node.nic && node.nic->ports.size() == 1) dev = node.nic->ports[0].dev;
      if (dev) given.insert(*dev);
    }
    const bool use_given = given.size() == ids.size();
    uint32_t next = 0;
    for (const NodeId id : ids) {
      Node& node = nodes_[id];
      if (node.gpu) node.gpu->index = use_given ? static_cast<uint32_t>(*node.gpu->dev) : next;
      if (node.nic) {
        node.nic->index = use_given ? static_cast<uint32_t>(*node.nic->ports[0].dev) : next;
      }
      if (node.kind == NodeKind::kNvSwitch) node.os_index = static_cast<int32_t>(next);
      ++next;
    }
  }
}

Status Topology::check() const {
  std::map<std::pair<NodeId, PciAddress>, NodeId> addresses;
  std::map<std::pair<NodeId, int32_t>, NodeId> numbers;
  for (NodeId id = 0; id < nodes_.size(); ++id) {
    const Node& item = nodes_[id];
    WEIR_CHECK((item.kind == NodeKind::kGpu) == item.gpu.has_value(), "a GPU node needs GpuInfo");
    WEIR_CHECK((item.kind == NodeKind::kNic) == item.nic.has_value(), "a NIC node needs NicInfo");
    const NodeId machine = machine_of(id);
    if (item.pci && !addresses.try_emplace({machine, item.pci->address}, id).second) {
      return invalid_argument(
          fmt::format("two devices have the PCI address {}", item.pci->address.text()));
    }
    if (item.kind == NodeKind::kNuma && !numbers.try_emplace({machine, item.os_index}, id).second) {
      return invalid_argument(fmt::format("two NUMA nodes have the number {}", item.os_index));
    }
  }
  return Status();
}

const Node& Topology::node(NodeId id) const {
  WEIR_CHECK(id < nodes_.size(), "node id out of range");
  return nodes_[id];
}

const std::vector<size_t>& Topology::links_of(NodeId id) const {
  static const std::vector<size_t> kNone;
  const auto found = links_at_.find(id);
  return found == links_at_.end() ? kNone : found->second;
}

Node& Topology::mutable_node(NodeId id) {
  WEIR_CHECK(id < nodes_.size(), "node id out of range");
  return nodes_[id];
}

std::vector<NodeId> Topology::all(NodeKind kind) const {
  std::vector<NodeId> ids;
  for (NodeId id = 0; id < nodes_.size(); ++id) {
    if (nodes_[id].kind == kind) ids.push_back(id);
  }
  const auto number = [this](NodeId id) {
    const Node& item = nodes_[id];
    const uint32_t index = item.gpu ? item.gpu->index : item.nic ? item.nic->index : 0;
    return std::pair(machine_of(id), index);
  };
  if (kind == NodeKind::kGpu || kind == NodeKind::kNic) {
    std::stable_sort(ids.begin(), ids.end(),
                     [&](NodeId a, NodeId b) { return number(a) < number(b); });
  } else if (kind == NodeKind::kNvSwitch) {
    std::stable_sort(ids.begin(), ids.end(), [&](NodeId a, NodeId b) {
      return std::pair(machine_of(a), nodes_[a].os_index) <
             std::pair(machine_of(b), nodes_[b].os_index);
    });
  }
  return ids;
}

size_t Topology::count(NodeKind kind) const {
  return static_cast<size_t>(std::count_if(nodes_.begin(), nodes_.end(),
                                           [&](const Node& item) { return item.kind == kind; }));
}

NodeId Topology::ancestor(NodeId id, NodeKind kind) const {
  while (id != kNoNode && node(id).kind != kind) id = node(id).parent;
  return id;
}

int32_t Topology::numa_of(NodeId id) const {
  const NodeId numa = ancestor(id, NodeKind::kNuma);
  if (numa != kNoNode) return node(numa).os_index;
  // A device near no NUMA node in particular is near the only one.
  const NodeId machine = machine_of(id);
  int32_t only = -1;
  for (NodeId other = 0; other < nodes_.size(); ++other) {
    if (nodes_[other].kind != NodeKind::kNuma || machine_of(other) != machine) continue;
    if (only >= 0) return -1;
    only = nodes_[other].os_index;
  }
  return only;
}

const CpuSet& Topology::cpus_near(NodeId id) const {
  static const CpuSet kNone;
  while (id != kNoNode && node(id).cpus.empty()) id = node(id).parent;
  return id == kNoNode ? kNone : node(id).cpus;
}

std::string Topology::label(NodeId id) const {
  const Node& item = node(id);
  std::string text;
  switch (item.kind) {
    case NodeKind::kNetwork:
      return "network";
    case NodeKind::kMachine: {
      const std::vector<NodeId> machines = all(NodeKind::kMachine);
      const auto place = std::find(machines.begin(), machines.end(), id) - machines.begin();
      return machines.size() == 1 ? "machine" : fmt::format("M{}", place);
    }
    case NodeKind::kPackage:
      text = fmt::format("package {}", item.os_index);
      break;
    case NodeKind::kNuma:
      text = fmt::format("NUMA{}", item.os_index);
      break;
    case NodeKind::kCache:
      text = fmt::format("L{} of CPUs {}", item.cache ? item.cache->level : 0, item.cpus.list());
      break;
    case NodeKind::kCore:
      text = fmt::format("core of CPUs {}", item.cpus.list());
      break;
    case NodeKind::kGpu:
      text = fmt::format("GPU{}", item.gpu->index);
      break;
    case NodeKind::kNic:
      text = fmt::format("NIC{}", item.nic->index);
      break;
    case NodeKind::kNvSwitch:
      text = fmt::format("NVS{}", item.os_index);
      break;
    case NodeKind::kRootComplex:
      text = item.name.empty() ? "root complex" : "root complex " + item.name;
      break;
    case NodeKind::kPciBridge:
    case NodeKind::kPciDevice:
      text = item.pci ? item.pci->address.text() : "device";
      break;
  }
  if (nodes_[0].kind != NodeKind::kNetwork) return text;
  const NodeId machine = machine_of(id);
  return machine == kNoNode ? text : label(machine) + "." + text;
}

Result<NodeId> Topology::find(std::string_view text) const {
  std::string_view local = text;
  NodeId machine = kNoNode;
  if (nodes_.empty()) return invalid_argument("the topology has no nodes");
  if (nodes_[0].kind == NodeKind::kNetwork) {
    for (const NodeId id : nodes_[0].children) {
      const std::string prefix = label(id) + ".";
      if (text.size() <= prefix.size() || !same_letters(text.substr(0, prefix.size()), prefix)) {
        continue;
      }
      machine = id;
      local = text.substr(prefix.size());
    }
  }
  const std::optional<PciAddress> address = PciAddress::parse(local);
  std::vector<NodeId> matches;
  for (NodeId id = 0; id < nodes_.size(); ++id) {
    const Node& item = nodes_[id];
    if (item.kind == NodeKind::kCache || item.kind == NodeKind::kCore) continue;
    if (machine != kNoNode && machine_of(id) != machine) continue;
    std::string own = label(id);
    if (nodes_[0].kind == NodeKind::kNetwork) own = own.substr(own.find('.') + 1);
    bool match = same_letters(local, own) || (address && item.pci && item.pci->address == *address);
    if (item.gpu && !item.gpu->uuid.empty()) match = match || same_letters(local, item.gpu->uuid);
    if (item.nic) {
      for (const NetPort& port : item.nic->ports) match = match || same_letters(local, port.name);
    }
    if (match) matches.push_back(id);
  }
  if (matches.size() == 1) return matches[0];
  std::string known;
  if (matches.empty()) {
    for (const NodeKind kind :
         {NodeKind::kGpu, NodeKind::kNic, NodeKind::kNvSwitch, NodeKind::kNuma}) {
      const std::vector<NodeId> ids = all(kind);
      for (size_t i = 0; i < ids.size() && i < 4; ++i) {
        known += (known.empty() ? "" : ", ") + label(ids[i]);
      }
      if (ids.size() > 4) known += fmt::format(", … {}", label(ids.back()));
    }
    return invalid_argument(
        fmt::format("no device \"{}\"; there are {}, PCI addresses, and the names "
                    "of network ports",
                    text.substr(0, 80), known));
  }
  for (const NodeId id : matches) known += (known.empty() ? "" : ", ") + label(id);
  return invalid_argument(
      fmt::format("\"{}\" names several devices: {}", text.substr(0, 80), known));
}

const char* name_of(NodeKind kind) {
  switch (kind) {
    case NodeKind::kNetwork:
      return "network";
    case NodeKind::kMachine:
      return "machine";
    case NodeKind::kPackage:
      return "package";
    case NodeKind::kNuma:
      return "numa";
    case NodeKind::kCache:
      return "cache";
    case NodeKind::kCore:
      return "core";
    case NodeKind::kRootComplex:
      return "root_complex";
    case NodeKind::kPciBridge:
      return "pci_bridge";
    case NodeKind::kGpu:
      return "gpu";
    case NodeKind::kNic:
      return "nic";
    case NodeKind::kNvSwitch:
      return "nvswitch";
    case NodeKind::kPciDevice:
      return "pci_device";
  }
  return "unknown";
}

const char* name_of(LinkKind kind) {
  switch (kind) {
    case LinkKind::kNvlink:
      return "nvlink";
    case LinkKind::kXgmi:
      return "xgmi";
    case LinkKind::kXelink:
      return "xelink";
    case LinkKind::kC2c:
      return "c2c";
  }
  return "unknown";
}

const char* name_of(Source source) {
  switch (source) {
    case Source::kUnknown:
      return "unknown";
    case Source::kNoLimit:
      return "no_limit";
    case Source::kEstimated:
      return "estimated";
    case Source::kStated:
      return "stated";
  }
  return "unknown";
}

}  // namespace weir::topo
