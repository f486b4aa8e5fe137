// SPDX-License-Identifier: Apache-2.0
// The sizes of a processor's data caches, from a few files of /sys: as hwloc has them, but without
// starting hwloc. (On some CPUs the C library's figure for the last level is that of several such
// caches together.) Thread-safe.
#pragma once

#include <cstdint>
#include <string>

namespace weir::topo {

struct CpuCaches {
  bool known = false;     // false: /sys shows no caches, as in some virtual machines
  uint64_t l2_bytes = 0;  // 0: there is none
  uint64_t last_bytes =
      0;  // the last level, if it is the third or higher or cores share it; else 0
};

// Of one processor, by its number in the operating system.
CpuCaches caches_of(uint32_t cpu, const std::string& sysfs_root = "/sys");

// Of the processor that the caller runs on.
CpuCaches own_caches();

}  // namespace weir::topo
