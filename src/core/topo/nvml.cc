// SPDX-License-Identifier: Apache-2.0
#include "core/topo/nvml.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>

#include "core/topo/estimates.h"
#include "core/topo/nvml_api.h"

namespace weir::topo {
namespace {

constexpr unsigned kDeviceCountMax = 1024;
constexpr double kSpeedsOfGeneration[] = {0, 2.5, 5, 8, 16, 32, 64};

struct CloseLibrary {
  void operator()(void* handle) const { dlclose(handle); }
};

class Nvml {
 public:
  explicit Nvml(Topology* topology) : topology_(*topology) {}
  ~Nvml() {
    if (initialized_) api_.shutdown();
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  // The reason why NVML cannot be used; "" when it can.
  std::string open(const std::string& name) {
    library_.reset(dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL));
    if (!library_) {
      const char* reason = dlerror();
      return fmt::format("not loaded, so NVIDIA GPUs are known from PCI only: {}",
                         reason != nullptr ? reason : "unknown reason");
    }
    bool complete = load("nvmlInit_v2", &api_.init) && load("nvmlShutdown", &api_.shutdown) &&
                    load("nvmlErrorString", &api_.error_string) &&
                    load("nvmlDeviceGetCount_v2", &api_.device_count) &&
                    load("nvmlDeviceGetHandleByIndex_v2", &api_.device_by_index);
    complete = complete && (load("nvmlDeviceGetPciInfo_v3", &api_.pci_info) ||
                            load("nvmlDeviceGetPciInfo_v2", &api_.pci_info));
    if (!complete) return "the library lacks functions that every NVML since 2012 has";
    load("nvmlDeviceGetName", &api_.name);
    load("nvmlDeviceGetUUID", &api_.uuid);
    load("nvmlDeviceGetMemoryInfo", &api_.memory);
    load("nvmlDeviceGetCudaComputeCapability", &api_.compute_capability);
    load("nvmlDeviceGetMaxPcieLinkGeneration", &api_.max_pcie_generation);
    load("nvmlDeviceGetMaxPcieLinkWidth", &api_.max_pcie_width);
    load("nvmlDeviceGetCurrPcieLinkGeneration", &api_.current_pcie_generation);
    load("nvmlDeviceGetCurrPcieLinkWidth", &api_.current_pcie_width);
    load("nvmlDeviceGetNvLinkState", &api_.link_state);
    load("nvmlDeviceGetNvLinkRemotePciInfo_v2", &api_.link_remote_pci);
    load("nvmlDeviceGetNvLinkRemoteDeviceType", &api_.link_remote_type);
    load("nvmlDeviceGetFieldValues", &api_.field_values);
    const nvml::Return result = api_.init();
    if (result != nvml::kSuccess)
      return fmt::format("the driver says: {}", api_.error_string(result));
    initialized_ = true;
    return "";
  }

  void read() {
    unsigned count = 0;
    nvml::Return result = api_.device_count(&count);
    if (result != nvml::kSuccess || count == 0) {
      note(result == nvml::kSuccess ? "the driver has no GPU" : api_.error_string(result));
      return;
    }
    for (NodeId id = 0; id < topology_.node_count(); ++id) {
      if (topology_.node(id).pci) by_address_[topology_.node(id).pci->address] = id;
    }
    std::map<NodeId, nvml::Device> devices;
    for (unsigned i = 0; i < std::min(count, kDeviceCountMax); ++i) {
      nvml::Device device = nullptr;
      result = api_.device_by_index(i, &device);
      if (result != nvml::kSuccess) {
        note(fmt::format("GPU {}: {}", i, api_.error_string(result)));
        continue;
      }
      const NodeId id = read_device(i, device);
      if (id != kNoNode) devices[id] = device;
    }
    for (const auto& [id, device] : devices) read_links(id, device);
    add_links();
  }

 private:
  template <typename Function>
  bool load(const char* name, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(library_.get(), name));
    return *function != nullptr;
  }

  void note(std::string text) { topology_.add_note("nvml", std::move(text)); }

  static PciAddress address_of(const nvml::PciInfo& info) {
    PciAddress address;
    address.domain = info.domain;
    address.bus = static_cast<uint8_t>(info.bus);
    address.device = static_cast<uint8_t>(info.device & 31);
    return address;
  }

  NodeId read_device(unsigned index, nvml::Device device) {
    nvml::PciInfo info = {};
    const nvml::Return result = api_.pci_info(device, &info);
    if (result != nvml::kSuccess) {
      note(fmt::format("PCI address of GPU {}: {}", index, api_.error_string(result)));
      return kNoNode;
    }
    const NodeId id = gpu_node(info);
    if (id == kNoNode) return id;
    Node& node = topology_.mutable_node(id);
    GpuInfo& gpu = *node.gpu;
    gpu.dev = static_cast<int32_t>(index);
    char text[96] = {};
    if (api_.name && api_.name(device, text, sizeof text) == nvml::kSuccess) node.name = text;
    if (api_.uuid && api_.uuid(device, text, sizeof text) == nvml::kSuccess) gpu.uuid = text;
    nvml::Memory memory = {};
    if (api_.memory && api_.memory(device, &memory) == nvml::kSuccess) {
      gpu.memory_bytes = memory.total;
    }
    int major = 0;
    int minor = 0;
    if (api_.compute_capability &&
        api_.compute_capability(device, &major, &minor) == nvml::kSuccess) {
      gpu.compute_capability = major * 10 + minor;
    }
    read_pcie(device, &node);
    return id;
  }

  NodeId gpu_node(const nvml::PciInfo& info) {
    const PciAddress address = address_of(info);
    const auto found = by_address_.find(address);
    if (found != by_address_.end()) {
      if (topology_.node(found->second).kind == NodeKind::kGpu) return found->second;
      note(fmt::format("{} is a GPU to the driver, but not by its PCI class; left as it is",
                       address.text()));
      return kNoNode;
    }
    Node node;
    node.kind = NodeKind::kGpu;
    node.gpu.emplace();
    node.pci.emplace();
    node.pci->address = address;
    node.pci->class_code = 0x030200;
    node.pci->vendor = static_cast<uint16_t>(info.pci_device_id & 0xffff);
    node.pci->device = static_cast<uint16_t>(info.pci_device_id >> 16);
    const NodeId id = topology_.add(0, std::move(node));
    by_address_[address] = id;
    return id;
  }

  void read_pcie(nvml::Device device, Node* node) {
    const auto ask = [&](nvml::Return (*function)(nvml::Device, unsigned*)) -> unsigned {
      unsigned value = 0;
      return function && function(device, &value) == nvml::kSuccess ? value : 0;
    };
    const auto speed = [](unsigned generation) {
      return generation < std::size(kSpeedsOfGeneration) ? kSpeedsOfGeneration[generation] : 0;
    };
    // sysfs, which sees both ends of the link, takes precedence.
    if (node->up.source == Source::kStated) return;
    PciInfo& pci = *node->pci;
    pci.speed_gts_max = speed(ask(api_.max_pcie_generation));
    pci.width_max = ask(api_.max_pcie_width);
    pci.speed_gts_current = speed(ask(api_.current_pcie_generation));
    pci.width_current = ask(api_.current_pcie_width);
    const double bandwidth_gbs = pcie_bandwidth_gbs(pci.speed_gts_max, pci.width_max);
    if (bandwidth_gbs > 0) node->up = pcie_edge(bandwidth_gbs);
  }

  void read_links(NodeId id, nvml::Device device) {
    if (!api_.link_state || !api_.link_remote_pci) return;
    for (unsigned link = 0; link < nvml::kLinkCountMax; ++link) {
      int active = 0;
      if (api_.link_state(device, link, &active) != nvml::kSuccess || active == 0) continue;
      nvml::PciInfo remote = {};
      if (api_.link_remote_pci(device, link, &remote) != nvml::kSuccess) continue;
      int type = -1;
      if (!api_.link_remote_type || api_.link_remote_type(device, link, &type) != nvml::kSuccess) {
        type = -1;
      }
      const NodeId target = link_target(id, remote, type);
      if (target == kNoNode || target == id) continue;
      Sum& sum = sums_[{id, target}];
      ++sum.count;
      sum.bandwidth_gbs += link_bandwidth_gbs(id, device, link);
    }
  }

  double link_bandwidth_gbs(NodeId id, nvml::Device device, unsigned link) const {
    nvml::FieldValue field = {};
    field.field_id = nvml::kFieldLinkSpeedMbps;
    field.scope_id = link;
    if (api_.field_values && api_.field_values(device, 1, &field) == nvml::kSuccess &&
        field.result == nvml::kSuccess && field.value.u32 > 0) {
      return field.value.u32 / 1000.0;
    }
    return nvlink_edge(topology_.node(id).gpu->compute_capability).bandwidth_gbs;
  }

  NodeId link_target(NodeId from, const nvml::PciInfo& remote, int type) {
    if (type == nvml::kRemoteNpu) {
      const NodeId numa = topology_.ancestor(from, NodeKind::kNuma);
      return numa == kNoNode ? 0 : numa;
    }
    const PciAddress address = address_of(remote);
    const auto found = by_address_.find(address);
    if (found != by_address_.end()) {
      const NodeKind kind = topology_.node(found->second).kind;
      if (kind == NodeKind::kGpu || kind == NodeKind::kNvSwitch) return found->second;
      // A switch whose class or vendor hwloc did not recognize.
      if (type == nvml::kRemoteSwitch && kind == NodeKind::kPciDevice) {
        topology_.mutable_node(found->second).kind = NodeKind::kNvSwitch;
        return found->second;
      }
    }
    if (type != nvml::kRemoteSwitch) return kNoNode;
    // Virtual machines and containers do not see the switches on PCI.
    Node node;
    node.kind = NodeKind::kNvSwitch;
    node.pci.emplace();
    node.pci->address = address;
    node.pci->class_code = 0x068000;
    node.up = internal_edge();
    const NodeId id = topology_.add(0, std::move(node));
    by_address_[address] = id;
    return id;
  }

  void add_links() {
    for (const auto& [key, sum] : sums_) {
      const auto [from, to] = key;
      // Each of two GPUs lists the links between them.
      if (to < from && sums_.contains({to, from})) continue;
      bool known = false;
      for (const Link& link : topology_.links()) {
        known = known || (link.a == from && link.b == to) || (link.a == to && link.b == from);
      }
      if (known) continue;  // hwloc has NVML's matrix already
      topology_.add_link({from,
                          to,
                          LinkKind::kNvlink,
                          sum.count,
                          {sum.bandwidth_gbs, nvlink_edge(0).latency_us, Source::kStated}});
    }
  }

  struct Sum {
    uint32_t count = 0;
    double bandwidth_gbs = 0;
  };

  Topology& topology_;
  std::unique_ptr<void, CloseLibrary> library_;
  nvml::Functions api_ = {};
  bool initialized_ = false;
  std::map<PciAddress, NodeId> by_address_;
  std::map<std::pair<NodeId, NodeId>, Sum> sums_;
};

}  // namespace

Status enrich_from_nvml(const std::string& library, Topology* topology) {
  if (topology->empty() || topology->node(0).kind != NodeKind::kMachine) {
    return invalid_argument("NVML describes one machine; the topology is not one");
  }
  Nvml nvml(topology);
  const std::string reason = nvml.open(library);
  if (!reason.empty()) {
    topology->add_note("nvml", reason);
    return Status();
  }
  nvml.read();
  return topology->finish();
}

}  // namespace weir::topo
