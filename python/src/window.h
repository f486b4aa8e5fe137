// SPDX-License-Identifier: Apache-2.0
// Tensors that the ranks of a group open to each other (docs/one_sided.md): put, get, signals and
// atomic counters over weir.h. Thread-safe; whoever destroys one takes care that no other thread
// uses it.
#pragma once

#include <ATen/ATen.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "backend.h"
#include "communicator.h"
#include "operation.h"

namespace weir::pytorch {

class Window {
 public:
  using WorkPointer = c10::intrusive_ptr<c10d::Work>;

  // Collective over the group of `backend`. `memory` is flat, on the CPU, of any type and size; it
  // and `signal_count` words of 64 bits, which begin as 0, are open to the others.
  Window(const c10::intrusive_ptr<Backend>& backend, const at::Tensor& memory,
         int64_t signal_count);
  // As retire().
  ~Window();
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  const at::Tensor& memory() const { return memory_; }
  int64_t signal_count() const { return signals_.numel(); }
  // How many bytes `rank` has in the window.
  int64_t bytes_of(int rank) const;

  using Milliseconds = std::chrono::milliseconds;

  // `offset_bytes` counts from the begin of the target's memory. nullptr: it is complete, as always
  // where `is_async` is false. `timeout`, where it is set, instead of the group's.
  WorkPointer put(const at::Tensor& data, int target, int64_t offset_bytes, bool is_async,
                  Milliseconds timeout = c10d::kUnsetTimeout);
  WorkPointer put_signal(const at::Tensor& data, int target, int64_t offset_bytes, int64_t signal,
                         uint64_t value, bool is_async);
  WorkPointer get(const at::Tensor& data, int target, int64_t offset_bytes, bool is_async);
  WorkPointer signal(int target, int64_t signal, uint64_t value, bool is_async,
                     Milliseconds timeout = c10d::kUnsetTimeout);
  WorkPointer wait_signal(int64_t signal, uint64_t value, bool is_async,
                          Milliseconds timeout = c10d::kUnsetTimeout);
  // The previous values.
  uint64_t fetch_add(int target, int64_t signal, uint64_t value);
  uint64_t compare_swap(int target, int64_t signal, uint64_t expected, uint64_t desired);
  // This rank's own word.
  uint64_t signal_value(int64_t signal) const;
  // `target` -1: all ranks.
  void fence(int target);
  WorkPointer flush(int target, bool is_async);

  // Collective: returns when the operations of all ranks are done.
  void close();
  // Local: ends this rank's part.
  void retire();

 private:
  template <typename Start>
  WorkPointer start(const char* name, const at::Tensor& kept, bool is_async, Milliseconds timeout,
                    Start&& start);
  weir_comm_t comm() const { return comm_->handle(); }
  size_t word(int64_t signal, const char* what) const;
  void check_open(const char* what) const;
  void check_target(int target, const char* what) const;

  const c10::intrusive_ptr<Backend> backend_;
  const std::shared_ptr<SharedCommunicator> comm_;
  const at::Tensor memory_;
  const at::Tensor signals_;
  weir_window_t data_window_ = nullptr;
  weir_window_t signal_window_ = nullptr;
};

// Of all windows of the process, by operation ("PUT").
std::map<std::string, OperationCount> window_operation_counts();
void reset_window_operation_counts();

}  // namespace weir::pytorch
