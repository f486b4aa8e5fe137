// SPDX-License-Identifier: Apache-2.0
// What the library knows of devices: nothing yet. Here the CUDA runtime, real or stand-in, is to be
// asked. Thread-safe.
#pragma once

namespace weir::nccl {

// The device that the calling thread has chosen: NCCL binds a communicator to it.
inline int current_device() { return 0; }

}  // namespace weir::nccl
