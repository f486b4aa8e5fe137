// SPDX-License-Identifier: Apache-2.0
// The types behind the opaque handles of weir.h.
#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "core/base/process_generation.h"
#include "core/comm/communicator.h"
#include "weir/weir.h"

inline constexpr uint64_t kWindowMark = 0x6e69772d72696577ull;  // "weir-win"

// Of registered memory, or for one-sided operations. The communicator outlives it.
struct weir_window {
  uint64_t mark = kWindowMark;
  weir_comm_t comm = nullptr;
  const weir::comm::OneSidedWindow* one_sided = nullptr;  // nullptr: of registered memory
  const weir::comm::DeviceWindow* on_devices = nullptr;   // whose collectives use it
};

// The mark, this value and the generation of the process, detects a handle that is invalid,
// destroyed, or made by the process from which this one was forked, as long as the memory still
// holds it.
inline constexpr uint64_t kCommMark = 0x6d6f632d72696577ull;  // "weir-com"

struct weir_comm {
  uint64_t mark = kCommMark + weir::process_generation();
  // Windows end with the communicator at the latest.
  std::mutex windows_lock;
  std::vector<std::unique_ptr<weir_window>> windows;
  std::unique_ptr<weir::comm::Communicator> comm;

  weir_window_t add_window(std::unique_ptr<weir_window> window) {
    const std::lock_guard lock(windows_lock);
    return windows.emplace_back(std::move(window)).get();
  }
  bool has_window(weir_window_t window) {
    const std::lock_guard lock(windows_lock);
    return std::any_of(windows.begin(), windows.end(),
                       [&](const auto& it) { return it.get() == window; });
  }
  // nullptr: it has no such window.
  std::unique_ptr<weir_window> take_window(weir_window_t window) {
    const std::lock_guard lock(windows_lock);
    const auto found = std::find_if(windows.begin(), windows.end(),
                                    [&](const auto& it) { return it.get() == window; });
    if (found == windows.end()) return nullptr;
    std::unique_ptr<weir_window> taken = std::move(*found);
    windows.erase(found);
    taken->mark = 0;
    return taken;
  }

  bool is_alive() const { return mark == kCommMark + weir::process_generation_if_known(); }
  // The process from which this one was forked made it.
  bool is_of_parent() const {
    return mark > kCommMark && mark < kCommMark + weir::process_generation();
  }
};

inline constexpr uint64_t kArenaMark = 0x6e7261722d726977ull;  // "wir-rarn"

// The communicator need not outlive it.
struct weir_arena {
  uint64_t mark = kArenaMark + weir::process_generation();
  std::shared_ptr<weir::comm::Arena> arena;

  bool is_alive() const { return mark == kArenaMark + weir::process_generation_if_known(); }
  bool is_of_parent() const {
    return mark > kArenaMark && mark < kArenaMark + weir::process_generation();
  }
};

namespace weir::api {

// Starts a collective whose arguments are right; without a request and outside of a group, also
// waits for it.
weir_result_t submit(weir_comm_t comm, const engine::Call& call, weir_request_t* request);

// Before `comm` is destroyed: its calls in this thread's open group never begin.
void leave_open_group(weir_comm_t comm);

}  // namespace weir::api

namespace weir {

// As weir_send and weir_recv with a buffer that the caller knows to lie on `device`; also on a
// communicator made with WEIR_COMM_HOST_MEMORY.
weir_result_t device_message(bool sends, weir_comm_t comm, void* buffer, size_t count,
                             weir_datatype_t type, int peer, int device, weir_request_t* request);

// As weir_all_gather of bytes, for what ranks tell each other when they make or change a
// communicator; texts say so.
weir_result_t gather_for_setup(weir_comm_t comm, const void* send, void* recv, size_t bytes);

// As weir_window_create, for a caller that can reach memory of other ranks without the transport;
// all ranks call this. Puts that are not done by loads and stores are sent as messages. *is_mapped:
// every rank reaches all.
weir_result_t create_reached_window(weir_comm_t comm, void* memory, size_t bytes,
                                    const comm::OneSidedReach& reach, weir_window_t* window,
                                    bool* is_mapped);

}  // namespace weir
