// SPDX-License-Identifier: Apache-2.0
// What the ranks of a new communicator agree on for operations on device memory: some may use CUDA
// and others not, but all must cut large operations alike and try the same direct operations.
#pragma once

#include <cstdint>
#include <memory>

#include "nccl/base/outcome.h"
#include "nccl/comm/comm.h"

namespace weir::comm {
class DeviceWindow;
}

namespace weir::nccl {

// Collective; waits for the other ranks. Fills comm.devices().
Outcome agree_on_devices(const char* function, Comm& comm);

// The same of memory that all ranks register as a window, so that collectives use it where it lies;
// `wanted`: on this rank. *made stays empty on all ranks where one of them does not want that, or
// does not reach another's.
Outcome make_device_window(const char* function, const Comm& comm, void* memory, uint64_t bytes,
                           bool wanted, std::shared_ptr<const comm::DeviceWindow>* made);

}  // namespace weir::nccl
