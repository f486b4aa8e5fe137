// SPDX-License-Identifier: Apache-2.0
#include "core/comm/stream/message_end.h"

#include <algorithm>
#include <atomic>

#include "core/comm/stream/staging.h"
#include "cuda/kernels/message_loop.h"

namespace weir::comm {

namespace {

uint32_t counter(const kernels::MessageLane& lane, bool sends) {
  return load_word(sends ? lane.put : lane.taken);
}

uint64_t load_begun(const uint64_t& word) {
  return std::atomic_ref(const_cast<uint64_t&>(word)).load(std::memory_order_acquire);
}

}  // namespace

MessageEnd::MessageEnd(const StreamMemory& memory, Rank peer, bool sends, uint64_t bytes,
                       const uint64_t* begun, const MessageEnd* before)
    : peer_(peer),
      sends_(sends),
      lane_count_(kernels::lanes_of(bytes)),
      lanes_(sends ? memory.flags().lanes(memory.rank(), peer)
                   : memory.flags().lanes(peer, memory.rank())),
      begun_(begun) {
  const uint64_t slot_bytes = memory.message_slot_bytes();
  for (uint32_t i = 0; i < kernels::kMessageLanes; ++i) {
    pieces_[i] = before != nullptr ? before->pieces_[i] : 0;
    if (i >= lane_count_) continue;
    const uint64_t stripe = kernels::stripe_bytes(bytes, i);
    const uint64_t pieces = (stripe + slot_bytes - 1) / slot_bytes;
    pieces_[i] += static_cast<uint32_t>(std::max<uint64_t>(pieces, 1));
  }
}

bool MessageEnd::has_come() const {
  for (uint32_t i = 0; i < lane_count_; ++i) {
    const uint64_t begun = load_begun(begun_[i]);
    if ((begun & kernels::kMessageBegun) == 0) return false;
    const uint32_t pieces = counter(lanes_[i], sends_) - static_cast<uint32_t>(begun);
    if (static_cast<int32_t>(pieces - pieces_[i]) < 0) return false;
  }
  return true;
}

bool MessageEnd::is_left() const {
  return std::all_of(lanes_, lanes_ + kernels::kMessageLanes, [&](const auto& lane) {
    return load_word(sends_ ? lane.sends : lane.receives) == 0;
  });
}

}  // namespace weir::comm
