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

// Whether a topology file is merged with what is found in the machine (merge.h) or taken alone.
enum class Merge : uint8_t {
  kAuto,    // a file of NCCL's is merged, if it is of this machine; one of hwloc's is taken alone
  kAlways,  // it is merged; if that is impossible, the file is not used: read_machine fails
  kNever,
};
Merge merge_of_setting(std::string_view text);  // "1", "0", else kAuto: WEIR_TOPOLOGY_MERGE

// This machine as the user describes it: by `file` (WEIR_TOPOLOGY_FILE), or without one ("") as
// discover() finds it. `alone`, if given, receives why a file that should have been merged is taken
// alone; a note says so, too.
Result<Topology> read_machine(const std::string& file, Merge merge,
                              const DiscoverOptions& options = {}, std::string* alone = nullptr);

}  // namespace weir::topo
