// SPDX-License-Identifier: Apache-2.0
// Channel: one direction of one (sender, receiver, lane), a single-producer single-consumer FIFO in
// shared memory, lock-free.
//
//   cells   ring of cache lines. A message of up to 48 bytes is one cell: tag, length, payload. The
//           tag holds the cell's number, so that one line carries data and the news of it.
//   slots   ring of buffers that fit in a cache together. A longer message is cut into parts; each
//           part is one slot and one cell that announces it, and both sides copy at the same time.
//   credit  one cache line in which the receiver counts the cells and slots it has emptied. The
//           sender reads it only when it believes the ring to be full.
//
// What the other side wrote is not trusted: indices are our own counters masked to the ring,
// lengths are read once and checked against our own buffers, counters against what we have sent.
//
// Operations are queued in order of posting; a queued operation's words link the queue, so that
// posting allocates nothing. One thread at a time.
#pragma once

#include <stdint.h>

#include <atomic>

#include "weir/plugin.h"

namespace weir::plugins::shm {

inline constexpr uint32_t kLaneCount = WEIR_TRANSPORT_LANES_MAX;
inline constexpr uint32_t kInlineBytes = 48;
inline constexpr uint32_t kCellCount = 32;
inline constexpr uint32_t kSlotCount = 8;

struct alignas(64) Cell {
  std::atomic<uint64_t> tag;  // (number + 1) * 4 + kind; 0 when never written
  uint64_t bytes;             // of the whole message
  union {
    unsigned char payload[kInlineBytes];
    uint64_t part_bytes;
  };
};
static_assert(sizeof(Cell) == 64);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

struct alignas(64) Credit {
  std::atomic<uint64_t> cells;
  std::atomic<uint64_t> slots;
};
static_assert(sizeof(Credit) == 64);

// Where the channels lie in the shared memory, the same arithmetic on all ranks. Pages are touched
// only by channels in use.
class Layout {
 public:
  Layout() = default;
  explicit Layout(uint32_t rank_count);

  uint64_t bytes() const { return pair_bytes_ * rank_count_ * rank_count_; }
  uint32_t slot_bytes(uint32_t lane) const { return lane == 0 ? slot0_bytes_ : slot_bytes_; }
  uint64_t control_offset(uint32_t sender, uint32_t receiver, uint32_t lane) const;
  uint64_t slots_offset(uint32_t sender, uint32_t receiver, uint32_t lane) const;

 private:
  uint32_t rank_count_ = 0;
  uint32_t slot0_bytes_ = 0;  // lane 0
  uint32_t slot_bytes_ = 0;   // other lanes
  uint64_t pair_bytes_ = 0;
};

// Meaning of weir_transport_op_t::word while an operation is in this transport.
struct Op {
  uint64_t state;  // 0: never posted; then kOpPending, kOpDone or kOpFailed + result
  uint64_t next;   // Op*, in the queue
  uint64_t channel;
  uint64_t data;
  uint64_t bytes;
  uint64_t done_bytes;
  uint64_t unused[2];
};
static_assert(sizeof(Op) == sizeof(weir_transport_op_t::word));
inline constexpr uint64_t kOpPending = 1;
inline constexpr uint64_t kOpDone = 2;
inline constexpr uint64_t kOpFailed = 16;

class Channel {
 public:
  // `shared` is the base of the channels' memory.
  void attach(unsigned char* shared, const Layout& layout, uint32_t sender, uint32_t receiver,
              uint32_t lane);
  bool attached() const { return cells_ != nullptr; }

  // Each queues the operation, or completes it at once. WEIR_OK, WEIR_IN_PROGRESS or the error that
  // the channel is in.
  weir_result_t post_send(const void* data, uint64_t bytes, Op* op);
  weir_result_t post_recv(void* data, uint64_t bytes, Op* op);

  // Move what can be moved without waiting, within a bound that keeps other channels served.
  void drive_send();
  void drive_recv();

  bool idle() const { return head_ == nullptr; }
  // Forgets the queued operations, whose memory may go, without accessing them.
  void forget() { head_ = tail_ = nullptr; }

  // After a failure: the code, and the two lengths of a mismatch.
  weir_result_t failure() const { return failure_; }
  uint64_t sent_bytes() const { return sent_bytes_; }
  uint64_t expected_bytes() const { return expected_bytes_; }

  // The instance's list of channels with queued operations.
  Channel* next_active = nullptr;
  bool active = false;
  bool reported = false;  // the failure's text has been given to the host

 private:
  void enqueue(Op* op);
  void finish_head();
  void fail_all(weir_result_t result);
  bool cell_free();
  bool slot_free();
  bool read_credit();
  Cell& cell() { return cells_[number_ % kCellCount]; }
  unsigned char* slot() { return slots_ + (slot_number_ % kSlotCount) * slot_bytes_; }

  Cell* cells_ = nullptr;
  Credit* credit_ = nullptr;
  unsigned char* slots_ = nullptr;
  uint32_t slot_bytes_ = 0;
  weir_result_t failure_ = WEIR_OK;
  uint64_t number_ = 0;       // cells written (sender) or emptied (receiver)
  uint64_t slot_number_ = 0;  // the same of slots
  uint64_t freed_cells_ = 0;  // sender: what the receiver was last seen to have emptied
  uint64_t freed_slots_ = 0;
  Op* head_ = nullptr;
  Op* tail_ = nullptr;
  uint64_t sent_bytes_ = 0;
  uint64_t expected_bytes_ = 0;
};

}  // namespace weir::plugins::shm
