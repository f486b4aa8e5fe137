// SPDX-License-Identifier: Apache-2.0
// MessageEnd: when this rank's end of a message that a kernel moves (message_call.h) is done, as
// the counters of its lanes tell. So nothing needs to stand behind the kernel in a stream to tell
// it, which would hold up other streams of the same hardware queue. With what counters the kernel
// began it tells itself: those of graphs may have run before it.
//
// Immutable; thread-safe.
#pragma once

#include <cstdint>

#include "core/base/types.h"
#include "core/comm/stream/stream_memory.h"
#include "cuda/kernels/message_arguments.h"

namespace weir::comm {

class MessageEnd {
 public:
  // `begun`: as in kernels::MessageOrder. `before`: the message before it of the same kernel with
  // this peer in this direction, or nullptr.
  MessageEnd(const StreamMemory& memory, Rank peer, bool sends, uint64_t bytes,
             const uint64_t* begun, const MessageEnd* before);

  bool is_before(Rank peer, bool sends) const { return peer_ == peer && sends_ == sends; }
  // All its pieces have moved: the buffer is the caller's again.
  bool has_come() const;
  // No kernel uses the lanes; of the last message.
  bool is_left() const;

 private:
  Rank peer_;
  bool sends_;
  uint32_t lane_count_;
  const kernels::MessageLane* lanes_;
  const uint64_t* begun_;
  uint32_t pieces_[kernels::kMessageLanes];  // of the kernel's, up to its last one
};

}  // namespace weir::comm
