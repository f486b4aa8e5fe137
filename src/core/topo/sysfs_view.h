// SPDX-License-Identifier: Apache-2.0
// This machine as Linux shows it in /sys, for where hwloc is not installed: packages, NUMA nodes,
// caches, cores, and the PCIe tree down to accelerators, network cards and storage. Thread-safe.
#pragma once

#include <string>

namespace weir::topo {

// As hwloc 2 would write it in XML; sysfs.h adds what it adds to hwloc's. Parts that /sys does not
// show are missing: without any, the machine has the processors that this process may use.
std::string sysfs_view(const std::string& sysfs_root, const std::string& cpuinfo_file);

}  // namespace weir::topo
