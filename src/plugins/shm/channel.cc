// SPDX-License-Identifier: Apache-2.0
#include "plugins/shm/channel.h"

#include <string.h>

#include <algorithm>

#include "net/copy.h"

namespace weir::plugins::shm {
namespace {

enum Kind : uint64_t { kInline = 0, kFirst = 1, kNext = 2 };
constexpr uint64_t kKindMask = 3;

// Cells that one call may move: two rings of slots.
constexpr uint32_t kBurst = 2 * kSlotCount;

// Parts of a message that does not fill the ring are smaller, so that both sides still overlap.
constexpr uint64_t kPartBytesMin = 8192;

constexpr uint64_t kControlBytes = sizeof(Credit) * 2 + kCellCount * sizeof(Cell);
constexpr uint64_t kPairBytesMax = uint64_t{16} << 20;  // of one rank's channels to all others
constexpr uint32_t kSlot0Bytes = 32768;
constexpr uint32_t kSlotBytes = 16384;
constexpr uint32_t kSlotBytesMin = 4096;
// Above so many ranks the channels must still fit into the address space of a process with hundreds
// of them.
constexpr uint32_t kLargeRankCount = 512;
constexpr uint32_t kSlotBytesOfLarge = 2048;

uint64_t tag_of(uint64_t number, Kind kind) { return (number + 1) * 4 + kind; }

uint64_t round_up(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

Layout::Layout(uint32_t rank_count)
    : rank_count_(rank_count), slot0_bytes_(kSlot0Bytes), slot_bytes_(kSlotBytes) {
  // Many ranks: smaller slots keep what an all-to-all touches within bounds.
  while (slot0_bytes_ > kSlotBytesMin &&
         uint64_t{rank_count} * slot0_bytes_ * kSlotCount > kPairBytesMax) {
    slot0_bytes_ /= 2;
    slot_bytes_ = std::max(slot_bytes_ / 2, kSlotBytesMin);
  }
  if (rank_count > kLargeRankCount) slot0_bytes_ = slot_bytes_ = kSlotBytesOfLarge;
  pair_bytes_ = round_up(kControlBytes * kLaneCount, 4096) + uint64_t{slot0_bytes_} * kSlotCount +
                uint64_t{slot_bytes_} * kSlotCount * (kLaneCount - 1);
}

uint64_t Layout::control_offset(uint32_t sender, uint32_t receiver, uint32_t lane) const {
  return (uint64_t{sender} * rank_count_ + receiver) * pair_bytes_ + lane * kControlBytes;
}

uint64_t Layout::slots_offset(uint32_t sender, uint32_t receiver, uint32_t lane) const {
  const uint64_t pair = (uint64_t{sender} * rank_count_ + receiver) * pair_bytes_;
  const uint64_t first = pair + round_up(kControlBytes * kLaneCount, 4096);
  if (lane == 0) return first;
  return first + uint64_t{slot0_bytes_} * kSlotCount +
         uint64_t{slot_bytes_} * kSlotCount * (lane - 1);
}

void Channel::attach(unsigned char* shared, const Layout& layout, uint32_t sender,
                     uint32_t receiver, uint32_t lane) {
  unsigned char* control = shared + layout.control_offset(sender, receiver, lane);
  credit_ = reinterpret_cast<Credit*>(control);
  // The cache line after the credit stays unused, since the prefetcher would load it with the
  // credit.
  cells_ = reinterpret_cast<Cell*>(control + 2 * sizeof(Credit));
  slots_ = shared + layout.slots_offset(sender, receiver, lane);
  slot_bytes_ = layout.slot_bytes(lane);
}

void Channel::enqueue(Op* op) {
  op->next = 0;
  op->state = kOpPending;
  if (tail_ != nullptr) {
    tail_->next = reinterpret_cast<uint64_t>(op);
  } else {
    head_ = op;
  }
  tail_ = op;
}

void Channel::finish_head() {
  Op* op = head_;
  head_ = reinterpret_cast<Op*>(op->next);
  if (head_ == nullptr) tail_ = nullptr;
  op->state = kOpDone;
}

void Channel::fail_all(weir_result_t result) {
  failure_ = result;
  while (head_ != nullptr) {
    Op* op = head_;
    finish_head();
    op->state = kOpFailed + static_cast<uint64_t>(result);
  }
}

bool Channel::read_credit() {
  const uint64_t cells = credit_->cells.load(std::memory_order_acquire);
  const uint64_t slots = credit_->slots.load(std::memory_order_acquire);
  // Counters only grow, and never past what was sent.
  if (cells < freed_cells_ || cells > number_ || slots < freed_slots_ || slots > slot_number_) {
    fail_all(WEIR_ERROR_INTERNAL);
    return false;
  }
  freed_cells_ = cells;
  freed_slots_ = slots;
  return true;
}

bool Channel::cell_free() {
  if (number_ - freed_cells_ < kCellCount) return true;
  return read_credit() && number_ - freed_cells_ < kCellCount;
}

bool Channel::slot_free() {
  if (slot_number_ - freed_slots_ < kSlotCount) return true;
  return read_credit() && slot_number_ - freed_slots_ < kSlotCount;
}

weir_result_t Channel::post_send(const void* data, uint64_t bytes, Op* op) {
  if (failure_ != WEIR_OK) return failure_;
  if (head_ == nullptr && bytes <= kInlineBytes && cell_free()) {
    Cell& line = cell();
    line.bytes = bytes;
    if (bytes != 0) memcpy(line.payload, data, bytes);
    line.tag.store(tag_of(number_, kInline), std::memory_order_release);
    ++number_;
    op->state = kOpDone;
    return WEIR_OK;
  }
  if (failure_ != WEIR_OK) return failure_;
  op->data = reinterpret_cast<uint64_t>(data);
  op->bytes = bytes;
  op->done_bytes = 0;
  enqueue(op);
  if (head_ == op) drive_send();
  if (op->state == kOpDone) return WEIR_OK;
  return failure_ != WEIR_OK ? failure_ : WEIR_IN_PROGRESS;
}

weir_result_t Channel::post_recv(void* data, uint64_t bytes, Op* op) {
  if (failure_ != WEIR_OK) return failure_;
  op->data = reinterpret_cast<uint64_t>(data);
  op->bytes = bytes;
  op->done_bytes = 0;
  enqueue(op);
  if (head_ == op) drive_recv();
  if (op->state == kOpDone) return WEIR_OK;
  return failure_ != WEIR_OK ? failure_ : WEIR_IN_PROGRESS;
}

void Channel::drive_send() {
  for (uint32_t moved = 0; moved < kBurst && head_ != nullptr; ++moved) {
    Op* op = head_;
    const auto* data = reinterpret_cast<const unsigned char*>(op->data);
    if (!cell_free()) return;
    Cell& line = cell();
    if (op->bytes <= kInlineBytes) {
      line.bytes = op->bytes;
      if (op->bytes != 0) memcpy(line.payload, data, op->bytes);
      line.tag.store(tag_of(number_, kInline), std::memory_order_release);
      ++number_;
      finish_head();
      continue;
    }
    if (!slot_free()) return;
    const uint64_t left = op->bytes - op->done_bytes;
    const uint64_t wanted = std::max(round_up(op->bytes / kSlotCount, 64), kPartBytesMin);
    const uint64_t part = std::min({left, wanted, uint64_t{slot_bytes_}});
    net::copy(slot(), data + op->done_bytes, part);
    line.bytes = op->bytes;
    line.part_bytes = part;
    line.tag.store(tag_of(number_, op->done_bytes == 0 ? kFirst : kNext),
                   std::memory_order_release);
    ++number_;
    ++slot_number_;
    op->done_bytes += part;
    if (op->done_bytes == op->bytes) finish_head();
  }
}

void Channel::drive_recv() {
  for (uint32_t moved = 0; moved < kBurst && head_ != nullptr; ++moved) {
    Op* op = head_;
    auto* data = reinterpret_cast<unsigned char*>(op->data);
    Cell& line = cell();
    const uint64_t tag = line.tag.load(std::memory_order_acquire);
    if ((tag & ~kKindMask) != tag_of(number_, kInline)) return;
    const uint64_t kind = tag & kKindMask;
    const uint64_t bytes = line.bytes;
    if (bytes != op->bytes || (kind == kNext) != (op->done_bytes != 0)) {
      sent_bytes_ = bytes;
      expected_bytes_ = op->bytes;
      fail_all(bytes != op->bytes ? WEIR_ERROR_MISMATCH : WEIR_ERROR_INTERNAL);
      return;
    }
    uint64_t part = bytes;
    if (kind == kInline) {
      if (bytes > kInlineBytes) return fail_all(WEIR_ERROR_INTERNAL);
      if (bytes != 0) memcpy(data, line.payload, bytes);
    } else {
      part = line.part_bytes;
      if (part == 0 || part > slot_bytes_ || part > bytes - op->done_bytes) {
        return fail_all(WEIR_ERROR_INTERNAL);
      }
      net::copy(data + op->done_bytes, slot(), part);
      ++slot_number_;
      credit_->slots.store(slot_number_, std::memory_order_release);
    }
    ++number_;
    credit_->cells.store(number_, std::memory_order_release);
    op->done_bytes += part;
    if (op->done_bytes == op->bytes) finish_head();
  }
}

}  // namespace weir::plugins::shm
