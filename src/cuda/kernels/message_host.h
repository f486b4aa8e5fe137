// SPDX-License-Identifier: Apache-2.0
// The message kernel as a function of the host, which Weir's stand-in for CUDA runs in its place.
// One thread at a time.
#pragma once

#include <vector>

#include "cuda/kernels/message_arguments.h"
#include "cuda/kernels/message_loop.h"

namespace weir::kernels {

class MessageMover {
 public:
  // What the arguments point to must stay, and the host must be able to access it.
  explicit MessageMover(const MessageArguments& arguments);

  // Moves at most one piece of each track. True when nothing is left, or the launch is stopped.
  bool advance(bool* any_moved);

 private:
  bool stopped() const { return load_counter(arguments_.stop) != 0; }

  const MessageArguments arguments_;
  std::vector<MessageTrack> tracks_;  // that have not ended
};

}  // namespace weir::kernels
