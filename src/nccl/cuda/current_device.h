// SPDX-License-Identifier: Apache-2.0
// The device that the caller has chosen. Thread-safe.
#pragma once

#include "cuda/driver.h"
#include "nccl/cuda/device_query.h"

namespace weir::nccl {

// The device of the calling thread, to which NCCL binds a communicator; 0 without CUDA. The devices
// of Weir's stand-in count, too, though their communicators never go to the real NCCL.
inline int current_device() {
  return cuda_is_there() ? cuda_current_device() : cuda::current_device();
}

}  // namespace weir::nccl
