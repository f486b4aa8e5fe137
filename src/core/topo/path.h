// SPDX-License-Identifier: Apache-2.0
// Paths between two nodes of a Topology: the kind of the path, its bandwidth and its nodes. Pure
// functions; thread-safe.
#pragma once

#include <string>
#include <vector>

#include "core/topo/topology.h"

namespace weir::topo {

// From near to far; the abbreviations are those that GPU users know.
enum class PathClass : uint8_t {
  kSelf,      // X     the same node
  kLink,      // NV#   direct links between accelerators (NVLink, xGMI: XG#, Xe Link: XL#, C2C)
  kNvSwitch,  // NVS#  # NVLinks into NVSwitches
  kPix,       // PIX   at most one PCIe switch
  kPxb,       // PXB   several PCIe switches, without the root complex
  kPhb,       // PHB   the same PCIe root complex (also: device and its own NUMA node)
  kNode,      // NODE  root complexes of the same NUMA node
  kSystem,    // SYS   across NUMA nodes or sockets
  kNetwork,   // NET   another machine
  kNone,      // -     no way (the other machine, and no NIC on one side)
};

struct Path {
  PathClass path_class = PathClass::kNone;
  LinkKind link_kind = LinkKind::kNvlink;  // of kLink and kNvSwitch
  uint32_t link_count = 0;                 // of kLink and kNvSwitch: links at the first node
  // Payload per direction: the smallest on the path, or for kNvSwitch the sum over all switches. 0
  // = no limit is known.
  double bandwidth_gbs = 0;
  // Whether an edge on the path is an estimate or unknown.
  bool estimated = false;
  double latency_us = 0;
  // All nodes on the path, both ends included. For kNvSwitch one of the parallel paths.
  std::vector<NodeId> way;

  std::string label() const;  // "NV12", "XG1", "NVS6", "PIX", …
};

struct PathOptions {
  bool accelerator_links = true;  // false: PCIe and CPU only
};

// The best path in the order of PathClass, then of bandwidth. Links are used between GPUs directly
// or through NVSwitches, never through a third GPU. A GPU with NVLink or C2C to a CPU may reach
// everything behind that CPU through it instead of PCIe. Both ids must exist.
Path find_path(const Topology& topology, NodeId a, NodeId b, const PathOptions& options = {});

const char* name_of(PathClass path_class);  // "nvlink", "nvswitch", "pix", …, "network"

}  // namespace weir::topo
