// SPDX-License-Identifier: Apache-2.0
#include "plugins/tcp/prelude.h"

#include <string.h>

#include <algorithm>
#include <utility>

namespace weir::plugins::tcp {

void Prelude::put(uint32_t lane, uint64_t at, const void* data, size_t bytes) {
  unsigned char* ring = memory_ + lane * kEarlyWindowBytes;
  const size_t first = at % kEarlyWindowBytes;
  const size_t part = std::min<size_t>(bytes, kEarlyWindowBytes - first);
  memcpy(ring + first, data, part);
  memcpy(ring, static_cast<const unsigned char*>(data) + part, bytes - part);
}

void Prelude::get(uint32_t lane, uint64_t at, void* data, size_t bytes) const {
  const unsigned char* ring = memory_ + lane * kEarlyWindowBytes;
  const size_t first = at % kEarlyWindowBytes;
  const size_t part = std::min<size_t>(bytes, kEarlyWindowBytes - first);
  memcpy(data, ring + first, part);
  memcpy(static_cast<unsigned char*>(data) + part, ring, bytes - part);
}

bool Prelude::may_arrive(uint32_t lane_index, uint64_t bytes) const {
  const Lane& lane = lanes_[lane_index];
  // What was taken and not told of yet is still counted by who sends.
  return !lane.peer_began && bytes <= kEarlyBytesMax &&
         lane.got_bytes - lane.told_taken_bytes + wire::kHeaderBytes + bytes <= kEarlyWindowBytes;
}

void Prelude::arrived(uint32_t lane_index, const unsigned char* data, uint64_t bytes) {
  Lane& lane = lanes_[lane_index];
  // Most lanes never touch more than the first page.
  if (lane.taken == lane.got) lane.kept_begin = lane.kept_end = 0;
  const auto length = static_cast<uint32_t>(bytes);
  put(lane_index, lane.kept_end, &length, kLengthBytes);
  if (length != 0) put(lane_index, lane.kept_end + kLengthBytes, data, length);
  lane.kept_end += kLengthBytes + length;
  lane.got_bytes += wire::kHeaderBytes + bytes;
  ++lane.got;
}

uint64_t Prelude::message_bytes(uint32_t lane) const {
  uint32_t length = 0;
  get(lane, lanes_[lane].kept_begin, &length, kLengthBytes);
  return length;
}

void Prelude::take(uint32_t lane_index, void* data) {
  Lane& lane = lanes_[lane_index];
  const uint64_t bytes = message_bytes(lane_index);
  if (bytes != 0) get(lane_index, lane.kept_begin + kLengthBytes, data, bytes);
  lane.kept_begin += kLengthBytes + bytes;
  lane.taken_bytes += wire::kHeaderBytes + bytes;
  ++lane.taken;
}

bool Prelude::hear(const wire::MessageHeader& word) {
  Lane& lane = lanes_[word.lane];
  switch (word.kind) {
    case wire::MessageKind::kTaken:
      if (word.count <= lane.peer_took_bytes || word.count > lane.sent_bytes) return false;
      lane.peer_took_bytes = word.count;
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
    if (lane.taken_bytes - lane.told_taken_bytes >= kTellBytes && !lane.peer_began) {
      word->count = lane.told_taken_bytes = lane.taken_bytes;
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
