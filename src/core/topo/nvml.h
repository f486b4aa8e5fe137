// SPDX-License-Identifier: Apache-2.0
// What NVIDIA's driver says of its GPUs: numbers, models, UUIDs, memory, NVLinks. The library is
// loaded at run time; nothing of it is needed to build. Thread-safe on different topologies.
#pragma once

#include <string>

#include "core/topo/topology.h"

namespace weir::topo {

// Adds to a topology of one machine what NVML says, and finishes it again. `library` is a name for
// dlopen(), "libnvidia-ml.so.1" by default. No library, no driver or no GPU is no error: a Note
// says why. GPUs that the topology does not have (a container without the PCI tree) are added to
// it.
Status enrich_from_nvml(const std::string& library, Topology* topology);

}  // namespace weir::topo
