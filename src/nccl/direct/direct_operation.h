// SPDX-License-Identifier: Apache-2.0
// DirectOperation: an operation that is tried from device to device (direct_message.h). Not
// thread-safe; used by the thread that runs the communicator's operations.
#pragma once

#include "nccl/base/outcome.h"

namespace weir::nccl {

class DirectOperation {
 public:
  enum class State { kGoing, kDone, kRefused };

  DirectOperation() = default;
  virtual ~DirectOperation() = default;
  DirectOperation(const DirectOperation&) = delete;
  DirectOperation& operator=(const DirectOperation&) = delete;

  // Does what can be done now. After an error, or any state but kGoing, the operation has ended
  // here and nothing of it is in progress. kRefused: it must be staged; all ranks that take part
  // get this state. `moved`: another call may make progress at once.
  virtual Outcome advance(State* state, bool* moved) = 0;
};

}  // namespace weir::nccl
