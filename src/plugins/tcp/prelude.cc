// SPDX-License-Identifier: Apache-2.0
#include "plugins/tcp/prelude.h"

#include <algorithm>
#include <utility>

namespace weir::plugins::tcp {

unsigned char* Prelude::place(uint32_t lane_index, uint64_t bytes) {
  const Lane& lane = lanes_[lane_index];
  // What was taken and not told of yet is still counted by who sends.
  const bool may_come = !lane.peer_began && lane.got - lane.told_taken < kEarlyCount;
  return may_come && bytes <= kEarlyBytesMax ? at(lane_index, lane.got) : nullptr;
}

void Prelude::arrived(uint32_t lane_index, uint64_t bytes) {
  Lane& lane = lanes_[lane_index];
  lane.bytes[lane.got++ % kEarlyCount] = static_cast<uint16_t>(bytes);
}

bool Prelude::hear(const wire::MessageHeader& word) {
  Lane& lane = lanes_[word.lane];
  switch (word.kind) {
    case wire::MessageKind::kTaken:
      if (word.count <= lane.peer_took || word.count > lane.sent) return false;
      lane.peer_took = word.count;
      return true;
    case wire::MessageKind::kWish:
      if (is_host_) return false;
      (void)want(word.lane);
      return true;
    case wire::MessageKind::kBegin:
      if (lane.peer_began || word.count != lane.got) return false;
      lane.peer_began = true;
      return true;
    default:
      return false;
  }
}

const unsigned char* Prelude::message(uint32_t lane_index, uint64_t* bytes) const {
  const Lane& lane = lanes_[lane_index];
  *bytes = lane.bytes[lane.taken % kEarlyCount];
  return at(lane_index, lane.taken);
}

bool Prelude::in_use() const {
  return std::any_of(lanes_, lanes_ + kLaneCount,
                     [](const Lane& lane) { return !lane.told_begin; });
}

bool Prelude::want(uint32_t lane) {
  if (std::exchange(lanes_[lane].wanted, true)) return false;
  if (!is_host_) *news_ = true;
  return true;
}

bool Prelude::next_word(wire::MessageHeader* word) {
  for (uint32_t i = 0; i < kLaneCount; ++i) {
    Lane& lane = lanes_[i];
    *word = {};
    word->lane = static_cast<uint8_t>(i);
    if (is_host_ && lane.wanted && !lane.told_wish && !lane.begins) {
      lane.told_wish = true;
      word->kind = wire::MessageKind::kWish;
      return true;
    }
    if (lane.taken - lane.told_taken >= kTellCount && !lane.peer_began) {
      word->count = lane.told_taken = lane.taken;
      word->kind = wire::MessageKind::kTaken;
      return true;
    }
    if (lane.begins && !lane.told_begin) {
      lane.told_begin = true;
      word->count = lane.sent;
      word->kind = wire::MessageKind::kBegin;
      return true;
    }
  }
  return false;
}

}  // namespace weir::plugins::tcp
