// SPDX-License-Identifier: Apache-2.0
#include "core/topo/sysfs.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <set>

#include "core/topo/estimates.h"
#include "core/topo/sysfs_files.h"

namespace weir::topo {
namespace {

namespace fs = std::filesystem;

constexpr double kSpeedMaxMbps = 1e8;

double read_number(const fs::path& path) {
  const std::string line = read_line(path);
  double value = 0;
  const auto [end, failure] = std::from_chars(line.data(), line.data() + line.size(), value);
  return failure == std::errc() && std::isfinite(value) ? value : 0;
}

uint32_t read_width(const fs::path& path) {
  const double width = read_number(path);
  return width >= 1 && width <= 32 && pcie_bandwidth_gbs(2.5, static_cast<uint32_t>(width)) > 0
             ? static_cast<uint32_t>(width)
             : 0;
}

double smaller_known(double a, double b) {
  if (a <= 0) return b;
  return b <= 0 ? a : std::min(a, b);
}

class Enricher {
 public:
  Enricher(fs::path root, Topology* topology) : root_(std::move(root)), topology_(*topology) {}

  void run() {
    for (NodeId id = 0; id < topology_.node_count(); ++id) {
      if (topology_.node(id).pci) read_link(id);
    }
    for (NodeId id = 0; id < topology_.node_count(); ++id) {
      if (topology_.node(id).nic) read_nic(id);
    }
    add_other_interfaces();
  }

 private:
  fs::path device(const PciAddress& address) const {
    return root_ / "bus/pci/devices" / address.text();
  }

  void read_link(NodeId id) {
    Node& node = topology_.mutable_node(id);
    PciInfo& pci = *node.pci;
    const fs::path folder = device(pci.address);
    const double speed_max = parse_pcie_speed_gts(read_line(folder / "max_link_speed"));
    const double speed_now = parse_pcie_speed_gts(read_line(folder / "current_link_speed"));
    const uint32_t width_max = read_width(folder / "max_link_width");
    const uint32_t width_now = read_width(folder / "current_link_width");
    if (speed_now > 0) pci.speed_gts_current = speed_now;
    if (width_now > 0) pci.width_current = width_now;
    if (speed_max <= 0 || width_max == 0) return;
    pci.speed_gts_max = speed_max;
    pci.width_max = width_max;
    const bool port = node.kind == NodeKind::kPciBridge &&
                      node.bridge != BridgeRole::kUpstreamPort &&
                      node.bridge != BridgeRole::kSwitch;
    if (port) return;  // its figures are those of the link below
    // A link runs at the speed that both of its ends support. Parents come first.
    double speed_gts = speed_max;
    uint32_t width = width_max;
    const Node& above = topology_.node(node.parent);
    if (above.kind == NodeKind::kPciBridge) {
      speed_gts = smaller_known(speed_gts, above.pci->speed_gts_max);
      if (above.pci->width_max > 0) width = std::min(width, above.pci->width_max);
    }
    if (width_now > 0 && width_now < width) {
      topology_.add_note(folder.string(), fmt::format("PCIe link of {} runs on {} of {} lanes",
                                                      pci.address.text(), width_now, width));
      width = width_now;
    }
    const double bandwidth_gbs = pcie_bandwidth_gbs(speed_gts, width);
    if (bandwidth_gbs > 0) node.up = pcie_edge(bandwidth_gbs);
  }

  void read_nic(NodeId id) {
    Node& node = topology_.mutable_node(id);
    if (node.pci) {
      const fs::path folder = device(node.pci->address);
      add_names(entries(folder / "infiniband"), true, &*node.nic);
      add_names(entries(folder / "net"), false, &*node.nic);
    }
    std::vector<NetPort> ports;
    for (NetPort& port : node.nic->ports) {
      seen_.insert(port.name);
      if (port.infiniband) {
        read_verbs(port, &ports);
      } else {
        const double speed = read_number(root_ / "class/net" / port.name / "speed");
        if (speed > 0 && speed < kSpeedMaxMbps) port.speed_mbps = speed;
        ports.push_back(std::move(port));
      }
    }
    node.nic->ports = std::move(ports);
  }

  static void add_names(const std::vector<std::string>& names, bool infiniband, NicInfo* nic) {
    for (const std::string& name : names) {
      const bool known = std::any_of(nic->ports.begin(), nic->ports.end(),
                                     [&](const NetPort& port) { return port.name == name; });
      if (known) continue;
      NetPort port;
      port.name = name;
      port.infiniband = infiniband;
      nic->ports.push_back(std::move(port));
    }
  }

  // One entry for each physical port of a verbs device.
  void read_verbs(const NetPort& nameless, std::vector<NetPort>* ports) const {
    const fs::path folder = root_ / "class/infiniband" / nameless.name;
    bool any = false;
    for (const std::string& number : entries(folder / "ports")) {
      NetPort port = nameless;
      uint32_t value = 0;
      std::from_chars(number.data(), number.data() + number.size(), value);
      port.port = value;
      // "200 Gb/sec (4X HDR)"
      const double rate_gbps = read_number(folder / "ports" / number / "rate");
      const std::string state = read_line(folder / "ports" / number / "state");
      const bool down = state.find("DOWN") != std::string::npos;
      if (rate_gbps > 0 && rate_gbps * 1000 < kSpeedMaxMbps && !down) {
        port.speed_mbps = rate_gbps * 1000;
      }
      if (port.guid.empty()) port.guid = read_line(folder / "node_guid");
      ports->push_back(std::move(port));
      any = true;
    }
    if (!any) ports->push_back(nameless);
  }

  // Interfaces that are up and lead to a network but are not on a PCI device: the virtual adapter
  // of a container or of a cloud's hypervisor bus.
  void add_other_interfaces() {
    constexpr double kEthernet = 1;  // ARPHRD_ETHER
    for (const std::string& name : entries(root_ / "class/net")) {
      const fs::path folder = root_ / "class/net" / name;
      if (seen_.contains(name) || read_number(folder / "type") != kEthernet) continue;
      std::error_code error;
      const bool has_device = fs::exists(folder / "device", error);
      const double peer = read_number(folder / "iflink");
      const bool pair_end = peer > 0 && peer != read_number(folder / "ifindex");
      const std::string state = read_line(folder / "operstate");
      if ((!has_device && !pair_end) || state == "down") continue;
      // Bond members and virtual functions behind another interface carry no traffic of their own.
      if (fs::exists(folder / "master", error)) continue;
      NetPort port;
      port.name = name;
      const double speed = read_number(folder / "speed");
      if (speed > 0 && speed < kSpeedMaxMbps) port.speed_mbps = speed;
      Node node;
      node.kind = NodeKind::kNic;
      node.nic.emplace();
      node.nic->ports.push_back(std::move(port));
      topology_.add(0, std::move(node));
    }
  }

  const fs::path root_;
  Topology& topology_;
  std::set<std::string> seen_;
};

}  // namespace

Status enrich_from_sysfs(const std::string& sysfs_root, Topology* topology) {
  if (topology->empty() || topology->node(0).kind != NodeKind::kMachine) {
    return invalid_argument("sysfs describes one machine; the topology is not one");
  }
  std::error_code error;
  if (!fs::is_directory(sysfs_root, error)) {
    topology->add_note(sysfs_root, "no such directory: link speeds and network rates stay unknown");
    return Status();
  }
  Enricher(sysfs_root, topology).run();
  return topology->finish();
}

}  // namespace weir::topo
