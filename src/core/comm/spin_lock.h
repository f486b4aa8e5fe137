// SPDX-License-Identifier: Apache-2.0
// SpinLock: mutual exclusion for the few hundred nanoseconds that a communicator is touched; yields
// when it is held longer. Meets the standard's Lockable.
#pragma once

#include <sched.h>

#include <atomic>

#include "core/base/clock.h"

namespace weir::comm {

class SpinLock {
 public:
  void lock() {
    for (uint32_t tries = 0; !try_lock(); ++tries) {
      if (tries < 64) {
        cpu_relax();
      } else {
        sched_yield();
      }
    }
  }
  bool try_lock() { return !held_.exchange(true, std::memory_order_acquire); }
  void unlock() { held_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> held_{false};
};

}  // namespace weir::comm
