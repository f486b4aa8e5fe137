// SPDX-License-Identifier: Apache-2.0
#include "core/base/fork_barred.h"

#include <pthread.h>

#include <atomic>
#include <chrono>

#include "core/base/per_process.h"

namespace weir {

namespace {

constexpr std::chrono::seconds kPatience{2};

constinit PerProcess<std::shared_timed_mutex> mutex;
thread_local int held_count = 0;
thread_local bool forks = false;  // this thread forks and holds the mutex for it

void before_fork() { forks = held_count == 0 && mutex->try_lock_for(kPatience); }

void after_fork_in_parent() {
  if (forks) mutex->unlock();
  forks = false;
}

// The child's mutex is a new one.
void after_fork_in_child() { forks = false; }

std::shared_timed_mutex& registered_mutex() {
  static constinit std::atomic<bool> is_registered{false};
  if (!is_registered.load(std::memory_order_relaxed) && !is_registered.exchange(true)) {
    (void)pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  }
  return mutex.get();
}

}  // namespace

ForkBarred::ForkBarred() : mutex_(held_count++ == 0 ? &registered_mutex() : nullptr) {
  if (mutex_ != nullptr) mutex_->lock_shared();
}

ForkBarred::~ForkBarred() {
  --held_count;
  if (mutex_ != nullptr) mutex_->unlock_shared();
}

}  // namespace weir
