// SPDX-License-Identifier: Apache-2.0
#include "core/topo/cpu_place.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>

#include "core/topo/estimates.h"
#include "core/topo/nearest.h"
#include "core/topo/sysfs_files.h"
#include "core/topo/topology.h"

namespace weir::topo {
namespace {

namespace fs = std::filesystem;

CpuSet cpus_in(const fs::path& file) {
  Result<CpuSet> cpus = CpuSet::parse_list(read_line(file));
  return cpus.ok() ? cpus.take() : CpuSet();
}

uint32_t first_of(const CpuSet& cpus) { return cpus.cpus().front(); }

// The number of a part of the machine that has the processors `here`.
uint32_t number_of(const CpuSet& here, const CpuSet& cpus, uint32_t number) {
  if (here.empty()) return CpuPlace::kUnknown;
  return here.contains(cpus) ? number : CpuPlace::kSeveral;
}

// The processors that share the last level of cache with the one of `folder`.
CpuSet last_cache(const fs::path& folder) {
  CpuSet last;
  uint64_t last_level = 0;
  for (const std::string& index : entries(folder / "cache")) {
    const fs::path cache = folder / "cache" / index;
    const uint64_t level = bytes_in(read_line(cache / "level"));
    if (level <= last_level || level > 8) continue;
    if (read_line(cache / "type") == "Instruction") continue;
    last_level = level;
    last = cpus_in(cache / "shared_cpu_list");
  }
  return last;
}

// Of the parts of a kind, the first that has all of the processors.
template <typename Accept>
uint32_t number_in(const Topology& topology, const CpuSet& cpus, const Accept& accept) {
  bool any = false;
  for (const Node& node : topology.nodes()) {
    if (!accept(node) || node.cpus.empty()) continue;
    any = true;
    if (!node.cpus.contains(cpus)) continue;
    return node.kind != NodeKind::kCache && node.os_index >= 0
               ? static_cast<uint32_t>(node.os_index)
               : first_of(node.cpus);
  }
  return any ? CpuPlace::kSeveral : CpuPlace::kUnknown;
}

uint32_t mbs_of(const Edge& edge) {
  const double mbs = edge.bandwidth_gbs * 1000;
  return mbs >= 1 && mbs < 1e9 ? static_cast<uint32_t>(std::lround(mbs)) : 0;
}

// Of the first processor.
CpuInfo cpu_in(const std::string& cpuinfo_file) {
  CpuInfo cpu;
  std::ifstream file(cpuinfo_file);
  for (std::string line; std::getline(file, line) && !line.empty();) {
    const size_t colon = line.find(": ");
    if (colon == std::string::npos) continue;
    const std::string name = line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1);
    const std::string value = line.substr(colon + 2);
    if (name == "vendor_id") cpu.vendor = value;
    if (name == "cpu family")
      std::from_chars(value.data(), value.data() + value.size(), cpu.family_id);
    if (name == "model") std::from_chars(value.data(), value.data() + value.size(), cpu.model_id);
  }
  return cpu;
}

}  // namespace

uint32_t package_link_mbs(const std::string& sysfs_root, const std::string& cpuinfo_file) {
  // Reading the second file may take milliseconds.
  const CpuSet nodes = cpus_in(fs::path(sysfs_root) / "devices/system/node/online");
  return nodes.count() > 1 ? mbs_of(socket_edge(cpu_in(cpuinfo_file))) : 0;
}

uint32_t package_link_mbs(const Topology& topology) {
  const std::vector<NodeId> packages = topology.all(NodeKind::kPackage);
  return packages.size() > 1 ? mbs_of(topology.node(packages.front()).up) : 0;
}

CpuPlace place_of(const CpuSet& cpus, const std::string& sysfs_root) {
  CpuPlace place;
  if (cpus.empty()) return place;
  const fs::path folder =
      fs::path(sysfs_root) / fmt::format("devices/system/cpu/cpu{}", first_of(cpus));
  const CpuSet cache = last_cache(folder);
  place.cache = number_of(cache, cpus, cache.empty() ? 0 : first_of(cache));
  // Kernels before 5.3 have only the older name.
  CpuSet package = cpus_in(folder / "topology/package_cpus_list");
  if (package.empty()) package = cpus_in(folder / "topology/core_siblings_list");
  uint32_t number = package.empty() ? 0 : first_of(package);
  const std::string id = read_line(folder / "topology/physical_package_id");
  std::from_chars(id.data(), id.data() + id.size(), number);
  place.package = number_of(package, cpus, number);
  const CpuSet online =
      cpus_in(fs::path(sysfs_root) / "devices/system/node/online");  // a list of nodes
  if (!online.empty()) {
    const int32_t numa = numa_node_of(cpus, sysfs_root);
    place.numa = numa < 0 ? CpuPlace::kSeveral : static_cast<uint32_t>(numa);
  }
  return place;
}

CpuPlace place_of(const CpuSet& cpus, const Topology& topology) {
  CpuPlace place;
  if (cpus.empty()) return place;
  uint32_t last_level = 0;
  for (const Node& node : topology.nodes()) {
    if (node.cache) last_level = std::max(last_level, node.cache->level);
  }
  place.cache = number_in(topology, cpus, [&](const Node& node) {
    return node.kind == NodeKind::kCache && node.cache && node.cache->level == last_level;
  });
  place.numa =
      number_in(topology, cpus, [](const Node& node) { return node.kind == NodeKind::kNuma; });
  place.package =
      number_in(topology, cpus, [](const Node& node) { return node.kind == NodeKind::kPackage; });
  return place;
}

}  // namespace weir::topo
