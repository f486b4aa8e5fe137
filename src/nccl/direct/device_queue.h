// SPDX-License-Identifier: Apache-2.0
// DeviceQueue: a stream of the library's own, on which a proxy copies to, from and between devices.
// A flag in pinned memory tells how far the stream has come, so that no call to CUDA has to wait.
// It carries none of the program's work, so that its own work always ends.
//
// Made by the thread that enqueues; after that, used by the proxy only.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "nccl/base/outcome.h"
#include "nccl/cuda/driver.h"
#include "nccl/cuda/staging.h"

namespace weir::nccl {

class DeviceQueue {
 public:
  // On the device of the current context. Legal while a stream of this thread is captured.
  static Outcome make(const cuda::Driver& driver, const char* function,
                      std::shared_ptr<DeviceQueue>* made);
  ~DeviceQueue();
  DeviceQueue(const DeviceQueue&) = delete;
  DeviceQueue& operator=(const DeviceQueue&) = delete;

  cuda::Context context() const { return context_; }
  const cuda::Driver& driver() const { return driver_; }

  // `blocks` rows of `bytes`, at distances of their own on both sides.
  Outcome copy(const char* function, void* to, size_t to_stride, const void* from,
               size_t from_stride, size_t blocks, size_t bytes);
  // Marks the end of what was enqueued so far. If that fails, the latest mark counts as passed when
  // the stream is empty.
  Outcome mark(const char* function);
  uint32_t latest() const { return latest_; }
  // Whether the stream has passed a mark, or never will because CUDA has failed; further calls then
  // fail, too.
  bool passed(uint32_t mark);
  // The error that CUDA has reported since for what was enqueued.
  Outcome failure(const char* function) const;

 private:
  explicit DeviceQueue(const cuda::Driver& driver) : driver_(driver) {}

  const cuda::Driver& driver_;
  cuda::Context context_ = nullptr;
  cuda::Stream stream_ = nullptr;
  std::shared_ptr<Staging> flags_;
  uint32_t latest_ = 0;
  bool unmarked_ = false;  // work is enqueued that no mark follows
  std::chrono::steady_clock::time_point next_query_;
  cuda::Result failed_ = cuda::kSuccess;
};

}  // namespace weir::nccl
