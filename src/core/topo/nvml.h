// SPDX-License-Identifier: Apache-2.0
// NVIDIA's driver on its GPUs: numbers, models, UUIDs, memory, NVLinks. The library is loaded at
// run time and not needed to build. Thread-safe on different topologies.
#pragma once

#include <string>

#include "core/topo/topology.h"

namespace weir::topo {

// Adds the facts that NVML gives to a topology of one machine, and finishes it again. `library` is
// a name for dlopen(), "libnvidia-ml.so.1" by default. A missing library, driver or GPU is not an
// error: a Note says why. GPUs that the topology does not have (a container without the PCI tree)
// are added to it.
Status enrich_from_nvml(const std::string& library, Topology* topology);

}  // namespace weir::topo
