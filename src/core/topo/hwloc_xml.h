// SPDX-License-Identifier: Apache-2.0
// The XML form of hwloc 2 and 3 (`lstopo machine.xml`): packages, NUMA nodes, caches, the PCIe
// tree, and the links of accelerators from the distance matrices NVLinkBandwidth, XGMIBandwidth and
// XeLinkBandwidth. Discovery of this machine goes through the same reader. Pure; thread-safe.
#pragma once

#include <string_view>

#include "core/base/status.h"
#include "core/topo/topology.h"

namespace weir::topo {

// `name` is what errors and notes call the text ("name:line: reason"). Any input is safe. The
// files of hwloc 1 and of versions after 3 are refused with the way to convert them.
Result<Topology> parse_hwloc_xml(std::string_view text, std::string_view name);

}  // namespace weir::topo
