// SPDX-License-Identifier: Apache-2.0
// Which ports of network cards are nearest to a rank, and which of them it takes where several
// ranks have the same ones near. Pure functions; thread-safe.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/topo/cpuset.h"
#include "core/topo/path.h"
#include "core/topo/topology.h"

namespace weir::topo {

// Where a rank is.
struct RankPlace {
  std::string device;  // its GPU, as Topology::find takes it, such as "0000:3b:00.0"; "": none
  CpuSet cpus;         // on which it may run
};

// A port of a network card.
struct PortName {
  std::string name;     // verbs device or interface: "mlx5_0", "eth0"
  std::string address;  // of the card on PCI, for topologies that do not name the port; "": unknown
};

struct NearPorts {
  std::vector<std::string> names;           // equally near, in the order in which they were given
  PathClass path_class = PathClass::kNone;  // of the path to them; kNone: it is not known
  std::string from;                         // "GPU3", "NUMA0", "NUMA0-3"; "": it is not known

  std::string describe() const;  // "same PCIe switch as GPU3 (PIX)"; "" where nothing is known
};

// Of `ports`, those to which the path is of the best class: from the
// rank's device if the topology has it, else from the NUMA nodes on which the rank may run, of each
// port the best. Ports that are said to be slower than half of the fastest are left out. If the
// topology has none of them, all are equally near.
NearPorts nearest_ports(const Topology& topology, const RankPlace& place,
                        const std::vector<PortName>& ports);

// What number `turn` of the `sharer_count` ranks takes that have the same ports near: each port
// goes to one rank if there are enough, and ranks to ports in turn if there are not.
std::vector<std::string> share_of_ports(const std::vector<std::string>& names, size_t turn,
                                        size_t sharer_count);

}  // namespace weir::topo
