// SPDX-License-Identifier: Apache-2.0
// DirectOperation: one that is tried from device to device (direct_call.h, direct_message.h). Not thread-safe; used
// by the thread that runs the communicator's operations.
#pragma once

#include "nccl/outcome.h"

namespace weir::nccl {

class DirectOperation {
 public:
  enum class State { kGoing, kDone, kRefused };

  DirectOperation() = default;
  virtual ~DirectOperation() = default;
  DirectOperation(const DirectOperation&) = delete;
  DirectOperation& operator=(const DirectOperation&) = delete;

  // Does what can be done now. After an error, or any state but kGoing, it is over and nothing of it is
  // under way; kRefused, which all who take part are told: it is to be staged. `moved`: another look may find
  // more to do at once.
  virtual Outcome advance(State* state, bool* moved) = 0;
};

}  // namespace weir::nccl
