// SPDX-License-Identifier: Apache-2.0
// TaskCosts: the task times of a table for one workload, that is, for the regime of its data and
// the share of a core that each rank has. A value that refers to the table; thread-safe.
#pragma once

#include <array>
#include <optional>
#include <span>

#include "core/cost/closed_form.h"
#include "core/cost/op_stream.h"
#include "core/cost/predict.h"

namespace weir::cost {

// Half a picosecond does not matter, and lround is a call.
// NOLINTNEXTLINE(bugprone-incorrect-roundings)
inline Picoseconds ps_of_ns(double ns) { return static_cast<Picoseconds>(ns * 1e3 + 0.5); }

class TaskCosts final : public MemoryCosts {
 public:
  TaskCosts(const Workload& work, const Table& table);

  Picoseconds copy(Rank self, const sched::Ref& dst, const sched::Ref& src,
                   uint64_t bytes) const override;
  Picoseconds reduce(Rank self, const sched::Ref& dst, std::span<const sched::Ref> operands,
                     uint64_t bytes) const override;
  bool takes_links() const override { return layout_.memory_ways != nullptr; }

  // A message takes send() on the sender's core, then latency() on its way, and recv() on the
  // receiver's core; its bytes take wire_out() at the network port of the sender's host, wire_in()
  // at that of the receiver's.
  Picoseconds send(Rank from, Rank to, uint64_t bytes) const {
    return send(layout_.link(from, to), bytes);
  }
  Picoseconds latency(Rank from, Rank to) const { return latency(layout_.link(from, to)); }
  Picoseconds recv(Rank from, Rank to, uint64_t bytes) const {
    return recv(layout_.link(from, to), bytes);
  }
  Picoseconds wire_out(Rank from, Rank to, uint64_t bytes) const {
    return wire(layout_.link(from, to), from, bytes);
  }
  Picoseconds wire_in(Rank from, Rank to, uint64_t bytes) const {
    return wire(layout_.link(from, to), to, bytes);
  }
  Picoseconds signal(Rank from, Rank to) const { return of_link(layout_.link(from, to)).signal; }

  // The same where the kind of link is known.
  Picoseconds send(Link link, uint64_t bytes) const {
    const LinkCosts& l = of_link(link);
    return ps_of_ns((l.send_ns + static_cast<double>(bytes) * l.in_ns_per_byte) * share_) +
           operation_;
  }
  Picoseconds latency(Link link) const { return of_link(link).latency; }
  Picoseconds recv(Link link, uint64_t bytes) const {
    const LinkCosts& l = of_link(link);
    return ps_of_ns((l.recv_ns + static_cast<double>(bytes) * l.out_ns_per_byte) * share_) +
           operation_;
  }
  // Of a message without bytes.
  Picoseconds send_overhead(Link link) const { return of_link(link).send_overhead; }
  Picoseconds recv_overhead(Link link) const { return of_link(link).recv_overhead; }
  // At the port of the host of `end`.
  Picoseconds wire(Link link, Rank end, uint64_t bytes) const {
    const bool of_host = !layout_.wire_of_host.empty() && is_network(link);
    const double ns_per_byte =
        of_host ? layout_.wire_of_host[layout_.host(end)] : times_.link(link).wire_ns_per_byte;
    return ps_of_ns(static_cast<double>(bytes) * ns_per_byte);
  }
  Picoseconds operation() const { return operation_; }
  // The figures of all links, when these are equal: all ranks are on one host and share its cache,
  // or each is on a host of its own.
  std::optional<LinkFigures> like_links() const;
  double call_ns() const { return times_.call_ns * share_; }
  const RankLayout& layout() const { return layout_; }

 private:
  // What is asked of every message.
  struct LinkCosts {
    double send_ns = 0;
    double in_ns_per_byte = 0;
    double recv_ns = 0;
    double out_ns_per_byte = 0;
    Picoseconds latency = 0;
    Picoseconds signal = 0;
    Picoseconds send_overhead = 0;
    Picoseconds recv_overhead = 0;
  };

  Regime regime_of_messages(Link link) const;
  const LinkCosts& of_link(Link link) const { return of_link_[static_cast<size_t>(link)]; }
  const LinkTimes& link(Rank a, Rank b) const { return times_.link(layout_.link(a, b)); }
  // The extra time for reading or writing a byte of a peer's memory rather than the rank's own.
  // `regime`: of the operation.
  double extra_of_peer(Rank self, const sched::Ref& ref, Regime regime) const {
    if (ref.rank == self) return 0;
    return extra_of_peer_[static_cast<size_t>(layout_.link(self, ref.rank))]
                         [static_cast<size_t>(regime)];
  }

  const TaskTimes& times_;
  RankLayout layout_;
  bool like_links_;
  Regime user_;       // of the users' buffers
  Regime in_flight_;  // of the data in slots, staging and scratch
  double share_;      // ranks per core, at least 1
  double switch_ns_;  // added to every transfer between ranks that share cores
  Picoseconds operation_;
  std::array<LinkCosts, kLinkCount> of_link_;
  std::array<ByRegime, kLinkCount> extra_of_peer_;
};

}  // namespace weir::cost
