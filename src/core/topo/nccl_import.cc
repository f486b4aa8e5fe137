// SPDX-License-Identifier: Apache-2.0
// Reads the topology file of NCCL and RCCL. The elements and attributes are those of NCCL's public
// sources (graph/xml.cc) and RCCL's addition, xgmi.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>

#include "core/topo/estimates.h"
#include "core/topo/nccl_xml.h"
#include "core/topo/xml_reader.h"

namespace weir::topo {
namespace {

constexpr XmlLimits kLimits{.bytes_max = 8u << 20,
                            .element_count_max = 50'000,
                            .attribute_count_max = 1'000'000,
                            .depth_max = 64};

class Importer {
 public:
  explicit Importer(const XmlReader& xml) : xml_(xml) {}

  Result<Topology> read() {
    const pugi::xml_node system = xml_.root();
    if (std::string_view(system.name()) != "system") {
      return xml_.error(system, fmt::format("the root element is <{:.40}>; an NCCL topology starts "
                                            "with <system>",
                                            system.name()));
    }
    note_unknown_attributes(system, {"version", "keep"});
    WEIR_TOPO_ASSIGN(version, xml_.integer(system, "version", 0, 1000));
    if (version.value_or(1) != 1 && version.value_or(1) != 2) {
      note(system,
           fmt::format("version {} of the format is not known; read as version 1", *version));
    }
    Node machine;
    machine.kind = NodeKind::kMachine;
    if (const auto name = XmlReader::text(system, "weir_name")) machine.name = *name;
    topology_.add(kNoNode, machine);
    for (const pugi::xml_node child : system.children()) {
      if (child.type() != pugi::node_element) continue;
      if (is(child, "cpu")) {
        WEIR_RETURN_IF_ERROR(read_cpu(child));
      } else {
        note_unknown_element(child);
      }
    }
    WEIR_RETURN_IF_ERROR(read_links());
    const Status finished = topology_.finish();
    if (!finished.ok()) return xml_.error(system, finished.text());
    return std::move(topology_);
  }

 private:
  struct PendingLink {
    NodeId from;
    pugi::xml_node element;
    LinkKind kind;
  };
  // One end's description of its links to another.
  struct Claim {
    uint32_t count = 0;
    double bandwidth_gbs = 0;
    Source source = Source::kStated;
    pugi::xml_node element;
  };

  static bool is(pugi::xml_node element, std::string_view name) { return element.name() == name; }

  void note(pugi::xml_node element, std::string text) {
    topology_.add_note(xml_.where(element), std::move(text));
  }
  void note_unknown_element(pugi::xml_node element) {
    note(element, fmt::format("<{:.40}> in <{:.40}> is not known and was left out", element.name(),
                              element.parent().name()));
  }
  void note_unknown_attributes(pugi::xml_node element,
                               std::initializer_list<std::string_view> known) {
    for (const std::string& name : XmlReader::unknown_attributes(element, known)) {
      if (name.starts_with("weir_")) continue;
      note(element,
           fmt::format("attribute {} of <{}> is not known and was left out", name, element.name()));
    }
  }

  // The bandwidth that Weir itself wrote.
  static Source source_of(pugi::xml_node element) {
    return element.attribute("weir_estimated") ? Source::kEstimated : Source::kStated;
  }

  Status read_cpu(pugi::xml_node element) {
    note_unknown_attributes(element, {"numaid", "affinity", "arch", "vendor", "familyid", "modelid",
                                      "host_hash", "keep"});
    WEIR_RETURN_IF_ERROR(check_host(element));
    WEIR_TOPO_ASSIGN(number, xml_.integer(element, "numaid", -1, kDeviceNumberMax));
    if (!number) return xml_.error(element, "<cpu> has no numaid");
    const auto [place, is_new] = cpu_lines_.try_emplace(*number, xml_.line(element));
    if (!is_new) {
      return xml_.error(
          element, fmt::format("a second <cpu> with numaid {}; the first is on line {}", *number,
                               place->second));
    }
    CpuInfo cpu;
    cpu.arch = XmlReader::text(element, "arch").value_or("");
    cpu.vendor = XmlReader::text(element, "vendor").value_or("");
    cpu.model = XmlReader::text(element, "weir_model").value_or("");
    WEIR_TOPO_ASSIGN(family, xml_.integer(element, "familyid", -1, INT32_MAX));
    WEIR_TOPO_ASSIGN(model, xml_.integer(element, "modelid", -1, INT32_MAX));
    cpu.family_id = static_cast<int32_t>(family.value_or(-1));
    cpu.model_id = static_cast<int32_t>(model.value_or(-1));
    CpuSet cpus;
    if (const auto affinity = XmlReader::text(element, "affinity")) {
      Result<CpuSet> parsed = CpuSet::parse_mask(*affinity);
      if (!parsed.ok()) return xml_.error(element, "affinity: " + parsed.status().text());
      cpus = parsed.take();
    }

    NodeId parent = 0;
    WEIR_TOPO_ASSIGN(package, xml_.integer(element, "weir_package", -1, kDeviceNumberMax));
    if (package) parent = package_node(static_cast<int32_t>(*package), cpu, cpus);
    if (*number >= 0) {
      Node numa;
      numa.kind = NodeKind::kNuma;
      numa.os_index = static_cast<int32_t>(*number);
      numa.cpus = cpus;
      numa.cpu = cpu;
      parent = topology_.add(parent, numa);
      numa_nodes_[numa.os_index] = parent;
    }
    topology_.mutable_node(0).cpus.add(cpus);

    for (const pugi::xml_node child : element.children()) {
      if (child.type() != pugi::node_element) continue;
      NodeId home = parent;
      WEIR_TOPO_ASSIGN(near, xml_.integer(child, "weir_package", -1, kDeviceNumberMax));
      if (near) home = package_node(static_cast<int32_t>(*near), cpu, CpuSet());
      if (is(child, "pci")) {
        NodeId root = home;
        WEIR_RETURN_IF_ERROR(read_root(child, home, &root));
        WEIR_RETURN_IF_ERROR(read_pci(child, root));
      } else if (is(child, "nic")) {
        WEIR_RETURN_IF_ERROR(read_virtual_nic(child, home));
      } else {
        note_unknown_element(child);
      }
    }
    return Status();
  }

  // What is between the CPU and a device directly below it. NCCL has no root complexes: all devices
  // of a NUMA node are taken as being under one.
  Status read_root(pugi::xml_node element, NodeId home, NodeId* root) {
    *root = home;
    if (!element.attribute("weir_rootless")) {
      const std::string name(XmlReader::text(element, "weir_root").value_or(""));
      const auto [complex, is_new] = root_complexes_.try_emplace(std::pair(home, name), kNoNode);
      if (is_new) {
        Node node;
        node.kind = NodeKind::kRootComplex;
        node.name = name;
        complex->second = topology_.add(home, node);
      }
      *root = complex->second;
    }
    const auto text = XmlReader::text(element, "weir_port");
    if (!text) return Status();
    const std::optional<PciAddress> address = PciAddress::parse(*text);
    if (!address) {
      return xml_.error(element, fmt::format("weir_port=\"{:.40}\" is not a PCI address such as "
                                             "0000:3b:00.0",
                                             *text));
    }
    const auto [place, is_new_port] = pci_.try_emplace(*address, Pci{kNoNode, xml_.line(element)});
    if (is_new_port) {
      Node port;
      port.kind = NodeKind::kPciBridge;
      port.bridge = BridgeRole::kRootPort;
      port.pci.emplace();
      port.pci->address = *address;
      port.pci->class_code = 0x060400;
      port.up = internal_edge();
      place->second.node = topology_.add(*root, port);
    } else if (place->second.node == kNoNode ||
               topology_.node(place->second.node).parent != *root ||
               topology_.node(place->second.node).bridge != BridgeRole::kRootPort) {
      return xml_.error(element, fmt::format("weir_port {} is another device on line {}",
                                             address->text(), place->second.line));
    }
    *root = place->second.node;
    return Status();
  }

  // NCCL writes the CPUs of all machines of one NVLink domain to one file.
  Status check_host(pugi::xml_node element) {
    const auto host = XmlReader::text(element, "host_hash");
    if (!host) return Status();
    if (host_line_ == 0) {
      host_ = *host;
      host_line_ = xml_.line(element);
    }
    if (host_ == *host) return Status();
    return xml_.error(element, fmt::format("host_hash=\"{:.40}\": the <cpu> on line {} is of "
                                           "another machine; give a file of one machine",
                                           *host, host_line_));
  }

  NodeId package_node(int32_t number, const CpuInfo& cpu, const CpuSet& cpus) {
    const auto [place, is_new] = packages_.try_emplace(number, kNoNode);
    if (is_new) {
      Node package;
      package.kind = NodeKind::kPackage;
      package.os_index = number;
      package.cpu = cpu;
      place->second = topology_.add(0, package);
    }
    topology_.mutable_node(place->second).cpus.add(cpus);
    return place->second;
  }

  Status read_pci(pugi::xml_node element, NodeId parent) {
    note_unknown_attributes(element, {"busid", "class", "vendor", "device", "subsystem_vendor",
                                      "subsystem_device", "link_speed", "link_width", "keep"});
    const auto bus_id = XmlReader::text(element, "busid");
    if (!bus_id) return xml_.error(element, "<pci> has no busid");
    const std::optional<PciAddress> address = PciAddress::parse(*bus_id);
    if (!address) {
      return xml_.error(
          element,
          fmt::format("busid=\"{:.40}\" is not a PCI address such as 0000:3b:00.0", *bus_id));
    }
    const auto [place, is_new] = pci_.try_emplace(*address, Pci{kNoNode, xml_.line(element)});
    if (!is_new) {
      return xml_.error(element, fmt::format("busid {} is used twice; the first is on line {}",
                                             address->text(), place->second.line));
    }
    Node node;
    node.pci.emplace();
    node.pci->address = *address;
    WEIR_RETURN_IF_ERROR(read_ids(element, &*node.pci));
    WEIR_RETURN_IF_ERROR(read_pcie_link(element, &node));

    const pugi::xml_node gpu = element.child("gpu");
    const pugi::xml_node nic = element.child("nic");
    if (gpu.next_sibling("gpu"))
      return xml_.error(gpu.next_sibling("gpu"), "a second <gpu> in a <pci>");
    if (gpu && nic) return xml_.error(nic, "a <pci> holds either a <gpu> or a <nic>");
    node.kind = kind_of(element, node.pci->class_code);
    if (node.kind == NodeKind::kGpu) {
      node.gpu.emplace();
      if (gpu) WEIR_RETURN_IF_ERROR(read_gpu(gpu, &node));
    }
    if (node.kind == NodeKind::kNic) {
      node.nic.emplace();
      for (const pugi::xml_node one : element.children("nic")) {
        WEIR_RETURN_IF_ERROR(read_nic(one, &*node.nic));
      }
      const bool verbs = pci_class::is_infiniband(node.pci->class_code);
      for (NetPort& port : node.nic->ports) port.infiniband = port.infiniband || verbs;
    }
    const NodeId id = topology_.add(parent, node);
    place->second.node = id;
    return read_pci_children(element, id);
  }

  Status read_pci_children(pugi::xml_node element, NodeId id) {
    for (const pugi::xml_node child : element.children()) {
      if (child.type() != pugi::node_element) continue;
      const NodeKind kind = topology_.node(id).kind;
      if (is(child, "pci")) {
        WEIR_RETURN_IF_ERROR(read_pci(child, id));
      } else if (is(child, "gpu") && kind == NodeKind::kGpu) {
        queue_links(child, id);
      } else if (is(child, "nic") && kind == NodeKind::kNic) {
        continue;
      } else if (is(child, "nvlink") && kind == NodeKind::kNvSwitch) {
        links_.push_back({id, child, LinkKind::kNvlink});
      } else if (is(child, "pcilink")) {
        note(child, "<pcilink> is known, but links between PCIe switches are not used");
      } else {
        note_unknown_element(child);
      }
    }
    return Status();
  }

  // The class decides; without one, the element's content.
  NodeKind kind_of(pugi::xml_node element, uint32_t class_code) {
    if (class_code == 0) {
      note(element, "<pci> has no class; taken for what it holds");
      if (element.child("gpu")) return NodeKind::kGpu;
      if (element.child("nic")) return NodeKind::kNic;
      return element.child("pci") ? NodeKind::kPciBridge : NodeKind::kPciDevice;
    }
    if (pci_class::is_accelerator(class_code)) return NodeKind::kGpu;
    if (pci_class::is_network(class_code)) return NodeKind::kNic;
    if (pci_class::is_bridge(class_code)) return NodeKind::kPciBridge;
    if (pci_class::is_nvswitch(class_code) && class_code != kCpuNvlinkClass) {
      return NodeKind::kNvSwitch;
    }
    // What has devices below it is a bridge, as to NCCL is everything of another class.
    return element.child("pci") ? NodeKind::kPciBridge : NodeKind::kPciDevice;
  }

  Status read_ids(pugi::xml_node element, PciInfo* pci) {
    WEIR_TOPO_ASSIGN(class_code, xml_.integer(element, "class", 0, 0xffffff));
    pci->class_code = static_cast<uint32_t>(class_code.value_or(0));
    const std::pair<const char*, uint16_t*> ids[] = {{"vendor", &pci->vendor},
                                                     {"device", &pci->device},
                                                     {"subsystem_vendor", &pci->subsystem_vendor},
                                                     {"subsystem_device", &pci->subsystem_device}};
    for (const auto& [name, target] : ids) {
      WEIR_TOPO_ASSIGN(value, xml_.integer(element, name, 0, 0xffff));
      *target = static_cast<uint16_t>(value.value_or(0));
    }
    return Status();
  }

  Status read_pcie_link(pugi::xml_node element, Node* node) {
    const std::string_view speed = XmlReader::text(element, "link_speed").value_or("");
    node->pci->speed_gts_max = parse_pcie_speed_gts(speed);
    WEIR_TOPO_ASSIGN(width, xml_.integer(element, "link_width", 0, 255));
    node->pci->width_max = static_cast<uint32_t>(width.value_or(0));
    const bool speed_known = node->pci->speed_gts_max > 0;
    if (!speed_known && !speed.empty() && !speed.starts_with("Unknown")) {
      note(element, fmt::format("link_speed=\"{:.40}\" is not a PCIe speed such as \"16 GT/s\"; a "
                                "third generation link is assumed",
                                speed));
    }
    const double bandwidth_gbs = pcie_bandwidth_gbs(node->pci->speed_gts_max, node->pci->width_max);
    node->up = pcie_edge_unknown();
    if (bandwidth_gbs > 0) {
      node->up = pcie_edge(bandwidth_gbs);
    } else if (speed_known) {
      if (node->pci->width_max != 0) {
        note(element, fmt::format("link_width={} is not a PCIe width; 16 lanes are assumed",
                                  node->pci->width_max));
      }
      node->up.bandwidth_gbs = pcie_bandwidth_gbs(node->pci->speed_gts_max, 16);
    }
    WEIR_TOPO_ASSIGN(stated, xml_.number(element, "weir_bw", 0, kBandwidthMaxGbs));
    if (stated) node->up = *stated > 0 ? pcie_edge(*stated) : Edge{};
    if (stated && *stated > 0) node->up.source = source_of(element);
    if (element.attribute("weir_unlimited")) node->up = internal_edge();
    return Status();
  }

  Status read_gpu(pugi::xml_node element, Node* node) {
    note_unknown_attributes(element,
                            {"dev", "sm", "rank", "gdr", "gcn", "arch", "mn_nvlink", "keep"});
    WEIR_TOPO_ASSIGN(dev, xml_.integer(element, "dev", -1, kDeviceNumberMax));
    WEIR_TOPO_ASSIGN(sm, xml_.integer(element, "sm", 0, 100000));
    WEIR_TOPO_ASSIGN(rank, xml_.integer(element, "rank", -1, INT32_MAX));
    WEIR_TOPO_ASSIGN(gdr, xml_.integer(element, "gdr", 0, 1));
    GpuInfo& gpu = *node->gpu;
    if (dev && *dev >= 0) gpu.dev = static_cast<int32_t>(*dev);
    if (rank && *rank >= 0) gpu.rank = static_cast<int32_t>(*rank);
    if (gdr) gpu.gdr = *gdr != 0;
    gpu.compute_capability = static_cast<int32_t>(sm.value_or(0));
    gpu.gcn = XmlReader::text(element, "gcn").value_or("");
    gpu.arch = XmlReader::text(element, "arch").value_or("");
    node->name = XmlReader::text(element, "weir_model").value_or("");
    gpu.uuid = XmlReader::text(element, "weir_uuid").value_or("");
    return Status();
  }

  void queue_links(pugi::xml_node gpu, NodeId id) {
    for (const pugi::xml_node child : gpu.children()) {
      if (child.type() != pugi::node_element) continue;
      if (is(child, "nvlink")) {
        links_.push_back({id, child, LinkKind::kNvlink});
      } else if (is(child, "xgmi")) {
        links_.push_back({id, child, LinkKind::kXgmi});
      } else if (is(child, "xelink")) {
        links_.push_back({id, child, LinkKind::kXelink});
      } else if (is(child, "c2c")) {
        links_.push_back({id, child, LinkKind::kC2c});
      } else {
        note_unknown_element(child);
      }
    }
  }

  Status read_nic(pugi::xml_node element, NicInfo* nic) {
    note_unknown_attributes(element, {"keep"});
    for (const pugi::xml_node child : element.children()) {
      if (child.type() != pugi::node_element) continue;
      if (!is(child, "net")) {
        note_unknown_element(child);
        continue;
      }
      note_unknown_attributes(child, {"name", "dev", "speed", "port", "latency", "guid", "maxconn",
                                      "gdr", "coll", "keep"});
      NetPort port;
      port.name = XmlReader::text(child, "name").value_or("");
      port.guid = XmlReader::text(child, "guid").value_or("");
      WEIR_TOPO_ASSIGN(dev, xml_.integer(child, "dev", -1, kDeviceNumberMax));
      WEIR_TOPO_ASSIGN(speed, xml_.number(child, "speed", 0, kBandwidthMaxGbs * 8000));
      WEIR_TOPO_ASSIGN(number, xml_.integer(child, "port", 0, 255));
      WEIR_TOPO_ASSIGN(latency, xml_.number(child, "latency", 0, 1e9));
      WEIR_TOPO_ASSIGN(connections, xml_.integer(child, "maxconn", 0, UINT32_MAX));
      WEIR_TOPO_ASSIGN(gdr, xml_.integer(child, "gdr", 0, 1));
      if (dev && *dev >= 0) port.dev = static_cast<int32_t>(*dev);
      port.speed_mbps = speed.value_or(0);
      port.port = static_cast<uint32_t>(number.value_or(0));
      port.latency_us = latency;
      port.connection_count_max = static_cast<uint32_t>(connections.value_or(0));
      if (gdr) port.gdr = *gdr != 0;
      if (child.attribute("weir_verbs")) port.infiniband = true;
      nic->ports.push_back(std::move(port));
    }
    return Status();
  }

  // Without a PCI device of its own: each interface is an adapter.
  Status read_virtual_nic(pugi::xml_node element, NodeId parent) {
    NicInfo all;
    WEIR_RETURN_IF_ERROR(read_nic(element, &all));
    for (NetPort& port : all.ports) {
      Node node;
      node.kind = NodeKind::kNic;
      node.nic.emplace();
      node.nic->ports.push_back(std::move(port));
      topology_.add(parent, node);
    }
    return Status();
  }

  // ---- Links: after all devices are known
  // ----------------------------------------------------------

  Status read_links() {
    std::map<std::tuple<NodeId, NodeId, LinkKind>, Claim> claims;
    for (const PendingLink& link : links_) {
      note_unknown_attributes(link.element, {"target", "count", "tclass", "bw", "keep"});
      WEIR_TOPO_ASSIGN(count, xml_.integer(link.element, "count", 0, kLinkCountMax));
      WEIR_TOPO_ASSIGN(total, xml_.number(link.element, "weir_bw", 0, kBandwidthMaxGbs));
      WEIR_TOPO_ASSIGN(per_link, xml_.number(link.element, "bw", 0, kBandwidthMaxGbs * 1000));
      WEIR_TOPO_ASSIGN(target_class, xml_.integer(link.element, "tclass", 0, 0xffffff));
      NodeId to = kNoNode;
      WEIR_RETURN_IF_ERROR(
          find_link_target(link, static_cast<uint32_t>(target_class.value_or(0)), &to));
      if (count.value_or(1) == 0 || to == kNoNode) continue;
      Claim& claim = claims[{link.from, to, link.kind}];
      claim.element = link.element;
      claim.count = std::min(claim.count + static_cast<uint32_t>(count.value_or(1)), kLinkCountMax);
      Edge one = link_edge(link);
      // NCCL states the bandwidth of C2C, in MB/s and link.
      if (link.kind == LinkKind::kC2c && per_link)
        one = {*per_link / 1000, one.latency_us, Source::kStated};
      claim.bandwidth_gbs +=
          total ? *total : one.bandwidth_gbs * static_cast<double>(count.value_or(1));
      claim.source = std::min(claim.source, total ? source_of(link.element) : one.source);
    }
    for (const auto& [key, claim] : claims) {
      const auto [from, to, kind] = key;
      // Both ends of a link may list it; it still counts once.
      const auto other = claims.find({to, from, kind});
      const Claim* best = &claim;
      if (other != claims.end()) {
        if (to < from) continue;
        if (other->second.count != claim.count) {
          note(claim.element,
               fmt::format(
                   "{} lists {} links to {}, which lists {} (line {}); the larger number is used",
                   topology_.node(from).pci->address.text(), claim.count,
                   topology_.node(to).pci ? topology_.node(to).pci->address.text() : "the CPU",
                   other->second.count, xml_.line(other->second.element)));
        }
        if (other->second.count > claim.count) best = &other->second;
      }
      const double latency_us = nvlink_edge(0).latency_us;
      topology_.add_link(
          {from, to, kind, best->count, {best->bandwidth_gbs, latency_us, best->source}});
    }
    return Status();
  }

  Edge link_edge(const PendingLink& link) {
    const Node& node = topology_.node(link.from);
    if (link.kind == LinkKind::kXgmi) return xgmi_edge(node.gpu ? node.gpu->gcn : "");
    return nvlink_edge(node.gpu ? node.gpu->compute_capability : 0);
  }

  Status find_link_target(const PendingLink& link, uint32_t target_class, NodeId* to) {
    if (link.kind != LinkKind::kC2c && target_class != kCpuNvlinkClass) {
      *to = device_at_end(link, target_class);
      return Status();
    }
    if (topology_.node(link.from).kind == NodeKind::kNvSwitch) {
      note(link.element, "a link from an NVSwitch to a CPU is not known; it is left out");
      return Status();
    }
    const NodeId nearest = topology_.ancestor(link.from, NodeKind::kNuma);
    *to = nearest == kNoNode ? 0 : nearest;
    WEIR_TOPO_ASSIGN(numa, xml_.integer(link.element, "weir_numa", 0, kDeviceNumberMax));
    WEIR_TOPO_ASSIGN(package, xml_.integer(link.element, "weir_package", -1, kDeviceNumberMax));
    if (numa) {
      const auto found = numa_nodes_.find(static_cast<int32_t>(*numa));
      if (found == numa_nodes_.end()) {
        return xml_.error(link.element, fmt::format("weir_numa={}: there is no such <cpu>", *numa));
      }
      *to = found->second;
    } else if (package) {
      const auto found = packages_.find(static_cast<int32_t>(*package));
      if (found == packages_.end()) {
        return xml_.error(link.element,
                          fmt::format("weir_package={}: no <cpu> is in it", *package));
      }
      *to = found->second;
    }
    return Status();
  }

  // kNoNode (and a note) when the target cannot be found.
  NodeId device_at_end(const PendingLink& link, uint32_t target_class) {
    const std::string target(XmlReader::text(link.element, "target").value_or(""));
    const std::optional<PciAddress> address = PciAddress::parse(target);
    if (address) {
      const auto found = pci_.find(*address);
      if (found != pci_.end() && found->second.node == link.from) {
        note(link.element, fmt::format("<{}> of {} has itself as its target; it is left out",
                                       link.element.name(), target));
        return kNoNode;
      }
      if (found != pci_.end()) {
        Node& node = topology_.mutable_node(found->second.node);
        if (node.kind == NodeKind::kPciDevice && pci_class::is_nvswitch(target_class)) {
          node.kind = NodeKind::kNvSwitch;  // it has no class of its own
        }
        if (node.kind == NodeKind::kGpu || node.kind == NodeKind::kNvSwitch) {
          return found->second.node;
        }
        note(link.element, fmt::format("target=\"{:.40}\" of <{}> is no accelerator and no "
                                       "NVSwitch; the link is left out",
                                       target, link.element.name()));
        return kNoNode;
      }
    }
    if (pci_class::is_nvswitch(target_class)) {
      // NCCL's own files name switches only here. Virtual machines give them made-up addresses.
      const auto [place, is_new] = hidden_switches_.try_emplace(target, kNoNode);
      if (is_new) {
        Node node;
        node.kind = NodeKind::kNvSwitch;
        node.name = target;
        node.up = internal_edge();
        if (address) {
          node.pci.emplace();
          node.pci->address = *address;
          node.pci->class_code = target_class;
        }
        place->second = topology_.add(0, node);
      }
      return place->second;
    }
    note(link.element,
         fmt::format("target=\"{:.40}\" of <{}> is not a device of this file; the link is left out",
                     target, link.element.name()));
    return kNoNode;
  }

  struct Pci {
    NodeId node;
    size_t line;
  };

  const XmlReader& xml_;
  Topology topology_;
  std::string host_;      // host_hash of the first <cpu> that has one
  size_t host_line_ = 0;  // its line; 0: none has one
  std::map<int64_t, size_t> cpu_lines_;
  std::map<int32_t, NodeId> packages_;
  std::map<int32_t, NodeId> numa_nodes_;
  std::map<std::pair<NodeId, std::string>, NodeId> root_complexes_;
  std::map<PciAddress, Pci> pci_;
  std::map<std::string, NodeId> hidden_switches_;
  std::vector<PendingLink> links_;
};

}  // namespace

Result<Topology> parse_nccl_xml(std::string_view text, std::string_view name) {
  auto loaded = XmlReader::load(text, name, kLimits);
  if (!loaded.ok()) return loaded.status();
  return Importer(*loaded.value()).read();
}

}  // namespace weir::topo
