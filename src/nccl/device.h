// SPDX-License-Identifier: Apache-2.0
// What the library knows of devices: which one the caller has chosen. Thread-safe.
#pragma once

#include "nccl/cuda/driver.h"
#include "nccl/cuda_driver.h"

namespace weir::nccl {

// The device that the calling thread has chosen, 0 without CUDA: NCCL binds a communicator to it. A stand-in's devices
// count too, though no communicator of theirs goes to the real NCCL.
inline int current_device() {
  return cuda_is_there() ? cuda_current_device() : cuda::current_device();
}

}  // namespace weir::nccl
