// SPDX-License-Identifier: Apache-2.0
// State of which a process has one, and what becomes of it in a child made by fork() or clone():
// another thread of the parent may have been at it, and is not there to let go of a lock or to end
// what it began. To stand in a constinit object, so that there is no guard of a static to be held
// either. Nothing is destroyed: threads go on while a process ends. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>

#include "core/base/process_generation.h"

namespace weir {

// A child has its own, made anew: for what speaks of threads, connections and files of one process,
// and for locks.
template <typename T>
class PerProcess {
 public:
  constexpr PerProcess() = default;
  PerProcess(const PerProcess&) = delete;
  PerProcess& operator=(const PerProcess&) = delete;

  T& get() {
    const uint64_t now = process_generation();
    Entry* entry = entry_.load(std::memory_order_acquire);
    if (entry != nullptr && entry->generation == now) [[likely]]
      return entry->value;
    auto* const made = new Entry{now, entry, T()};
    if (entry_.compare_exchange_strong(entry, made)) return made->value;
    delete made;  // another thread was first
    return entry->value;
  }
  T* operator->() { return &get(); }

 private:
  struct Entry {
    uint64_t generation;
    Entry* of_parent;  // what it holds is left as it is
    T value;
  };

  std::atomic<Entry*> entry_{nullptr};
};

// State with its lock. A child goes on with what its parent had, unless a thread of the parent was
// at it at that moment: then it has its own, made anew.
template <typename T>
class InheritedState {
 public:
  class Access {
   public:
    explicit Access(InheritedState* from) : from_(from), lock_(from->lock_.get()) {
      if (from_->value_ == nullptr || from_->in_use_.load()) from_->value_ = new T();
      from_->in_use_.store(true);  // before anything is changed
    }
    ~Access() { from_->in_use_.store(false); }
    Access(const Access&) = delete;
    Access& operator=(const Access&) = delete;

    T& operator*() const { return *from_->value_; }
    T* operator->() const { return from_->value_; }

   private:
    InheritedState* const from_;
    const std::lock_guard<std::mutex> lock_;
  };

  constexpr InheritedState() = default;
  InheritedState(const InheritedState&) = delete;
  InheritedState& operator=(const InheritedState&) = delete;

  // Locked until the result goes.
  Access use() { return Access(this); }

 private:
  PerProcess<std::mutex> lock_;
  std::atomic<bool> in_use_{false};
  T* value_ = nullptr;
};

}  // namespace weir
