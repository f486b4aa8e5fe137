// SPDX-License-Identifier: Apache-2.0
#include "core/sim/message_pool.h"

#include <utility>

namespace weir::sim {

namespace {
constexpr uint32_t kFirstSlotsLog2 = 10;
}

MessagePool::MessagePool()
    : slots_(size_t{1} << kFirstSlotsLog2, Slot{kEmpty, kNone, kNone}),
      shift_(64 - kFirstSlotsLog2) {}

void MessagePool::enqueue(uint32_t index) {
  if (2 * (queue_count_ + 1) > slots_.size()) grow();
  Message& message = messages_[index];
  message.next = kNone;
  const uint64_t key = key_of(message.source, message.target, message.lane);
  const size_t mask = slots_.size() - 1;
  size_t i = home(key);
  while (slots_[i].key != kEmpty && slots_[i].key != key) i = (i + 1) & mask;
  if (slots_[i].key == kEmpty) {
    slots_[i] = {key, index, index};
    ++queue_count_;
  } else {
    messages_[slots_[i].tail].next = index;
    slots_[i].tail = index;
  }
}

uint32_t MessagePool::dequeue_slow(uint64_t key) {
  const size_t mask = slots_.size() - 1;
  size_t i = home(key);
  while (slots_[i].key != key) {
    if (slots_[i].key == kEmpty) return kNone;
    i = (i + 1) & mask;
  }
  const uint32_t index = slots_[i].head;
  if (slots_[i].head == slots_[i].tail) {
    erase(i);
  } else {
    slots_[i].head = messages_[index].next;
  }
  return index;
}

void MessagePool::erase(size_t slot) {
  const size_t mask = slots_.size() - 1;
  size_t hole = slot;
  for (size_t i = (slot + 1) & mask; slots_[i].key != kEmpty; i = (i + 1) & mask) {
    // An entry may fill the hole only if its home is not after the hole.
    if (((i - home(slots_[i].key)) & mask) >= ((i - hole) & mask)) {
      slots_[hole] = slots_[i];
      hole = i;
    }
  }
  slots_[hole].key = kEmpty;
  --queue_count_;
}

void MessagePool::grow() {
  std::vector<Slot> old(slots_.size() * 2, Slot{kEmpty, kNone, kNone});
  std::swap(old, slots_);
  --shift_;
  const size_t mask = slots_.size() - 1;
  for (const Slot& slot : old) {
    if (slot.key == kEmpty) continue;
    size_t i = home(slot.key);
    while (slots_[i].key != kEmpty) i = (i + 1) & mask;
    slots_[i] = slot;
  }
}

}  // namespace weir::sim
