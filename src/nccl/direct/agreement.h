// SPDX-License-Identifier: Apache-2.0
// What the ranks of a new communicator agree on for memory of devices: some may use CUDA and others not, but all are to
// cut large operations alike, and to go the same ways.
#pragma once

#include "nccl/comm.h"
#include "nccl/outcome.h"

namespace weir::nccl {

// Collective; waits for the other ranks. Fills comm.devices().
Outcome agree_on_devices(const char* function, Comm& comm);

}  // namespace weir::nccl
