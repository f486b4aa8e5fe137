// SPDX-License-Identifier: Apache-2.0
// Ending: the end of an NCCL communicator in a thread of its own, since ncclCommAbort and
// ncclCommDestroy may take long or hang. Waiting for it takes a bounded time; a thread that hangs
// is left behind and uses only what this object holds. begin, done and wait are called by one
// thread.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>

#include "plugins/nccl/driver.h"
#include "plugins/nccl/library.h"

namespace weir::plugins::nccl {

class Ending {
 public:
  // `aborts`: without regard to peers; otherwise operations in flight are finished first. False: no
  // thread could be started.
  bool begin(const Library& library, const Driver& driver, void* context, ncclComm_t comm,
             bool aborts);
  bool has_begun() const { return state_ != nullptr; }
  bool done() const;
  // Waits until the end is complete, for `timeout_ms` at most.
  bool wait(int timeout_ms) const;
  // After `begin` without `aborts`: aborts what still waits for peers.
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
