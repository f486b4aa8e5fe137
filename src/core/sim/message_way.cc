// SPDX-License-Identifier: Apache-2.0
// The ports that a message claims on its way: those of the two-level network, or the links of a
// graph. Cut-through: a port starts as soon as the port before has started.
#include <algorithm>

#include "core/sim/simulation.h"

namespace weir::sim {

// ---- The two-level network --------------------------------------------------------------------

// Claims the sender's egress port.
void Simulation::pass_egress(uint32_t index, Picoseconds time) {
  Message& message = messages_.at(index);
  RankState& own = ranks_[message.source];
  const uint32_t level_index = layout_.level(message.source, message.target);
  const LevelCosts& level = costs_.level[level_index];
  const Picoseconds transfer = scaled(own, level.port.of(message.bytes));
  const Picoseconds start = own.egress.claim(time, std::max(transfer, scaled(own, level.gap)));
  message.end = start + transfer;
  record_transfer(message, graph::kNone, true, start, start + transfer);
  message.path.transfer += transfer;
  if (level_index == 1 && layout_.nic_shared()) {
    queue_.push({start, index, kNicOut});
  } else if (level_index == 1) {
    pass_nic_out(index, start);
  } else {
    depart(index, start, level.latency);
  }
}

void Simulation::pass_nic_out(uint32_t index, Picoseconds time) {
  Message& message = messages_.at(index);
  const Picoseconds transfer = nic_of(message.source).of(message.bytes);
  Port& port = nic_out_[layout_.nic_port(message.source)];
  const Picoseconds start = port.claim(time, std::max(transfer, costs_.nic_gap));
  // A port adds to the transfer only what exceeds the time of the port before.
  const Picoseconds before = scaled(ranks_[message.source], costs_.level[1].port.of(message.bytes));
  if (transfer > before) message.path.transfer += transfer - before;
  message.end = std::max(message.end, start + transfer);
  depart(index, start, costs_.level[1].latency);
}

// The message leaves the sending side, its first byte at `time`.
void Simulation::depart(uint32_t index, Picoseconds time, Picoseconds latency) {
  Message& message = messages_.at(index);
  message.end += latency;
  message.path.latency += latency;
  // An access may have begun before the core's part of it was over, which is now.
  queue_.push({std::max(time + latency, now_), index, kArrival});
}

void Simulation::arrive(uint32_t index, Picoseconds time) {
  Message& message = messages_.at(index);
  if (tasks_ != nullptr) {
    pass_card_in(index, time);
    return;
  }
  if (links_) {
    deliver(index);
    return;
  }
  if (layout_.level(message.source, message.target) == 1) {
    const Picoseconds transfer = nic_of(message.target).of(message.bytes);
    Port& port = nic_in_[layout_.nic_port(message.target)];
    const Picoseconds start = port.claim(time, std::max(transfer, costs_.nic_gap));
    const Picoseconds before =
        std::max(scaled(ranks_[message.source], costs_.level[1].port.of(message.bytes)),
                 nic_of(message.source).of(message.bytes));
    if (!nic_of_node_.empty() && transfer > before) message.path.transfer += transfer - before;
    message.end = std::max(message.end, start + transfer);
    if (start > time) {
      queue_.push({start, index, kIngress});
      return;
    }
  }
  enter(index, time);
  deliver(index);
}

// Claims the receiver's ingress port.
void Simulation::enter(uint32_t index, Picoseconds time) {
  Message& message = messages_.at(index);
  RankState& target = ranks_[message.target];
  const LevelCosts& level = costs_.level[layout_.level(message.source, message.target)];
  const Picoseconds plain = level.port.of(message.bytes);
  const Picoseconds transfer = scaled(target, plain);
  const Picoseconds taken = std::max(transfer, scaled(target, level.gap));
  const Picoseconds start = target.ingress.claim(time, taken);
  record_transfer(message, graph::kNone, false, start, start + transfer);
  if (target.factor_milli != 1000) {
    const Picoseconds before = scaled(ranks_[message.source], plain);
    if (transfer > before) message.path.transfer += transfer - before;
  }
  message.end = std::max(message.end, start + transfer);
}

// ---- Links ------------------------------------------------------------------------------------

void Simulation::begin_links(uint32_t index, Picoseconds time) {
  Message& message = messages_.at(index);
  if (links_->way(message.source, message.target).empty()) {
    no_way_.emplace(message.source, message.target);
  }
  message.next = 0;
  message.end = time;
  message.path.transfer += links_->slowest(message.source, message.target, message.bytes);
  pass_links(index, time);
}

// Claims the links of the way from `time` on. Only the sender's messages claim its first link, so
// that a sender that is ahead of the global time takes it at once; the others are claimed in time
// order, through the queue, and so are all of an access to memory, whose latency is hidden by the
// accesses after it.
void Simulation::pass_links(uint32_t index, Picoseconds time) {
  Message& message = messages_.at(index);
  const std::span<const graph::LinkId> way = links_->way(message.source, message.target);
  const bool is_plain = !message.is_access() && tasks_ == nullptr;
  const Picoseconds gap =
      is_plain ? costs_.level[layout_.level(message.source, message.target)].gap : 0;
  while (message.next < way.size()) {
    const graph::LinkId id = way[message.next];
    LinkPorts::Link& link = links_->link(id);
    if ((message.next > 0 || message.is_access()) && link.is_limited() && time > now_) {
      queue_.push({time, index, kLink});
      return;
    }
    ++message.next;
    ++link.messages;
    link.bytes += message.bytes;
    if (!link.is_limited()) continue;
    const Picoseconds transfer = link.time_of(message.bytes);
    time = link.port.claim(time, std::max(transfer, gap));
    // Only the first link begins at the sender, and only the last one ends at the receiver.
    if (message.next == 1) record_transfer(message, id, true, time, time + transfer);
    if (message.next == way.size()) record_transfer(message, id, false, time, time + transfer);
    message.end = std::max(message.end, time + transfer);
  }
  Picoseconds latency = 0;
  if (is_plain) latency = links_->latency(message.source, message.target);
  if (!message.is_access() && !is_plain) latency = tasks_->latency(message.source, message.target);
  depart(index, time, latency);
}

// ---- Both -------------------------------------------------------------------------------------

void Simulation::deliver(uint32_t index) {
  const Message& message = messages_.at(index);
  const uint32_t lane = message.lane;
  if (message.is_access()) {
    const Rank self = message.is_write != 0 ? message.source : message.target;
    lane_state(self, lane).message = index;
    advance(self, lane);
    return;
  }
  const Rank target = message.target;
  LaneState& state = lane_state(target, lane);
  if (state.state != State::kForMessage || state.peer != message.source) {
    messages_.put(message.source, lane_index(target, lane), index);
    return;
  }
  state.message = index;
  advance(target, lane);
}

}  // namespace weir::sim
