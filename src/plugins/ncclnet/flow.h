// SPDX-License-Identifier: Apache-2.0
// Flow: one direction of one (peer, lane), over one connection of the loaded plugin. A plugin
// promises less than Weir's transports: a message may be shorter than the posted receive, and
// nothing may leave before its receive is posted. So each message begins with a frame in memory of
// the flow's own, which also holds messages of up to kInlineBytes; a sender has kSlotCount of them,
// which is the credit. A longer message follows its frame, from buffer to buffer of the callers; it
// is received only when the frame has shown that it is the right one.
//
//   frame: offset  bytes  field (integers little-endian)
//               0      4  magic "WNCF"
//               4      4  number of the message on this flow, from 0
//               8      8  bytes of the message
//              16      n  the message, where n is at most kInlineBytes
//
// Nothing of ours allocates after attach. One thread at a time.
#pragma once

#include <cstdint>
#include <string>

#include "ncclnet/loaded_plugin.h"
#include "weir/plugin.h"

namespace weir::plugins::ncclnet {

using weir::ncclnet::LoadedPlugin;

// Meaning of weir_transport_op_t::word while an operation is in this transport.
struct Op {
  uint64_t state;  // 0: never posted
  uint64_t next;   // Op*, in the queue
  uint64_t flow;
  uint64_t data;
  uint64_t bytes;
  uint64_t request;  // of the plugin, for a part of a long message
  uint64_t memory;   // of a long message: which of the flow's registrations it has
  uint64_t moved;    // bytes whose requests were made
};
static_assert(sizeof(Op) == sizeof(weir_transport_op_t::word));
inline constexpr uint64_t kOpQueued = 1;
inline constexpr uint64_t kOpFramed = 2;  // its frame was given to the plugin
inline constexpr uint64_t kOpLong = 3;    // its frame has arrived or was sent; the rest is due
inline constexpr uint64_t kOpDone = 4;
inline constexpr uint64_t kOpFailed = 16;  // + result

// Why a flow carries no more messages.
struct Failure {
  weir_result_t result = WEIR_OK;
  weir::ncclnet::Result plugin = weir::ncclnet::kSuccess;  // what the plugin gave
  std::string text;                                        // of the plugin, or of us
};

class Flow {
 public:
  static constexpr uint32_t kSlotCount = 8;
  static constexpr uint64_t kFrameHeaderBytes = 16;
  static constexpr uint64_t kSlotBytes = 8192;
  static constexpr uint64_t kInlineBytes = kSlotBytes - kFrameHeaderBytes;

  // `slots` is kSlotCount * kSlotBytes that stay until the flow is closed. The connection is the
  // flow's from now on. False with the reason in failure().
  bool attach(LoadedPlugin* plugin, void* comm, bool is_send, uint64_t part_bytes_max,
              unsigned char* slots);
  bool attached() const { return comm_ != nullptr; }

  // One short message before all others: call `begin` until it returns true, then `finish` until it
  // does.
  bool begin_greeting(const unsigned char* greeting, size_t bytes);
  bool finish_greeting(unsigned char* greeting, size_t bytes);

  // WEIR_OK, WEIR_IN_PROGRESS, or the flow's failure.
  weir_result_t post(void* data, uint64_t bytes, Op* op);
  // Moves what can be moved without waiting; true when something has.
  bool drive();
  // Nothing is queued, and the plugin holds no sent data any more.
  bool idle() const { return head_ == nullptr && slots_done_ == slots_filled_; }
  bool has_operations() const { return head_ != nullptr; }
  uint64_t message_count() const { return count_; }  // begun to be sent, or received
  bool has_received(uint64_t count) const { return count_ >= count && long_count_ == 0; }
  const Failure& failure() const { return failure_; }
  // Ends the flow: the plugin gives back the memory of open operations, and they fail.
  void fail(weir_result_t result, const std::string& text);
  // Ends the flow without accessing open operations, which may be gone.
  void close();

  // The instance's list of flows with something to do.
  Flow* next_active = nullptr;
  bool active = false;

 private:
  struct Slot {
    void* request = nullptr;
    uint64_t bytes = 0;
    Op* long_op = nullptr;
  };

  Slot& slot(uint64_t number) { return slots_[number % kSlotCount]; }
  unsigned char* memory(uint64_t number) {
    return slot_memory_ + (number % kSlotCount) * kSlotBytes;
  }
  static Op* next_of(const Op* op) { return reinterpret_cast<Op*>(op->next); }
  bool check(weir::ncclnet::Result result, const char* what);
  void finish_head();
  bool post_part(Op* op, bool* moved);
  bool test_part(Op* op, bool* done, bool* moved);
  bool retire_slots(bool* moved);
  bool send_slots(bool* moved);
  bool fill_slot(bool* moved);
  bool finish_sends(bool* moved);
  bool post_frames(bool* moved);
  bool take_frame(Op* op, bool* moved);
  bool finish_receives(bool* moved);
  bool register_long(Op* op);
  void release_long(const Op& op);
  void* registration(const Op& op) const { return registrations_[op.memory]; }

  LoadedPlugin* plugin_ = nullptr;
  void* comm_ = nullptr;
  bool is_send_ = false;
  uint64_t part_bytes_max_ = 0;
  unsigned char* slot_memory_ = nullptr;
  void* slot_registration_ = nullptr;
  Slot slots_[kSlotCount];
  uint64_t slots_filled_ = 0;  // frames written, or expected
  uint64_t slots_posted_ = 0;  // given to the plugin
  uint64_t slots_done_ = 0;    // given back by it
  Op* head_ = nullptr;
  Op* tail_ = nullptr;
  Op* cursor_ = nullptr;     // the first whose frame was not made
  Op* long_op_ = nullptr;    // all its parts must be posted before anything behind it
  uint32_t long_count_ = 0;  // long messages that the plugin has a registration of
  bool is_registered_[kSlotCount] = {};
  void* registrations_[kSlotCount] = {};
  uint64_t count_ = 0;
  Failure failure_;
};

}  // namespace weir::plugins::ncclnet
