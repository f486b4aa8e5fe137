// SPDX-License-Identifier: Apache-2.0
// Processors: how many this process may use, and which ranks run near each other. Thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/topo/cpuset.h"

namespace weir::topo {

class Topology;

// The processors in this process's affinity mask. Never empty.
CpuSet cpus_allowed();

// How many processors' worth of time this process may use: the affinity mask, cut down to the quota
// of the control groups that it is in (rounded up; containers often have all CPUs and a quota of
// few). At least 1. Ranks beyond it must not spin. Read again at each call: a few system calls.
uint32_t cpu_allowed_count();

// The same for a given mask, cgroup mount ("/sys/fs/cgroup") and process file
// ("/proc/self/cgroup").
uint32_t cpu_allowed_count(const CpuSet& allowed, const std::string& cgroup_root,
                           const std::string& process_cgroup_file);

// Numbers the groups of ranks that run below one cache of `level`, from 0 in order of first
// appearance. `rank_cpus` holds the processors of each rank; a rank whose processors are not within
// a single such cache is a group of its own.
std::vector<uint32_t> cache_groups(const Topology& topology, std::span<const CpuSet> rank_cpus,
                                   uint32_t level);

// The same by NUMA node.
std::vector<uint32_t> numa_groups(const Topology& topology, std::span<const CpuSet> rank_cpus);

// The highest level of cache that all of `cpus` share, and its size; level 0 when there is none.
struct SharedCache {
  uint32_t level = 0;
  uint64_t bytes = 0;
};
SharedCache shared_cache(const Topology& topology, const CpuSet& cpus);

}  // namespace weir::topo
