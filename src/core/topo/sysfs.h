// SPDX-License-Identifier: Apache-2.0
// Facts about devices from Linux's /sys: speed and width of PCIe links, rates of InfiniBand and
// Ethernet ports, and network interfaces that are on no PCI device (containers, some clouds).
// Thread-safe on different topologies; reads small files only.
#pragma once

#include <string>

#include "core/topo/topology.h"

namespace weir::topo {

// Adds the facts in the tree at `sysfs_root` ("/sys", or a copy of it) to a topology of one
// machine, and finishes it again. A missing or invalid file leaves its fact unknown.
//
//   bus/pci/devices/<address>/{max,current}_link_{speed,width}   also of the port above: of
//                                                                both ends the smaller maximum
//                                                                counts
//   bus/pci/devices/<address>/{net,infiniband}/                  names that hwloc did not see
//   class/net/<name>/speed                                       Mbit/s; -1 when unknown
//   class/infiniband/<name>/ports/<n>/{rate,link_layer,state}, node_guid
Status enrich_from_sysfs(const std::string& sysfs_root, Topology* topology);

}  // namespace weir::topo
