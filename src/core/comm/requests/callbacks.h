// SPDX-License-Identifier: Apache-2.0
// Callbacks of completed requests. A request completes under its communicator's lock, where a
// user's function must not be called: it is put into a queue of the process, and a thread that
// makes progress takes it from there once it holds no lock of Weir's. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/base/status.h"
#include "weir/weir.h"

namespace weir::comm {

struct Completion {
  weir_completion_t callback = nullptr;  // nullptr: none
  void* context = nullptr;
};

namespace callbacks_detail {
extern std::atomic<uint32_t> ready_count;
void run_all();
}  // namespace callbacks_detail

// How many groups the calling thread has open; kInCallback is added while it calls a callback. One
// word, since every warm call asks for both.
extern constinit thread_local uint32_t t_call_nesting;
constexpr uint32_t kInCallback = 1u << 31;

// `completion` is to be called with `code`. `of`: its owner, for `finish_callbacks`. Any locks may
// be held.
void add_ready(const void* of, const Completion& completion, Code code);

// Calls it now, in this thread. No lock of Weir's may be held.
void call_back(const Completion& completion, Code code);

// Calls the callbacks that are ready, in order. Within a callback it does nothing: the caller of
// that callback goes on with the rest. No lock of Weir's may be held.
inline void run_ready() {
  if (callbacks_detail::ready_count.load(std::memory_order_relaxed) != 0) [[unlikely]] {
    callbacks_detail::run_all();
  }
}

inline bool in_callback() { return (t_call_nesting & kInCallback) != 0; }

// Returns when no callback of `of` is waiting or being called by another thread.
void finish_callbacks(const void* of);

}  // namespace weir::comm
