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

// Holds a lock for its scope, unless it is released. As std::unique_lock, except that the compiler
// knows for each path whether the lock is held, so that a warm call pays for no flag.
class SpinLockHold {
 public:
  explicit SpinLockHold(SpinLock& lock) : lock_(&lock) { lock.lock(); }
  ~SpinLockHold() {
    if (lock_ != nullptr) lock_->unlock();
  }
  SpinLockHold(const SpinLockHold&) = delete;
  SpinLockHold& operator=(const SpinLockHold&) = delete;

  // From now on the caller, not this object, must unlock it.
  void release() { lock_ = nullptr; }

 private:
  SpinLock* lock_;
};

}  // namespace weir::comm
