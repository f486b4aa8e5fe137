// SPDX-License-Identifier: Apache-2.0
#include "core/sim/simulation.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/check.h"
#include "core/sim/diagnosis.h"

namespace weir::sim {

using cost::ShortOp;

namespace {

constexpr uint64_t kEventsPerProgress = uint64_t{1} << 20;
constexpr uint32_t kHopsMax = (1u << 22) - 1;

}  // namespace

Simulation::Simulation(const algo::Algorithm& algorithm, const algo::Problem& problem,
                       uint64_t bytes, const Options& options)
    : problem_(problem),
      options_(options),
      costs_(options.network),
      layout_(problem, options.network.nic.rails),
      links_(options.links == nullptr
                 ? std::nullopt
                 : std::optional<LinkPorts>(std::in_place, *options.links, options.slow)),
      tasks_(options.tasks),
      memory_costs_(costs_, layout_, links_.has_value()),
      feed_(algorithm, problem, bytes, options.slicing,
            tasks_ == nullptr ? static_cast<const cost::MemoryCosts&>(memory_costs_) : *tasks_,
            options.operations_pending_max),
      lane_count_(feed_.lane_count()),
      records_(options.timeline_ranks > 0 || options.lanes_of.has_value()),
      lanes_of_(options.lanes_of.value_or(kNobody)),
      signals_(problem.rank_count, feed_.signal_count()),
      ranks_(problem.rank_count),
      lanes_(size_t{problem.rank_count} * lane_count_),
      nic_out_(tasks_ == nullptr ? layout_.nic_port_count() : problem.rank_count),
      nic_in_(nic_out_.size()) {
  if (tasks_ != nullptr) {
    std::vector<bool> seen(problem.rank_count, false);
    for (Rank rank = 0; rank < problem.rank_count; ++rank) {
      const uint32_t card = tasks_->layout().card(rank);
      cards_shared_ = cards_shared_ || seen[card];
      seen[card] = true;
    }
  }
  for (RankState& rank : ranks_) rank.live_lanes = lane_count_;
  for (const SlowRank& slow : options.slow) {
    ranks_[slow.rank].factor_milli = static_cast<uint64_t>(std::llround(slow.factor * 1000));
  }
  for (const DeadRank& dead : options.dead) {
    ranks_[dead.rank].dead_at = std::min(ranks_[dead.rank].dead_at, ps_of_ns(dead.at_ns));
  }
  for (const double ns : options.nic_ns_per_byte_of_node) nic_of_node_.push_back(rate_of(ns));
  report_.rails = costs_.rails;
}

Rate Simulation::nic_of(Rank rank) const {
  return nic_of_node_.empty() ? costs_.nic : nic_of_node_[problem_.node_of_rank[rank]];
}

Picoseconds Simulation::scaled(const RankState& rank, Picoseconds cost) const {
  if (rank.factor_milli == 1000) return cost;
  __extension__ using Wide = unsigned __int128;
  return static_cast<Picoseconds>((static_cast<Wide>(cost) * rank.factor_milli + 500) / 1000);
}

Result<Report> Simulation::run() {
  for (Rank rank = 0; rank < problem_.rank_count; ++rank) {
    for (uint32_t lane = 0; lane < lane_count_; ++lane) advance(rank, lane);
  }
  while (!queue_.empty()) {
    const cost::RadixQueue::Entry event = queue_.pop();
    now_ = event.time;
    if (options_.time_max_ns > 0 && now_ > ps_of_ns(options_.time_max_ns)) {
      report_.events = events_;
      report_.total_ps = now_;
      return std::move(report_);
    }
    handle(event);
    if (++events_ % kEventsPerProgress == 0) WEIR_RETURN_IF_ERROR(check_progress());
    if (messages_.in_flight() > options_.messages_in_flight_max) {
      return Status(
          Code::kNoMemory,
          fmt::format("more than {} messages are in flight at {} ns: this algorithm sends "
                      "far ahead of its receives at {} ranks",
                      options_.messages_in_flight_max, now_ / 1000, problem_.rank_count));
    }
    if (!feed_.status().ok()) return feed_.status();
    if (no_way_) break;
  }
  if (no_way_) {
    return Status(Code::kUnsupported,
                  fmt::format("rank {} sends to rank {}, but the links of the machine lead there "
                              "through other ranks only",
                              no_way_->first, no_way_->second));
  }
  WEIR_RETURN_IF_ERROR(feed_.status());
  return finish();
}

Status Simulation::check_progress() {
  if (!options_.progress) return {};
  const Progress progress{feed_.steps_done(), feed_.steps_total(), events_,
                          static_cast<double>(now_) / 1000};
  if (options_.progress(progress)) return {};
  return Status(Code::kAborted,
                fmt::format("simulation stopped by the caller at {} ns", now_ / 1000));
}

// ---- Operations -------------------------------------------------------------------------------

void Simulation::advance(Rank rank, uint32_t lane) {
  LaneState& state = lane_state(rank, lane);
  state.state = State::kReady;
  for (;;) {
    if (lane_count_ > 1 && state.time > now_) {
      queue_resume(rank, lane, state, state.time);
      return;
    }
    const ShortOp* op = feed_.peek(rank, lane);
    if (op == nullptr) {
      finish_lane(rank, state);
      return;
    }
    if (state.time >= ranks_[rank].dead_at) {
      state.state = State::kDead;
      return;
    }
    switch (op->code) {
      case ShortOp::Code::kSend:
        if (!may_send(rank, lane, state, op->peer)) return;
        send(rank, lane, state, *op);
        break;
      case ShortOp::Code::kRecv:
        if (!receive(rank, lane, state, op->peer)) return;
        break;
      case ShortOp::Code::kCompute:
        compute(rank, lane, state, op->amount);
        break;
      case ShortOp::Code::kSignal:
        signal(rank, state, *op);
        break;
      case ShortOp::Code::kWait:
        if (!wait(rank, lane, state, *op)) return;
        break;
      case ShortOp::Code::kRead:
      case ShortOp::Code::kWrite:
        if (!access(rank, lane, state, *op)) return;
        break;
    }
    feed_.advance(rank, lane);
  }
}

void Simulation::finish_lane(Rank rank, LaneState& state) {
  state.state = State::kDone;
  --ranks_[rank].live_lanes;
}

void Simulation::queue_resume(Rank rank, uint32_t lane, LaneState& state, Picoseconds time) {
  state.state = State::kQueued;
  queue_.push({time, lane_index(rank, lane), kResume});
}

Picoseconds Simulation::occupy_core(Rank rank, LaneState& state, Picoseconds cost) {
  Picoseconds begin = state.time;
  ranks_[rank].core_busy += cost;
  if (lane_count_ > 1) {
    begin = std::max(begin, ranks_[rank].core_free);
    ranks_[rank].core_free = begin + cost;
  }
  state.time = begin + cost;
  return begin;
}

void Simulation::compute(Rank rank, uint32_t lane, LaneState& state, Picoseconds cost) {
  const Picoseconds own_cost = scaled(ranks_[rank], cost);
  const Picoseconds begin = occupy_core(rank, state, own_cost);
  state.path.compute += own_cost;
  state.accesses_from = begin;
  record(Span::Kind::kCompute, rank, lane, rank, begin, state.time);
}

void Simulation::send(Rank rank, uint32_t lane, LaneState& state, const ShortOp& op) {
  if (tasks_ != nullptr) {
    send_task(rank, lane, state, op);
    return;
  }
  const LevelCosts& level = costs_.level[layout_.level(rank, op.peer)];
  const Picoseconds overhead = scaled(ranks_[rank], level.send_overhead);
  const Picoseconds begin = occupy_core(rank, state, overhead);
  state.path.overhead += overhead;
  record(Span::Kind::kSend, rank, lane, op.peer, begin, state.time);
  const uint32_t index = new_message(rank, lane, state, op);
  if (links_) {
    begin_links(index, state.time);
  } else {
    pass_egress(index, state.time);
  }
}

uint32_t Simulation::new_message(Rank rank, uint32_t lane, const LaneState& state,
                                 const ShortOp& op) {
  ++report_.messages;
  (layout_.level(rank, op.peer) == 0 ? report_.message_bytes_intra_node
                                     : report_.message_bytes_inter_node) += op.amount;
  const uint32_t index = messages_.acquire();
  Message& message = messages_.at(index);
  message.source = rank;
  message.target = op.peer;
  message.lane = static_cast<uint8_t>(lane);
  message.hops = std::min(state.hops + 1, kHopsMax);
  message.is_write = 0;
  message.is_read = 0;
  message.bytes = op.amount;
  message.path = state.path;
  return index;
}

bool Simulation::access(Rank rank, uint32_t lane, LaneState& state, const ShortOp& op) {
  if (state.message == cost::kNoMessage) {
    const bool reads = op.code == ShortOp::Code::kRead;
    const uint32_t index = messages_.acquire();
    Message& message = messages_.at(index);
    message.source = reads ? op.peer : rank;
    message.target = reads ? rank : op.peer;
    message.lane = static_cast<uint8_t>(lane);
    message.hops = state.hops;
    message.is_write = reads ? 0 : 1;
    message.is_read = reads ? 1 : 0;
    message.bytes = op.amount;
    message.path = state.path;
    state.state = State::kForAccess;
    state.peer = op.peer;
    // The table's times of a core are those of an access over links that nobody else uses, so that
    // core and links work at the same time.
    begin_links(index, tasks_ == nullptr ? state.time : state.accesses_from);
    return false;
  }
  const Message& message = messages_.at(state.message);
  if (message.end > state.time) {
    if (lane_count_ > 1 && message.end > now_) {
      queue_resume(rank, lane, state, message.end);
      return false;
    }
    record(Span::Kind::kCompute, rank, lane, rank, state.time, message.end);
    state.time = message.end;
    state.path = message.path;
  }
  state.accesses_from = message.end;
  messages_.release(state.message);
  state.message = cost::kNoMessage;
  return true;
}

// False when the message has not arrived yet.
bool Simulation::receive(Rank rank, uint32_t lane, LaneState& state, Rank source) {
  if (state.message == cost::kNoMessage)
    state.message = messages_.take(source, lane_index(rank, lane));
  if (state.message == cost::kNoMessage) {
    state.state = State::kForMessage;
    state.peer = source;
    return false;
  }
  if (tasks_ != nullptr) return receive_task(rank, lane, state);
  const Message& message = messages_.at(state.message);
  if (message.end > state.time) {
    if (lane_count_ > 1 && message.end > now_) {
      queue_resume(rank, lane, state, message.end);
      return false;
    }
    record(Span::Kind::kWait, rank, lane, source, state.time, message.end);
    state.time = message.end;
    state.path = message.path;
    state.hops = message.hops;
  }
  const Picoseconds overhead =
      scaled(ranks_[rank], costs_.level[layout_.level(source, rank)].recv_overhead);
  const Picoseconds begin = occupy_core(rank, state, overhead);
  state.path.overhead += overhead;
  record(Span::Kind::kRecv, rank, lane, source, begin, state.time);
  received(rank, lane, state);
  return true;
}

bool Simulation::may_send(Rank rank, uint32_t lane, LaneState& state, Rank target) {
  if (options_.credit == 0) return true;
  uint64_t& sent = unreceived(rank, lane, target);
  if (sent >= options_.credit) {
    state.state = State::kForCredit;
    state.peer = target;
    return false;
  }
  ++sent;
  return true;
}

void Simulation::received(Rank rank, uint32_t lane, LaneState& state) {
  const Rank source = messages_.at(state.message).source;
  messages_.release(state.message);
  state.message = cost::kNoMessage;
  if (options_.credit == 0) return;
  --unreceived(source, lane, rank);
  LaneState& sender = lane_state(source, lane);
  if (sender.state == State::kForCredit && sender.peer == rank) {
    sender.time = std::max(sender.time, state.time);
    queue_resume(source, lane, sender, sender.time);
  }
}

void Simulation::signal(Rank rank, LaneState& state, const ShortOp& op) {
  if (tasks_ != nullptr) occupy_core(rank, state, scaled(ranks_[rank], tasks_->operation()));
  const SignalRecord record{state.time, state.path, state.hops};
  if (op.peer != sched::kAllRanks) {
    ++report_.signals;
    signals_.give(rank, op.peer, op.signal(), record);
    wake(rank, op.peer, op.signal(), record.time);
    return;
  }
  report_.signals += problem_.rank_count - 1;
  signals_.give_all(rank, op.signal(), record);
  for (Rank target = 0; target < problem_.rank_count; ++target) {
    if (target != rank) wake(rank, target, op.signal(), record.time);
  }
}

void Simulation::wake(Rank sender, Rank target, uint32_t signal_index, Picoseconds time) {
  for (uint32_t lane = 0; lane < lane_count_; ++lane) {
    LaneState& state = lane_state(target, lane);
    if (state.state != State::kForSignal || state.peer != sender) continue;
    if (feed_.peek(target, lane)->signal() != signal_index) continue;
    const Picoseconds arrival = time + signal_latency(sender, target);
    queue_resume(target, lane, state, std::max(state.time, arrival));
  }
}

// False when a signal is missing.
bool Simulation::wait(Rank rank, uint32_t lane, LaneState& state, const ShortOp& op) {
  const Picoseconds begin = state.time;
  if (op.peer != sched::kAllRanks) {
    if (!wait_for(rank, state, op.peer, op)) return false;
  } else {
    for (; state.wait_cursor < problem_.rank_count; ++state.wait_cursor) {
      if (state.wait_cursor != rank && !wait_for(rank, state, state.wait_cursor, op)) return false;
    }
    state.wait_cursor = 0;
  }
  if (state.time > begin) record(Span::Kind::kWait, rank, lane, state.peer, begin, state.time);
  return true;
}

bool Simulation::wait_for(Rank rank, LaneState& state, Rank sender, const ShortOp& op) {
  const SignalRecord* record = signals_.find(sender, sender, rank, op.signal(), op.value());
  if (record == nullptr) {
    state.state = State::kForSignal;
    state.peer = sender;
    return false;
  }
  const Picoseconds latency = signal_latency(sender, rank);
  if (record->time + latency > state.time) {
    state.time = record->time + latency;
    state.path = record->path;
    state.path.latency += latency;
    state.hops = static_cast<uint32_t>(record->hops) + 1;
    state.peer = sender;
  }
  return true;
}

Picoseconds Simulation::signal_latency(Rank sender, Rank target) {
  if (tasks_ != nullptr) return tasks_->signal(sender, target);
  const Picoseconds latency = costs_.level[layout_.level(sender, target)].signal;
  return links_ ? latency + links_->latency(sender, target) : latency;
}

// ---- Events -----------------------------------------------------------------------------------

void Simulation::handle(const cost::RadixQueue::Entry& event) {
  mix(event.time);
  if (event.kind == kResume) {
    mix(uint64_t{event.index} << 8 | event.kind);
    advance(static_cast<Rank>(event.index / lane_count_), event.index % lane_count_);
    return;
  }
  const Message& message = messages_.at(event.index);
  mix(uint64_t{message.source} << 36 ^ uint64_t{message.target} << 8 ^ event.kind);
  mix(message.bytes);
  switch (event.kind) {
    case kNicOut:
      tasks_ == nullptr ? pass_nic_out(event.index, event.time)
                        : pass_card_out(event.index, event.time);
      break;
    case kLink:
      pass_links(event.index, event.time);
      break;
    case kIngress:
      if (tasks_ == nullptr) enter(event.index, event.time);
      deliver(event.index);
      break;
    default:
      arrive(event.index, event.time);
      break;
  }
}

// ---- Result -----------------------------------------------------------------------------------

void Simulation::keep_span(const Span& span) {
  if (span.begin_ps == span.end_ps) return;
  const auto keep = [&](std::vector<Span>* spans) {
    if (spans->size() < options_.timeline_spans_max) spans->push_back(span);
  };
  if (span.rank < options_.timeline_ranks) keep(&report_.timeline);
  if (span.rank == lanes_of_) keep(&report_.lanes);
}

void Simulation::keep_transfer(const Message& message, graph::LinkId link, bool out,
                               Picoseconds begin, Picoseconds end) {
  if ((out ? message.source : message.target) != lanes_of_ || begin == end) return;
  if (report_.transfers.size() >= options_.timeline_spans_max) return;
  report_.transfers.push_back({link, out, out ? message.target : message.source, begin, end});
}

void Simulation::report_ports() {
  if (links_) {
    report_.links = links_->use();
    return;
  }
  for (const RankState& rank : ranks_) {
    report_.rank_ports.push_back({rank.egress.busy, rank.ingress.busy});
  }
  for (size_t i = 0; i < nic_out_.size(); ++i) {
    report_.nic_ports.push_back({nic_out_[i].busy, nic_in_[i].busy});
  }
}

Report Simulation::finish() {
  report_.events = events_;
  report_.operations = feed_.operations();
  report_.copied_bytes = feed_.copied_bytes();
  report_.remote_bytes = feed_.remote_bytes();
  report_.messages_in_flight_peak = messages_.peak();
  report_.complete = true;
  report_.finish_ps.resize(problem_.rank_count);
  report_.core_busy_ps.resize(problem_.rank_count);
  const LaneState* last = nullptr;
  for (Rank rank = 0; rank < problem_.rank_count; ++rank) {
    const RankState& own = ranks_[rank];
    const bool dead = own.live_lanes > 0 && own.dead_at != ~Picoseconds{0};
    if (own.live_lanes > 0) report_.complete = false;
    if (dead) report_.dead.push_back(rank);
    for (uint32_t lane = 0; lane < lane_count_; ++lane) {
      const LaneState& state = lane_state(rank, lane);
      report_.finish_ps[rank] = std::max(report_.finish_ps[rank], state.time);
      if (last == nullptr || state.time > last->time) {
        last = &state;
        report_.critical_path.rank = rank;
      }
      const bool for_message =
          state.state == State::kForMessage || state.state == State::kForCredit;
      if (!dead && (for_message || state.state == State::kForSignal)) {
        report_.blocked.push_back({rank, lane, state.peer, !for_message, state.time});
      }
    }
    if (dead) report_.finish_ps[rank] = own.dead_at;
    report_.core_busy_ps[rank] = own.core_busy;
    mix(report_.finish_ps[rank]);
  }
  const Path& path = last->path;
  CriticalPath& critical = report_.critical_path;
  report_.total_ps = last->time;
  critical.hops = last->hops;
  critical.overhead_ps = path.overhead;
  critical.latency_ps = path.latency;
  critical.transfer_ps = path.transfer;
  critical.compute_ps = path.compute;
  // With task times both ends of a message work at the same time, so that the sum may exceed it.
  const Picoseconds parts = path.overhead + path.latency + path.transfer + path.compute;
  critical.contention_ps = last->time > parts ? last->time - parts : 0;
  report_ports();
  report_.trace_hash = hash_;
  report_.culprits = find_culprits(report_.blocked, report_.dead, problem_.rank_count);
  return std::move(report_);
}

}  // namespace weir::sim
