// SPDX-License-Identifier: Apache-2.0
// What Linux says of devices under /sys: speed and width of PCIe links, rates of InfiniBand and
// Ethernet ports, and network interfaces that are on no PCI device (containers, some clouds).
// Thread-safe on different topologies; reads small files only.
#pragma once

#include <string>

#include "core/topo/topology.h"

namespace weir::topo {

// Adds to a topology of one machine what the tree at `sysfs_root` ("/sys", or a copy of one) says,
// and finishes it again. A file that is missing or holds nonsense leaves its fact unknown.
//
//   bus/pci/devices/<address>/{max,current}_link_{speed,width}   also of the port above: the
//                                                                smaller maximum of both ends counts
//   bus/pci/devices/<address>/{net,infiniband}/                  names that hwloc did not see
//   class/net/<name>/speed                                       Mbit/s; -1 when unknown
//   class/infiniband/<name>/ports/<n>/{rate,link_layer,state}, node_guid
Status enrich_from_sysfs(const std::string& sysfs_root, Topology* topology);

}  // namespace weir::topo
