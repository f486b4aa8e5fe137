// SPDX-License-Identifier: Apache-2.0
// DirectMessage: one end of a message that its receiver copies out of the sender's memory. No data
// pass through host memory. Both ends are ranks of one machine.
//
//   sender:    tells where its buffer lies                waits for the answer
//   receiver:              maps it, copies on its DeviceQueue, answers
//
// The sender's description of its buffer takes the message's place in the order of the pair's
// messages. The answers have a communicator of their own (DeviceState::answers), since they have no
// order with messages in the other direction. Where one of the two buffers cannot be used this way,
// both ends learn it in this exchange, and the message itself follows.
//
// Messages of one pair and direction are in order: the next begins when this one has ended. Not
// thread-safe; used by the thread that runs the communicator's operations.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "nccl/base/process.h"
#include "nccl/direct/device_queue.h"
#include "nccl/direct/direct_operation.h"
#include "nccl/direct/reach.h"
#include "nccl/direct/weir_call.h"
#include "nccl/host/operation.h"

namespace weir::nccl {

class DirectMessage : public DirectOperation {
 public:
  // `queue` empty: this end's buffer does not lie on a device. The operation must stay until it has
  // ended.
  DirectMessage(const Operation& operation, std::shared_ptr<DeviceQueue> queue);

  Outcome advance(State* state, bool* moved) override;

 private:
  enum class Phase { kBegin, kTelling, kCopying, kAnswering };
  // Crosses the wire.
  struct Shown {
    uint64_t bytes;
    uint32_t usable;  // 1: the range may be tried
    uint32_t zero;
    ProcessNumber process;
    DeviceRange range;
  };
  // Crosses the wire, too.
  enum class Answer : uint32_t {
    kCopied = 1,
    kNotThisTime,  // the receiver's buffer is of another kind
    kUnreachable,  // neither this message nor a later one can go directly
    kFailed,       // CUDA has refused the copy
    kOtherLength,
  };
  struct Reply {
    Answer answer;
    uint32_t zero;
    uint64_t bytes;  // that the receiver expects
  };

  Outcome step(State* state, bool* moved);
  Outcome begin();
  Outcome told(State* state);      // the receiver knows what the sender has shown
  Outcome answered(State* state);  // the answer has come, or is on its way
  Outcome answer(Answer it);
  Outcome other_length() const;
  bool sends() const { return operation_.kind == OperationKind::kSend; }

  const Operation& operation_;
  Comm& comm_;
  const std::shared_ptr<DeviceQueue> queue_;
  const size_t message_bytes_;
  Phase phase_ = Phase::kBegin;
  uint32_t mark_ = 0;
  Outcome failure_;  // the error behind the answer kFailed
  Shown shown_{};
  Reply reply_{};
  // The second one is for the answer; both use the members above.
  WeirCall call_;
  WeirCall answer_call_;
};

}  // namespace weir::nccl
