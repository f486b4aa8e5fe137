// SPDX-License-Identifier: Apache-2.0
#include "core/comm/stream/stream_program.h"

#include <algorithm>

#include "core/base/check.h"

namespace weir::comm {

namespace {

constexpr uint64_t kElementBytesMax = 8;

uint64_t aligned(uint64_t bytes) {
  return (bytes + StreamProgram::kAlign - 1) / StreamProgram::kAlign * StreamProgram::kAlign;
}

StreamOp wait_for(uint32_t flag, uint32_t value) {
  StreamOp op;
  op.kind = StreamOp::Kind::kWait;
  op.flag = flag;
  op.value = value;
  return op;
}

StreamOp set(uint32_t flag, uint32_t value) {
  StreamOp op = wait_for(flag, value);
  op.kind = StreamOp::Kind::kSet;
  return op;
}

StreamOp copy(StreamPlace to, StreamPlace from, uint64_t bytes) {
  StreamOp op;
  op.kind = StreamOp::Kind::kCopy;
  op.to = to;
  op.from = from;
  op.bytes = bytes;
  return op;
}

}  // namespace

uint64_t StreamProgram::slot_bytes_min(Rank rank_count) { return rank_count * kAlign; }

StreamProgram::StreamProgram(const StreamShape& call, Rank rank, Rank rank_count,
                             uint64_t slot_bytes)
    : call_(call), rank_(rank), rank_count_(rank_count), slot_bytes_(slot_bytes) {
  WEIR_CHECK(slot_bytes % kAlign == 0 && slot_bytes >= slot_bytes_min(rank_count),
             "a slot holds an aligned piece of each rank's block");
  WEIR_CHECK(call.element_bytes > 0 && call.element_bytes <= kElementBytesMax && call.count > 0,
             "a program moves elements");
  const Collective it = call.collective;
  WEIR_CHECK(!call.in_windows || it != Collective::kScatter, "a scatter has no windows");
  if (call.in_windows && it == Collective::kAllReduce) {
    two_phases_ = true;
  } else if (it == Collective::kAllReduce || it == Collective::kReduce) {
    two_phases_ =
        rank_count > 2 && (call.in_windows || call.count * call.element_bytes > call.one_phase_max);
  }
  keeps_parts_ = two_phases_ && (!call.in_windows || it == Collective::kReduce);
  const uint64_t blocks = has_blocks() ? rank_count : 1;
  uint64_t fits = slot_bytes / blocks / kAlign * kAlign / call.element_bytes;
  if (call.in_windows) fits = keeps_parts_ ? fits * rank_count : call.count;
  width_ = std::min(call.count, fits);
  stride_ = aligned(width_ * call.element_bytes);
  rounds_ = (call.count + width_ - 1) / width_;
}

bool StreamProgram::is_reduction() const {
  return call_.collective == Collective::kAllReduce || call_.collective == Collective::kReduce ||
         call_.collective == Collective::kReduceScatter;
}

bool StreamProgram::has_blocks() const {
  return call_.collective == Collective::kReduceScatter ||
         call_.collective == Collective::kAllToAll || call_.collective == Collective::kScatter;
}

bool StreamProgram::flows(uint32_t phase, Rank writer, Rank reader) const {
  if (writer == reader) return false;
  const Collective it = call_.collective;
  if (phase == 1) {
    return two_phases_ && (it == Collective::kAllReduce || rooted_at(reader));
  }
  if (it == Collective::kBroadcast || it == Collective::kScatter) return rooted_at(writer);
  if (it == Collective::kGather || (it == Collective::kReduce && !two_phases_)) {
    return rooted_at(reader);
  }
  return true;
}

bool StreamProgram::writes(uint32_t phase, Rank writer) const {
  for (Rank reader = 0; reader < rank_count_; ++reader) {
    if (flows(phase, writer, reader)) return true;
  }
  return false;
}

bool StreamProgram::sends() const {
  const Collective it = call_.collective;
  return (it != Collective::kBroadcast && it != Collective::kScatter) || rooted_at(rank_);
}

bool StreamProgram::receives(Rank rank) const {
  const Collective it = call_.collective;
  return (it != Collective::kReduce && it != Collective::kGather) || rooted_at(rank);
}

uint64_t StreamProgram::width(size_t round) const {
  return std::min(width_, call_.count - begin(round));
}

uint64_t StreamProgram::part_begin(size_t round, Rank rank) const {
  const uint64_t all = width(round);
  const uint64_t align = kAlign / call_.element_bytes;
  const uint64_t part = ((all + rank_count_ - 1) / rank_count_ + align - 1) / align * align;
  return std::min(all, rank * part);
}

uint64_t StreamProgram::part_count(size_t round, Rank rank) const {
  const uint64_t end = rank + 1 == rank_count_ ? width(round) : part_begin(round, rank + 1);
  return end - part_begin(round, rank);
}

void StreamProgram::step(size_t index, std::vector<StreamOp>* ops) const {
  ops->clear();
  const size_t round = index / kStepsOfRound;
  if (round == rounds_) {
    await_given_back(ops);
  } else if (index % kStepsOfRound == 0) {
    fill(round, ops);
  } else if (index % kStepsOfRound == 1) {
    use(round, ops);
  } else if (two_phases_) {
    collect(round, ops);
  }
}

void StreamProgram::await_empty(uint32_t phase, size_t round, std::vector<StreamOp>* ops) const {
  const auto slot = static_cast<uint32_t>(round % kSlots);
  for (Rank reader = 0; reader < rank_count_; ++reader) {
    const bool flows_now = flows(phase, rank_, reader);
    // A rank that does not read now may still read what an earlier call has left in the slot.
    if (reader == rank_ || (!flows_now && round >= kSlots)) continue;
    ops->push_back(wait_for(empty(phase, slot, rank_, reader), 1));
    if (flows_now) ops->push_back(set(empty(phase, slot, rank_, reader), 0));
  }
}

void StreamProgram::tell(uint32_t phase, uint32_t slot, std::vector<StreamOp>* ops) const {
  for (Rank reader = 0; reader < rank_count_; ++reader) {
    if (!flows(phase, rank_, reader)) continue;
    ops->push_back(set(full(phase, slot, rank_, reader), call_.fingerprint));
  }
}

void StreamProgram::take(uint32_t phase, uint32_t slot, std::vector<StreamOp>* ops) const {
  for (Rank writer = 0; writer < rank_count_; ++writer) {
    if (!flows(phase, writer, rank_)) continue;
    ops->push_back(wait_for(full(phase, slot, writer, rank_), call_.fingerprint));
    ops->push_back(set(full(phase, slot, writer, rank_), 0));
  }
}

void StreamProgram::give_back(uint32_t phase, uint32_t slot, std::vector<StreamOp>* ops) const {
  for (Rank writer = 0; writer < rank_count_; ++writer) {
    if (!flows(phase, writer, rank_)) continue;
    ops->push_back(set(empty(phase, slot, writer, rank_), 1));
  }
}

// What peers read is the caller's own.
void StreamProgram::await_given_back(std::vector<StreamOp>* ops) const {
  const auto slots = static_cast<uint32_t>(std::min<size_t>(rounds_, kSlots));
  const uint32_t phases = keeps_parts_ ? 1 : kPhases;
  for (uint32_t phase = 0; phase < phases; ++phase) {
    for (uint32_t slot = 0; slot < slots; ++slot) {
      for (Rank reader = 0; reader < rank_count_; ++reader) {
        if (!flows(phase, rank_, reader)) continue;
        ops->push_back(wait_for(empty(phase, slot, rank_, reader), 1));
      }
    }
  }
}

// Of a call in windows a slot holds nothing else.
uint64_t StreamProgram::kept_offset(size_t round, Rank rank) const {
  const uint64_t before = call_.in_windows ? 0 : part_begin(round, rank) * call_.element_bytes;
  return slot_offset(round) + before;
}

void StreamProgram::fill(size_t round, std::vector<StreamOp>* ops) const {
  const auto slot = static_cast<uint32_t>(round % kSlots);
  const uint64_t bytes = width(round) * call_.element_bytes;
  const uint64_t at = begin(round) * call_.element_bytes;
  const uint64_t block_bytes = call_.count * call_.element_bytes;
  const bool own_is_reduced = is_reduction() && (receives(rank_) || two_phases_);
  if (!writes(0, rank_) && !own_is_reduced) return;
  await_empty(0, round, ops);
  await_empty(1, round, ops);
  if (call_.in_windows) {
    if (call_.collective == Collective::kBroadcast) {
      ops->push_back(copy({StreamBuffer::kRecv, rank_, 0}, {StreamBuffer::kSend, rank_, 0}, bytes));
    }
    return tell(0, slot, ops);
  }
  const uint64_t blocks = has_blocks() ? rank_count_ : 1;
  for (uint64_t i = 0; i < blocks; ++i) {
    // Ranks begin with different peers. A rank's own block is copied from buffer to buffer, unless
    // it is reduced.
    const uint64_t block = (rank_ + i) % blocks;
    if (has_blocks() && !is_reduction() && block == rank_) continue;
    ops->push_back(copy({StreamBuffer::kScratch, rank_, slot_offset(round) + block * stride_},
                        {StreamBuffer::kSend, rank_, block * block_bytes + at}, bytes));
    ops->back().count = width(round);
    ops->back().contributes = is_reduction();
  }
  tell(0, slot, ops);
}

void StreamProgram::use(size_t round, std::vector<StreamOp>* ops) const {
  const auto slot = static_cast<uint32_t>(round % kSlots);
  const uint64_t size = call_.element_bytes;
  const uint64_t bytes = width(round) * size;
  const uint64_t at = begin(round) * size;
  const uint64_t block_bytes = call_.count * size;
  take(0, slot, ops);
  if (is_reduction()) {
    if (two_phases_ || receives(rank_)) {
      StreamOp op;
      op.kind = StreamOp::Kind::kReduce;
      op.count = two_phases_ ? part_count(round, rank_) : width(round);
      const uint64_t part = two_phases_ ? part_begin(round, rank_) * size : 0;
      const uint64_t block = has_blocks() ? rank_ * (call_.in_windows ? block_bytes : stride_) : 0;
      op.from = {StreamBuffer::kScratch, 0, slot_offset(round) + block + part};
      if (call_.in_windows) op.from = {StreamBuffer::kPeerSend, 0, block + at + part};
      op.to = {StreamBuffer::kRecv, rank_, at + part};
      op.stores = receives(rank_);
      op.keeps = keeps_parts_ && writes(1, rank_);
      op.kept_offset = kept_offset(round, rank_);
      if (op.count > 0) ops->push_back(op);
    }
  } else if (receives(rank_)) {
    const bool to_blocks = call_.collective == Collective::kAllGather ||
                           call_.collective == Collective::kAllToAll ||
                           call_.collective == Collective::kGather;
    for (Rank i = 0; i < rank_count_; ++i) {
      const Rank writer = (rank_ + i) % rank_count_;
      const bool own = writer == rank_ && (to_blocks || rooted_at(rank_));
      if (!own && !flows(0, writer, rank_)) continue;
      const bool is_broadcast = call_.collective == Collective::kBroadcast;
      // It is there: the peers read it.
      if (own && is_broadcast && call_.in_windows && writes(0, rank_)) continue;
      const uint64_t block = has_blocks() ? rank_ : 0;
      StreamPlace from{StreamBuffer::kScratch, writer, slot_offset(round) + block * stride_};
      if (own) {
        from = {StreamBuffer::kSend, rank_, block * block_bytes + at};
      } else if (call_.in_windows) {
        from = {is_broadcast ? StreamBuffer::kPeerRecv : StreamBuffer::kPeerSend, writer,
                block * block_bytes};
      }
      ops->push_back(copy({StreamBuffer::kRecv, rank_, (to_blocks ? writer * block_bytes : 0) + at},
                          from, bytes));
    }
  }
  give_back(0, slot, ops);
  tell(1, slot, ops);
}

void StreamProgram::collect(size_t round, std::vector<StreamOp>* ops) const {
  const auto slot = static_cast<uint32_t>(round % kSlots);
  const uint64_t size = call_.element_bytes;
  take(1, slot, ops);
  for (Rank i = 1; i < rank_count_ && receives(rank_); ++i) {
    const Rank owner = (rank_ + i) % rank_count_;
    if (!flows(1, owner, rank_) || part_count(round, owner) == 0) continue;
    const uint64_t part = part_begin(round, owner) * size;
    StreamPlace from{StreamBuffer::kScratch, owner, kept_offset(round, owner)};
    if (!keeps_parts_) from = {StreamBuffer::kPeerRecv, owner, part};
    ops->push_back(copy({StreamBuffer::kRecv, rank_, begin(round) * size + part}, from,
                        part_count(round, owner) * size));
  }
  give_back(1, slot, ops);
}

}  // namespace weir::comm
