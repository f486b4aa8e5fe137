// SPDX-License-Identifier: Apache-2.0
#include "plugins/ncclnet/flow.h"

#include <string.h>

#include <algorithm>

namespace weir::plugins::ncclnet {
namespace {

constexpr unsigned char kMagic[4] = {'W', 'N', 'C', 'F'};

void store(unsigned char* out, uint64_t value, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) out[i] = static_cast<unsigned char>(value >> (8 * i));
}

uint64_t load(const unsigned char* in, size_t bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes; ++i) value |= static_cast<uint64_t>(in[i]) << (8 * i);
  return value;
}

void* pointer(uint64_t word) { return reinterpret_cast<void*>(word); }

}  // namespace

bool Flow::attach(LoadedPlugin* plugin, void* comm, bool is_send, uint64_t part_bytes_max,
                  unsigned char* slots) {
  plugin_ = plugin;
  comm_ = comm;
  is_send_ = is_send;
  part_bytes_max_ = part_bytes_max;
  slot_memory_ = slots;
  return check(plugin_->register_memory(comm_, slots, kSlotCount * kSlotBytes, &slot_registration_),
               "regMr");
}

bool Flow::check(weir::ncclnet::Result result, const char* what) {
  if (result == weir::ncclnet::kSuccess) [[likely]]
    return true;
  failure_.plugin = result;
  const std::string warning = weir::ncclnet::take_warning();
  fail(WEIR_ERROR_PEER_LOST, std::string(what) + " gave " + weir::ncclnet::name_of(result) +
                                 (warning.empty() ? "" : ": " + warning));
  return false;
}

bool Flow::begin_greeting(const unsigned char* greeting, size_t bytes) {
  Slot& first = slot(0);
  if (first.request != nullptr) return true;
  if (is_send_) {
    memcpy(memory(0), greeting, bytes);
    return check(plugin_->isend(comm_, memory(0), bytes, slot_registration_, &first.request),
                 "isend") &&
           first.request != nullptr;
  }
  return check(plugin_->irecv(comm_, memory(0), kSlotBytes, slot_registration_, &first.request),
               "irecv") &&
         first.request != nullptr;
}

bool Flow::finish_greeting(unsigned char* greeting, size_t bytes) {
  Slot& first = slot(0);
  int done = 0, got = 0;
  if (!check(plugin_->test(first.request, &done, &got), "test") || done == 0) return false;
  first.request = nullptr;
  if (!is_send_) {
    memset(greeting, 0, bytes);
    if (got == static_cast<int>(bytes)) memcpy(greeting, memory(0), bytes);
  }
  return true;
}

weir_result_t Flow::post(void* data, uint64_t bytes, Op* op) {
  if (failure_.result != WEIR_OK) return failure_.result;
  *op = {};
  op->state = kOpQueued;
  op->flow = reinterpret_cast<uint64_t>(this);
  op->data = reinterpret_cast<uint64_t>(data);
  op->bytes = bytes;
  if (tail_ != nullptr) {
    tail_->next = reinterpret_cast<uint64_t>(op);
  } else {
    head_ = op;
  }
  tail_ = op;
  if (cursor_ == nullptr) cursor_ = op;
  (void)drive();
  if (op->state == kOpDone) return WEIR_OK;
  return failure_.result != WEIR_OK ? failure_.result : WEIR_IN_PROGRESS;
}

bool Flow::drive() {
  if (failure_.result != WEIR_OK || comm_ == nullptr) return false;
  bool any = false;
  for (bool moved = true; moved;) {
    moved = false;
    const bool good = is_send_ ? retire_slots(&moved) && fill_slot(&moved) && send_slots(&moved) &&
                                     finish_sends(&moved)
                               : post_frames(&moved) && finish_receives(&moved);
    any = any || moved;
    if (!good) return true;
  }
  return any;
}

void Flow::finish_head() {
  Op* op = head_;
  head_ = next_of(op);
  if (head_ == nullptr) tail_ = nullptr;
  op->state = kOpDone;
}

bool Flow::register_long(Op* op) {
  op->memory = 0;
  while (is_registered_[op->memory]) ++op->memory;
  if (!check(plugin_->register_memory(comm_, pointer(op->data), op->bytes,
                                      &registrations_[op->memory]),
             "regMr")) {
    return false;
  }
  is_registered_[op->memory] = true;
  op->state = kOpLong;
  ++long_count_;
  return true;
}

void Flow::release_long(const Op& op) {
  (void)plugin_->deregister_memory(comm_, registration(op));
  is_registered_[op.memory] = false;
  --long_count_;
}

// Posts the next part of a long message; not while the part before is in progress.
bool Flow::post_part(Op* op, bool* moved) {
  if (op->request != 0 || op->moved == op->bytes) return true;
  auto* data = static_cast<unsigned char*>(pointer(op->data)) + op->moved;
  const uint64_t bytes = std::min(part_bytes_max_, op->bytes - op->moved);
  void* request = nullptr;
  const bool good =
      is_send_ ? check(plugin_->isend(comm_, data, bytes, registration(*op), &request), "isend")
               : check(plugin_->irecv(comm_, data, bytes, registration(*op), &request), "irecv");
  if (!good) return false;
  if (request == nullptr) return true;
  op->request = reinterpret_cast<uint64_t>(request);
  op->moved += bytes;
  *moved = true;
  if (op->moved == op->bytes && long_op_ == op) long_op_ = nullptr;
  return true;
}

bool Flow::test_part(Op* op, bool* done, bool* moved) {
  *done = false;
  if (op->request == 0) return true;
  int is_done = 0, got = 0;
  if (!check(plugin_->test(pointer(op->request), &is_done, &got), "test")) return false;
  if (is_done == 0) return true;
  op->request = 0;
  *moved = true;
  const uint64_t part = (op->moved - 1) % part_bytes_max_ + 1;
  if (!is_send_ && static_cast<uint64_t>(got) != part) {
    fail(WEIR_ERROR_INTERNAL, "the plugin gave " + std::to_string(got) + " bytes for a part of " +
                                  std::to_string(part) + " bytes");
    return false;
  }
  *done = op->moved == op->bytes;
  return true;
}

bool Flow::retire_slots(bool* moved) {
  while (slots_done_ < slots_posted_) {
    int done = 0;
    if (!check(plugin_->test(slot(slots_done_).request, &done, nullptr), "test")) return false;
    if (done == 0) return true;
    slot(slots_done_++).request = nullptr;
    *moved = true;
  }
  return true;
}

// Writes frames for the operations that have none, as far as there are slots.
bool Flow::fill_slot(bool* moved) {
  while (cursor_ != nullptr && slots_filled_ - slots_done_ < kSlotCount) {
    Op* op = cursor_;
    // A plugin need not have more requests than 32 under way.
    if (op->bytes > kInlineBytes && long_count_ == kSlotCount) return true;
    unsigned char* frame = memory(slots_filled_);
    Slot& own = slot(slots_filled_);
    own = {};
    memcpy(frame, kMagic, sizeof kMagic);
    store(frame + 4, count_, 4);
    store(frame + 8, op->bytes, 8);
    own.bytes = kFrameHeaderBytes;
    if (op->bytes > kInlineBytes) {
      if (!register_long(op)) return false;
      own.long_op = op;
    } else {
      if (op->bytes != 0) memcpy(frame + kFrameHeaderBytes, pointer(op->data), op->bytes);
      own.bytes += op->bytes;
      op->state = kOpFramed;
    }
    ++count_;
    ++slots_filled_;
    cursor_ = next_of(op);
    *moved = true;
  }
  return true;
}

bool Flow::send_slots(bool* moved) {
  for (;;) {
    if (long_op_ != nullptr && !post_part(long_op_, moved)) return false;
    if (long_op_ != nullptr || slots_posted_ == slots_filled_) return true;
    Slot& own = slot(slots_posted_);
    if (!check(plugin_->isend(comm_, memory(slots_posted_), own.bytes, slot_registration_,
                              &own.request),
               "isend")) {
      return false;
    }
    if (own.request == nullptr) return true;
    long_op_ = own.long_op;
    ++slots_posted_;
    *moved = true;
  }
}

bool Flow::finish_sends(bool* moved) {
  while (head_ != nullptr) {
    Op* op = head_;
    if (op->state == kOpLong) {
      bool done = false;
      if (!test_part(op, &done, moved)) return false;
      if (!done) return true;
      release_long(*op);
    } else if (op->state != kOpFramed) {
      return true;
    }
    finish_head();
    *moved = true;
  }
  return true;
}

// Posts receives of frames for the operations that have none. Frames after a long message are
// received after it.
bool Flow::post_frames(bool* moved) {
  while (cursor_ != nullptr && long_op_ == nullptr && slots_filled_ - slots_done_ < kSlotCount) {
    Slot& own = slot(slots_filled_);
    own = {};
    const weir::ncclnet::Result posted =
        plugin_->irecv(comm_, memory(slots_filled_), kSlotBytes, slot_registration_, &own.request);
    if (posted != weir::ncclnet::kSuccess) {
      // The plugin may have met a message that is too long for this receive: the frame before it
      // tells why.
      return finish_receives(moved) && check(posted, "irecv");
    }
    if (own.request == nullptr) return true;
    Op* op = cursor_;
    op->state = kOpFramed;
    if (op->bytes > kInlineBytes) long_op_ = op;
    ++slots_filled_;
    slots_posted_ = slots_filled_;
    cursor_ = next_of(op);
    *moved = true;
  }
  return true;
}

bool Flow::take_frame(Op* op, bool* moved) {
  int done = 0, got = 0;
  if (!check(plugin_->test(slot(slots_done_).request, &done, &got), "test")) return false;
  if (done == 0) return true;
  const unsigned char* frame = memory(slots_done_);
  slot(slots_done_++).request = nullptr;
  *moved = true;
  const auto bytes = static_cast<uint64_t>(std::max(got, 0));
  const uint64_t sent = bytes >= kFrameHeaderBytes ? load(frame + 8, 8) : 0;
  const uint64_t inside = sent <= kInlineBytes ? sent : 0;
  if (bytes < kFrameHeaderBytes || memcmp(frame, kMagic, sizeof kMagic) != 0 ||
      load(frame + 4, 4) != (count_ & 0xffffffffu) || bytes != kFrameHeaderBytes + inside) {
    fail(WEIR_ERROR_INTERNAL, "the received data is not a message of this transport");
    return false;
  }
  if (sent != op->bytes) {
    fail(WEIR_ERROR_MISMATCH, "a message of " + std::to_string(sent) + " bytes arrived where " +
                                  std::to_string(op->bytes) + " were expected");
    return false;
  }
  ++count_;
  if (sent > kInlineBytes) return register_long(op);
  if (sent != 0) memcpy(pointer(op->data), frame + kFrameHeaderBytes, sent);
  finish_head();
  return true;
}

bool Flow::finish_receives(bool* moved) {
  while (head_ != nullptr) {
    Op* op = head_;
    if (op->state == kOpQueued) return true;
    if (op->state == kOpFramed) {
      if (!take_frame(op, moved)) return false;
      if (op->state == kOpFramed) return true;
      if (op->state == kOpDone) continue;
    }
    if (!post_part(op, moved)) return false;
    bool done = false;
    if (!test_part(op, &done, moved)) return false;
    if (!done) return true;
    release_long(*op);
    finish_head();
  }
  return true;
}

void Flow::fail(weir_result_t result, const std::string& text) {
  if (failure_.result != WEIR_OK) return;
  failure_.result = result;
  failure_.text = text;
  Op* first = head_;
  close();
  for (Op* op = first; op != nullptr;) {
    Op* next = next_of(op);
    op->state = kOpFailed + static_cast<uint64_t>(result);
    op = next;
  }
}

void Flow::close() {
  if (comm_ == nullptr) return;
  for (uint32_t i = 0; i < kSlotCount; ++i) {
    if (is_registered_[i]) (void)plugin_->deregister_memory(comm_, registrations_[i]);
    is_registered_[i] = false;
  }
  long_count_ = 0;
  if (slot_registration_ != nullptr) (void)plugin_->deregister_memory(comm_, slot_registration_);
  (void)(is_send_ ? plugin_->close_send(comm_) : plugin_->close_recv(comm_));
  comm_ = nullptr;
  head_ = tail_ = cursor_ = long_op_ = nullptr;
  slots_done_ = slots_posted_ = slots_filled_;
}

}  // namespace weir::plugins::ncclnet
