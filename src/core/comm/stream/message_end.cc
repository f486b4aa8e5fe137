// SPDX-License-Identifier: Apache-2.0
#include "core/comm/stream/message_end.h"

#include <algorithm>

#include "core/comm/stream/staging.h"
#include "cuda/kernels/message_loop.h"

namespace weir::comm {

namespace {

uint32_t counter(const kernels::MessageLane& lane, bool sends) {
  return load_word(sends ? lane.put : lane.taken);
}

}  // namespace

MessageEnd::MessageEnd(const StreamMemory& memory, Rank peer, bool sends, uint64_t bytes,
                       const MessageEnd* before)
    : peer_(peer),
      sends_(sends),
      lane_count_(kernels::lanes_of(bytes)),
      lanes_(sends ? memory.flags().lanes(memory.rank(), peer)
                   : memory.flags().lanes(peer, memory.rank())) {
  const uint64_t slot_bytes = memory.message_slot_bytes();
  for (uint32_t i = 0; i < kernels::kMessageLanes; ++i) {
    counters_[i] = before != nullptr ? before->counters_[i] : counter(lanes_[i], sends);
    if (i >= lane_count_) continue;
    const uint64_t stripe = kernels::stripe_bytes(bytes, i);
    const uint64_t pieces = (stripe + slot_bytes - 1) / slot_bytes;
    counters_[i] += static_cast<uint32_t>(std::max<uint64_t>(pieces, 1));
  }
}

bool MessageEnd::has_come() const {
  for (uint32_t i = 0; i < lane_count_; ++i) {
    if (static_cast<int32_t>(counter(lanes_[i], sends_) - counters_[i]) < 0) return false;
  }
  return true;
}

bool MessageEnd::is_left() const {
  return std::all_of(lanes_, lanes_ + kernels::kMessageLanes, [&](const auto& lane) {
    return load_word(sends_ ? lane.sends : lane.receives) == 0;
  });
}

}  // namespace weir::comm
