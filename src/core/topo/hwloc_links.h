// SPDX-License-Identifier: Apache-2.0
// The distance matrices of an hwloc XML as links. Internal to core/topo.
#pragma once

#include <map>

#include "core/base/status.h"
#include "core/topo/topology.h"
#include "core/topo/xml_reader.h"

namespace weir::topo {

// Adds the links of <distances2> or <distances2hetero> `element` when it is a matrix of accelerator
// bandwidths. `node_of_gp_index` maps hwloc's object numbers to nodes.
Status read_hwloc_links(const XmlReader& xml, pugi::xml_node element,
                        const std::map<uint64_t, NodeId>& node_of_gp_index, Topology* topology);

}  // namespace weir::topo
