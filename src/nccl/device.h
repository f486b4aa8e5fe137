// SPDX-License-Identifier: Apache-2.0
// What the library knows of devices: which one the caller has chosen. Thread-safe.
#pragma once

#include "nccl/cuda_driver.h"

namespace weir::nccl {

// The device that the calling thread has chosen: NCCL binds a communicator to it.
inline int current_device() { return cuda_current_device(); }

}  // namespace weir::nccl
