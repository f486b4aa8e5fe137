// SPDX-License-Identifier: Apache-2.0
// Simulation: the state of one run of simulate(). Private to the simulator. Not thread-safe.
//
// A rank with one lane runs ahead of the global time until it is blocked: it touches only its own
// state, and its claims on others (ports, peers) go through the time-ordered queue. So a message
// costs one event (its arrival at the ingress port), two if it also contends for a shared NIC; over
// links one, and one more for each link that it starts later than now. The lanes of a rank with
// several take turns through the queue, as they share its core and port.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "core/cost/message_pool.h"
#include "core/cost/op_stream.h"
#include "core/cost/radix_queue.h"
#include "core/cost/signal_board.h"
#include "core/sim/costs.h"
#include "core/sim/layout.h"
#include "core/sim/link_ports.h"
#include "core/sim/message.h"
#include "core/sim/port.h"
#include "core/sim/simulator.h"

namespace weir::sim {

class Simulation {
 public:
  Simulation(const algo::Algorithm& algorithm, const algo::Problem& problem, uint64_t bytes,
             const Options& options);

  Result<Report> run();

 private:
  static constexpr Rank kNobody = 0xffffffffu;
  enum class State : uint8_t {
    kReady,
    kQueued,
    kForMessage,
    kForSignal,
    kForAccess,
    kForCredit,
    kDone,
    kDead
  };
  enum EventKind : uint32_t { kResume, kNicOut, kArrival, kIngress, kLink };

  struct LaneState {
    Picoseconds time = 0;
    Path path;
    uint32_t hops = 0;
    Rank peer = 0;                        // the rank that it waits for
    uint32_t message = cost::kNoMessage;  // arrived, not yet consumed
    Rank wait_cursor = 0;                 // waits for the ranks below are done (kWait on all ranks)
    State state = State::kReady;
    Picoseconds accesses_from = 0;  // Options::tasks: the core's part of them has begun
  };
  struct RankState {
    Port egress;
    Port ingress;
    Picoseconds core_free = 0;
    Picoseconds core_busy = 0;
    Picoseconds dead_at = ~Picoseconds{0};
    uint64_t factor_milli = 1000;
    uint32_t live_lanes = 0;
  };

  uint32_t lane_index(Rank rank, uint32_t lane) const { return rank * lane_count_ + lane; }
  LaneState& lane_state(Rank rank, uint32_t lane) { return lanes_[lane_index(rank, lane)]; }
  Picoseconds scaled(const RankState& rank, Picoseconds cost) const;

  // Executes operations of a lane until it blocks, ends or must let other lanes run first.
  void advance(Rank rank, uint32_t lane);
  void send(Rank rank, uint32_t lane, LaneState& state, const cost::ShortOp& op);
  uint32_t new_message(Rank rank, uint32_t lane, const LaneState& state, const cost::ShortOp& op);
  bool receive(Rank rank, uint32_t lane, LaneState& state, Rank source);
  // Messages of a lane that the target has not received yet (Options::credit).
  uint64_t& unreceived(Rank source, uint32_t lane, Rank target) {
    return unreceived_[uint64_t{lane_index(source, lane)} * problem_.rank_count + target];
  }
  bool may_send(Rank rank, uint32_t lane, LaneState& state, Rank target);
  void received(Rank rank, uint32_t lane, LaneState& state);
  // The same with task times (task_messages.cc).
  void send_task(Rank rank, uint32_t lane, LaneState& state, const cost::ShortOp& op);
  bool receive_task(Rank rank, uint32_t lane, LaneState& state);
  void pass_card_out(uint32_t index, Picoseconds time);
  void pass_card_in(uint32_t index, Picoseconds time);
  void compute(Rank rank, uint32_t lane, LaneState& state, Picoseconds cost);
  // Reads or writes memory of a peer over the links; false: it is under way.
  bool access(Rank rank, uint32_t lane, LaneState& state, const cost::ShortOp& op);
  void signal(Rank rank, LaneState& state, const cost::ShortOp& op);
  bool wait(Rank rank, uint32_t lane, LaneState& state, const cost::ShortOp& op);
  bool wait_for(Rank rank, LaneState& state, Rank sender, const cost::ShortOp& op);

  // Occupies the rank's core from the lane's time on; returns the time at which it got the core.
  Picoseconds occupy_core(Rank rank, LaneState& state, Picoseconds cost);
  void finish_lane(Rank rank, LaneState& state);
  void queue_resume(Rank rank, uint32_t lane, LaneState& state, Picoseconds time);
  void wake(Rank sender, Rank target, uint32_t signal_index, Picoseconds time);

  Picoseconds signal_latency(Rank sender, Rank target);

  void handle(const cost::RadixQueue::Entry& event);

  // ---- The way of a message (message_way.cc)
  void pass_egress(uint32_t index, Picoseconds time);
  void pass_nic_out(uint32_t index, Picoseconds time);
  Rate nic_of(Rank rank) const;  // of its node
  void depart(uint32_t index, Picoseconds time, Picoseconds latency);
  void arrive(uint32_t index, Picoseconds time);
  void enter(uint32_t index, Picoseconds time);
  void begin_links(uint32_t index, Picoseconds time);
  void pass_links(uint32_t index, Picoseconds time);
  void deliver(uint32_t index);

  // Kept for pictures, of the ranks that are wanted.
  void record(Span::Kind kind, Rank rank, uint32_t lane, Rank peer, Picoseconds begin,
              Picoseconds end) {
    if (records_) keep_span({kind, rank, lane, peer, begin, end});
  }
  void record_transfer(const Message& message, graph::LinkId link, bool out, Picoseconds begin,
                       Picoseconds end) {
    if (records_) keep_transfer(message, link, out, begin, end);
  }
  void keep_span(const Span& span);
  void keep_transfer(const Message& message, graph::LinkId link, bool out, Picoseconds begin,
                     Picoseconds end);
  void mix(uint64_t value) { hash_ = (hash_ ^ value) * 0x9fb21c651e98df25u, hash_ ^= hash_ >> 29; }
  Status check_progress();
  void report_ports();
  Report finish();

  const algo::Problem& problem_;
  const Options& options_;
  Costs costs_;
  Layout layout_;
  std::optional<std::pair<Rank, Rank>> no_way_;  // of a message that cannot be sent
  std::optional<LinkPorts> links_;               // instead of the ports of the ranks and nodes
  const cost::TaskCosts* tasks_;                 // instead of all of the above
  NetworkMemoryCosts memory_costs_;
  cost::OpStream feed_;
  uint32_t lane_count_;
  bool records_;   // anything
  Rank lanes_of_;  // kNobody: none are kept
  cost::SignalBoard<SignalRecord> signals_;
  cost::MessagePool<Message> messages_;
  cost::RadixQueue queue_;
  std::vector<RankState> ranks_;
  std::vector<LaneState> lanes_;
  std::unordered_map<uint64_t, uint64_t> unreceived_;
  std::vector<Port> nic_out_;
  std::vector<Port> nic_in_;       // with task times: by card
  std::vector<Rate> nic_of_node_;  // empty: nodes are alike
  bool cards_shared_ = false;
  Picoseconds now_ = 0;
  uint64_t events_ = 0;
  uint64_t hash_ = 0x243f6a8885a308d3u;
  Report report_;
};

}  // namespace weir::sim
