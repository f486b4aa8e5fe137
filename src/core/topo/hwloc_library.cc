// SPDX-License-Identifier: Apache-2.0
#include "core/topo/hwloc_library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <hwloc.h>

#include <memory>

namespace weir::topo {
namespace {

// The first version with all functions and components that are used here, and the last with this
// ABI.
constexpr unsigned kVersionMin = 0x00020400;
constexpr unsigned kVersionEnd = 0x00030000;

// Plugins that may or may not be installed beside hwloc. A runtime of CUDA, OpenCL or Level Zero
// that is started here would not survive the user's fork(); the display server is of no interest;
// Weir reads PCI and NVML facts from sysfs and the driver itself, so that the result does not
// depend on the plugins.
constexpr const char* kComponentsLeftOut[] = {"cuda", "opencl", "levelzero", "gl", "nvml", "pci"};

// Its functions, by the names without the prefix.
#define WEIR_HWLOC_FUNCTIONS(X)   \
  X(get_api_version)              \
  X(topology_init)                \
  X(topology_destroy)             \
  X(topology_set_io_types_filter) \
  X(topology_set_type_filter)     \
  X(topology_set_components)      \
  X(topology_load)                \
  X(topology_export_xmlbuffer)    \
  X(free_xmlbuffer)

struct Hwloc {
#define WEIR_HWLOC_MEMBER(name) decltype(&hwloc_##name) name = nullptr;
  WEIR_HWLOC_FUNCTIONS(WEIR_HWLOC_MEMBER)
#undef WEIR_HWLOC_MEMBER
};

Status unusable(std::string_view why) {
  return {Code::kUnsupported, fmt::format("hwloc cannot be used: {}", why)};
}

// It is opened anew each time, which is cheap, and stays open.
Result<Hwloc> open_hwloc(const std::string& library) {
  if (library.empty()) return unusable("no library is named");  // "" is the program to the loader
  void* opened = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (opened == nullptr) {
    const char* why = dlerror();
    return unusable(why != nullptr ? why : library + " cannot be opened");
  }
  Hwloc hwloc;
#define WEIR_HWLOC_FIND(name)                                                         \
  hwloc.name = reinterpret_cast<decltype(hwloc.name)>(dlsym(opened, "hwloc_" #name)); \
  if (hwloc.name == nullptr) return unusable(library + " has no function hwloc_" #name);
  WEIR_HWLOC_FUNCTIONS(WEIR_HWLOC_FIND)
#undef WEIR_HWLOC_FIND
  const unsigned version = hwloc.get_api_version();
  if (version < kVersionMin || version >= kVersionEnd) {
    return unusable(fmt::format("{} has version {:#x} of the API; 2.4 or a later 2 is needed",
                                library, version));
  }
  return hwloc;
}

struct DestroyTopology {
  decltype(Hwloc::topology_destroy) destroy;
  void operator()(hwloc_topology_t topology) const { destroy(topology); }
};
using HwlocTopology = std::unique_ptr<std::remove_pointer_t<hwloc_topology_t>, DestroyTopology>;

}  // namespace

Result<std::string> hwloc_version(const std::string& library) {
  const Result<Hwloc> hwloc = open_hwloc(library);
  if (!hwloc.ok()) return hwloc.status();
  const unsigned version = hwloc.value().get_api_version();
  return fmt::format("{}.{}.{}", version >> 16, (version >> 8) & 0xff, version & 0xff);
}

Result<std::string> hwloc_view(const std::string& library) {
  const Result<Hwloc> found = open_hwloc(library);
  if (!found.ok()) return found.status();
  const Hwloc& hwloc = found.value();
  hwloc_topology_t raw = nullptr;
  if (hwloc.topology_init(&raw) != 0) return system_error("hwloc_topology_init");
  const HwlocTopology topology(raw, DestroyTopology{hwloc.topology_destroy});
  hwloc.topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  hwloc.topology_set_type_filter(raw, HWLOC_OBJ_BRIDGE, HWLOC_TYPE_FILTER_KEEP_ALL);
  for (const char* component : kComponentsLeftOut) {
    // Fails for a component that this hwloc does not have, which does not matter.
    hwloc.topology_set_components(raw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, component);
  }
  if (hwloc.topology_load(raw) != 0) return system_error("hwloc_topology_load");
  char* text = nullptr;
  int length = 0;
  if (hwloc.topology_export_xmlbuffer(raw, &text, &length, 0) != 0) {
    return system_error("hwloc_topology_export_xmlbuffer");
  }
  std::string xml(text, static_cast<size_t>(length));
  hwloc.free_xmlbuffer(raw, text);
  while (!xml.empty() && xml.back() == '\0') xml.pop_back();  // the length counts the terminator
  return xml;
}

}  // namespace weir::topo
