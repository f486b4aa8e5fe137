// SPDX-License-Identifier: Apache-2.0
// Finds what is nearest to a set of processors from a few files under /sys: fast enough for every
// communicator. Where several are equally near, there is no answer. Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/topo/cpuset.h"

namespace weir::topo {

// The NUMA node that has all of `cpus`; -1: they are on several, or the kernel does not say.
// `sysfs_root` is "/sys", or a copy of one.
int32_t numa_node_of(const CpuSet& cpus, const std::string& sysfs_root);

// The devices of a class such as "infiniband", in alphabetical order.
std::vector<std::string> devices_of_class(const std::string& device_class,
                                          const std::string& sysfs_root);

// Of the devices `names` of a class, the only one on `numa_node`, or the only one at all; "": none,
// or several.
std::string nearest_device(const std::string& device_class, const std::vector<std::string>& names,
                           int32_t numa_node, const std::string& sysfs_root);

}  // namespace weir::topo
