// SPDX-License-Identifier: Apache-2.0
// Figures for edges about which neither the driver nor a file says anything. They give a sensible
// order of routes until measurements exist; every edge made from them says so (Source::kEstimated).
// Peak payload per direction, from the vendors' data sheets. Pure functions.
#pragma once

#include <string_view>

#include "core/topo/topology.h"

namespace weir::topo {

// One NVLink of a GPU with this CUDA compute capability (70 = 7.0): kStated, since the generation
// is a property of the model; without the capability, an estimate.
Edge nvlink_edge(int32_t compute_capability);
// One xGMI link of a GPU of this architecture ("906", "gfx90a").
Edge xgmi_edge(std::string_view gcn);
// The link from one package (or NUMA node, where packages are unknown) to the others.
Edge socket_edge(const CpuInfo& cpu);
// From a NUMA node to the others in its package.
Edge numa_edge();
// The memory of a NUMA node: typical of servers since about 2017.
inline constexpr double kNumaMemoryGbs = 80;
// A PCIe link of unknown speed: third generation, 16 lanes.
Edge pcie_edge_unknown();
// A PCIe link with a known bandwidth.
Edge pcie_edge(double bandwidth_gbs);
// Within a chip.
Edge internal_edge(double latency_us = 0);
// From a NIC to the network.
Edge network_edge(const NicInfo& nic);

}  // namespace weir::topo
