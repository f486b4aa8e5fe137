// SPDX-License-Identifier: Apache-2.0
// Network: the figures of the simulated machine, in the LogGP model of Alexandrov, Ionescu,
// Schauser and Scheiman, "LogGP: incorporating long messages into the LogP model" (1995), at two
// levels (ranks of one node, ranks of different nodes), with ports that messages contend for. A
// value.
//
// A message of b bytes costs the sender `send_overhead`, then claims ports one after another, each
// cut-through (a port starts as soon as the port before has started, and is taken for
// max(gap, b * ns_per_byte)):
//
//   within a node:  egress port of the sender -> latency -> ingress port of the receiver
//   across nodes:   egress port of the sender -> NIC out -> latency -> NIC in -> ingress port
//
// and costs the receiver `recv_overhead`. Uncontended and homogeneous that is
// send_overhead + latency + recv_overhead + b * ns_per_byte, the alpha + b * beta of closed forms.
// The ranks of a node share its NIC; with k rails, rank i of a node uses rail i mod k.
#pragma once

#include <cstdint>
#include <string>

#include "core/base/status.h"

namespace weir::sim {

struct Level {
  double latency_ns = 0;
  double send_overhead_ns = 0;
  double recv_overhead_ns = 0;
  double gap_ns = 0;              // least time between two messages at a port
  double ns_per_byte = 0;         // of the ranks' ports; 0.1 is 10 GB/s
  double signal_ns = 0;           // from the signal until its wait can end
  double remote_ns_per_byte = 0;  // extra time per byte read from or written to a peer's memory
};

struct Nic {
  uint32_t rails = 1;      // per node
  double gap_ns = 0;       // least time between two messages at a rail
  double ns_per_byte = 0;  // of one rail
};

struct Network {
  Level intra_node{.latency_ns = 300,
                   .send_overhead_ns = 100,
                   .recv_overhead_ns = 100,
                   .gap_ns = 50,
                   .ns_per_byte = 0.04,
                   .signal_ns = 150,
                   .remote_ns_per_byte = 0.04};
  Level inter_node{.latency_ns = 2000,
                   .send_overhead_ns = 300,
                   .recv_overhead_ns = 300,
                   .gap_ns = 100,
                   .ns_per_byte = 0.04,
                   .signal_ns = 2500,
                   .remote_ns_per_byte = 0.08};
  Nic nic{.rails = 4, .gap_ns = 50, .ns_per_byte = 0.02};
  double copy_ns_per_byte = 0.05;    // local copy
  double reduce_ns_per_byte = 0.05;  // per operand after the first
};

// Every figure finite, not negative and at most 1e9 ns (1e6 ns per byte); rails 1 to 1024.
Status validate(const Network& network);

// The same figures at every level and no shared NIC: the network of the closed forms.
Network uniform_network(const Level& level, double copy_ns_per_byte, double reduce_ns_per_byte);

// Ranks on accelerators, over a link graph: the figures of cost::device_table(), while bandwidth
// and latency are those of links.
Network accelerator_network();

// Reads TOML; missing keys keep their values in `defaults`:
//   copy_ns_per_byte = 0.05
//   reduce_ns_per_byte = 0.05
//   [intra_node]   # and [inter_node]: the fields of Level
//   latency_ns = 300
//   [nic]
//   rails = 4
// Unknown keys, wrong types and values out of range give "file:line: reason".
Result<Network> parse_network(const std::string& text, const std::string& file_name,
                              const Network& defaults = {});
Result<Network> load_network(const std::string& path, const Network& defaults = {});

}  // namespace weir::sim
