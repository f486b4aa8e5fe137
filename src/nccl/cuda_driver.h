// SPDX-License-Identifier: Apache-2.0
// What CUDA's driver tells of whether a communicator may go to the real NCCL, and where. Looking whether
// the driver is there does not start it. Thread-safe.
#pragma once

#include <array>
#include <string>

namespace weir::nccl {

using DeviceId = std::array<unsigned char, 16>;  // a device's UUID

// A driver is installed.
bool cuda_is_there();

// Starts the driver. Devices that it has; 0 with `reason` when it has none or does not start.
int cuda_device_count(std::string* reason);

// False when there is no such device.
bool cuda_device_id(int device, DeviceId* id);

// The device that the calling thread has chosen; 0 where it has chosen none. The driver is asked only
// where it is there.
int cuda_current_device();

// Chooses it for the calling thread, as cudaSetDevice does. False: the driver refuses.
bool cuda_choose_device(int device);

}  // namespace weir::nccl
