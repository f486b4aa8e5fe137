// SPDX-License-Identifier: Apache-2.0
#include "core/topo/cpus.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <sstream>

#include "core/topo/topology.h"

namespace weir::topo {
namespace {

constexpr int kLevelMax = 64;  // of nested control groups

// Processors that the quota of one control group allows; 0 = no quota.
double quota_of(const std::string& folder) {
  std::string quota;
  double period_us = 0;
  if (std::ifstream file(folder + "/cpu.max"); file >> quota >> period_us) {  // version 2
    if (quota == "max") return 0;
  } else {  // version 1
    std::ifstream quota_file(folder + "/cpu.cfs_quota_us");
    std::ifstream period_file(folder + "/cpu.cfs_period_us");
    if (!(quota_file >> quota) || !(period_file >> period_us)) return 0;
  }
  std::istringstream number(quota);
  double quota_us = 0;
  if (!(number >> quota_us) || quota_us <= 0 || !(period_us > 0)) return 0;
  return quota_us / period_us;
}

// The smallest quota from `path` up to the mount.
double smallest_quota(const std::string& mount, std::string path) {
  double smallest = 0;
  for (int level = 0; level < kLevelMax; ++level) {
    const double quota = quota_of(mount + path);
    if (quota > 0 && (smallest == 0 || quota < smallest)) smallest = quota;
    if (path.empty() || path == "/") break;
    path.erase(path.find_last_of('/'));
  }
  return smallest;
}

std::vector<uint32_t> groups(const Topology& topology, std::span<const CpuSet> rank_cpus,
                             NodeKind kind, uint32_t level) {
  std::vector<uint32_t> group_of_rank;
  std::map<NodeId, uint32_t> group_of_node;
  uint32_t next = 0;
  for (const CpuSet& cpus : rank_cpus) {
    NodeId home = kNoNode;
    for (NodeId id = 0; id < topology.node_count() && home == kNoNode; ++id) {
      const Node& node = topology.node(id);
      const bool fits = node.kind == kind && (!node.cache || node.cache->level == level);
      if (fits && !cpus.empty() && node.cpus.contains(cpus)) home = id;
    }
    if (home == kNoNode) {
      group_of_rank.push_back(next++);
      continue;
    }
    const auto [place, is_new] = group_of_node.try_emplace(home, next);
    if (is_new) ++next;
    group_of_rank.push_back(place->second);
  }
  return group_of_rank;
}

}  // namespace

CpuSet cpus_allowed() {
  CpuSet set;
  // The kernel rejects a mask smaller than its own; it has at most 8192 CPUs in common builds.
  for (int cpu_count = 1024; cpu_count <= static_cast<int>(CpuSet::kCpuCountMax); cpu_count *= 4) {
    cpu_set_t* mask = CPU_ALLOC(static_cast<size_t>(cpu_count));
    if (mask == nullptr) break;
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(cpu_count));
    const bool done = sched_getaffinity(0, bytes, mask) == 0;
    for (int cpu = 0; done && cpu < cpu_count; ++cpu) {
      if (CPU_ISSET_S(static_cast<size_t>(cpu), bytes, mask)) set.add(static_cast<uint32_t>(cpu));
    }
    CPU_FREE(mask);
    if (done) break;
  }
  if (!set.empty()) return set;
  const long online = std::clamp<long>(sysconf(_SC_NPROCESSORS_ONLN), 1, CpuSet::kCpuCountMax);
  for (long cpu = 0; cpu < online; ++cpu) set.add(static_cast<uint32_t>(cpu));
  return set;
}

uint32_t cpu_allowed_count() {
  return cpu_allowed_count(cpus_allowed(), "/sys/fs/cgroup", "/proc/self/cgroup");
}

uint32_t cpu_allowed_count(const CpuSet& allowed, const std::string& cgroup_root,
                           const std::string& process_cgroup_file) {
  double limit = static_cast<double>(std::max<size_t>(allowed.count(), 1));
  const auto cut = [&](double quota) {
    if (quota > 0) limit = std::min(limit, std::ceil(quota));
  };
  // Lines are "number:controllers:path"; version 2 has "0::path".
  std::ifstream file(process_cgroup_file);
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    if (controllers == ",,") cut(smallest_quota(cgroup_root, path));
    if (controllers.find(",cpu,") != std::string::npos) {
      cut(smallest_quota(cgroup_root + "/cpu", path));
      cut(smallest_quota(cgroup_root + "/cpu,cpuacct", path));
    }
  }
  // In a container the mount shows the container's own group at its top, whatever the path says.
  cut(quota_of(cgroup_root));
  cut(quota_of(cgroup_root + "/cpu"));
  return static_cast<uint32_t>(std::max(limit, 1.0));
}

std::vector<uint32_t> cache_groups(const Topology& topology, std::span<const CpuSet> rank_cpus,
                                   uint32_t level) {
  return groups(topology, rank_cpus, NodeKind::kCache, level);
}

std::vector<uint32_t> numa_groups(const Topology& topology, std::span<const CpuSet> rank_cpus) {
  return groups(topology, rank_cpus, NodeKind::kNuma, 0);
}

SharedCache shared_cache(const Topology& topology, const CpuSet& cpus) {
  SharedCache best;
  for (const Node& node : topology.nodes()) {
    if (!node.cache || cpus.empty() || !node.cpus.contains(cpus)) continue;
    if (node.cache->level > best.level) best = {node.cache->level, node.cache->bytes};
  }
  return best;
}

}  // namespace weir::topo
