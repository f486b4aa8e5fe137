// SPDX-License-Identifier: Apache-2.0
// The real NCCL calls some of its own exported functions by name. It is opened so that those find its
// own; where they come here all the same (a library that was loaded before, a loader without
// RTLD_DEEPBIND), the call is known and given back to it. Thread-safe.
#pragma once

#include "nccl/backend.h"

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

// Whether the call of an exported function, with this return address, is to go to the real library
// whatever its arguments are.
inline bool passes_by(const Backend& it, const void* return_address) {
  if (it.disabled) return true;
  return it.library != nullptr && (InsideReal::here() || it.library->holds(return_address));
}

}  // namespace weir::nccl
