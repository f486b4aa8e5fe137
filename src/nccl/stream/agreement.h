// SPDX-License-Identifier: Apache-2.0
// What the ranks of a new communicator agree on for operations on device memory: some may use CUDA
// and others not, but all must cut large operations alike and try the same direct operations.
#pragma once

#include "nccl/base/outcome.h"
#include "nccl/comm/comm.h"

namespace weir::nccl {

// Collective; waits for the other ranks. Fills comm.devices().
Outcome agree_on_devices(const char* function, Comm& comm);

}  // namespace weir::nccl
