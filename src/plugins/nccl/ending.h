// SPDX-License-Identifier: Apache-2.0
// Ending: the end of an NCCL communicator in a thread of its own, since ncclCommAbort and
// ncclCommDestroy may take long or hang. Whoever waits for it waits for a bounded time; a thread that hangs
// is left behind and touches nothing but what is in here. begin, done and wait by one thread.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>

#include "plugins/nccl/driver.h"
#include "plugins/nccl/library.h"

namespace weir::plugins::nccl {

class Ending {
 public:
  // `aborts`: whatever peers do; otherwise what is under way is finished first. False: no thread.
  bool begin(const Library& library, const Driver& driver, void* context, ncclComm_t comm,
             bool aborts);
  bool has_begun() const { return state_ != nullptr; }
  bool done() const;
  // Waits until it is, for `timeout_ms` at most.
  bool wait(int timeout_ms) const;
  // After an end that was begun without: what still waits for peers is aborted.
  void abort();

 private:
  struct State {
    std::mutex lock;
    std::condition_variable changed;
    bool done = false;
    bool aborts = false;
  };
  static void run(const std::shared_ptr<State>& state, const Library& library, const Driver& driver,
                  void* context, ncclComm_t comm);

  std::shared_ptr<State> state_;  // the thread's as well
};

}  // namespace weir::plugins::nccl
