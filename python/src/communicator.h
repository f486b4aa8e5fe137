// SPDX-License-Identifier: Apache-2.0
// A Weir communicator that is shared by a backend and by its operations in flight, and Weir's
// errors as PyTorch's exceptions. Thread-safe, as weir.h says.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "weir/weir.h"

namespace weir::pytorch {

// Gloo's words, for which programs look in errors.
inline constexpr char kTimedOut[] = "Timed out because ";

class SharedCommunicator {
 public:
  // Takes `handle` over. It is aborted where callbacks wait for its operations as Python ends.
  // nullptr: it only keeps hooks. `members`: its ranks as ranks of the default group, for texts;
  // empty: the same.
  static std::shared_ptr<SharedCommunicator> create(weir_comm_t handle,
                                                    std::chrono::milliseconds timeout,
                                                    std::vector<int> members = {});
  ~SharedCommunicator();
  SharedCommunicator(const SharedCommunicator&) = delete;
  SharedCommunicator& operator=(const SharedCommunicator&) = delete;

  weir_comm_t handle() const { return handle_; }

  // Calls `start` so that the operation which it starts has `timeout` as its deadline. `start` must
  // not wait.
  template <typename Start>
  weir_result_t start_within(std::chrono::milliseconds timeout, Start&& start) {
    const std::lock_guard lock(mutex_);
    if (const weir_result_t result = set_deadline(timeout); result != WEIR_OK) return result;
    return start();
  }

  // ---- Hooks that are called once, before the communicator ends by an error or by abort ----
  // They may run Python: no lock is held meanwhile. What they throw is a warning.
  void add_abort_hook(int64_t id, std::function<void()> hook);
  void remove_abort_hook(int64_t id);
  // Those of `previous`, which has ended, are called before the end of this one.
  void take_abort_hooks(SharedCommunicator& previous);
  void abort();

  // The exception of the call `what`, a literal, that failed. Calls after the one with which the
  // communicator ended are told which that was. The hooks are called where it has ended.
  std::exception_ptr failed(weir_result_t result, const char* what);

  // Whether operations that start now have this deadline already; then no lock is needed.
  bool has_deadline(std::chrono::milliseconds timeout) const {
    return deadline_.load(std::memory_order_relaxed) == timeout.count();
  }

 private:
  // To copy one that runs Python would take Python's lock, while hooks_mutex_ is held.
  using Hook = std::shared_ptr<const std::function<void()>>;

  SharedCommunicator(weir_comm_t handle, std::chrono::milliseconds timeout,
                     std::vector<int> members);
  weir_result_t set_deadline(std::chrono::milliseconds timeout);
  void call_abort_hooks();

  weir_comm_t handle_;
  std::mutex mutex_;
  std::atomic<int64_t> deadline_;
  std::atomic<const char*> ended_in_{nullptr};  // the call that was told of the end first
  std::mutex hooks_mutex_;
  std::map<int64_t, Hook> hooks_;
  bool hooks_were_called_ = false;
};

// The exception for a call on `comm` (NULL: on none) that failed: ValueError for wrong arguments,
// torch.distributed.DistBackendError else. `what` is the operation, as the program called it.
// `members`: as of SharedCommunicator::create, which a call on its communicator need not give.
std::exception_ptr exception_of(weir_result_t result, weir_comm_t comm, const std::string& what,
                                const std::vector<int>& members = {});

// Throws it, where `result` is an error.
void check(weir_result_t result, weir_comm_t comm, const char* what,
           const std::vector<int>& members = {});

}  // namespace weir::pytorch
