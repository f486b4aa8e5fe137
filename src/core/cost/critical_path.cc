// SPDX-License-Identifier: Apache-2.0
#include "core/cost/critical_path.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <queue>
#include <unordered_map>
#include <vector>

namespace weir::cost {

namespace {

constexpr uint64_t kPendingMax = 4'000'000;

struct Message {
  Picoseconds first;  // when the receiver may begin to copy it out
  Picoseconds last;   // the earliest time at which it can be done
};

class Machine {
 public:
  Machine(const algo::Algorithm& algorithm, const Workload& work, const TaskCosts& costs,
          uint64_t slices_max)
      : rank_count_(work.problem.rank_count),
        layout_(work.layout),
        costs_(costs),
        stream_(algorithm, work.problem, work.bytes, work.slicing, costs, kPendingMax, slices_max),
        lane_count_(stream_.lane_count()),
        lanes_(size_t{rank_count_} * lane_count_),
        core_free_(rank_count_, 0),
        wire_out_free_(rank_count_, 0),
        wire_in_free_(rank_count_, 0) {}

  double run() {
    for (uint32_t i = 0; i < lanes_.size(); ++i) push(0, i);
    size_t live = lanes_.size();
    while (!queue_.empty()) {
      const Picoseconds time = queue_.top().time;
      const uint32_t index = queue_.top().lane;
      queue_.pop();
      if ((index & kFlight) != 0) {
        arrive(index & ~kFlight, time);
        continue;
      }
      if (step(index, time)) --live;
    }
    if (live > 0 || !stream_.status().ok()) return -1;
    return static_cast<double>(end_) / 1000;
  }

 private:
  struct Lane {
    bool for_message = false;  // blocked
    bool for_signal = false;
    uint32_t peer = 0;  // the rank that it waits for
    Rank wait_cursor = 0;
    Picoseconds time = 0;
  };
  struct Event {
    Picoseconds time;
    uint32_t lane;
    uint64_t order;  // order of the pushes: the first one wins a tie
    bool operator>(const Event& other) const {
      return time != other.time ? time > other.time : order > other.order;
    }
  };

  // A message on its way between hosts.
  struct Flight {
    Rank source;
    uint32_t target;  // lane
    Picoseconds wire;
    Picoseconds last;
  };
  static constexpr uint32_t kFlight = 1u << 31;  // in Event::lane: an index into flights_

  void push(Picoseconds time, uint32_t lane) { queue_.push({time, lane, pushed_++}); }

  // True when the lane has ended. The only lane of a rank runs until it is blocked, since nothing
  // else uses its resources; several lanes take turns.
  bool step(uint32_t index, Picoseconds now) {
    Lane& lane = lanes_[index];
    lane.time = now;
    lane.for_message = lane.for_signal = false;
    for (;;) {
      const ShortOp* op = stream_.peek(index / lane_count_, index % lane_count_);
      if (op == nullptr) {
        end_ = std::max(end_, lane.time);
        return true;
      }
      if (!execute(index, lane, *op)) return false;
      stream_.advance(index / lane_count_, index % lane_count_);
      if (lane_count_ == 1) continue;
      push(lane.time, index);
      return false;
    }
  }

  // False when the operation cannot be done yet.
  bool execute(uint32_t index, Lane& lane, const ShortOp& op) {
    const Rank rank = index / lane_count_;
    switch (op.code) {
      case ShortOp::Code::kRead:
      case ShortOp::Code::kWrite:
        break;  // TaskCosts takes no links
      case ShortOp::Code::kCompute:
        lane.time = occupy(rank, lane.time, op.amount);
        break;
      case ShortOp::Code::kSend:
        send(rank, index % lane_count_, lane, op);
        break;
      case ShortOp::Code::kRecv:
        return receive(rank, index % lane_count_, lane, op);
      case ShortOp::Code::kSignal:
        lane.time = occupy(rank, lane.time, costs_.operation());
        signal(rank, lane.time, op);
        break;
      case ShortOp::Code::kWait:
        return wait(rank, lane, op);
    }
    return true;
  }

  Picoseconds occupy(Rank rank, Picoseconds from, Picoseconds cost) {
    core_free_[rank] = std::max(core_free_[rank], from) + cost;
    return core_free_[rank];
  }

  void send(Rank rank, uint32_t lane_index, Lane& lane, const ShortOp& op) {
    const Picoseconds cost = costs_.send(rank, op.peer, op.amount);
    const Picoseconds overhead = costs_.send(rank, op.peer, 0);
    lane.time = occupy(rank, lane.time, cost);
    const Picoseconds begin = lane.time - cost + overhead;  // when the first bytes leave
    const Picoseconds latency = costs_.latency(rank, op.peer);
    const uint32_t target = static_cast<uint32_t>(size_t{op.peer} * lane_count_ + lane_index);
    if (!is_network(layout_.link(rank, op.peer))) {
      deliver(rank, target, {begin + latency, lane.time + latency});
      return;
    }
    const Picoseconds wire = costs_.wire_out(rank, op.peer, op.amount);
    Picoseconds& out = wire_out_free_[layout_.host(rank)];
    const Picoseconds start = std::max(begin, out);
    out = start + wire;
    flights_.push_back({rank, target, costs_.wire_in(rank, op.peer, op.amount),
                        std::max(lane.time, start + wire) + latency});
    push(start + latency, kFlight | static_cast<uint32_t>(flights_.size() - 1));
  }

  // Claims the wire of the target's host, in the order of arrival.
  void arrive(uint32_t index, Picoseconds now) {
    const Flight flight = flights_[index];
    Picoseconds& in = wire_in_free_[layout_.host(flight.target / lane_count_)];
    const Picoseconds start = std::max(now, in);
    in = start + flight.wire;
    deliver(flight.source, flight.target, {start, std::max(flight.last, start + flight.wire)});
  }

  void deliver(Rank source, uint32_t target_index, const Message& message) {
    const Rank rank = target_index / lane_count_;
    messages_[key_of(source, rank, target_index % lane_count_)].push_back(message);
    Lane& target = lanes_[target_index];
    if (!target.for_message || target.peer != source) return;
    target.for_message = false;
    push(std::max(target.time, message.first), target_index);
  }

  bool receive(Rank rank, uint32_t lane_index, Lane& lane, const ShortOp& op) {
    const auto found = messages_.find(key_of(op.peer, rank, lane_index));
    if (found == messages_.end() || found->second.empty()) {
      lane.for_message = true;
      lane.peer = op.peer;
      return false;
    }
    const Message message = found->second.front();
    if (message.first > lane.time && lane_count_ == 1) lane.time = message.first;
    if (message.first > lane.time) {
      push(message.first, static_cast<uint32_t>(size_t{rank} * lane_count_ + lane_index));
      return false;
    }
    found->second.pop_front();
    const Picoseconds out = occupy(rank, lane.time, costs_.recv(op.peer, rank, op.amount));
    lane.time = std::max(out, message.last + costs_.recv(op.peer, rank, 0));
    return true;
  }

  void signal(Rank rank, Picoseconds time, const ShortOp& op) {
    signals_[key_of(rank, op.peer, op.signal())].push_back(time);
    const Rank first = op.peer == sched::kAllRanks ? 0 : op.peer;
    const Rank last = op.peer == sched::kAllRanks ? rank_count_ : op.peer + 1;
    for (Rank target = first; target < last; ++target) {
      for (uint32_t i = 0; i < lane_count_; ++i) {
        const uint32_t index = static_cast<uint32_t>(size_t{target} * lane_count_ + i);
        Lane& lane = lanes_[index];
        if (!lane.for_signal || lane.peer != rank) continue;
        lane.for_signal = false;
        push(std::max(lane.time, time), index);
      }
    }
  }

  bool wait(Rank rank, Lane& lane, const ShortOp& op) {
    if (op.peer != sched::kAllRanks) return wait_for(rank, lane, op.peer, op);
    for (; lane.wait_cursor < rank_count_; ++lane.wait_cursor) {
      if (lane.wait_cursor != rank && !wait_for(rank, lane, lane.wait_cursor, op)) return false;
    }
    lane.wait_cursor = 0;
    return true;
  }

  bool wait_for(Rank rank, Lane& lane, Rank sender, const ShortOp& op) {
    std::vector<Picoseconds> given = times_of(sender, rank, op.signal());
    const std::vector<Picoseconds> to_all = times_of(sender, sched::kAllRanks, op.signal());
    given.insert(given.end(), to_all.begin(), to_all.end());
    if (given.size() < op.value()) {
      lane.for_signal = true;
      lane.peer = sender;
      return false;
    }
    std::sort(given.begin(), given.end());
    lane.time = std::max(lane.time, given[op.value() - 1] + costs_.signal(sender, rank));
    return true;
  }

  std::vector<Picoseconds> times_of(Rank from, Rank to, uint32_t index) const {
    const auto found = signals_.find(key_of(from, to, index));
    return found == signals_.end() ? std::vector<Picoseconds>() : found->second;
  }

  static uint64_t key_of(Rank from, Rank to, uint32_t index) {
    return (uint64_t{from & 0xfffff} << 44) | (uint64_t{to & 0xfffff} << 24) | index;
  }

  Rank rank_count_;
  const RankLayout& layout_;
  const TaskCosts& costs_;
  OpStream stream_;
  uint32_t lane_count_;
  std::vector<Lane> lanes_;
  std::vector<Picoseconds> core_free_;
  std::vector<Picoseconds> wire_out_free_;  // by host
  std::vector<Picoseconds> wire_in_free_;
  std::vector<Flight> flights_;
  std::unordered_map<uint64_t, std::deque<Message>> messages_;
  std::unordered_map<uint64_t, std::vector<Picoseconds>> signals_;
  Picoseconds end_ = 0;
  uint64_t pushed_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> queue_;
};

}  // namespace

double critical_path_ns(const algo::Algorithm& algorithm, const Workload& work,
                        const TaskCosts& costs, uint64_t slices_max) {
  return Machine(algorithm, work, costs, slices_max).run();
}

double lockstep_ns(const algo::Algorithm& algorithm, const Workload& work, const TaskCosts& costs,
                   Rank rank, uint64_t slices_max) {
  OpStream stream(algorithm, work.problem, work.bytes, work.slicing, costs, kPendingMax,
                  slices_max);
  const Rank n = work.problem.rank_count;
  Picoseconds core = 0;
  Picoseconds wait = 0;
  for (uint32_t lane = 0; lane < stream.lane_count(); ++lane) {
    Picoseconds lane_wait = 0;
    while (const ShortOp* op = stream.peek(rank, lane)) {
      const Rank peer = op->peer < n ? op->peer : (rank + n / 2) % n;
      switch (op->code) {
        case ShortOp::Code::kRead:
        case ShortOp::Code::kWrite:
          break;
        case ShortOp::Code::kCompute:
          core += op->amount;
          break;
        case ShortOp::Code::kSend:
          core += costs.send(rank, peer, op->amount);
          break;
        case ShortOp::Code::kRecv: {
          const Picoseconds copied = costs.send(peer, rank, op->amount) -
                                     costs.send(peer, rank, 0) + costs.recv(peer, rank, op->amount);
          const Picoseconds wire = std::max(costs.wire_out(peer, rank, op->amount),
                                            costs.wire_in(peer, rank, op->amount));
          lane_wait += costs.latency(peer, rank) + (wire > copied ? wire - copied : 0);
          core += costs.recv(peer, rank, op->amount);
          break;
        }
        case ShortOp::Code::kSignal:
          core += costs.operation();
          break;
        case ShortOp::Code::kWait:
          lane_wait += costs.signal(peer, rank);
          break;
      }
      stream.advance(rank, lane);
    }
    // Lanes wait at the same time.
    wait = std::max(wait, lane_wait);
  }
  return static_cast<double>(core + wait) / 1000;
}

}  // namespace weir::cost
