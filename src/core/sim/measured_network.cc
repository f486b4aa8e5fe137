// SPDX-License-Identifier: Apache-2.0
#include "core/sim/measured_network.h"

#include <algorithm>

namespace weir::sim {

namespace {

using cost::Regime;

// The bytes of an input and an output together.
Regime regime_of(uint64_t bytes, const cost::TaskTimes& times) {
  if (2 * bytes <= times.l2_bytes) return Regime::kL2;
  return 2 * bytes <= times.l3_bytes ? Regime::kL3 : Regime::kDram;
}

Level level_of(const cost::LinkTimes& link, const cost::TaskTimes& times, Regime regime) {
  const auto r = static_cast<size_t>(regime);
  return {
      .latency_ns = std::max(0.0, link.message_ns - link.send_ns - link.recv_ns),
      .send_overhead_ns = link.send_ns + times.operation_ns,
      .recv_overhead_ns = link.recv_ns + times.operation_ns,
      .gap_ns = 0,
      .ns_per_byte = std::max(link.slot_in_ns_per_byte[r], link.slot_out_ns_per_byte[r]),
      .signal_ns = link.signal_ns,
      .remote_ns_per_byte = std::max(0.0, link.window_ns_per_byte[r] - times.copy_ns_per_byte[r]),
  };
}

}  // namespace

Network measured_network(const cost::Table& table, uint64_t bytes, cost::Link network) {
  const cost::TaskTimes& times = table.times;
  const Regime regime = regime_of(bytes, times);
  return {
      .intra_node = level_of(times.link(cost::Link::kShmSharedCache), times, regime),
      .inter_node = level_of(times.link(network), times, Regime::kDram),
      .nic = {.rails = 1, .gap_ns = 0, .ns_per_byte = times.link(network).wire_ns_per_byte},
      .copy_ns_per_byte = times.reduce_of(1, regime),
      .reduce_ns_per_byte = times.reduce_of(2, regime),
  };
}

}  // namespace weir::sim
