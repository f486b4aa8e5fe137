// SPDX-License-Identifier: Apache-2.0
// A Topology as text for people and for programs. Pure functions; thread-safe.
#pragma once

#include <string>

#include "core/topo/path.h"
#include "core/topo/topology.h"

namespace weir::topo {

struct TreeOptions {
  bool every_port = false;  // root ports, downstream ports, each core and cache
};

// A tree with one line per part, then links, then notes.
std::string print_tree(const Topology& topology, const TreeOptions& options = {});

enum class MatrixContent : uint8_t { kClass, kBandwidth };

// The path between each two of the GPUs and NICs, with CPU and NUMA affinity and a legend: the
// table that GPU users know from their vendor's tool. kBandwidth shows GB/s instead of classes.
// With neither GPU nor NIC, the NUMA nodes take their place.
std::string print_matrix(const Topology& topology, MatrixContent content = MatrixContent::kClass);

// One path: class, bandwidth, latency and each hop.
std::string print_path(const Topology& topology, NodeId a, NodeId b);

// Everything, for programs: nodes, links, and the paths between all GPUs and NICs. docs/topology.md
// describes the form; "format" and "version" say which one it is.
std::string to_json(const Topology& topology);

// "NVLink", "xGMI", "Xe Link", "C2C": for people; name_of() is for programs.
const char* title_of(LinkKind kind);
// "15.8 GB/s", with "~" before it for an estimate; "" when nothing is known.
std::string bandwidth_text(const Edge& edge);
// "34 MiB", "755 GiB".
std::string bytes_text(uint64_t bytes);

}  // namespace weir::topo
