// SPDX-License-Identifier: Apache-2.0
// What the library knows of devices. Thread-safe.
#pragma once

#include "nccl/cuda/driver.h"

namespace weir::nccl {

// The device that the calling thread has chosen, 0 without CUDA: NCCL binds a communicator to it.
inline int current_device() { return cuda::current_device(); }

}  // namespace weir::nccl
