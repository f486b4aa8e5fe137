// SPDX-License-Identifier: Apache-2.0
#include "plugins/hook_failover/stream.h"

#include <string.h>

#include <algorithm>

namespace weir::plugins::hook_failover {

void Stream::post(const void* data, uint64_t bytes, Op* op) {
  op->state = kOpPending;
  op->next = 0;
  op->data = reinterpret_cast<uint64_t>(data);
  op->bytes = bytes;
  if (tail_ != nullptr) {
    tail_->next = reinterpret_cast<uint64_t>(op);
  } else {
    head_ = op;
  }
  tail_ = op;
  if (next_ == nullptr) next_ = op;
  ++posted_;
}

void Stream::fail(weir_result_t result) {
  result_ = result;
  for (Op* op = head_; op != nullptr; op = next_of(op)) {
    op->state = kOpFailed + static_cast<uint64_t>(result);
  }
  head_ = tail_ = next_ = nullptr;
  posted_ = handed_ = settled_ = told_;
}

uint64_t Stream::bytes_under_way() const {
  uint64_t bytes = 0;
  for (uint64_t n = settled_; n < handed_; ++n) bytes += slot(n).bytes;
  return bytes;
}

void Stream::tell_first() {
  Op* op = head_;
  head_ = next_of(op);
  if (head_ == nullptr) tail_ = nullptr;
  op->state = kOpDone;
  ++told_;
}

weir_transport_op_t* Stream::fresh_op() {
  weir_transport_op_t* op = &slot(handed_).op;
  *op = {};
  return op;
}

weir_result_t Stream::note_posted(weir_result_t posted, uint64_t bytes) {
  if (posted != WEIR_OK && posted != WEIR_IN_PROGRESS) return posted;
  slot(handed_).bytes = bytes;
  slot(handed_).done = posted == WEIR_OK;
  ++handed_;
  if (posted == WEIR_OK && settled_ + 1 == handed_) ++settled_;
  return WEIR_OK;
}

weir_result_t Stream::settle(const Route& route) {
  while (settled_ < handed_) {
    Slot& first = slot(settled_);
    if (!first.done) {
      const weir_result_t result = route.functions->test(route.instance, &first.op);
      if (result == WEIR_IN_PROGRESS) return WEIR_OK;
      if (result != WEIR_OK) return result;
    }
    ++settled_;
  }
  return WEIR_OK;
}

weir_result_t SendStream::advance(const Route& route) {
  weir_result_t result = settle(route);
  if (result != WEIR_OK) return result;
  while (handed_ < posted_ && handed_ - settled_ < kWindow) {
    const bool again = handed_ < told_;
    const Copy& copy = copies_[handed_ % kCopyCountMax];
    const void* data = again ? memory_ + copy.begin % kCopyMemoryBytes
                             : reinterpret_cast<const void*>(next_->data);
    const uint64_t bytes = again ? copy.bytes : next_->bytes;
    result = note_posted(
        route.functions->send(route.instance, route.peer, route.lane, data, bytes, fresh_op()),
        bytes);
    if (result != WEIR_OK) return result;
    handed_most_ = std::max(handed_most_, handed_);
    if (!again) next_ = next_of(next_);
  }
  tell();
  return WEIR_OK;
}

void SendStream::tell() {
  if (needs_none_) acknowledged_ = settled_;
  while (told_ < settled_ && told_ - released_ < kCopyCountMax) {
    if (told_ < acknowledged_) {
      copies_[told_ % kCopyCountMax] = {copy_end_, copy_end_, 0};
    } else if (!keep(*head_)) {
      return;
    }
    tell_first();
    release();
  }
}

bool SendStream::keep(const Op& op) {
  if (op.bytes > kCopyBytesMax) return false;
  uint64_t begin = copy_end_;
  const uint64_t at = begin % kCopyMemoryBytes;
  if (at + op.bytes > kCopyMemoryBytes) begin += kCopyMemoryBytes - at;
  if (begin + op.bytes - copy_begin_ > kCopyMemoryBytes) return false;
  if (op.bytes != 0) {
    memcpy(memory_ + begin % kCopyMemoryBytes, reinterpret_cast<const void*>(op.data), op.bytes);
  }
  copy_end_ = begin + op.bytes;
  copies_[told_ % kCopyCountMax] = {begin, copy_end_, op.bytes};
  return true;
}

// A copy is dropped when the receiver has the message and the transport does not read it any more.
void SendStream::release() {
  const uint64_t end = std::min({acknowledged_, settled_, told_});
  while (released_ < end) copy_begin_ = copies_[released_++ % kCopyCountMax].end;
}

bool SendStream::acknowledge(uint64_t count) {
  if (count > handed_most_) return false;
  acknowledged_ = std::max(acknowledged_, count);
  release();
  tell();
  return true;
}

bool SendStream::resume(uint64_t count) {
  if (count > handed_most_ || count < released_) return false;
  acknowledged_ = std::max(acknowledged_, count);
  if (count < acknowledged_) return false;
  handed_ = settled_ = count;
  release();
  while (told_ < count) {
    copies_[told_ % kCopyCountMax] = {copy_end_, copy_end_, 0};
    tell_first();
    release();
  }
  next_ = head_;
  return true;
}

weir_result_t RecvStream::take(const Route& route) {
  const weir_result_t result = settle(route);
  tell();
  return result;
}

void RecvStream::tell() {
  for (; counted_ < settled_; ++counted_) {
    const uint64_t bytes = slot(counted_).bytes;
    ++silent_count_;
    silent_bytes_ += bytes;
    if (bytes <= kCopyBytesMax) continue;
    silent_bytes_ += kSilentBytesMax;
    hold_ = std::min(hold_, counted_);
  }
  while (told_ < std::min(settled_, hold_)) tell_first();
}

weir_result_t RecvStream::advance(const Route& route) {
  weir_result_t result = take(route);
  while (result == WEIR_OK && handed_ < posted_ && handed_ - settled_ < kWindow) {
    Op* op = next_;
    result =
        note_posted(route.functions->recv(route.instance, route.peer, route.lane,
                                          reinterpret_cast<void*>(op->data), op->bytes, fresh_op()),
                    op->bytes);
    if (result == WEIR_OK) {
      next_ = next_of(op);
      tell();
    }
  }
  return result;
}

void RecvStream::restart() {
  handed_ = settled_;
  next_ = head_;
  for (uint64_t n = told_; n < settled_; ++n) next_ = next_of(next_);
}

}  // namespace weir::plugins::hook_failover
