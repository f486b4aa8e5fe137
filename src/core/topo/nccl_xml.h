// SPDX-License-Identifier: Apache-2.0
// The topology file of NCCL and RCCL: users name it in NCCL_TOPO_FILE, and NCCL writes it to
// NCCL_TOPO_DUMP_FILE. Pure functions; thread-safe.
//
//   system > cpu (a NUMA node) > pci (bridge, switch or device), nic
//   pci > pci, gpu, nic;  gpu > nvlink, xgmi, c2c;  nic > net
//
// An unknown element or attribute is ignored, as in NCCL, and becomes a Note with its line.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/status.h"
#include "core/topo/topology.h"

namespace weir::topo {

// The class of the CPU's end of an NVLink (POWER9), which has NVSwitches' base class and subclass.
inline constexpr uint32_t kCpuNvlinkClass = 0x068001;

// `name` is what errors and notes call the text ("name:line: reason"). Any input is safe.
Result<Topology> parse_nccl_xml(std::string_view text, std::string_view name);

// One machine as a file that NCCL reads and that parse_nccl_xml() turns into a topology with equal
// path classes and bandwidths. Properties that NCCL's format lacks go into attributes whose names
// start with "weir_", which NCCL ignores; devices other than GPUs, NICs and NVSwitches, caches and
// cores are left out. Error: several machines (NCCL writes one file per machine; see machine() in
// cluster.h).
Result<std::string> to_nccl_xml(const Topology& topology);

}  // namespace weir::topo
