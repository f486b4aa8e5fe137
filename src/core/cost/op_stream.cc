// SPDX-License-Identifier: Apache-2.0
#include "core/cost/op_stream.h"

#include <fmt/format.h>

#include <array>

namespace weir::cost {

namespace {
// Bounds the memory of 10,000 ranks in the middle of a long step.
constexpr size_t kOpsPerRefill = 1024;
// Of each rank, for other slices: those in flight at the same time are at about the same step.
constexpr uint32_t kStepsKept = 4;
constexpr size_t kOpsKept = 64;
// Of most steps, or fewer.
constexpr size_t kOpsReserved = 8;
}  // namespace

using sched::Op;
using sched::OpCode;
using sched::Ref;
using sched::Space;

OpStream::OpStream(const algo::Algorithm& algorithm, const algo::Problem& problem, uint64_t bytes,
                   const Slicing& slicing, const MemoryCosts& costs, uint64_t pending_max,
                   const Part& part)
    : algorithm_(algorithm),
      problem_(problem),
      costs_(costs),
      part_(part),
      shape_(algorithm.shape(problem)),
      chunks_(problem.collective, problem.rank_count, bytes, shape_.chunk_count,
              slicing.slice_bytes),
      slice_count_(std::min(chunks_.slice_count() - part.slices_begin, part.slices_max)),
      in_flight_(
          static_cast<uint32_t>(std::min<uint64_t>(std::max(1u, slicing.in_flight), slice_count_))),
      lane_count_(shape_.lane_count * in_flight_),
      signal_count_(shape_.signal_count * slice_count_),
      pending_max_(pending_max),
      step_count_(part.rank_count == 0 ? problem.rank_count : part.rank_count) {
  if (algorithm.uses_nodes) problem_.nodes = &nodes_.emplace(problem);
  lanes_.resize(step_count_.size() * lane_count_);
  walks_.resize(step_count_.size() * in_flight_);
  for (Rank rank = 0; rank < step_count_.size(); ++rank) {
    step_count_[rank] = algorithm.step_count(problem_, rank);
    steps_total_ += step_count_[rank] * slice_count_;
  }
}

bool OpStream::refill(Rank rank, uint32_t lane, const LaneOps& wanted) {
  const uint32_t instance = in_flight_ == 1 ? 0 : lane / shape_.lane_count;
  Walk& walk = walks_[size_t{rank} * in_flight_ + instance];
  while (wanted.empty()) {
    if (!status_.ok()) return false;
    if (walk.next_step >= step_count_[rank]) {
      walk.next_step = 0;
      walk.ranges = 0;
      ++walk.round;
    }
    const uint64_t slice = instance + uint64_t{walk.round} * in_flight_;
    if (slice >= slice_count_ || step_count_[rank] == 0) {
      walk.next_step = step_count_[rank];
      --walk.round;  // stays at the end
      return false;
    }
    const Step& step = step_of(rank, walk.next_step);
    const uint64_t pending_stop = pending_ + kOpsPerRefill;
    size_t end = walk.taken;
    while (end < step.ops.size() && pending_ < pending_stop) {
      translate(rank, instance, slice, step.ops[end++], step.operands);
    }
    walk.taken = static_cast<uint32_t>(end);
    if (end == step.ops.size()) {
      operations_ += step.ops.size();
      end_step(walk);
    }
    if (pending_ > pending_max_) {
      status_ = Status(
          Code::kNoMemory,
          fmt::format(
              "'{}' holds more than {} operations that are made and not yet executed (rank {} "
              "is at step {} of {}): its steps are too large, or its lanes too far apart, "
              "for {} ranks",
              algorithm_.name, pending_max_, rank, walk.next_step, step_count_[rank],
              problem_.rank_count));
    }
  }
  return status_.ok();
}

// The same operations are made for every slice.
const OpStream::Step& OpStream::step_of(Rank rank, uint32_t number) {
  const bool keeps = in_flight_ > 1 || (slice_count_ > 1 && step_count_[rank] <= kStepsKept);
  Step* step = &step_;
  if (keeps) {
    if (kept_.empty()) kept_.resize(step_count_.size() * kStepsKept);
    step = &kept_[size_t{rank} * kStepsKept + number % kStepsKept];
    if (step->number == number) return *step;
  }
  step->ops.clear();
  step->operands.clear();
  step->ops.reserve(kOpsReserved);
  sched::Builder builder(rank, &step->ops, &step->operands);
  algorithm_.step(problem_, rank, number, builder);
  if (!keeps) return *step;
  step->number = number;
  if (step->ops.size() <= kOpsKept) return *step;
  step_ = std::move(*step);
  *step = {};
  return step_;
}

void OpStream::end_step(Walk& walk) {
  walk.taken = 0;
  ++walk.next_step;
  ++steps_done_;
  if (walk.ranges < part_.left_out.size() && walk.next_step == part_.left_out[walk.ranges].begin) {
    walk.next_step = part_.left_out[walk.ranges++].end;
  }
}

void OpStream::append(LaneOps& lane, const ShortOp& op) {
  if (op.code == ShortOp::Code::kCompute && !lane.empty() &&
      lane.ops.back().code == ShortOp::Code::kCompute) {
    lane.ops.back().amount += op.amount;
    return;
  }
  if (lane.ops.capacity() == 0) lane.ops.reserve(kOpsReserved);
  lane.ops.push_back(op);
  ++pending_;
}

void OpStream::append_moves(LaneOps& lane, Rank rank, const Op& op,
                            std::span<const Ref> all_operands, uint64_t bytes) {
  const auto read = [&](const Ref& ref) {
    if (ref.rank != rank) append(lane, {ShortOp::Code::kRead, ref.rank, bytes});
  };
  if (op.code == OpCode::kCopy) read(op.src);
  for (uint32_t i = 0; op.code == OpCode::kReduce && i < op.operand_count; ++i) {
    read(all_operands[op.first_operand + i]);
  }
  if (op.dst.rank != rank) append(lane, {ShortOp::Code::kWrite, op.dst.rank, bytes});
}

// The user's buffers are chunked like the grid. A slot has the size of the chunk that is moved into
// or out of it; a move from slot to slot, or on the wire, has that of the longest chunk.
uint64_t OpStream::bytes_of(const Op& op, uint64_t slice, std::span<const Ref> refs) const {
  slice += part_.slices_begin;
  for (const Ref& ref : refs) {
    if (ref.space == Space::kInput || ref.space == Space::kOutput) {
      return chunks_.bytes(ref.chunk, op.count, slice);
    }
  }
  return chunks_.bytes_max(slice) * op.count;
}

bool OpStream::is_sane(const Op& op) const {
  if (op.lane >= shape_.lane_count) return false;
  switch (op.code) {
    case OpCode::kSend:
    case OpCode::kRecv:
      return op.peer < problem_.rank_count;
    case OpCode::kSignal:
    case OpCode::kWait:
      return op.signal < shape_.signal_count &&
             (op.peer < problem_.rank_count || op.peer == sched::kAllRanks);
    default:
      return true;
  }
}

void OpStream::translate(Rank rank, uint32_t instance, uint64_t slice, const Op& op,
                         std::span<const Ref> all_operands) {
  if (!is_sane(op)) [[unlikely]] {
    status_ = Status(
        Code::kInternal,
        fmt::format("'{}' names a rank, lane or signal that does not exist (rank {} of "
                    "{}, peer {}, lane {}, signal {})",
                    algorithm_.name, rank, problem_.rank_count, op.peer, op.lane, op.signal));
    return;
  }
  ShortOp out{ShortOp::Code::kCompute, op.peer, 0};
  uint64_t moved = 0;  // by a copy or a reduction
  const uint64_t signal = (slice * shape_.signal_count + op.signal) << 32;
  switch (op.code) {
    case OpCode::kSend:
      out.code = ShortOp::Code::kSend;
      out.amount = bytes_of(op, slice, {&op.src, 1});
      break;
    case OpCode::kRecv:
      out.code = ShortOp::Code::kRecv;
      out.amount = bytes_of(op, slice, {&op.dst, 1});
      break;
    case OpCode::kCopy: {
      const uint64_t bytes = bytes_of(op, slice, std::array{op.src, op.dst});
      copied_bytes_ += bytes;
      remote_bytes_ += bytes * ((op.src.rank != rank) + (op.dst.rank != rank));
      out.amount = costs_.copy(rank, op.dst, op.src, bytes);
      moved = bytes;
      break;
    }
    case OpCode::kReduce: {
      const std::span<const Ref> operands =
          all_operands.subspan(op.first_operand, op.operand_count);
      const bool in_slot = op.dst.space == Space::kScratch || op.dst.space == Space::kStaging;
      const uint64_t bytes =
          in_slot ? bytes_of(op, slice, operands) : bytes_of(op, slice, {&op.dst, 1});
      copied_bytes_ += bytes;
      uint64_t remote = 0;
      for (const Ref& operand : operands) remote += operand.rank != rank;
      remote_bytes_ += remote * bytes;
      remote_bytes_ += op.dst.rank != rank ? bytes : 0;
      out.amount = costs_.reduce(rank, op.dst, operands, bytes);
      moved = bytes;
      break;
    }
    case OpCode::kSignal:
      out.code = ShortOp::Code::kSignal;
      out.amount = signal;
      break;
    case OpCode::kWait:
      if (op.value == 0) return;
      out.code = ShortOp::Code::kWait;
      out.amount = signal | op.value;
      break;
  }
  const uint32_t lane = instance * shape_.lane_count + op.lane;
  LaneOps& ops = lanes_[size_t{rank} * lane_count_ + lane];
  append(ops, out);
  if (moved > 0 && costs_.takes_links()) append_moves(ops, rank, op, all_operands, moved);
}

}  // namespace weir::cost
