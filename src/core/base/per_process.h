// SPDX-License-Identifier: Apache-2.0
// State of which a process has one instance, and its fate in a child made by fork() or clone():
// another thread of the parent may have been using it, and does not exist in the child to release a
// lock or to finish its work. Use it in a constinit object, so that no guard of a static can stay
// locked either. Nothing is destroyed: threads go on while a process ends. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>

#include "core/base/process_generation.h"

namespace weir {

// A child makes its own instance: for state that refers to threads, connections and files of one
// process, and for locks.
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
    delete made;  // another thread was faster
    return entry->value;
  }
  T* operator->() { return &get(); }

  // Replaces the instance by a new one; who holds a reference to the old one keeps it.
  void renew() {
    auto* const made = new Entry{process_generation(), nullptr, T()};
    made->of_parent = entry_.exchange(made);
  }

 private:
  struct Entry {
    uint64_t generation;
    Entry* of_parent;  // its contents are left as they are
    T value;
  };

  std::atomic<Entry*> entry_{nullptr};
};

// State with its lock. A child inherits its parent's state, unless a thread of the parent was using
// it during the fork: then the child makes its own.
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

  // Locked until the result is destroyed.
  Access use() { return Access(this); }

 private:
  PerProcess<std::mutex> lock_;
  std::atomic<bool> in_use_{false};
  T* value_ = nullptr;
};

}  // namespace weir
