// SPDX-License-Identifier: Apache-2.0
#include "core/topo/nearest.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace weir::topo {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

int32_t numa_node_of(const CpuSet& cpus, const std::string& sysfs_root) {
  const std::string folder = sysfs_root + "/devices/system/node";
  const auto online = CpuSet::parse_list(first_line(folder + "/online"));
  if (!online.ok() || cpus.empty()) return -1;
  for (const uint32_t node : online.value().cpus()) {
    const auto here =
        CpuSet::parse_list(first_line(folder + "/node" + std::to_string(node) + "/cpulist"));
    if (here.ok() && here.value().contains(cpus)) return static_cast<int32_t>(node);
  }
  return -1;
}

std::vector<std::string> devices_of_class(const std::string& device_class,
                                          const std::string& sysfs_root) {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator entry(sysfs_root + "/class/" + device_class, error);
  for (const std::filesystem::directory_iterator end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string nearest_device(const std::string& device_class, const std::vector<std::string>& names,
                           int32_t numa_node, const std::string& sysfs_root) {
  if (names.size() == 1) return names[0];
  std::string nearest;
  for (const std::string& name : names) {
    const std::string node =
        first_line(fmt::format("{}/class/{}/{}/device/numa_node", sysfs_root, device_class, name));
    if (numa_node < 0 || node != std::to_string(numa_node)) continue;
    if (!nearest.empty()) return "";
    nearest = name;
  }
  return nearest;
}

}  // namespace weir::topo
