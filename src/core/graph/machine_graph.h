// SPDX-License-Identifier: Apache-2.0
// The link graph of a job's hosts, from their Topologies and the places of the ranks.
//
// How a machine becomes vertices and links:
//
//   accelerator links   as they are; NVSwitches with the same neighbours are one switch
//   PCIe, sockets       the tree, each edge a link either way; edges inside a chip have no limit
//                       and their ends are one vertex. A rank on processors hangs from its NUMA
//                       node
//   network cards       the fastest kind only; a card is joined with the network, which has no
//                       limit of its own
//   all ranks of a host on accelerators that reach each other without PCIe
//                       messages between them never take PCIe, so that it carries only what goes to
//                       the cards: each accelerator has links to its nearest cards, and a card
//                       carries what its port and the PCIe links on the ways to it allow
//
// Every link has a twin of the same bandwidth in the other direction. Figures about which neither
// the machine nor a file says anything are estimates (topo/estimates.h). Pure functions;
// thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/status.h"
#include "core/graph/link_graph.h"
#include "core/topo/cpuset.h"
#include "core/topo/topology.h"

namespace weir::graph {

struct RankPlace {
  uint32_t host = 0;
  topo::NodeId device = topo::kNoNode;  // GPU of the host's topology; kNoNode: on processors
  topo::CpuSet cpus;                    // where it may run; empty: anywhere. Unused with a device
};

struct Cluster {
  std::span<const topo::Topology> kinds;   // each of one machine
  std::span<const uint32_t> kind_of_host;  // index in `kinds`
  std::span<const RankPlace> ranks;
};

// Errors: a place or a device that does not exist, a topology of several machines, and ranks that
// cannot reach each other.
Result<LinkGraph> machine_graph(const Cluster& cluster);

}  // namespace weir::graph
