// SPDX-License-Identifier: Apache-2.0
// Delays fork() while a thread does something that must not be half done in a child: a call of the
// loader, or holding a library's lock that nothing would release in the child. Thread-safe; a
// thread may hold several. It has no effect on clone(), which does not run fork's handlers.
#pragma once

#include <shared_mutex>

namespace weir {

// While one lives, fork() by another thread waits, but not longer than 2 s: the holder may itself
// wait for a lock of the forking thread. Threads that hold one do not wait for each other.
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
