// SPDX-License-Identifier: Apache-2.0
// Messages that take the task times of a table (Options::tasks).
#include <algorithm>

#include "core/sim/simulation.h"

namespace weir::sim {

void Simulation::send_task(Rank rank, uint32_t lane, LaneState& state, const cost::ShortOp& op) {
  const RankState& own = ranks_[rank];
  const Picoseconds cost = scaled(own, tasks_->send(rank, op.peer, op.amount));
  const Picoseconds begin = occupy_core(rank, state, cost);
  state.path.overhead += cost;
  record(Span::Kind::kSend, rank, lane, op.peer, begin, state.time);
  const uint32_t index = new_message(rank, lane, state, op);
  const Picoseconds first = begin + scaled(own, tasks_->send(rank, op.peer, 0));
  messages_.at(index).end = state.time;
  const bool within_host = !cost::is_network(tasks_->layout().link(rank, op.peer));
  if (within_host && links_) {
    messages_.at(index).next = 0;
    pass_links(index, first);
  } else if (within_host) {
    depart(index, first, tasks_->latency(rank, op.peer));
  } else if (cards_shared_ || lane_count_ > 1) {
    queue_.push({first, index, kNicOut});
  } else {
    pass_card_out(index, first);
  }
}

void Simulation::pass_card_out(uint32_t index, Picoseconds time) {
  Message& message = messages_.at(index);
  const Picoseconds wire = tasks_->wire_out(message.source, message.target, message.bytes);
  const Picoseconds start = nic_out_[tasks_->layout().card(message.source)].claim(time, wire);
  record_transfer(message, graph::kNone, true, start, start + wire);
  message.end = std::max(message.end, start + wire);
  depart(index, start, tasks_->latency(message.source, message.target));
}

void Simulation::pass_card_in(uint32_t index, Picoseconds time) {
  Message& message = messages_.at(index);
  message.first = time;
  if (cost::is_network(tasks_->layout().link(message.source, message.target))) {
    const Picoseconds wire = tasks_->wire_in(message.source, message.target, message.bytes);
    message.first = nic_in_[tasks_->layout().card(message.target)].claim(time, wire);
    record_transfer(message, graph::kNone, false, message.first, message.first + wire);
    message.end = std::max(message.end, message.first + wire);
  }
  if (message.first > time) {
    queue_.push({message.first, index, kIngress});
  } else {
    deliver(index);
  }
}

// False when the first bytes have not arrived yet.
bool Simulation::receive_task(Rank rank, uint32_t lane, LaneState& state) {
  const Message& message = messages_.at(state.message);
  const Picoseconds waited_from = state.time;
  if (message.first > state.time) {
    if (lane_count_ > 1 && message.first > now_) {
      queue_resume(rank, lane, state, message.first);
      return false;
    }
    state.time = message.first;
    state.path = message.path;
    state.hops = message.hops;
  }
  const RankState& own = ranks_[rank];
  const Picoseconds cost = scaled(own, tasks_->recv(message.source, rank, message.bytes));
  const Picoseconds begin = occupy_core(rank, state, cost);
  state.path.overhead += cost;
  if (begin > waited_from) {
    record(Span::Kind::kWait, rank, lane, message.source, waited_from, begin);
  }
  const Picoseconds done = message.end + scaled(own, tasks_->recv(message.source, rank, 0));
  if (done > state.time) {
    state.path.transfer += done - state.time;
    state.time = done;
  }
  record(Span::Kind::kRecv, rank, lane, message.source, begin, state.time);
  received(rank, lane, state);
  return true;
}

}  // namespace weir::sim
