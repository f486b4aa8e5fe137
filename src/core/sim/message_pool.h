// SPDX-License-Identifier: Apache-2.0
// MessagePool: the messages in flight, and the queues (one per sender, receiver and lane) of those
// that arrived before they were received. A message that is already waited for never enters a
// queue, so memory is needed only for messages that are ahead of their receiver. Not thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/types.h"
#include "core/sim/costs.h"

namespace weir::sim {

inline constexpr uint32_t kNone = 0xffffffffu;

// Where the time on a chain of dependences went; the rest of the time was contention.
struct Path {
  Picoseconds overhead = 0;
  Picoseconds latency = 0;
  Picoseconds transfer = 0;
  Picoseconds compute = 0;
};

struct Message {
  Rank source = 0;
  Rank target = 0;
  // In its queue, or in the free list. Before it arrives: how many links of its way it has claimed.
  uint32_t next = kNone;
  uint32_t hops : 22;
  // The source's core writes the target's memory, or the target's core reads the source's.
  uint32_t is_write : 1;
  uint32_t is_read : 1;
  uint32_t lane : 8;
  uint64_t bytes = 0;
  Picoseconds end = 0;  // when the last byte leaves the port that was claimed last
  Path path;

  Message() : hops(0), is_write(0), is_read(0), lane(0) {}
  bool is_access() const { return is_write != 0 || is_read != 0; }
};
static_assert(sizeof(Message) == 64);

class MessagePool {
 public:
  MessagePool();

  uint32_t acquire() {
    ++in_flight_;
    if (in_flight_ > peak_) peak_ = in_flight_;
    if (free_ == kNone) {
      messages_.emplace_back();
      return static_cast<uint32_t>(messages_.size() - 1);
    }
    const uint32_t index = free_;
    free_ = messages_[index].next;
    return index;
  }
  void release(uint32_t index) {
    messages_[index].next = free_;
    free_ = index;
    --in_flight_;
  }
  Message& at(uint32_t index) { return messages_[index]; }
  uint64_t in_flight() const { return in_flight_; }
  uint64_t peak() const { return peak_; }

  // Appends an arrived message to the queue of its (source, target, lane).
  void enqueue(uint32_t index);
  // The first message of the queue, no longer in it, or kNone.
  uint32_t dequeue(Rank source, Rank target, uint32_t lane) {
    return queue_count_ == 0 ? kNone : dequeue_slow(key_of(source, target, lane));
  }

 private:
  struct Slot {
    uint64_t key;
    uint32_t head;
    uint32_t tail;
  };
  static constexpr uint64_t kEmpty = ~uint64_t{0};

  static uint64_t key_of(Rank source, Rank target, uint32_t lane) {
    return (uint64_t{target} << 36) | (uint64_t{source} << 8) | lane;
  }
  size_t home(uint64_t key) const {
    return static_cast<size_t>((key * 0x9e3779b97f4a7c15u) >> shift_);
  }
  uint32_t dequeue_slow(uint64_t key);
  void erase(size_t slot);
  void grow();

  std::vector<Message> messages_;
  uint32_t free_ = kNone;
  uint64_t in_flight_ = 0;
  uint64_t peak_ = 0;
  // Open addressing with linear probing and backward-shift deletion.
  std::vector<Slot> slots_;
  uint32_t shift_ = 0;
  size_t queue_count_ = 0;
};

}  // namespace weir::sim
