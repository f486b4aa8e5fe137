// SPDX-License-Identifier: Apache-2.0
// A Topology as a picture. Pure; thread-safe.
#pragma once

#include <string>

#include "core/topo/topology.h"

namespace weir::topo {

// An SVG document as large as its content: machines with packages, NUMA nodes, PCIe switches and
// devices as nested boxes, NVSwitches as bars that the lines of their GPUs end in, direct links as
// lines. Wide machines are drawn in two rows that face each other, with the links between them.
std::string to_svg(const Topology& topology);

}  // namespace weir::topo
