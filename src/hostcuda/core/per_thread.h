// SPDX-License-Identifier: Apache-2.0
// State of which each thread has one instance. It is made when the thread first asks for it and
// destroyed when the thread ends, after C++'s own thread_local objects. exit() destroys those of
// the calling thread before it runs the exit handlers of the program, which may still call us; this
// state stays until the process is gone. Each T is one state, so T is a type of its own. (As
// core/base/per_thread.h, since this is a program of its own.) Thread-safe.
#pragma once

#include <pthread.h>

#include <atomic>

namespace weir::hostcuda {

template <typename T>
class PerThread {
 public:
  static T& get() {
    if (mine_ == nullptr) [[unlikely]]
      make();
    return *mine_;
  }

 private:
  static void make() {
    T* const made = new T();
    // Without a key, which a process has only so many of, the instance is lost with its thread.
    if (const int key = find_key(); key >= 0) {
      (void)pthread_setspecific(static_cast<pthread_key_t>(key), made);
    }
    mine_ = made;
  }

  // -1: there is none. No guard of a static, which could stay locked in a forked child.
  static int find_key() {
    int known = key_.load(std::memory_order_acquire);
    if (known >= 0) return known;
    pthread_key_t made;
    if (pthread_key_create(&made, end) != 0) return -1;
    if (key_.compare_exchange_strong(known, static_cast<int>(made))) return static_cast<int>(made);
    (void)pthread_key_delete(made);  // another thread was faster
    return known;
  }

  static void end(void* instance) {
    mine_ = nullptr;
    delete static_cast<T*>(instance);
  }

  static inline constinit thread_local T* mine_ = nullptr;
  static inline constinit std::atomic<int> key_{-1};
};

}  // namespace weir::hostcuda
