// SPDX-License-Identifier: Apache-2.0
// Writes the topology file of NCCL. NCCL shows a PCIe switch as one element (its upstream port) and
// no root ports, so other ports are folded into the link above the device.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <pugixml.hpp>
#include <set>
#include <sstream>

#include "core/topo/estimates.h"
#include "core/topo/nccl_xml.h"

namespace weir::topo {
namespace {

class Exporter {
 public:
  explicit Exporter(const Topology& topology) : topology_(topology) {}

  Result<std::string> write() {
    if (topology_.empty()) return invalid_argument("the topology has no nodes");
    const size_t machine_count = topology_.count(NodeKind::kMachine);
    if (machine_count != 1) {
      return Status(
          Code::kUnsupported,
          fmt::format("an NCCL topology file holds one machine, not {}: write each by itself",
                      machine_count));
    }
    pugi::xml_node system = document_.append_child("system");
    set(system, "version", "1");
    if (const std::string& name = topology_.node(topology_.all(NodeKind::kMachine)[0]).name;
        !name.empty()) {
      set(system, "weir_name", name);
    }
    for (const NodeId id : topology_.all(NodeKind::kNuma)) cpu_element(id);
    for (NodeId id = 0; id < topology_.node_count(); ++id) {
      if (!emitted(topology_.node(id))) continue;
      if (const Place place = place_of(id); place.port != kNoNode) ++below_port_[place.port];
    }
    for (NodeId id = 0; id < topology_.node_count(); ++id) {
      const Node& node = topology_.node(id);
      if (node.kind == NodeKind::kGpu && !node.pci) {
        return Status(Code::kUnsupported,
                      topology_.label(id) + " has no PCI address; NCCL's format needs one");
      }
      if (emitted(node)) device_element(id);
    }
    for (const Link& link : topology_.links()) {
      link_element(link.a, link.b, link);
      link_element(link.b, link.a, link);
    }
    std::ostringstream text;
    document_.save(text, "  ", pugi::format_indent | pugi::format_no_declaration);
    return text.str();
  }

 private:
  static void set(pugi::xml_node element, const char* name, const std::string& value) {
    element.append_attribute(name).set_value(value.c_str());
  }
  static void set_hex(pugi::xml_node element, const char* name, uint32_t value, int digits) {
    set(element, name, fmt::format("0x{:0{}x}", value, digits));
  }

  // An estimate must not be read back as a fact.
  static void set_bandwidth(pugi::xml_node element, const Edge& edge) {
    set(element, "weir_bw", fmt::format("{:.9g}", edge.bandwidth_gbs));
    if (edge.source == Source::kEstimated) set(element, "weir_estimated", "1");
  }

  static bool emitted(const Node& node) {
    switch (node.kind) {
      case NodeKind::kGpu:
      case NodeKind::kNic:
      case NodeKind::kNvSwitch:
        return true;
      case NodeKind::kPciBridge:
        return node.bridge == BridgeRole::kSwitch || node.bridge == BridgeRole::kUpstreamPort;
      default:
        return false;
    }
  }

  // The <cpu> of a NUMA node, or of devices near none (kNoNode).
  pugi::xml_node cpu_element(NodeId numa) {
    const auto [place, is_new] = elements_.try_emplace(numa);
    if (!is_new) return place->second;
    pugi::xml_node element = document_.child("system").append_child("cpu");
    place->second = element;
    const std::vector<NodeId> packages = topology_.all(NodeKind::kPackage);
    if (numa == kNoNode) {
      set(element, "numaid", "-1");
      // A machine's packages are of one model.
      if (!packages.empty()) cpu_attributes(element, topology_.node(packages[0]).cpu);
      return element;
    }
    const Node& node = topology_.node(numa);
    const NodeId package = topology_.ancestor(numa, NodeKind::kPackage);
    set(element, "numaid", fmt::format("{}", node.os_index));
    set(element, "affinity", node.cpus.mask());
    cpu_attributes(element,
                   node.cpu || package == kNoNode ? node.cpu : topology_.node(package).cpu);
    if (package != kNoNode) {
      set(element, "weir_package", package_number(package));
    }
    return element;
  }

  static void cpu_attributes(pugi::xml_node element, const std::optional<CpuInfo>& info) {
    const CpuInfo cpu = info.value_or(CpuInfo{});
    if (!cpu.arch.empty()) set(element, "arch", cpu.arch);
    if (!cpu.vendor.empty()) set(element, "vendor", cpu.vendor);
    if (cpu.family_id >= 0) set(element, "familyid", fmt::format("{}", cpu.family_id));
    if (cpu.model_id >= 0) set(element, "modelid", fmt::format("{}", cpu.model_id));
    if (!cpu.model.empty()) set(element, "weir_model", cpu.model);
  }

  // Where a device is written: below the next element above it, past ports that are not written.
  struct Place {
    NodeId above = kNoNode;
    NodeId port = kNoNode;  // the root port on the way
    Edge link;              // all links on the way as one
  };

  Place place_of(NodeId id) const {
    Place place;
    place.link = topology_.node(id).up;
    place.above = topology_.node(id).parent;
    while (place.above != kNoNode && topology_.node(place.above).kind == NodeKind::kPciBridge &&
           !emitted(topology_.node(place.above))) {
      if (topology_.node(place.above).bridge == BridgeRole::kRootPort) place.port = place.above;
      place.link = narrower(place.link, topology_.node(place.above).up);
      place.above = topology_.node(place.above).parent;
    }
    return place;
  }

  // The number of the operating system, if it tells the packages apart.
  std::string package_number(NodeId package) const {
    const std::vector<NodeId> packages = topology_.all(NodeKind::kPackage);
    std::set<int32_t> numbers;
    for (const NodeId one : packages) numbers.insert(topology_.node(one).os_index);
    if (numbers.size() == packages.size()) {
      return fmt::format("{}", topology_.node(package).os_index);
    }
    return fmt::format("{}",
                       std::find(packages.begin(), packages.end(), package) - packages.begin());
  }

  void device_element(NodeId id) {
    const Node& node = topology_.node(id);
    const Place place = place_of(id);
    const bool below_bridge = place.above != kNoNode && emitted(topology_.node(place.above));
    // A device may be near a package that has several NUMA nodes, and near none of them.
    const NodeId package = topology_.ancestor(id, NodeKind::kPackage);
    NodeId numa = topology_.ancestor(id, NodeKind::kNuma);
    const bool near_package = numa == kNoNode && package != kNoNode;
    if (near_package) numa = first_numa_of(package);
    pugi::xml_node parent = below_bridge ? elements_[place.above] : cpu_element(numa);
    pugi::xml_node element;
    if (node.pci) {
      element = parent.append_child("pci");
      elements_[id] = element;
      pci_attributes(element, class_of(node), *node.pci, place.link);
    } else if (node.nic) {
      element = nic_element(parent, *node.nic);
    }
    if (!element) return;
    if (!below_bridge && near_package) {
      set(element, "weir_package", package_number(package));
    }
    if (!node.pci) return;
    if (!below_bridge) root_attributes(element, id, place);
    if (node.gpu) gpus_[id] = gpu_element(element, node);
    if (node.nic && !node.nic->ports.empty()) nic_element(element, *node.nic);
  }

  NodeId first_numa_of(NodeId package) const {
    for (const NodeId numa : topology_.all(NodeKind::kNuma)) {
      if (topology_.ancestor(numa, NodeKind::kPackage) == package) return numa;
    }
    return kNoNode;
  }

  // NCCL's format has neither root complexes nor root ports. A root port matters to paths only
  // where several devices are below it.
  void root_attributes(pugi::xml_node element, NodeId id, const Place& place) const {
    const NodeId root = topology_.ancestor(id, NodeKind::kRootComplex);
    if (root == kNoNode) {
      set(element, "weir_rootless", "1");
    } else if (!topology_.node(root).name.empty()) {
      set(element, "weir_root", topology_.node(root).name);
    }
    const auto count = below_port_.find(place.port);
    if (count != below_port_.end() && count->second > 1) {
      set(element, "weir_port", topology_.node(place.port).pci->address.text());
    }
  }

  static Edge narrower(const Edge& a, const Edge& b) {
    if (b.source == Source::kNoLimit) return a;
    if (a.source == Source::kNoLimit) return b;
    Edge edge = a.bandwidth_gbs <= b.bandwidth_gbs ? a : b;
    edge.source = std::min(a.source, b.source);
    return edge;
  }

  // hwloc rounds to the sixth decimal.
  static bool is_near(const PcieRate& rate, double bandwidth_gbs) {
    const double exact_gbs = pcie_bandwidth_gbs(rate.speed_gts, rate.width_lanes);
    return std::abs(exact_gbs - bandwidth_gbs) <= 1e-6;
  }

  // A typical one where it is not known, or would be read as another kind.
  static uint32_t class_of(const Node& node) {
    const uint32_t code = node.pci ? node.pci->class_code : 0;
    switch (node.kind) {
      case NodeKind::kGpu:
        return pci_class::is_accelerator(code) ? code : 0x030200;
      case NodeKind::kNic:
        return pci_class::is_network(code) ? code : 0x020000;
      case NodeKind::kNvSwitch:
        return 0x068000;
      case NodeKind::kPciBridge:
        return 0x060400;
      default:
        return code;
    }
  }

  static void pci_attributes(pugi::xml_node element, uint32_t class_code, const PciInfo& pci,
                             const Edge& link) {
    set(element, "busid", pci.address.text());
    set_hex(element, "class", class_code, 6);
    if (pci.vendor != 0) {
      set_hex(element, "vendor", pci.vendor, 4);
      set_hex(element, "device", pci.device, 4);
      set_hex(element, "subsystem_vendor", pci.subsystem_vendor, 4);
      set_hex(element, "subsystem_device", pci.subsystem_device, 4);
    }
    PcieRate rate{pci.speed_gts_max, pci.width_max};
    if (pcie_bandwidth_gbs(rate.speed_gts, rate.width_lanes) != link.bandwidth_gbs) {
      rate = pcie_rate(link.bandwidth_gbs);
    }
    const bool known = link.source == Source::kStated && rate.width_lanes > 0;
    set(element, "link_speed", known ? fmt::format("{:g} GT/s", rate.speed_gts) : "");
    set(element, "link_width", fmt::format("{}", known ? rate.width_lanes : 0));
    const bool assumed = link.source == Source::kEstimated &&
                         link.bandwidth_gbs == pcie_edge_unknown().bandwidth_gbs;
    if (link.source == Source::kNoLimit) {
      set(element, "weir_unlimited", "1");
    } else if (known ? !is_near(rate, link.bandwidth_gbs) : !assumed) {
      set_bandwidth(element, link);
    }
  }

  static pugi::xml_node gpu_element(pugi::xml_node pci, const Node& node) {
    pugi::xml_node element = pci.append_child("gpu");
    const GpuInfo& gpu = *node.gpu;
    // The index is the number that was given, unless these do not tell all GPUs apart.
    set(element, "dev", fmt::format("{}", gpu.index));
    if (gpu.compute_capability > 0) set(element, "sm", fmt::format("{}", gpu.compute_capability));
    if (!gpu.gcn.empty()) set(element, "gcn", gpu.gcn);
    if (!gpu.arch.empty()) set(element, "arch", gpu.arch);
    if (gpu.rank) set(element, "rank", fmt::format("{}", *gpu.rank));
    if (gpu.gdr) set(element, "gdr", *gpu.gdr ? "1" : "0");
    if (!node.name.empty()) set(element, "weir_model", node.name);
    if (!gpu.uuid.empty()) set(element, "weir_uuid", gpu.uuid);
    return element;
  }

  static pugi::xml_node nic_element(pugi::xml_node parent, const NicInfo& nic) {
    pugi::xml_node element = parent.append_child("nic");
    for (const NetPort& port : nic.ports) {
      pugi::xml_node net = element.append_child("net");
      set(net, "name", port.name);
      if (port.dev) set(net, "dev", fmt::format("{}", *port.dev));
      if (port.speed_mbps > 0) set(net, "speed", fmt::format("{:.9g}", port.speed_mbps));
      set(net, "port", fmt::format("{}", port.port));
      if (port.latency_us) set(net, "latency", fmt::format("{:.6f}", *port.latency_us));
      if (!port.guid.empty()) set(net, "guid", port.guid);
      if (port.connection_count_max > 0) {
        set(net, "maxconn", fmt::format("{}", port.connection_count_max));
      }
      if (port.gdr) set(net, "gdr", *port.gdr ? "1" : "0");
      if (port.infiniband) set(net, "weir_verbs", "1");
    }
    return element;
  }

  void link_element(NodeId from, NodeId to, const Link& link) {
    const Node& source = topology_.node(from);
    const Node& target = topology_.node(to);
    const bool to_switch = target.kind == NodeKind::kNvSwitch;
    // Written for the GPU only, except between two switches.
    if (source.kind != NodeKind::kGpu && !(source.kind == NodeKind::kNvSwitch && to_switch)) return;
    auto& owners = source.kind == NodeKind::kGpu ? gpus_ : elements_;
    const auto element = owners.find(from);
    if (element == owners.end()) return;
    pugi::xml_node child = element->second.append_child(name_of(link.kind));
    const bool to_device = target.pci || to_switch;
    if (to_device) set(child, "target", target.pci ? target.pci->address.text() : target.name);
    set(child, "count", fmt::format("{}", link.count));
    if (link.kind == LinkKind::kC2c) {
      // In MB/s and link; NCCL does not start without it.
      set(child, "bw",
          fmt::format("{:.0f}", link.edge.bandwidth_gbs * 1000 / std::max(link.count, 1u)));
    } else {
      set_hex(child, "tclass", to_device ? class_of(target) : kCpuNvlinkClass, 6);
    }
    // To NCCL the CPU at the other end is always the one that is nearest by PCI.
    if (!to_device && to != topology_.ancestor(from, NodeKind::kNuma)) {
      if (target.kind == NodeKind::kNuma || target.kind == NodeKind::kPackage) {
        const bool is_numa = target.kind == NodeKind::kNuma;
        set(child, is_numa ? "weir_numa" : "weir_package",
            is_numa ? fmt::format("{}", target.os_index) : package_number(to));
      }
    }
    set_bandwidth(child, link.edge);
  }

  const Topology& topology_;
  pugi::xml_document document_;
  std::map<NodeId, size_t> below_port_;        // devices that are written, by root port
  std::map<NodeId, pugi::xml_node> elements_;  // <pci>, and <cpu>
  std::map<NodeId, pugi::xml_node> gpus_;      // <gpu>, which holds the links
};

}  // namespace

Result<std::string> to_nccl_xml(const Topology& topology) { return Exporter(topology).write(); }

}  // namespace weir::topo
