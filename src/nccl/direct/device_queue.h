// SPDX-License-Identifier: Apache-2.0
// DeviceQueue: a stream of the library's own, on which a proxy copies to, from and between devices. It
// tells by a flag in pinned memory how far the stream has come, so that nobody calls CUDA to wait.
// Nothing of the program's is ever put on it, so that what it holds always ends.
//
// Made by the thread that enqueues; after that, the proxy's.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "nccl/cuda/driver.h"
#include "nccl/kernels/reduce_arguments.h"
#include "nccl/outcome.h"
#include "nccl/stream/staging.h"

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
  // A kernel of ReduceArguments, on so many blocks (kernels/reduce_arguments.h).
  Outcome launch(const char* function, cuda::Function kernel,
                 const kernels::ReduceArguments& arguments, unsigned blocks);
  // Notes the end of what was put in so far. Where it fails, the latest mark is passed when the stream is
  // empty.
  Outcome mark(const char* function);
  uint32_t latest() const { return latest_; }
  // Whether the stream has passed a mark, or will not because CUDA has failed: then further calls fail.
  bool passed(uint32_t mark);
  // Of what was put in: what CUDA has told since, when it has failed.
  Outcome failure(const char* function) const;

 private:
  explicit DeviceQueue(const cuda::Driver& driver) : driver_(driver) {}

  const cuda::Driver& driver_;
  cuda::Context context_ = nullptr;
  cuda::Stream stream_ = nullptr;
  std::shared_ptr<Staging> flags_;
  uint32_t latest_ = 0;
  bool unmarked_ = false;  // something is under way that no mark follows
  std::chrono::steady_clock::time_point next_query_;
  cuda::Result failed_ = cuda::kSuccess;
};

}  // namespace weir::nccl
