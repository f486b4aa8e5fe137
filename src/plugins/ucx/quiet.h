// SPDX-License-Identifier: Apache-2.0
// Keeps UCX from disturbing the program that it is loaded into: what it logs while it works for us
// is kept for our error texts instead of being printed, and its handlers of fatal signals are
// removed. A user that sets UCX_LOG_LEVEL, or UCX_HANDLE_ERRORS or UCX_ERROR_SIGNALS, gets what UCX
// does with them. Thread-safe.
#pragma once

#include <string>

namespace weir::plugins::ucx {

// The latest message of UCX.
struct Heard {
  char text[256] = "";

  // " (UCX: <text>)" or "", and forgets it.
  std::string take();
};

// While one lives, what UCX logs on this thread goes to `heard`. Cheap enough for every call.
class Listening {
 public:
  explicit Listening(Heard* heard) : before_(current_) { current_ = heard; }
  ~Listening() { current_ = before_; }
  Listening(const Listening&) = delete;
  Listening& operator=(const Listening&) = delete;
  static Heard* current() { return current_; }

 private:
  // This module is never unloaded and holds one pointer: it fits beside what was loaded first.
  static thread_local Heard* current_ __attribute__((tls_model("initial-exec")));
  Heard* before_;
};

// Once per process; later calls do nothing.
void be_quiet();

}  // namespace weir::plugins::ucx
