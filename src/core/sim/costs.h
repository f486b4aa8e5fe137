// SPDX-License-Identifier: Apache-2.0
// Costs: a Network in integers, so that a simulation gives the same bits on every machine. Time is
// in picoseconds, rates are in femtoseconds per byte. A value.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <span>

#include "core/cost/op_stream.h"
#include "core/sim/layout.h"
#include "core/sim/network.h"

namespace weir::sim {

using cost::Picoseconds;

// Femtoseconds per byte; exact to 0.001 ps for each byte.
struct Rate {
  uint64_t fs_per_byte = 0;
  Picoseconds of(uint64_t bytes) const {
    if (((bytes | fs_per_byte) >> 31) == 0) return (bytes * fs_per_byte + 500) / 1000;
    __extension__ using Wide = unsigned __int128;
    return static_cast<Picoseconds>((static_cast<Wide>(bytes) * fs_per_byte + 500) / 1000);
  }
};

inline Picoseconds ps_of_ns(double ns) { return static_cast<Picoseconds>(std::llround(ns * 1e3)); }
inline Rate rate_of(double ns_per_byte) {
  return {static_cast<uint64_t>(std::llround(ns_per_byte * 1e6))};
}

struct LevelCosts {
  Picoseconds latency, send_overhead, recv_overhead, gap, signal;
  Rate port, remote;
};

inline LevelCosts costs_of(const Level& level) {
  return {ps_of_ns(level.latency_ns),       ps_of_ns(level.send_overhead_ns),
          ps_of_ns(level.recv_overhead_ns), ps_of_ns(level.gap_ns),
          ps_of_ns(level.signal_ns),        rate_of(level.ns_per_byte),
          rate_of(level.remote_ns_per_byte)};
}

struct Costs {
  explicit Costs(const Network& network)
      : level{costs_of(network.intra_node), costs_of(network.inter_node)},
        nic_gap(ps_of_ns(network.nic.gap_ns)),
        nic(rate_of(network.nic.ns_per_byte)),
        rails(network.nic.rails),
        copy(rate_of(network.copy_ns_per_byte)),
        reduce(rate_of(network.reduce_ns_per_byte)) {}

  std::array<LevelCosts, 2> level;  // within a node, across nodes
  Picoseconds nic_gap;
  Rate nic;
  uint32_t rails;
  Rate copy, reduce;
};

// Copies and reductions over a network: reading and writing a peer's memory costs `remote` more.
// Over links, the way to the peer is taken as well.
class NetworkMemoryCosts final : public cost::MemoryCosts {
 public:
  // All outlive this.
  NetworkMemoryCosts(const Costs& costs, const Layout& layout, bool takes_links)
      : costs_(costs), layout_(layout), takes_links_(takes_links) {}

  Moves moves() const override { return takes_links_ ? Moves::kAfter : Moves::kNone; }

  Picoseconds copy(Rank self, const sched::Ref& dst, const sched::Ref& src,
                   uint64_t bytes) const override {
    return costs_.copy.of(bytes) + written(self, dst, bytes) + read(self, src, bytes);
  }
  Picoseconds reduce(Rank self, const sched::Ref& dst, std::span<const sched::Ref> operands,
                     uint64_t bytes) const override {
    Picoseconds cost = written(self, dst, bytes);
    cost += operands.size() > 1 ? costs_.reduce.of(bytes) * (operands.size() - 1)
                                : costs_.copy.of(bytes);
    for (const sched::Ref& operand : operands) cost += read(self, operand, bytes);
    return cost;
  }

 private:
  Picoseconds written(Rank self, const sched::Ref& dst, uint64_t bytes) const {
    return dst.rank == self ? 0 : remote(self, dst.rank, bytes);
  }
  Picoseconds read(Rank self, const sched::Ref& src, uint64_t bytes) const {
    return src.rank == self ? 0 : remote(src.rank, self, bytes);
  }
  Picoseconds remote(Rank from, Rank to, uint64_t bytes) const {
    return costs_.level[layout_.level(from, to)].remote.of(bytes);
  }

  const Costs& costs_;
  const Layout& layout_;
  bool takes_links_;
};

}  // namespace weir::sim
