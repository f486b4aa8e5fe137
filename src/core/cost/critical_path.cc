// SPDX-License-Identifier: Apache-2.0
#include "core/cost/critical_path.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/cost/message_pool.h"
#include "core/cost/message_ways.h"
#include "core/cost/radix_queue.h"
#include "core/cost/signal_board.h"

namespace weir::cost {

namespace {

constexpr uint64_t kPendingMax = 4'000'000;
constexpr double kNsMax = 1e15;  // two weeks; longer times are as good as none

struct Message {
  Rank source = 0;
  Link link = Link::kTcp;
  uint32_t target = 0;  // lane of the receiver
  uint32_t next = kNoMessage;
  uint32_t taken = 0;  // links of its way
  Rank to = 0;
  bool is_access = false;  // of a peer's memory, by the lane `target`
  uint64_t bytes = 0;
  Picoseconds first = 0;  // when the receiver may begin to copy it out
  Picoseconds last = 0;   // the earliest time at which it can be done
};

struct Signal {
  Picoseconds time = 0;
};

}  // namespace

class Machine {
 public:
  Machine(const algo::Algorithm& algorithm, const Workload& work, const TaskCosts& costs,
          const Fold& fold, const Part& part)
      : rank_count_(work.problem.rank_count),
        layout_(work.layout),
        costs_(costs),
        fold_(fold),
        stream_(algorithm, work.problem, work.bytes, work.slicing, costs, kPendingMax, part),
        slice_count_(stream_.slice_count()),
        lane_count_(stream_.lane_count()),
        lanes_(size_t{fold.followed()} * lane_count_),
        cores_(fold.followed()),
        cards_out_(rank_count_),
        cards_in_(rank_count_),
        ways_(layout_.ways != nullptr ? layout_.ways : layout_.memory_ways),
        links_(ways_ == nullptr ? 0 : ways_->graph().links().size()),
        signals_(fold.followed(), stream_.signal_count()) {
    for (uint32_t i = 0; i < lanes_.size(); ++i) {
      lanes_[i].rank = i / lane_count_;
      lanes_[i].number = i % lane_count_;
    }
  }

  PathTime run(const Limit& limit) {
    set_limit(limit);
    return follow();
  }

  // Follows the first `slice_count` slices. `later` becomes a copy of this machine as it was when a
  // lane first had no more of them to do.
  PathTime run(const Limit& limit, uint64_t slice_count, std::unique_ptr<Machine>* later) {
    stream_.set_slice_count(slice_count);
    later_ = later;
    return run(limit);
  }

  // Of such a copy: goes on with all slices.
  PathTime go_on(const Limit& limit) {
    set_limit(limit);
    stream_.set_slice_count(slice_count_);
    const uint64_t operations = stream_.operations();
    step(ended_lane_);
    PathTime time = follow();
    time.operations -= operations;
    return time;
  }

 private:
  void set_limit(const Limit& limit) {
    time_max_ = limit.ns_max < kNsMax ? static_cast<Picoseconds>(std::max(0.0, limit.ns_max) * 1000)
                                      : ~Picoseconds{0};
    if (limit.loads == nullptr || limit.ns_max >= kNsMax) return;
    limit_idling(limit.loads->cores, limit.times, &cores_);
    // Not for what cards receive: a receiver may count more bytes than its sender sends (OpStream).
    limit_idling(limit.loads->cards_out, limit.times, &cards_out_);
    limit_idling(limit.loads->links, limit.times, &links_);
  }

  PathTime follow() {
    while (started_ < lanes_.size() && end_ <= time_max_) step(started_++);
    while (!queue_.empty() && std::max(now_, end_) <= time_max_) {
      const RadixQueue::Entry event = queue_.pop();
      now_ = event.time;
      switch (event.kind) {
        case kResume:
          step(event.index);
          break;
        case kLeave:
          leave(event.index, event.time);
          break;
        case kLink:
          pass_links(event.index, event.time);
          break;
        default:
          arrive(event.index, event.time);
          break;
      }
    }
    const auto end_ns = static_cast<double>(std::max(now_, end_)) / 1000;
    if (std::max(now_, end_) > time_max_) return {end_ns, true, 0, 0, stream_.operations()};
    if (ended_ < lanes_.size() || !stream_.status().ok()) return {};
    return {end_ns, false, static_cast<double>(busiest()) / 1000,
            static_cast<double>(longest_) / 1000, stream_.operations()};
  }

  enum EventKind : uint32_t { kResume, kLeave, kArrive, kLink };
  enum class State : uint8_t { kReady, kForMessage, kForSignal, kForAccess };
  static constexpr Picoseconds kNotBegun = ~Picoseconds{0};
  struct Lane {
    Rank rank = 0;
    uint32_t number = 0;  // of the rank's
    Picoseconds time = 0;
    Picoseconds begun = kNotBegun;  // after its first operation
    State state = State::kReady;
    Rank peer = 0;  // the rank that it waits for
    Rank wait_cursor = 0;
    uint32_t message = kNoMessage;  // arrived, not yet consumed; an access that is over
    Picoseconds accesses_from = 0;  // of peers' memory: the core's part of them has begun
  };

  // The lane runs until it is blocked or, if its rank has several, until it is ahead of the others,
  // with which it shares the core.
  void step(uint32_t index) {
    Lane& lane = lanes_[index];
    const Rank rank = lane.rank;
    lane.state = State::kReady;
    for (;;) {
      if (lane_count_ > 1 && lane.time > now_) {
        if (!waits_for_message(index, lane)) queue_.push({lane.time, index, kResume});
        return;
      }
      const ShortOp* op = stream_.peek(rank, lane.number);
      if (op == nullptr) {
        if (later_ != nullptr) leave_behind(index);
        end_ = std::max(end_, lane.time);
        if (lane.begun != kNotBegun) longest_ = std::max(longest_, lane.time - lane.begun);
        ++ended_;
        return;
      }
      if (!execute(index, rank, lane, *op)) return;
      stream_.advance(rank, lane.number);
      if (lane.begun == kNotBegun) lane.begun = lane.time;
      if (lane.time > time_max_) {
        end_ = std::max(end_, lane.time);
        return;
      }
    }
  }

  void leave_behind(uint32_t lane) {
    std::unique_ptr<Machine>* const later = std::exchange(later_, nullptr);
    ended_lane_ = lane;
    *later = std::make_unique<Machine>(*this);
  }

  // A lane whose next message has not arrived yet needs no turn of its core before.
  bool waits_for_message(uint32_t index, Lane& lane) {
    const ShortOp* op = stream_.peek(lane.rank, lane.number);
    if (op == nullptr && later_ != nullptr) leave_behind(index);
    if (op == nullptr || op->code != ShortOp::Code::kRecv) return false;
    if (messages_.has(op->peer, index)) return false;
    lane.state = State::kForMessage;
    lane.peer = op->peer;
    return true;
  }

  // False when the operation cannot be done yet.
  bool execute(uint32_t index, Rank rank, Lane& lane, const ShortOp& op) {
    switch (op.code) {
      case ShortOp::Code::kRead:
      case ShortOp::Code::kWrite:
        return access(index, rank, lane, op);
      case ShortOp::Code::kCompute:
        occupy(rank, lane, op.amount);
        lane.accesses_from = lane.time - op.amount;
        break;
      case ShortOp::Code::kSend:
        send(rank, lane.number, lane, op);
        break;
      case ShortOp::Code::kRecv:
        return receive(index, rank, lane, op);
      case ShortOp::Code::kSignal:
        occupy(rank, lane, costs_.operation());
        signal(rank, lane.time, op);
        break;
      case ShortOp::Code::kWait:
        return wait(rank, lane, op);
    }
    return true;
  }

  // What does one thing after another: a core, or one direction of a card.
  struct Resource {
    Picoseconds free = 0;
    Picoseconds busy = 0;

    Picoseconds idle_max = ~Picoseconds{0};  // if it idles for longer it ends after time_max_
  };

  void limit_idling(const std::vector<Picoseconds>& loads, double times,
                    std::vector<Resource>* resources) const {
    for (size_t i = 0; i < std::min(loads.size(), resources->size()); ++i) {
      const auto load = static_cast<Picoseconds>(static_cast<double>(loads[i]) * times);
      (*resources)[i].idle_max = time_max_ - std::min(load, time_max_);
    }
  }

  // Returns from when it is taken.
  Picoseconds take(Resource& resource, Picoseconds from, Picoseconds cost) {
    const Picoseconds start = std::max(resource.free, from);
    resource.free = start + cost;
    resource.busy += cost;
    const Picoseconds idle = resource.free - resource.busy;
    if (idle > resource.idle_max) [[unlikely]] {
      end_ = std::max(end_, time_max_ + (idle - resource.idle_max));
    }
    return start;
  }

  void occupy(Rank rank, Lane& lane, Picoseconds cost) {
    take(cores_[rank], lane.time, cost);
    lane.time = cores_[rank].free;
  }

  Picoseconds busiest() const {
    Picoseconds most = 0;
    for (const auto* resources : {&cores_, &cards_out_, &cards_in_, &links_}) {
      for (const Resource& resource : *resources) most = std::max(most, resource.busy);
    }
    return most;
  }

  void send(Rank rank, uint32_t lane_index, Lane& lane, const ShortOp& op) {
    const Link link = layout_.link(rank, op.peer);
    const Picoseconds cost = costs_.send(link, op.amount);
    const Picoseconds overhead = costs_.send_overhead(link);
    occupy(rank, lane, cost);
    const Picoseconds begin = lane.time - cost + overhead;  // when the first bytes leave
    const Rank target = fold_.standing_for(op.peer);
    const uint32_t index = messages_.acquire();
    Message& message = messages_.at(index);
    message = {.source = fold_.as_seen(rank, op.peer),
               .link = link,
               .target = static_cast<uint32_t>(target * lane_count_ + lane_index),
               .to = op.peer,
               .bytes = op.amount,
               .last = lane.time};
    if (layout_.ways != nullptr) {
      pass_links(index, lane.time);
      return;
    }
    if (is_network(link)) {
      // The card is claimed in the order of time, and this rank may be ahead of others.
      queue_.push({begin, index, kLeave});
      return;
    }
    if (layout_.memory_ways != nullptr) {
      pass_links(index, begin);
      return;
    }
    const Picoseconds latency = costs_.latency(link);
    message.last += latency;
    queue_.push({begin + latency, index, kArrive});
  }

  // The links work while the core does: an access ends when both have ended.
  bool access(uint32_t index, Rank rank, Lane& lane, const ShortOp& op) {
    if (lane.message == kNoMessage) {
      const bool reads = op.code == ShortOp::Code::kRead;
      const uint32_t message = messages_.acquire();
      messages_.at(message) = {.source = reads ? op.peer : rank,
                               .target = index,
                               .to = reads ? rank : op.peer,
                               .is_access = true,
                               .bytes = op.amount,
                               .last = lane.accesses_from};
      lane.state = State::kForAccess;
      pass_links(message, lane.accesses_from);
      return false;
    }
    const Picoseconds end = messages_.at(lane.message).last;
    if (end > lane.time) {
      if (lane_count_ > 1 && end > now_) {
        queue_.push({end, index, kResume});
        return false;
      }
      lane.time = end;
    }
    lane.accesses_from = end;
    messages_.release(lane.message);
    lane.message = kNoMessage;
    return true;
  }

  // The first link of a message is the sender's, which takes it at once also where it is ahead of
  // others; all others are taken in the order of time.
  void pass_links(uint32_t index, Picoseconds time) {
    Message& message = messages_.at(index);
    const MessageWays& ways = *ways_;
    const auto way = ways.way(message.source, message.to);
    if (way.empty()) return;  // it never arrives
    while (message.taken < way.size()) {
      const graph::LinkId link = way[message.taken];
      if (ways.is_limited(link)) {
        if ((message.taken > 0 || message.is_access) && time > now_) {
          queue_.push({time, index, kLink});
          return;
        }
        const Picoseconds cost = ways.time(link, message.bytes);
        time = take(links_[link], time, cost);
        message.last = std::max(message.last, time + cost);
      }
      ++message.taken;
    }
    Picoseconds latency = 0;
    if (layout_.ways != nullptr) latency = ways.latency(way);
    if (layout_.ways == nullptr && !message.is_access) latency = costs_.latency(message.link);
    message.last += latency;
    // An access may have begun before the core's part of it was over, which is now.
    queue_.push({std::max(time + latency, now_), index, kArrive});
  }

  void leave(uint32_t index, Picoseconds now) {
    Message& message = messages_.at(index);
    const Rank source = message.source;
    const Picoseconds wire = costs_.wire(message.link, source, message.bytes);
    const Picoseconds start = take(cards_out_[layout_.card(fold_.standing_for(source))], now, wire);
    const Picoseconds latency = costs_.latency(message.link);
    message.last = std::max(message.last, start + wire) + latency;
    queue_.push({start + latency, index, kArrive});
  }

  void arrive(uint32_t index, Picoseconds now) {
    Message& message = messages_.at(index);
    if (message.is_access) {
      begin(message.target, index, now);
      return;
    }
    message.first = now;
    if (layout_.ways != nullptr) {
      message.first = message.last;  // its receiver does nothing before all of it has come
    } else if (is_network(message.link)) {
      const Rank rank = lanes_[message.target].rank;
      const Picoseconds wire = costs_.wire(message.link, rank, message.bytes);
      message.first = take(cards_in_[layout_.card(rank)], now, wire);
      message.last = std::max(message.last, message.first + wire);
    }
    Lane& lane = lanes_[message.target];
    if (lane.state != State::kForMessage || lane.peer != message.source) {
      messages_.put(message.source, message.target, index);
      return;
    }
    begin(message.target, index, now);
  }

  // A lane that has waited for `message` goes on.
  void begin(uint32_t index, uint32_t message, Picoseconds now) {
    Lane& lane = lanes_[index];
    lane.message = message;
    if (lane_count_ == 1 || lane.time <= now) {
      step(index);
      return;
    }
    lane.state = State::kReady;
    queue_.push({lane.time, index, kResume});
  }

  bool receive(uint32_t index, Rank rank, Lane& lane, const ShortOp& op) {
    if (lane.message == kNoMessage) lane.message = messages_.take(op.peer, index);
    if (lane.message == kNoMessage) {
      lane.state = State::kForMessage;
      lane.peer = op.peer;
      return false;
    }
    const Message& message = messages_.at(lane.message);
    if (message.first > lane.time) {
      if (lane_count_ > 1 && message.first > now_) {
        queue_.push({message.first, index, kResume});
        return false;
      }
      lane.time = message.first;
    }
    occupy(rank, lane, costs_.recv(message.link, op.amount));
    lane.time = std::max(lane.time, message.last + costs_.recv_overhead(message.link));
    messages_.release(lane.message);
    lane.message = kNoMessage;
    return true;
  }

  void signal(Rank rank, Picoseconds time, const ShortOp& op) {
    if (op.peer == sched::kAllRanks) {
      signals_.give_all(rank, op.signal(), {time});
      for (uint32_t i = 0; i < lanes_.size(); ++i) {
        const Lane& lane = lanes_[i];
        if (lane.state == State::kForSignal && fold_.standing_for(lane.peer) == rank) wake(i, time);
      }
      return;
    }
    const Rank target = fold_.standing_for(op.peer);
    const Rank source = fold_.as_seen(rank, op.peer);
    signals_.give(source, target, op.signal(), {time});
    for (uint32_t i = target * lane_count_; i < (target + 1) * lane_count_; ++i) {
      if (lanes_[i].state == State::kForSignal && lanes_[i].peer == source) wake(i, time);
    }
  }

  void wake(uint32_t index, Picoseconds time) {
    Lane& lane = lanes_[index];
    lane.state = State::kReady;
    queue_.push({std::max(lane.time, time), index, kResume});
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
    const Signal* given =
        signals_.find(sender, fold_.standing_for(sender), rank, op.signal(), op.value());
    if (given == nullptr) {
      lane.state = State::kForSignal;
      lane.peer = sender;
      return false;
    }
    lane.time = std::max(lane.time, given->time + costs_.signal(sender, rank));
    return true;
  }

  Rank rank_count_;
  const RankLayout& layout_;
  const TaskCosts& costs_;
  const Fold& fold_;
  OpStream stream_;
  uint64_t slice_count_;
  uint32_t lane_count_;
  std::vector<Lane> lanes_;
  std::vector<Resource> cores_;
  std::vector<Resource> cards_out_;  // by card
  std::vector<Resource> cards_in_;
  const MessageWays* ways_;
  std::vector<Resource> links_;  // of the ways
  MessagePool<Message> messages_;
  SignalBoard<Signal> signals_;
  RadixQueue queue_;
  Picoseconds now_ = 0;
  Picoseconds end_ = 0;
  Picoseconds longest_ = 0;
  size_t ended_ = 0;
  Picoseconds time_max_ = 0;
  uint32_t started_ = 0;  // lanes, from the first on
  std::unique_ptr<Machine>* later_ = nullptr;
  uint32_t ended_lane_ = 0;  // the first one that was at its end
};

PathTime critical_path(const algo::Algorithm& algorithm, const Workload& work,
                       const TaskCosts& costs, const Fold& fold, Part part, const Limit& limit) {
  part.rank_count = fold.followed();
  return Machine(algorithm, work, costs, fold, part).run(limit);
}

PathInParts::PathInParts(const algo::Algorithm& algorithm, const Workload& work,
                         const TaskCosts& costs, const Fold& fold, Part part) {
  part.rank_count = fold.followed();
  machine_ = std::make_unique<Machine>(algorithm, work, costs, fold, part);
}

PathInParts::~PathInParts() = default;

PathTime PathInParts::first(uint64_t slices, const Limit& limit) {
  return machine_->run(limit, slices, &later_);
}

PathTime PathInParts::all(const Limit& limit) { return later_->go_on(limit); }

double lockstep_ns(const algo::Algorithm& algorithm, const Workload& work, const TaskCosts& costs,
                   Rank rank, uint64_t slices_max) {
  Part part;
  part.slices_max = slices_max;
  OpStream stream(algorithm, work.problem, work.bytes, work.slicing, costs, kPendingMax, part);
  const Rank n = work.problem.rank_count;
  const RankLayout& layout = work.layout;
  std::vector<uint32_t> ranks_of_card(n, 0);
  for (Rank other = 0; other < n; ++other) ++ranks_of_card[layout.card(other)];
  // Of a message, while the other ranks of its cards send one, too.
  const auto wire_of = [&](Rank from, Rank to, uint64_t bytes) -> Picoseconds {
    if (layout.ways != nullptr) {
      Picoseconds most = 0;
      for (const graph::LinkId link : layout.ways->way(from, to)) {
        most = std::max(most, layout.ways->time(link, bytes));
      }
      return most;
    }
    if (!is_network(layout.link(from, to))) return 0;
    return std::max(costs.wire_out(from, to, bytes) * ranks_of_card[layout.card(from)],
                    costs.wire_in(from, to, bytes) * ranks_of_card[layout.card(to)]);
  };
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
          const Picoseconds wire = wire_of(peer, rank, op->amount);
          lane_wait += costs.latency(peer, rank) + (wire > copied ? wire - copied : 0);
          if (layout.ways != nullptr) {
            lane_wait += layout.ways->latency(layout.ways->way(peer, rank));
          }
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
