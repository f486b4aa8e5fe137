// SPDX-License-Identifier: Apache-2.0
// MessagePool: the messages in flight where programs are followed in time, and the queues (one per
// sender and lane of a receiver) of those that arrived before they were received. A message that is
// already waited for never enters a queue, so memory is needed only for messages that are ahead of
// their receiver. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/types.h"

namespace weir::cost {

inline constexpr uint32_t kNoMessage = ~uint32_t{0};

// A Message has a `uint32_t next`, which is the pool's where the message is free or in a queue.
template <typename Message>
class MessagePool {
 public:
  MessagePool() : queues_(size_t{1} << kFirstQueuesLog2), shift_(64 - kFirstQueuesLog2) {}

  // What is in the message is what it had before.
  uint32_t acquire() {
    ++in_flight_;
    if (in_flight_ > peak_) peak_ = in_flight_;
    if (free_ == kNoMessage) {
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
  // Until the next acquire().
  Message& at(uint32_t index) { return messages_[index]; }
  uint64_t in_flight() const { return in_flight_; }
  uint64_t peak() const { return peak_; }

  // Appends an arrived message to the queue of its sender and the receiver's lane, of all lanes of
  // all ranks.
  void put(Rank source, uint32_t lane, uint32_t index) {
    if (2 * (queue_count_ + 1) > queues_.size()) grow();
    messages_[index].next = kNoMessage;
    const uint64_t key = key_of(source, lane);
    Queue& queue = queues_[find(key)];
    if (queue.key == kNoKey) {
      queue = {key, index, index};
      ++queue_count_;
    } else {
      messages_[queue.tail].next = index;
      queue.tail = index;
    }
  }
  bool has(Rank source, uint32_t lane) const {
    return queue_count_ > 0 && queues_[find(key_of(source, lane))].key != kNoKey;
  }
  // The first message of the queue, no longer in it, or kNoMessage.
  uint32_t take(Rank source, uint32_t lane) {
    if (queue_count_ == 0) return kNoMessage;
    const size_t slot = find(key_of(source, lane));
    Queue& queue = queues_[slot];
    if (queue.key == kNoKey) return kNoMessage;
    const uint32_t index = queue.head;
    if (index == queue.tail) {
      erase(slot);
    } else {
      queue.head = messages_[index].next;
    }
    return index;
  }

 private:
  static constexpr uint32_t kFirstQueuesLog2 = 8;
  static constexpr uint64_t kNoKey = ~uint64_t{0};
  struct Queue {
    uint64_t key = kNoKey;
    uint32_t head = kNoMessage;
    uint32_t tail = kNoMessage;
  };

  static uint64_t key_of(Rank source, uint32_t lane) { return uint64_t{lane} << 32 | source; }
  size_t home(uint64_t key) const {
    return static_cast<size_t>((key * 0x9e3779b97f4a7c15u) >> shift_);
  }
  // Where the queue with this key is, or may be put.
  size_t find(uint64_t key) const {
    const size_t mask = queues_.size() - 1;
    size_t i = home(key);
    while (queues_[i].key != key && queues_[i].key != kNoKey) i = (i + 1) & mask;
    return i;
  }
  void erase(size_t slot) {
    const size_t mask = queues_.size() - 1;
    size_t hole = slot;
    for (size_t i = (slot + 1) & mask; queues_[i].key != kNoKey; i = (i + 1) & mask) {
      // An entry may fill the hole only if its home is not after the hole.
      if (((i - home(queues_[i].key)) & mask) >= ((i - hole) & mask)) {
        queues_[hole] = queues_[i];
        hole = i;
      }
    }
    queues_[hole].key = kNoKey;
    --queue_count_;
  }
  void grow() {
    std::vector<Queue> old(queues_.size() * 2);
    old.swap(queues_);
    --shift_;
    for (const Queue& queue : old) {
      if (queue.key != kNoKey) queues_[find(queue.key)] = queue;
    }
  }

  std::vector<Message> messages_;
  uint32_t free_ = kNoMessage;
  uint64_t in_flight_ = 0;
  uint64_t peak_ = 0;
  // Open addressing with linear probing and backward-shift deletion.
  std::vector<Queue> queues_;
  uint32_t shift_;
  size_t queue_count_ = 0;
};

}  // namespace weir::cost
