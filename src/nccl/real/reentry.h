// SPDX-License-Identifier: Apache-2.0
// The real NCCL calls some of its own exported functions by name. Where this library comes before
// it in the loader's order (a preload, or a program linked with this one), such a call arrives
// here. It is recognized by its return address, and passed back. Thread-safe.
#pragma once

#include "nccl/real/backend.h"

namespace weir::nccl {

// While it lives, the calling thread is inside the real library.
class InsideReal {
 public:
  InsideReal() { ++depth_; }
  ~InsideReal() { --depth_; }
  InsideReal(const InsideReal&) = delete;
  InsideReal& operator=(const InsideReal&) = delete;

  static bool here() { return depth_ > 0; }

 private:
  static inline thread_local int depth_ = 0;
};

// Whether a call of an exported function with this return address goes to the real library whatever
// its arguments are.
inline bool passes_by(const Backend& it, const void* return_address) {
  if (it.disabled) return true;
  return it.library != nullptr && (InsideReal::here() || it.library->holds(return_address));
}

}  // namespace weir::nccl
