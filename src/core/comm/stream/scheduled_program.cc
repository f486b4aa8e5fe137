// SPDX-License-Identifier: Apache-2.0
#include "core/comm/stream/scheduled_program.h"

#include <algorithm>
#include <utility>

#include "core/algo/support.h"
#include "core/base/check.h"

namespace weir::comm {

namespace {

// Of the block of a chunk: its number in the buffer.
uint64_t block_in_buffer(const StreamSchedule& schedule, uint32_t block, bool is_input) {
  const Rank n = schedule.rank_count();
  switch (schedule.collective()) {
    case Collective::kReduceScatter:
    case Collective::kScatter:
      return is_input ? block : 0;
    case Collective::kAllGather:
    case Collective::kGather:
      return is_input ? 0 : block;
    case Collective::kAllToAll:
      return is_input ? block % n : block / n;
    default:
      return 0;
  }
}

StreamOp flag_op(StreamOp::Kind kind, uint32_t flag, uint32_t value) {
  StreamOp op;
  op.kind = kind;
  op.flag = flag;
  op.value = value;
  return op;
}

}  // namespace

ScheduledProgram::ScheduledProgram(const StreamShape& call,
                                   std::shared_ptr<const StreamSchedule> schedule,
                                   uint64_t slot_bytes)
    : call_(call),
      schedule_(std::move(schedule)),
      slot_bytes_(slot_bytes),
      chunks_of_block_(schedule_->chunk_count() /
                       algo::block_count(schedule_->collective(), schedule_->rank_count())) {
  constexpr uint64_t kAlign = StreamProgram::kAlign;
  WEIR_CHECK(fits(*schedule_, slot_bytes) && chunks_of_block_ > 0,
             "a slot holds an aligned piece of each slot of the schedule");
  WEIR_CHECK(call.collective == schedule_->collective() && call.count > 0,
             "the schedule is of the call's collective");
  const uint64_t slots = std::max(1u, schedule_->slot_count());
  stride_ = slot_bytes / slots / kAlign * kAlign;
  width_ = std::min(call.count, chunks_of_block_ * (stride_ / call.element_bytes));
  rounds_ = (call.count + width_ - 1) / width_;
}

uint64_t ScheduledProgram::width(size_t round) const {
  return std::min(width_, call_.count - begin(round));
}

// Elements of each chunk but the last ones, which may be shorter.
uint64_t ScheduledProgram::part(size_t round) const {
  const uint64_t align = StreamProgram::kAlign / call_.element_bytes;
  const uint64_t even = (width(round) + chunks_of_block_ - 1) / chunks_of_block_;
  return (even + align - 1) / align * align;
}

uint64_t ScheduledProgram::length(size_t round, uint32_t chunk) const {
  const uint64_t first = chunk % chunks_of_block_ * part(round);
  return std::min(part(round), width(round) - std::min(width(round), first));
}

StreamPlace ScheduledProgram::place(const SchedulePlace& it, size_t round) const {
  if (it.buffer == SchedulePlace::Buffer::kSlot) {
    return {StreamBuffer::kScratch, it.rank,
            round % StreamProgram::kSlots * slot_bytes_ + it.index * stride_};
  }
  const bool is_input = it.buffer == SchedulePlace::Buffer::kInput;
  const uint64_t block = block_in_buffer(*schedule_, it.index / chunks_of_block_, is_input);
  const uint64_t element =
      block * call_.count + begin(round) + it.index % chunks_of_block_ * part(round);
  return {is_input ? StreamBuffer::kSend : StreamBuffer::kRecv, schedule_->rank(),
          element * call_.element_bytes};
}

void ScheduledProgram::step(size_t index, std::vector<StreamOp>* ops) const {
  using Kind = StreamOp::Kind;
  ops->clear();
  const size_t round = index / schedule_->steps().size();
  const size_t step = index % schedule_->steps().size();
  const Rank n = schedule_->rank_count();
  const Rank self = schedule_->rank();
  const auto slot = static_cast<uint32_t>(round % StreamProgram::kSlots);
  if (step == 0) {
    const std::vector<Rank>& readers = schedule_->readers();
    for (uint32_t phase = 0; phase < StreamProgram::kPhases; ++phase) {
      for (Rank reader = 0; reader < n; ++reader) {
        const bool reads = phase == 0 && std::binary_search(readers.begin(), readers.end(), reader);
        // Of a call before this one.
        if (reader == self || (!reads && round >= StreamProgram::kSlots)) continue;
        const uint32_t flag = StreamProgram::empty_flag(n, phase, slot, self, reader);
        ops->push_back(flag_op(Kind::kWait, flag, 1));
        if (reads) ops->push_back(flag_op(Kind::kSet, flag, 0));
      }
    }
  }
  for (const ScheduleOp& it : schedule_->steps()[step]) {
    if (it.kind == ScheduleOp::Kind::kWait || it.kind == ScheduleOp::Kind::kTell) {
      const uint32_t flag = StreamProgram::message_flag(n, slot, it.reader, it.message);
      const bool waits = it.kind == ScheduleOp::Kind::kWait;
      ops->push_back(flag_op(waits ? Kind::kWait : Kind::kSet, flag, call_.fingerprint));
      if (waits) ops->push_back(flag_op(Kind::kSet, flag, 0));
      continue;
    }
    StreamOp op;
    op.count = length(round, it.chunk);
    if (op.count == 0) continue;
    op.bytes = op.count * call_.element_bytes;
    op.to = place(it.to, round);
    op.from = place(it.from[0], round);
    if (it.kind == ScheduleOp::Kind::kCopy) {
      op.kind = Kind::kCopy;
      ops->push_back(std::move(op));
      continue;
    }
    op.kind = Kind::kReduce;
    for (const SchedulePlace& from : it.from) op.operands.push_back(place(from, round));
    op.stores = it.to.buffer == SchedulePlace::Buffer::kOutput;
    op.keeps = it.keeps || !op.stores;
    const SchedulePlace kept{SchedulePlace::Buffer::kSlot, self, it.keeps ? it.kept : it.to.index};
    if (op.keeps) op.kept_offset = place(kept, round).offset;
    op.divides = it.complete;
    ops->push_back(std::move(op));
  }
  if (step + 1 < schedule_->steps().size()) return;
  for (const Rank writer : schedule_->writers()) {
    ops->push_back(flag_op(Kind::kSet, StreamProgram::empty_flag(n, 0, slot, writer, self), 1));
  }
}

}  // namespace weir::comm
