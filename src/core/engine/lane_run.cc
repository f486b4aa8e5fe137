// SPDX-License-Identifier: Apache-2.0
#include "core/engine/lane_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/engine/transport_lanes.h"

namespace weir::engine {

using sched::OpCode;

void LaneRun::start(const LanePlan& plan, const Call& call, uint32_t call_fingerprint,
                    Context& context) {
  plan_ = &plan;
  call_ = &call;
  status_ = Status();
  other_header_ = {};
  start_ = context.begin_operation(context.entry_bytes, context.ring_bytes, 1);
  sequence_ = context.sequence;
  mark_ = context.begin_mark(call_fingerprint);
  own_header_ = {call_flag(sequence_, mark_), pack_what(call), call.count};
  context.describe_call(own_header_.what, call.count);

  if (plan.choose_output_stores_) plan.output_stores_.begin_operation(now_ns);
  const uint64_t scratch = plan.scratch_bytes();
  const uint64_t wanted = scratch + (call.scaled ? plan.input_bytes_ : 0) + 64;
  if (arena_bytes_ < wanted) {
    arena_.reset(static_cast<unsigned char*>(::operator new(wanted, kArenaAlignment)));
    arena_bytes_ = wanted;
  }
  input_ = static_cast<const unsigned char*>(call.input);
  output_ = static_cast<unsigned char*>(call.output);
  if (call.scaled && plan.input_bytes_ > 0) {
    // A partial result must not be scaled again by a later rank, so each rank scales its own input
    // once.
    ReduceArgs args;
    args.dst = arena_.get() + scratch;
    const void* source = call.input;
    args.sources = &source;
    args.source_count = 1;
    args.element_count = plan.input_bytes_ / plan.element_bytes_;
    args.scaled_source = 0;
    args.scale = call.scale;
    plan.kernel_(args);
    input_ = arena_.get() + scratch;
  }

  signals_.assign(size_t{plan.signal_count_} * plan.in_flight_, 0);
  const auto lane_count = static_cast<uint32_t>(plan.lanes_.size());
  lanes_.resize(size_t{lane_count} * plan.in_flight_);
  for (uint32_t i = 0; i < lanes_.size(); ++i) {
    Lane& lane = lanes_[i];
    lane.program_lane = i % lane_count;
    lane.transport_lane = kFirstProgramLane + i;
    lane.slice = i / lane_count;
    lane.next_op = 0;
    lane.receives_under_way = 0;
    lane.sends_under_way = 0;
    while (lane.sends.size() < std::min(kSendsAtFirst, plan.sends_max_)) {
      lane.sends.push_back(std::make_unique<Send>());
    }
    if (!context.mapped() && lane.greeted_to.size() != plan.rank_count_) {
      lane.greeted_to.assign(plan.rank_count_, 0);
      lane.greeted_from.assign(plan.rank_count_, 0);
    }
  }
}

unsigned char* LaneRun::address(const Lane& lane, const LanePlace& place) const {
  const uint64_t slice_offset = lane.slice * plan_->slice_bytes_;
  switch (place.base) {
    case LanePlace::Base::kInput:
      return const_cast<unsigned char*>(input_) + place.offset_bytes + slice_offset;
    case LanePlace::Base::kOutput:
      return output_ + place.offset_bytes + (slice_offset >> plan_->output_shift_);
    case LanePlace::Base::kScratch:
      break;
  }
  return arena_.get() +
         (lane.slice % plan_->in_flight_) * plan_->scratch_slots_ * plan_->slice_bytes_ +
         place.offset_bytes;
}

void LaneRun::transport_failed(Context&, weir_result_t result, Rank peer, const char* what) {
  status_ = Status(static_cast<Code>(result), fmt::format("{} rank {} failed", what, peer));
}

bool LaneRun::check_peer_call(Context& context, Rank peer) {
  if (!context.mapped()) return true;
  if (!called_otherwise(context.control(peer), sequence_, mark_)) return true;
  status_ = Status(Code::kMismatch, std::string());
  return false;
}

bool LaneRun::settle_sends(Context& context, Lane& lane, const unsigned char* data,
                           uint64_t bytes) {
  bool settled = true;
  for (size_t i = 0; i < lane.sends_under_way;) {
    Send& send = *lane.sends[i];
    const weir_result_t result = context.transport->test(context.instance, &send.op);
    if (result == WEIR_OK) {
      std::swap(lane.sends[i], lane.sends[--lane.sends_under_way]);
      continue;
    }
    if (result != WEIR_IN_PROGRESS) {
      transport_failed(context, result, send.peer, "sending to");
      return false;
    }
    if (data == nullptr || (send.data < data + bytes && data < send.data + send.bytes)) {
      settled = false;
    }
    ++i;
  }
  return settled;
}

bool LaneRun::may_write(Context& context, Lane& lane, const unsigned char* data, uint64_t bytes) {
  bool may = settle_sends(context, lane, data, bytes);
  for (Lane& other : lanes_) {
    if (&other == &lane) continue;
    const auto end = other.sends.begin() + static_cast<std::ptrdiff_t>(other.sends_under_way);
    const bool overlaps = std::any_of(other.sends.begin(), end, [&](const auto& send) {
      return send->data < data + bytes && data < send->data + send->bytes;
    });
    if (overlaps) may = settle_sends(context, other, data, bytes) && may;
  }
  return may;
}

LaneRun::Outcome LaneRun::post_send(Context& context, Lane& lane, Rank peer, const void* data,
                                    uint64_t bytes) {
  if (lane.sends_under_way == lane.sends.size()) {
    settle_sends(context, lane, nullptr, 0);
    if (!status_.ok()) return Outcome::kFailed;
    if (lane.sends_under_way == lane.sends.size()) {
      // Their receivers may wait for a later send of this lane, so more must be posted.
      if (lane.sends.size() >= plan_->sends_max_) return Outcome::kBlocked;
      lane.sends.push_back(std::make_unique<Send>());
    }
  }
  Send& send = *lane.sends[lane.sends_under_way];
  send.op = {};
  send.peer = peer;
  send.data = static_cast<const unsigned char*>(data);
  send.bytes = bytes;
  const weir_result_t result =
      context.transport->send(context.instance, peer, lane.transport_lane, data, bytes, &send.op);
  if (result != WEIR_OK && result != WEIR_IN_PROGRESS) {
    transport_failed(context, result, peer, "sending to");
    return Outcome::kFailed;
  }
  if (result == WEIR_IN_PROGRESS) ++lane.sends_under_way;
  return Outcome::kMoved;
}

LaneRun::Outcome LaneRun::run_recv(Context& context, Lane& lane, Receive& receive, void* data,
                                   uint64_t bytes) {
  weir_result_t result;
  if (!receive.posted) {
    receive.op = {};
    result = context.transport->recv(context.instance, receive.peer, lane.transport_lane, data,
                                     bytes, &receive.op);
    receive.posted = result == WEIR_IN_PROGRESS;
  } else {
    result = context.transport->test(context.instance, &receive.op);
  }
  if (result == WEIR_IN_PROGRESS) return Outcome::kBlocked;
  receive.posted = false;
  if (!check_peer_call(context, receive.peer)) return Outcome::kFailed;
  if (result == WEIR_OK) return Outcome::kMoved;
  transport_failed(context, result, receive.peer, "receiving from");
  return Outcome::kFailed;
}

// Sends from `data` must be complete before `data` is received into. But a transport may hold a
// long send until its receiver takes it, and the receiver may wait in the same way: so the message
// is received into the detour buffer, and copied into its place when the sends are complete.
LaneRun::Outcome LaneRun::run_recv_behind_sends(Context& context, Lane& lane, Receive& receive) {
  unsigned char* const data = receive.data;
  const uint64_t bytes = receive.bytes;
  if (!receive.posted && !receive.aside) {
    receive.aside = bytes > 0 && !may_write(context, lane, data, bytes);
    receive.arrived = false;
    if (!status_.ok()) return Outcome::kFailed;
    if (receive.aside && lane.detour.size() < bytes) lane.detour.resize(plan_->slice_bytes_);
  }
  if (!receive.aside) return run_recv(context, lane, receive, data, bytes);
  if (!receive.arrived) {
    const Outcome outcome = run_recv(context, lane, receive, lane.detour.data(), bytes);
    if (outcome != Outcome::kMoved) return outcome;
    receive.arrived = true;
  }
  if (!may_write(context, lane, data, bytes)) {
    return status_.ok() ? Outcome::kBlocked : Outcome::kFailed;
  }
  copy_bytes(data, lane.detour.data(), bytes, false);
  receive.aside = false;
  return Outcome::kMoved;
}

std::optional<uint64_t> LaneRun::bytes_of(const Lane& lane, const LaneOp& op) const {
  const uint64_t slice_offset = lane.slice * plan_->slice_bytes_;
  const bool bare = op.length_bytes == 0 && plan_->slice_count_ == 1;
  if (!bare && op.length_bytes <= slice_offset) return std::nullopt;
  const uint64_t bytes = std::min(plan_->slice_bytes_, op.length_bytes - slice_offset);
  return op.result && !op.tree ? bytes >> plan_->output_shift_ : bytes;
}

void LaneRun::copy(const LaneOp& op, unsigned char* dst, const unsigned char* src, uint64_t bytes) {
  if (!chooses_stores(op, bytes)) return copy_bytes(dst, src, bytes, false);
  StoreChoice& choice = plan_->output_stores_;
  const uint64_t begin_ns = choice.measures() ? now_ns() : 0;
  copy_bytes(dst, src, bytes, choice.streams());
  if (begin_ns == 0) return;
  const uint64_t end_ns = now_ns();
  choice.wrote(bytes, end_ns - begin_ns, end_ns);
}

void LaneRun::fold_tree(const Lane& lane, const LaneOp& op, unsigned char* dst, uint64_t bytes) {
  const LanePlace* operands = plan_->operands_.data() + op.first_operand;
  tree_operands_.resize(op.operand_count);
  for (uint32_t k = 0; k < op.operand_count; ++k) {
    tree_operands_[k] = {address(lane, operands[k]), operands[k].folds};
  }
  const TreeArgs args{dst, tree_operands_.data(), op.operand_count, bytes / plan_->element_bytes_,
                      plan_->divisor_};
  (op.result ? plan_->tree_.result : plan_->tree_.partial)(args);
}

// After the first receive come those that need not wait for it: from other peers, into separate
// memory that no send still reads.
void LaneRun::begin_receives(Context& context, Lane& lane) {
  const std::vector<LaneOp>& ops = plan_->lanes_[lane.program_lane];
  for (size_t count = lane.receives_under_way;
       count < kReceivesUnderWayMax && lane.next_op + count < ops.size(); ++count) {
    const LaneOp& op = ops[lane.next_op + count];
    if (op.code != OpCode::kRecv) return;
    const std::optional<uint64_t> bytes = bytes_of(lane, op);
    if (!bytes) return;
    unsigned char* const data = address(lane, op.dst);
    if (count > 0) {
      const auto end = lane.receives.begin() + static_cast<std::ptrdiff_t>(count);
      const bool waits = std::any_of(lane.receives.begin(), end, [&](const auto& earlier) {
        return earlier->peer == op.peer ||
               (earlier->data < data + *bytes && data < earlier->data + earlier->bytes);
      });
      if (waits || (*bytes > 0 && !may_write(context, lane, data, *bytes))) return;
    }
    if (count == lane.receives.size()) lane.receives.push_back(std::make_unique<Receive>());
    Receive& receive = *lane.receives[count];
    receive.peer = op.peer;
    receive.data = data;
    receive.bytes = *bytes;
    receive.posted = receive.complete = receive.aside = receive.arrived = false;
    lane.receives_under_way = count + 1;
  }
}

LaneRun::Outcome LaneRun::advance_receive(Context& context, Lane& lane, Receive& receive) {
  bool greeted = false;
  if (!context.mapped() && lane.greeted_from[receive.peer] != sequence_) {
    const Outcome outcome =
        run_recv(context, lane, receive, &receive.header, sizeof receive.header);
    if (outcome != Outcome::kMoved) return outcome;
    lane.greeted_from[receive.peer] = sequence_;
    greeted = true;
    if (receive.header.flag != own_header_.flag) {
      other_rank_ = receive.peer;
      other_header_ = receive.header;
      status_ = Status(Code::kMismatch, std::string());
      return Outcome::kFailed;
    }
  }
  const Outcome outcome = run_recv_behind_sends(context, lane, receive);
  receive.complete = outcome == Outcome::kMoved;
  return greeted && outcome == Outcome::kBlocked ? Outcome::kMoved : outcome;
}

LaneRun::Outcome LaneRun::run_receives(Context& context, Lane& lane) {
  const std::vector<LaneOp>& ops = plan_->lanes_[lane.program_lane];
  if (lane.receives_under_way < ops[lane.next_op].receive_count) {
    begin_receives(context, lane);
    if (!status_.ok()) return Outcome::kFailed;
  }
  bool moved = false;
  for (size_t i = 0; i < lane.receives_under_way; ++i) {
    Receive& receive = *lane.receives[i];
    if (receive.complete) continue;
    const Outcome outcome = advance_receive(context, lane, receive);
    if (outcome == Outcome::kFailed) return outcome;
    moved = moved || outcome == Outcome::kMoved;
  }
  size_t done = 0;
  while (done < lane.receives_under_way && lane.receives[done]->complete) ++done;
  std::rotate(lane.receives.begin(), lane.receives.begin() + static_cast<std::ptrdiff_t>(done),
              lane.receives.begin() + static_cast<std::ptrdiff_t>(lane.receives_under_way));
  lane.receives_under_way -= done;
  lane.next_op += static_cast<uint32_t>(done);
  return moved ? Outcome::kMoved : Outcome::kBlocked;
}

LaneRun::Outcome LaneRun::step(Context& context, Lane& lane) {
  const std::vector<LaneOp>& ops = plan_->lanes_[lane.program_lane];
  if (lane.next_op == ops.size() || lane.slice >= plan_->slice_count_) {
    if (lane.slice + plan_->in_flight_ < plan_->slice_count_ && lane.next_op == ops.size()) {
      lane.slice += plan_->in_flight_;
      lane.next_op = 0;
      return Outcome::kMoved;
    }
    if (settle_sends(context, lane, nullptr, 0)) return Outcome::kFinished;
    return status_.ok() ? Outcome::kBlocked : Outcome::kFailed;
  }
  if (lane.receives_under_way > 0) return run_receives(context, lane);
  const LaneOp& op = ops[lane.next_op];
  if (op.code == OpCode::kSignal || op.code == OpCode::kWait) {
    uint64_t& signal =
        signals_[(lane.slice % plan_->in_flight_) * plan_->signal_count_ + op.signal];
    if (op.code == OpCode::kSignal) {
      ++signal;
    } else if (signal < lane.slice / plan_->in_flight_ * plan_->signals_[op.signal] + op.value) {
      return Outcome::kBlocked;
    }
    ++lane.next_op;
    return Outcome::kMoved;
  }
  const std::optional<uint64_t> moved_bytes = bytes_of(lane, op);
  if (!moved_bytes) {
    ++lane.next_op;
    return Outcome::kMoved;
  }
  const uint64_t bytes = *moved_bytes;
  if (op.code == OpCode::kRecv) return run_receives(context, lane);
  if (op.code == OpCode::kSend) {
    if (!context.mapped() && lane.greeted_to[op.peer] != sequence_) {
      const Outcome outcome = post_send(context, lane, op.peer, &own_header_, sizeof own_header_);
      if (outcome == Outcome::kMoved) lane.greeted_to[op.peer] = sequence_;
      return outcome;
    }
    const Outcome outcome = post_send(context, lane, op.peer, address(lane, op.src), bytes);
    if (outcome == Outcome::kMoved) ++lane.next_op;
    return outcome;
  }

  unsigned char* dst = address(lane, op.dst);
  // In place a copy may be onto itself and then waits for nothing.
  const bool stays = op.code == OpCode::kCopy && address(lane, op.src) == dst;
  const uint64_t written = op.result ? bytes >> plan_->output_shift_ : bytes;
  if (bytes > 0 && !stays && !may_write(context, lane, dst, written)) {
    return status_.ok() ? Outcome::kBlocked : Outcome::kFailed;
  }

  const LanePlace* operands = plan_->operands_.data() + op.first_operand;
  if (op.tree) {
    fold_tree(lane, op, dst, bytes);
  } else if (op.code == OpCode::kCopy) {
    const unsigned char* src = address(lane, op.src);
    if (!stays) copy(op, dst, src, bytes);
  } else {
    sources_.resize(op.operand_count);
    for (uint32_t k = 0; k < op.operand_count; ++k) sources_[k] = address(lane, operands[k]);
    ReduceArgs args;
    args.dst = dst;
    args.sources = sources_.data();
    args.source_count = op.operand_count;
    args.element_count = bytes / plan_->element_bytes_;
    if (plan_->divide_in_reduce_ && call_->average) args.divisor = plan_->rank_count_;
    plan_->kernel_(args);
  }
  ++lane.next_op;
  return Outcome::kMoved;
}

void LaneRun::finish() {
  if (!call_->average || plan_->divide_in_reduce_ || plan_->output_bytes_ == 0) return;
  ReduceArgs args;
  args.dst = output_;
  const void* source = output_;
  args.sources = &source;
  args.source_count = 1;
  args.element_count = plan_->output_bytes_ / plan_->element_bytes_;
  args.divisor = plan_->rank_count_;
  plan_->kernel_(args);
}

Advance LaneRun::advance(Context& context) {
  bool moved = false;
  bool finished = true;
  for (Lane& lane : lanes_) {
    Outcome outcome = Outcome::kMoved;
    for (uint32_t steps = 0; outcome == Outcome::kMoved && steps < kStepsPerAdvance; ++steps) {
      outcome = step(context, lane);
      moved = moved || outcome == Outcome::kMoved;
    }
    if (outcome == Outcome::kFailed) return Advance::kFailed;
    finished = finished && outcome == Outcome::kFinished;
  }
  if (finished) {
    finish();
    if (context.mapped()) {
      context.control(context.rank)
          .done.position.store(context.end_position[sequence_ % kEndPositions],
                               std::memory_order_release);
      context.wake_sleepers();
    }
    return Advance::kDone;
  }
  const weir_result_t result = context.transport->progress(context.instance);
  if (result == WEIR_ERROR_PEER_LOST) {
    // It may concern other operations than those of this run. Receives are tested in each step.
    for (Lane& lane : lanes_) settle_sends(context, lane, nullptr, 0);
    if (!status_.ok()) return Advance::kFailed;
  } else if (result != WEIR_OK && result != WEIR_IN_PROGRESS) {
    status_ = Status(static_cast<Code>(result), "the transport failed");
    return Advance::kFailed;
  }
  return moved ? Advance::kMoved : Advance::kBlocked;
}

void LaneRun::collect_awaited(const Context& context, std::vector<Rank>* ranks) const {
  ranks->clear();
  const auto sort = [ranks] {
    std::sort(ranks->begin(), ranks->end());
    ranks->erase(std::unique(ranks->begin(), ranks->end()), ranks->end());
  };
  // However many messages there are, each rank is listed twice at most.
  const auto add = [&](Rank rank) {
    if (ranks->size() >= size_t{context.rank_count} * 2) sort();
    ranks->push_back(rank);
  };
  for (const Lane& lane : lanes_) {
    for (size_t i = 0; i < lane.receives_under_way; ++i) {
      const Receive& receive = *lane.receives[i];
      if (!receive.complete && !(receive.aside && receive.arrived)) add(receive.peer);
    }
    for (size_t i = 0; i < lane.sends_under_way; ++i) add(lane.sends[i]->peer);
  }
  sort();
}

RunPosition LaneRun::position() const {
  RunPosition at{0, 0, plan_->slice_count_, plan_->slice_count_};
  for (const Lane& lane : lanes_) {
    const auto op_count = static_cast<uint32_t>(plan_->lanes_[lane.program_lane].size());
    if (lane.next_op == op_count || lane.slice >= plan_->slice_count_) continue;
    if (at.step_count != 0 && std::pair(lane.slice, lane.next_op) >= std::pair(at.slice, at.step)) {
      continue;
    }
    at.step = lane.next_op;
    at.step_count = op_count;
    at.slice = lane.slice;
  }
  return at;
}

}  // namespace weir::engine
