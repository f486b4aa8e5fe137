// SPDX-License-Identifier: Apache-2.0
// Messages that are on their way or wait for their receiver, and the times of signals: what the
// ranks of a followed program have sent each other. Not thread-safe.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "core/base/types.h"
#include "core/cost/op_stream.h"

namespace weir::cost {

class Mailboxes {
 public:
  static constexpr uint32_t kNone = ~uint32_t{0};

  struct Message {
    Rank source = 0;
    uint32_t target = 0;  // lane of the receiver
    uint32_t next = kNone;
    uint64_t bytes = 0;
    Picoseconds first = 0;  // when the receiver may begin to copy it out
    Picoseconds last = 0;   // the earliest time at which it can be done
  };

  Mailboxes() : boxes_(size_t{1} << kFirstBoxesLog2), shift_(64 - kFirstBoxesLog2) {}

  uint32_t acquire() {
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
  }
  Message& at(uint32_t index) { return messages_[index]; }

  // Messages of one sender for one lane are taken in the order in which they were put.
  void put(uint32_t index) {
    if (2 * (box_count_ + 1) > boxes_.size()) grow();
    Message& message = messages_[index];
    message.next = kNone;
    Box& box = find(key_of(message.source, message.target));
    if (box.key == kNoKey) {
      box.key = key_of(message.source, message.target);
      ++box_count_;
    }
    if (box.head == kNone) {
      box.head = index;
    } else {
      messages_[box.tail].next = index;
    }
    box.tail = index;
    ++waiting_;
  }
  // kNone: there is none.
  uint32_t take(Rank source, uint32_t target) {
    if (waiting_ == 0) return kNone;
    Box& box = find(key_of(source, target));
    const uint32_t index = box.head;
    if (index == kNone) return kNone;
    box.head = messages_[index].next;
    --waiting_;
    return index;
  }

 private:
  static constexpr uint32_t kFirstBoxesLog2 = 8;
  static constexpr uint64_t kNoKey = ~uint64_t{0};
  struct Box {
    uint64_t key = kNoKey;
    uint32_t head = kNone;
    uint32_t tail = kNone;
  };

  static uint64_t key_of(Rank source, uint32_t target) { return uint64_t{target} << 32 | source; }
  // Open addressing; a box that was used stays, even when it is empty.
  Box& find(uint64_t key) {
    const size_t mask = boxes_.size() - 1;
    size_t i = static_cast<size_t>((key * 0x9e3779b97f4a7c15u) >> shift_);
    while (boxes_[i].key != key && boxes_[i].key != kNoKey) i = (i + 1) & mask;
    return boxes_[i];
  }
  void grow() {
    std::vector<Box> old(boxes_.size() * 2);
    old.swap(boxes_);
    --shift_;
    for (const Box& box : old) {
      if (box.key != kNoKey) find(box.key) = box;
    }
  }

  std::vector<Message> messages_;
  uint32_t free_ = kNone;
  std::vector<Box> boxes_;
  uint32_t shift_;
  size_t box_count_ = 0;
  size_t waiting_ = 0;
};

class SignalTimes {
 public:
  // Signals to all ranks are those of the `followed` ranks.
  SignalTimes(Rank followed, uint64_t signal_count)
      : signal_count_(signal_count), to_all_(size_t{followed} * signal_count) {}

  // Those of one sender and index come in the order of time.
  void give_all(Rank sender, uint32_t index, Picoseconds time) {
    to_all_[size_t{sender} * signal_count_ + index].push_back(time);
  }
  void give(Rank sender, Rank target, uint32_t index, Picoseconds time) {
    to_one_[key_of(sender, target, index)].push_back(time);
  }
  // The `value`-th signal (from 1) from `sender`, for which `follower` stands, to `target`; nullptr
  // when it was not given yet.
  const Picoseconds* find(Rank sender, Rank follower, Rank target, uint32_t index,
                          uint64_t value) const {
    const auto& all = to_all_[size_t{follower} * signal_count_ + index];
    const auto found = to_one_.find(key_of(sender, target, index));
    if (found == to_one_.end()) return value <= all.size() ? &all[value - 1] : nullptr;
    const auto& one = found->second;
    if (value > all.size() + one.size()) return nullptr;
    size_t i = 0;
    size_t j = 0;
    const Picoseconds* time = nullptr;
    while (i + j < value) {
      const bool from_all = j == one.size() || (i < all.size() && all[i] <= one[j]);
      time = from_all ? &all[i++] : &one[j++];
    }
    return time;
  }

 private:
  static uint64_t key_of(Rank sender, Rank target, uint32_t index) {
    return uint64_t{target} << 42 | uint64_t{sender} << 20 | index;
  }

  uint64_t signal_count_;
  std::vector<std::vector<Picoseconds>> to_all_;  // [sender * signal_count + index]
  std::unordered_map<uint64_t, std::vector<Picoseconds>> to_one_;
};

}  // namespace weir::cost
