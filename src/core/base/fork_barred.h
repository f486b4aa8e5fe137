// SPDX-License-Identifier: Apache-2.0
// Keeps fork() waiting while a thread is at something that a child could not use half done: in the
// loader, or with a lock of a library that nobody lets go of in the child. Thread-safe; a thread
// may hold several. Not for clone() without fork's handlers.
#pragma once

#include <shared_mutex>

namespace weir {

// While one lives, fork() by another thread waits, though not longer than 2 s: who holds it may
// itself be waiting for a lock of the thread that forks. Threads that hold one do not wait for each
// other.
class ForkBarred {
 public:
  ForkBarred();
  ~ForkBarred();
  ForkBarred(const ForkBarred&) = delete;
  ForkBarred& operator=(const ForkBarred&) = delete;

 private:
  std::shared_timed_mutex* const mutex_;  // nullptr: the thread holds one already
};

}  // namespace weir
