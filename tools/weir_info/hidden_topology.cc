// SPDX-License-Identifier: Apache-2.0
#include "weir_info/hidden_topology.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <string>

namespace weir::info {
namespace {

namespace fs = std::filesystem;

// PCI classes (PCI Code and ID Assignment Specification): display and 3D controllers, processing
// accelerators, InfiniBand controllers.
bool is_accelerator_or_fabric(const std::string& device_class) {
  return device_class.starts_with("0x0300") || device_class.starts_with("0x0302") ||
         device_class.starts_with("0x1200") || device_class.starts_with("0x0207");
}

std::string line_of(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

constexpr size_t kSlotLength = 10;  // "0000:3b:00"

// "0000:3b:00.0"
bool is_address(const std::string& name) {
  return name.size() == 12 && name[4] == ':' && name[7] == ':' && name[10] == '.';
}

}  // namespace

PciTree gather_pci_tree(const fs::path& root) {
  PciTree tree;
  std::ifstream processors(root / "proc/cpuinfo");
  for (std::string line; std::getline(processors, line) && !tree.virtual_machine;) {
    tree.virtual_machine =
        line.starts_with("flags") && line.find(" hypervisor") != std::string::npos;
  }
  std::map<std::string, std::set<std::string>> below;  // by bridge
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(root / "sys/bus/pci/devices", error)) {
    const std::string name = entry.path().filename().string();
    if (!is_address(name) || !is_accelerator_or_fabric(line_of(entry.path() / "class"))) continue;
    tree.devices.push_back(name);
    // …/devices/pci0000:00/0000:00:01.0/0000:01:00.0: each address before the last is a bridge.
    // Several functions of one card are one device below it.
    const fs::path real = fs::canonical(entry.path(), error);
    for (const fs::path& step : real.parent_path()) {
      if (is_address(step.string())) below[step.string()].insert(name.substr(0, kSlotLength));
    }
  }
  tree.share_bridge = std::any_of(below.begin(), below.end(),
                                  [](const auto& bridge) { return bridge.second.size() > 1; });
  std::sort(tree.devices.begin(), tree.devices.end());
  return tree;
}

bool hides_topology(const PciTree& tree) {
  return tree.virtual_machine && tree.devices.size() > 1 && !tree.share_bridge;
}

}  // namespace weir::info
