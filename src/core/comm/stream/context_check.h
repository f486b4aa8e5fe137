// SPDX-License-Identifier: Apache-2.0
// ContextCheck: whether CUDA still has the context of a rank's device. A program can reset a
// device, and a kernel that touches wrong memory ends its context; what streams hold is lost then,
// and they tell nothing. Thread-safe.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "cuda/driver.h"

namespace weir::comm {

class ContextCheck : public std::enable_shared_from_this<ContextCheck> {
 public:
  // While the context is there.
  ContextCheck(const cuda::Driver& driver, cuda::Context context);
  ~ContextCheck();
  ContextCheck(const ContextCheck&) = delete;
  ContextCheck& operator=(const ContextCheck&) = delete;

  // Asks CUDA; a call to it may wait for a stream. True: it is lost.
  bool look();
  // The same on a thread of its own; without effect while one asks.
  void look_in_background();
  // What was found; costs a load.
  bool is_lost() const { return is_lost_.load(std::memory_order_acquire); }
  // Of a lost one: "CUDA has lost the context ..."
  std::string reason() const;

 private:
  cuda::Result ask();

  const cuda::Driver& driver_;
  const cuda::Context context_;
  cuda::Event event_ = nullptr;    // ends when the device is reset
  cuda::Stream stream_ = nullptr;  // tells the errors of kernels; made at the first question
  std::atomic<bool> is_asking_{false};
  std::atomic<bool> is_lost_{false};
  mutable std::mutex lock_;
  std::string reason_;
};

}  // namespace weir::comm
