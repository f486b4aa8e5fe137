// SPDX-License-Identifier: Apache-2.0
// Where a Topology comes from: this machine, or a file. Thread-safe.
#pragma once

#include <string>
#include <string_view>

#include "core/base/status.h"
#include "core/topo/hwloc_library.h"
#include "core/topo/topology.h"

namespace weir::topo {

struct DiscoverOptions {
  std::string hwloc_library = kHwlocLibrary;  // "" = do not use hwloc
  std::string sysfs_root = "/sys";
  std::string cpuinfo_file = "/proc/cpuinfo";
  std::string nvml_library = "libnvidia-ml.so.1";  // "" = do not ask NVML
};

// Reads this machine: hwloc, or a plainer view of /sys where hwloc cannot be used, then what sysfs
// and NVML know of devices. Parts that a container or a virtual machine
// hides are missing, which is not an error. Takes tens of milliseconds; keep the result.
Result<Topology> discover(const DiscoverOptions& options = {});

enum class TopologyFormat : uint8_t { kHwloc, kNccl };

// Tells the format by the name of the first element.
Result<TopologyFormat> detect_format(std::string_view text, std::string_view name);

// Reads a file in either format. Errors: "path: reason" or "path:line: reason".
Result<Topology> read_file(const std::string& path);

}  // namespace weir::topo
