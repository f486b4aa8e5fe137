// SPDX-License-Identifier: Apache-2.0
// Reads the XML form of hwloc 2 and 3 (hwloc2.dtd). hwloc's own reader is not used on files, since
// it gives no lines and is not made for hostile input.
#include "core/topo/hwloc_xml.h"

#include <fmt/format.h>

#include <charconv>
#include <map>

#include "core/topo/estimates.h"
#include "core/topo/hwloc_links.h"
#include "core/topo/xml_reader.h"

namespace weir::topo {
namespace {

constexpr XmlLimits kLimits{.bytes_max = 32u << 20,
                            .element_count_max = 400'000,
                            .attribute_count_max = 4'000'000,
                            .depth_max = 128};
constexpr uint16_t kNvidia = 0x10de;
constexpr uint16_t kAmd = 0x1002;

// osdev_type is a number in version 2 of the format and a set of bits from version 3 on, in which
// an OpenFabrics device is a network device, too.
constexpr int64_t kNetworkDevice = 2, kOpenFabrics = 3;
constexpr int64_t kNetworkBit = 1 << 4, kOpenFabricsBit = 1 << 5;
constexpr int kVersionMin = 2, kVersionMax = 3;

// The value of <info name="…"/>.
std::string info(pugi::xml_node object, std::string_view name) {
  for (const pugi::xml_node child : object.children("info")) {
    if (name == child.attribute("name").value()) return child.attribute("value").value();
  }
  return "";
}

int32_t info_number(pugi::xml_node object, std::string_view name) {
  const std::string text = info(object, name);
  int32_t value = -1;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

std::string_view type_of(pugi::xml_node object) { return object.attribute("type").value(); }

// A device of the operating system that only computing GPUs have; the display of a service
// processor has "card0" at most.
bool is_compute_device(std::string_view name) {
  for (const std::string_view prefix : {"nvml", "cuda", "rsmi", "opencl", "ze"}) {
    if (name.starts_with(prefix)) return true;
  }
  return false;
}

class Importer {
 public:
  explicit Importer(const XmlReader& xml) : xml_(xml) {}

  Result<Topology> read() {
    const pugi::xml_node root = xml_.root();
    if (std::string_view(root.name()) != "topology") {
      return xml_.error(root,
                        fmt::format("the root element is <{:.40}>; an hwloc topology starts with "
                                    "<topology>",
                                    root.name()));
    }
    WEIR_RETURN_IF_ERROR(read_version(root));
    const pugi::xml_node machine = root.child("object");
    if (!machine || type_of(machine) != "Machine") {
      return xml_.error(root, "the first <object> is not of type Machine");
    }
    // From version 3 on, what holds for the whole topology is not the machine's.
    arch_ = info(version_ >= 3 ? root : machine, "Architecture");
    WEIR_RETURN_IF_ERROR(read_object(machine, kNoNode));
    for (const pugi::xml_node child : root.children()) {
      const std::string_view name = child.name();
      if (name == "distances2" || name == "distances2hetero") {
        WEIR_RETURN_IF_ERROR(read_hwloc_links(xml_, child, node_of_gp_index_, &topology_));
      } else if (name == "object" && child != machine) {
        return xml_.error(child, "a second root object");
      }
    }
    const Status finished = topology_.finish();
    if (!finished.ok()) return xml_.error(root, finished.text());
    return std::move(topology_);
  }

 private:
  // "2.0", "3.0"; hwloc 1 wrote none.
  Status read_version(pugi::xml_node root) {
    const std::string_view text = XmlReader::text(root, "version").value_or("1");
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), version_);
    const bool whole = end == text.data() + text.size() || *end == '.';
    if (failure != std::errc() || !whole) version_ = 0;
    if (version_ >= kVersionMin && version_ <= kVersionMax) return Status();
    const char* remedy = version_ > kVersionMax
                             ? "write it for hwloc 2 or 3 (lstopo --export-xml-flags v2 new.xml), "
                               "or use a newer Weir"
                             : "convert the file with lstopo of hwloc 2: lstopo -i old.xml new.xml";
    return xml_.error(root, fmt::format("version \"{:.20}\" of hwloc's format is not read, only {} "
                                        "and {} are; {}",
                                        text, kVersionMin, kVersionMax, remedy));
  }

  Status read_object(pugi::xml_node object, NodeId parent) {
    const std::string_view type = type_of(object);
    NodeId id = parent;
    if (parent == kNoNode && type != "Machine") return xml_.error(object, "no Machine above");
    if (type == "Machine") {
      if (parent != kNoNode) return xml_.error(object, "a Machine inside another object");
      WEIR_RETURN_IF_ERROR(add(object, parent, NodeKind::kMachine, &id));
    } else if (type == "Package") {
      WEIR_RETURN_IF_ERROR(add(object, parent, NodeKind::kPackage, &id));
    } else if (type == "NUMANode" || type == "MemCache" || type == "Misc") {
      return Status();  // memory is made below, by the object it is attached to
    } else if (type == "Core") {
      WEIR_RETURN_IF_ERROR(add(object, parent, NodeKind::kCore, &id));
    } else if (type.size() >= 7 && type[0] == 'L' && type[1] >= '1' && type[1] <= '9' &&
               type.ends_with("Cache")) {
      WEIR_RETURN_IF_ERROR(read_cache(object, parent, &id));
    } else if (type == "Bridge") {
      WEIR_RETURN_IF_ERROR(read_bridge(object, parent, &id));
    } else if (type == "PCIDev") {
      WEIR_RETURN_IF_ERROR(read_device(object, parent, &id));
    } else if (type == "OSDev") {
      return read_os_device(object, parent);
    } else if (type != "Group" && type != "Die" && type != "PU") {
      topology_.add_note(xml_.where(object),
                         fmt::format("object type \"{:.40}\" is not known and was left out", type));
      return Status();
    }
    // hwloc attaches memory beside the tree; here the NUMA node is the parent of whatever is near
    // it.
    NodeId home = id;
    WEIR_RETURN_IF_ERROR(read_memory(object, id, &home));
    // A group is not a node of its own: its memory, or what is above, stands for it.
    WEIR_RETURN_IF_ERROR(remember(object, id == parent ? home : id));
    for (const pugi::xml_node child : object.children("object")) {
      WEIR_RETURN_IF_ERROR(read_object(child, home));
    }
    return Status();
  }

  // The matrices name objects by their gp_index. Version 3 writes it as the id "obj12", too, and
  // readers may rely on either.
  Status remember(pugi::xml_node object, NodeId id) {
    WEIR_TOPO_ASSIGN(gp_index, xml_.integer(object, "gp_index", 0, INT64_MAX));
    if (gp_index) {
      node_of_gp_index_[static_cast<uint64_t>(*gp_index)] = id;
      return Status();
    }
    std::string_view name = XmlReader::text(object, "id").value_or("");
    if (!name.starts_with("obj")) return Status();
    name.remove_prefix(3);
    uint64_t number = 0;
    const auto [end, failure] = std::from_chars(name.data(), name.data() + name.size(), number);
    if (failure == std::errc() && end == name.data() + name.size()) node_of_gp_index_[number] = id;
    return Status();
  }

  Status read_memory(pugi::xml_node object, NodeId parent, NodeId* home) {
    for (const pugi::xml_node child : object.children("object")) {
      if (type_of(child) == "MemCache") {
        WEIR_RETURN_IF_ERROR(read_memory(child, parent, home));
      } else if (type_of(child) == "NUMANode" && type_of(object) != "NUMANode") {
        NodeId numa = kNoNode;
        WEIR_RETURN_IF_ERROR(add(child, parent, NodeKind::kNuma, &numa));
        WEIR_TOPO_ASSIGN(bytes, xml_.integer(child, "local_memory", 0, INT64_MAX));
        topology_.mutable_node(numa).memory_bytes = static_cast<uint64_t>(bytes.value_or(0));
        WEIR_RETURN_IF_ERROR(remember(child, numa));
        if (topology_.node(numa).os_index < 0) {
          return xml_.error(
              child, fmt::format("a NUMANode needs an os_index from 0 to {}", kDeviceNumberMax));
        }
        const NodeId package = topology_.ancestor(parent, NodeKind::kPackage);
        if (package != kNoNode) topology_.mutable_node(numa).cpu = topology_.node(package).cpu;
        if (*home == parent) *home = numa;
      }
    }
    return Status();
  }

  // Makes a node with the properties common to all objects: number, CPUs, and for packages the
  // model.
  Status add(pugi::xml_node object, NodeId parent, NodeKind kind, NodeId* id) {
    Node node;
    node.kind = kind;
    WEIR_TOPO_ASSIGN(number, xml_.integer(object, "os_index", 0, UINT32_MAX));
    if (number) {
      node.os_index = *number > kDeviceNumberMax ? -1 : static_cast<int32_t>(*number);
    }
    if (const auto mask = XmlReader::text(object, "cpuset")) {
      Result<CpuSet> cpus = CpuSet::parse_mask(*mask);
      if (!cpus.ok()) return xml_.error(object, "cpuset: " + cpus.status().text());
      node.cpus = cpus.take();
    }
    if (kind == NodeKind::kMachine) {
      node.name = info(object, "DMIProductName");
    } else if (kind == NodeKind::kPackage) {
      CpuInfo cpu;
      cpu.arch = arch_;
      cpu.vendor = info(object, "CPUVendor");
      cpu.model = info(object, "CPUModel");
      cpu.family_id = info_number(object, "CPUFamilyNumber");
      cpu.model_id = info_number(object, "CPUModelNumber");
      node.cpu = cpu;
    }
    return place(object, parent, std::move(node), id);
  }

  Status place(pugi::xml_node object, NodeId parent, Node node, NodeId* id) {
    if (topology_.node_count() >= kNodeCountMax) return xml_.error(object, "too many objects");
    *id = topology_.add(parent, std::move(node));
    return Status();
  }

  Status read_cache(pugi::xml_node object, NodeId parent, NodeId* id) {
    constexpr int64_t kInstruction = 2;
    WEIR_TOPO_ASSIGN(cache_type, xml_.integer(object, "cache_type", 0, 2));
    if (cache_type.value_or(0) == kInstruction) return Status();
    WEIR_TOPO_ASSIGN(bytes, xml_.integer(object, "cache_size", 0, INT64_MAX));
    WEIR_TOPO_ASSIGN(level, xml_.integer(object, "depth", 1, 8));
    WEIR_RETURN_IF_ERROR(add(object, parent, NodeKind::kCache, id));
    CacheInfo cache;
    cache.level = static_cast<uint32_t>(level.value_or(type_of(object)[1] - '0'));
    cache.bytes = static_cast<uint64_t>(bytes.value_or(0));
    topology_.mutable_node(*id).cache = cache;
    return Status();
  }

  Status read_bridge(pugi::xml_node object, NodeId parent, NodeId* id) {
    const std::string_view buses = XmlReader::text(object, "bridge_pci").value_or("");
    Node node;
    if (XmlReader::text(object, "bridge_type").value_or("").starts_with("0-")) {
      node.kind = NodeKind::kRootComplex;
      // "0000:[2b-3b]" is domain and buses; the first bus names it.
      const size_t open = buses.find('[');
      const size_t dash = buses.find('-');
      if (open != std::string_view::npos && dash != std::string_view::npos && dash > open) {
        node.name = std::string(buses.substr(0, open)) +
                    std::string(buses.substr(open + 1, dash - open - 1));
      }
      return place(object, parent, std::move(node), id);
    }
    node.kind = NodeKind::kPciBridge;
    node.pci.emplace();
    WEIR_RETURN_IF_ERROR(read_pci(object, &node));
    const Node& above = topology_.node(parent);
    if (above.kind != NodeKind::kPciBridge) {
      node.bridge = BridgeRole::kRootPort;
    } else if (above.bridge == BridgeRole::kUpstreamPort) {
      node.bridge = BridgeRole::kDownstreamPort;
    } else {
      node.bridge = BridgeRole::kUpstreamPort;
    }
    // The link that a root or downstream port describes is the one below it.
    if (node.bridge != BridgeRole::kUpstreamPort) node.up = internal_edge();
    return place(object, parent, std::move(node), id);
  }

  Status read_pci(pugi::xml_node object, Node* node) {
    const std::string_view bus_id = XmlReader::text(object, "pci_busid").value_or("");
    const std::optional<PciAddress> address = PciAddress::parse(bus_id);
    if (!address) {
      return xml_.error(
          object,
          fmt::format("pci_busid=\"{:.40}\" is not a PCI address such as 0000:3b:00.0", bus_id));
    }
    const auto [line, is_new] = pci_lines_.try_emplace(*address, xml_.line(object));
    if (!is_new) {
      return xml_.error(object, fmt::format("pci_busid {} is used twice; the first is on line {}",
                                            address->text(), line->second));
    }
    node->pci->address = *address;
    WEIR_RETURN_IF_ERROR(read_pci_type(object, &*node->pci));
    WEIR_TOPO_ASSIGN(bandwidth_gbs, xml_.number(object, "pci_link_speed", 0, kBandwidthMaxGbs));
    if (bandwidth_gbs && *bandwidth_gbs > 0) {
      node->up = pcie_edge(*bandwidth_gbs);
      const PcieRate rate = pcie_rate(*bandwidth_gbs);
      node->pci->speed_gts_max = rate.speed_gts;
      node->pci->width_max = rate.width_lanes;
    }
    return Status();
  }

  // "0302 [10de:1db8] [10de:131d] a1 00": class, device, subsystem, revision, interface.
  Status read_pci_type(pugi::xml_node object, PciInfo* pci) const {
    const auto type = XmlReader::text(object, "pci_type");
    if (!type) return Status();
    uint32_t fields[5] = {};
    constexpr size_t kStarts[] = {0, 6, 11, 18, 23};
    for (size_t i = 0; i < 5; ++i) {
      const bool inside = type->size() >= kStarts[i] + 4;
      const char* first = type->data() + kStarts[i];
      if (!inside || std::from_chars(first, first + 4, fields[i], 16).ptr != first + 4) {
        return xml_.error(object, fmt::format("pci_type=\"{:.60}\" is not of the form \"0302 "
                                              "[10de:1db8] [10de:131d] a1\"",
                                              *type));
      }
    }
    pci->class_code = fields[0] << 8;
    pci->vendor = static_cast<uint16_t>(fields[1]);
    pci->device = static_cast<uint16_t>(fields[2]);
    pci->subsystem_vendor = static_cast<uint16_t>(fields[3]);
    pci->subsystem_device = static_cast<uint16_t>(fields[4]);
    return Status();
  }

  Status read_device(pugi::xml_node object, NodeId parent, NodeId* id) {
    Node node;
    node.pci.emplace();
    WEIR_RETURN_IF_ERROR(read_pci(object, &node));
    const bool vga = node.pci->class_code >> 8 == 0x0300;
    bool computes = !vga || node.pci->vendor == kNvidia || node.pci->vendor == kAmd;
    for (const pugi::xml_node child : object.children("object")) {
      computes = computes || is_compute_device(child.attribute("name").value());
    }
    const bool nvidia_bridge =
        node.pci->vendor == kNvidia && pci_class::is_nvswitch(node.pci->class_code);
    if (nvidia_bridge || XmlReader::text(object, "subtype").value_or("") == "NVSwitch") {
      node.kind = NodeKind::kNvSwitch;
      // A switch that does not respond shows no class.
      if (!pci_class::is_nvswitch(node.pci->class_code)) node.pci->class_code = 0x068000;
    } else if (pci_class::is_accelerator(node.pci->class_code) && computes) {
      node.kind = NodeKind::kGpu;
      node.gpu.emplace();
    } else if (pci_class::is_network(node.pci->class_code)) {
      node.kind = NodeKind::kNic;
      node.nic.emplace();
    } else {
      node.kind = NodeKind::kPciDevice;
    }
    return place(object, parent, std::move(node), id);
  }

  // The operating system's names for the device above.
  Status read_os_device(pugi::xml_node object, NodeId parent) {
    const std::string name(XmlReader::text(object, "name").value_or(""));
    WEIR_TOPO_ASSIGN(type, xml_.integer(object, "osdev_type", 0, INT32_MAX));
    const int64_t bits = type.value_or(0);
    const bool verbs = version_ >= 3 ? (bits & kOpenFabricsBit) != 0 : bits == kOpenFabrics;
    const bool network =
        verbs || (version_ >= 3 ? (bits & kNetworkBit) != 0 : bits == kNetworkDevice);
    NodeId owner = parent;
    if (network && !topology_.node(parent).pci) {
      Node node;  // an interface without a PCI device
      node.kind = NodeKind::kNic;
      node.nic.emplace();
      WEIR_RETURN_IF_ERROR(place(object, parent, std::move(node), &owner));
    }
    WEIR_RETURN_IF_ERROR(remember(object, owner));
    Node& node = topology_.mutable_node(owner);
    if (network && node.nic) {
      NetPort port;
      port.name = name;
      port.infiniband = verbs;
      port.guid = info(object, "NodeGUID");
      node.nic->ports.push_back(std::move(port));
    } else if (node.gpu) {
      if (const std::string model = info(object, "GPUModel"); !model.empty()) node.name = model;
      for (const char* key : {"NVIDIAUUID", "AMDUUID", "LevelZeroUUID"}) {
        if (const std::string uuid = info(object, key); !uuid.empty()) node.gpu->uuid = uuid;
      }
      read_gpu_number(name, &*node.gpu);
    } else if (node.kind == NodeKind::kPciDevice) {
      node.name += (node.name.empty() ? "" : ", ") + name;
    }
    return Status();
  }

  // "nvml3" and "rsmi3" carry the number that the vendor's tool prints.
  static void read_gpu_number(std::string_view name, GpuInfo* gpu) {
    if (!name.starts_with("nvml") && !name.starts_with("rsmi")) return;
    name.remove_prefix(4);
    int32_t number = 0;
    const auto [end, failure] = std::from_chars(name.data(), name.data() + name.size(), number);
    if (failure == std::errc() && end == name.data() + name.size() && number >= 0 &&
        number <= kDeviceNumberMax) {
      gpu->dev = number;
    }
  }

  const XmlReader& xml_;
  Topology topology_;
  int version_ = 0;
  std::string arch_;
  std::map<uint64_t, NodeId> node_of_gp_index_;
  std::map<PciAddress, size_t> pci_lines_;
};

}  // namespace

Result<Topology> parse_hwloc_xml(std::string_view text, std::string_view name) {
  auto loaded = XmlReader::load(text, name, kLimits);
  if (!loaded.ok()) return loaded.status();
  return Importer(*loaded.value()).read();
}

}  // namespace weir::topo
