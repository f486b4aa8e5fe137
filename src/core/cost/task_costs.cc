// SPDX-License-Identifier: Apache-2.0
#include "core/cost/task_costs.h"

#include <algorithm>
#include <vector>

namespace weir::cost {

namespace {

uint32_t ranks_on_fullest_host(const Workload& work) {
  if (work.layout.host_of_rank.empty()) return work.problem.rank_count;
  std::vector<uint32_t> population(work.problem.rank_count, 0);
  uint32_t most = 0;
  for (uint32_t host : work.layout.host_of_rank) most = std::max(most, ++population[host]);
  return most;
}

bool is_empty_or_alone(std::span<const uint32_t> groups) {
  // Each rank is a group of its own if and only if the last one's number is the largest possible.
  return groups.empty() || groups.back() + 1 == groups.size();
}

// Whether all ranks of one host have the same kind of link to each other.
bool has_one_link(const RankLayout& layout) {
  if (layout.socket_of_rank.empty()) return is_empty_or_alone(layout.cache_of_rank);
  return is_empty_or_alone(layout.socket_of_rank);
}

// The regime of data of which each of `rank_count` ranks touches `bytes`.
Regime regime_of(uint64_t bytes, uint32_t rank_count, const TaskTimes& times) {
  if (bytes <= times.l2_bytes) return Regime::kL2;
  return bytes <= times.l3_bytes / rank_count ? Regime::kL3 : Regime::kDram;
}

double at(const ByRegime& figures, Regime regime) { return figures[static_cast<size_t>(regime)]; }

bool in_user_buffer(const sched::Ref& ref) {
  return ref.space == sched::Space::kInput || ref.space == sched::Space::kOutput;
}

}  // namespace

TaskCosts::TaskCosts(const Workload& work, const Table& table)
    : times_(table.times), layout_(work.layout) {
  const uint32_t rank_count = ranks_on_fullest_host(work);
  const bool one_host = work.layout.host_of_rank.empty() && has_one_link(work.layout);
  like_links_ = one_host || (rank_count == 1 && work.layout.wire_of_host.empty());
  // An input and an output.
  const uint32_t sharing =
      work.layout.ranks_per_cache != 0 ? work.layout.ranks_per_cache : rank_count;
  user_ = regime_of(2 * work.bytes, sharing, times_);
  const uint64_t slices = uint64_t{std::max(1u, work.slicing.in_flight)} * work.slicing.slice_bytes;
  in_flight_ =
      work.slicing.slice_bytes == 0 ? user_ : std::min(user_, regime_of(slices, sharing, times_));
  const uint32_t cores = work.layout.cores_per_host;
  share_ = cores == 0 || cores >= rank_count ? 1.0 : static_cast<double>(rank_count) / cores;
  switch_ns_ = share_ > 1 ? times_.switch_ns : 0;
  operation_ = ps_of_ns(times_.operation_ns * share_);
  for (size_t i = 0; i < kLinkCount; ++i) {
    const LinkTimes& l = times_.links[i];
    const Regime regime = regime_of_messages(static_cast<Link>(i));
    of_link_[i] = {
        .send_ns = l.send_ns,
        .in_ns_per_byte = at(l.slot_in_ns_per_byte, regime),
        .recv_ns = l.recv_ns,
        .out_ns_per_byte = at(l.slot_out_ns_per_byte, regime),
        .latency = ps_of_ns(std::max(0.0, l.message_ns - l.send_ns - l.recv_ns) + switch_ns_),
        .signal = ps_of_ns(l.signal_ns + switch_ns_),
        .send_overhead = ps_of_ns(l.send_ns * share_) + operation_,
        .recv_overhead = ps_of_ns(l.recv_ns * share_) + operation_};
    for (size_t r = 0; r < extra_of_peer_[i].size(); ++r) {
      extra_of_peer_[i][r] = std::max(0.0, l.window_ns_per_byte[r] - times_.copy_ns_per_byte[r]);
    }
  }
}

Picoseconds TaskCosts::copy(Rank self, const sched::Ref& dst, const sched::Ref& src,
                            uint64_t bytes) const {
  const Regime regime = in_user_buffer(dst) || in_user_buffer(src) ? user_ : in_flight_;
  const double ns_per_byte = at(times_.copy_ns_per_byte, regime) +
                             extra_of_peer(self, src, regime) + extra_of_peer(self, dst, regime);
  return ps_of_ns(static_cast<double>(bytes) * ns_per_byte * share_) + operation();
}

Picoseconds TaskCosts::reduce(Rank self, const sched::Ref& dst,
                              std::span<const sched::Ref> operands, uint64_t bytes) const {
  bool in_user_buffers = in_user_buffer(dst);
  // Folds of very many operands are of local ones.
  uint32_t elsewhere = dst.rank ^ self;
  for (const sched::Ref& operand : operands) {
    in_user_buffers |= in_user_buffer(operand);
    elsewhere |= operand.rank ^ self;
  }
  const Regime regime = in_user_buffers ? user_ : in_flight_;
  double ns_per_byte = 0;
  if (elsewhere != 0) {
    ns_per_byte = extra_of_peer(self, dst, regime);
    for (const sched::Ref& operand : operands) {
      ns_per_byte += extra_of_peer(self, operand, regime);
    }
  }
  ns_per_byte += times_.reduce_of(static_cast<uint32_t>(operands.size()), regime);
  return ps_of_ns(static_cast<double>(bytes) * ns_per_byte * share_) + operation();
}

// Data that goes over a network has been computed since it was last sent, and passes through the
// kernel's or the adapter's buffers: it is in no core's cache, whatever its size.
Regime TaskCosts::regime_of_messages(Link link) const {
  return is_network(link) ? Regime::kDram : user_;
}

std::optional<LinkFigures> TaskCosts::like_links() const {
  if (!like_links_) return std::nullopt;
  const LinkTimes& l = link(0, 1);
  const Regime regime = regime_of_messages(layout_.link(0, 1));
  const double in = at(l.slot_in_ns_per_byte, regime) * share_;
  const double out = at(l.slot_out_ns_per_byte, regime) * share_;
  const double operation_ns = times_.operation_ns * share_;
  return LinkFigures{
      .send_overhead_ns = l.send_ns * share_ + operation_ns,
      .latency_ns = std::max(0.0, l.message_ns - l.send_ns - l.recv_ns) + switch_ns_,
      .recv_overhead_ns = l.recv_ns * share_ + operation_ns,
      .ns_per_byte = std::max(l.wire_ns_per_byte, in + out),
      .signal_ns = l.signal_ns + switch_ns_,
      .remote_ns_per_byte = std::max(
          0.0, at(l.window_ns_per_byte, in_flight_) - at(times_.copy_ns_per_byte, in_flight_)),
      .copy_ns_per_byte = at(times_.copy_ns_per_byte, user_) * share_,
      .reduce_ns_per_byte = times_.reduce_of(2, user_) * share_,
  };
}

}  // namespace weir::cost
