// SPDX-License-Identifier: Apache-2.0
// Where a set of processors lies in its machine: in which last-level cache, NUMA node and package.
// From a few files of /sys, fast enough for every communicator, or from a Topology. Thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "core/topo/cpuset.h"

namespace weir::topo {

class Topology;

// Numbers that all processes of a machine give alike: of a cache its first processor, of a NUMA
// node and a package the operating system's number.
struct CpuPlace {
  static constexpr uint32_t kUnknown = 0xffffffffu;  // the machine does not say
  static constexpr uint32_t kSeveral = 0xfffffffeu;  // the processors are on more than one

  uint32_t cache = kUnknown;  // the last level
  uint32_t numa = kUnknown;
  uint32_t package = kUnknown;

  bool operator==(const CpuPlace&) const = default;
};

// `sysfs_root` is "/sys", or a copy of one. An empty set: everything is unknown.
CpuPlace place_of(const CpuSet& cpus, const std::string& sysfs_root);
CpuPlace place_of(const CpuSet& cpus, const Topology& topology);

// What one direction of the link between a package and the others carries, in MB/s, by the model of
// the processors or as the topology says; 0: there is one package, or one NUMA node.
uint32_t package_link_mbs(const std::string& sysfs_root, const std::string& cpuinfo_file);
uint32_t package_link_mbs(const Topology& topology);

}  // namespace weir::topo
