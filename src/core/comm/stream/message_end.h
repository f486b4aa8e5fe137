// SPDX-License-Identifier: Apache-2.0
// MessageEnd: when this rank's end of a message that a kernel moves (message_call.h) is done, as
// the counters of its lanes tell. So nothing needs to stand behind the kernel in a stream to tell
// it, which would hold up other streams of the same hardware queue.
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
  // `before`: the message before it with this peer in this direction, which has not ended; nullptr:
  // no kernel of this rank uses the lanes now.
  MessageEnd(const StreamMemory& memory, Rank peer, bool sends, uint64_t bytes,
             const MessageEnd* before);

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
  uint32_t counters_[kernels::kMessageLanes];  // after it
};

}  // namespace weir::comm
