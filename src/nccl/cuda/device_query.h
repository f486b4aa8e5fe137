// SPDX-License-Identifier: Apache-2.0
// What CUDA's driver says about devices, for the choice between the real NCCL and Weir. Looking for
// the driver does not start it. Thread-safe.
#pragma once

#include <array>
#include <string>

namespace weir::nccl {

using DeviceId = std::array<unsigned char, 16>;  // a device's UUID

// Whether a driver is installed that the real NCCL could use.
bool cuda_is_there();

// Starts the driver and returns the number of its devices; 0 with `reason` when it has none or does
// not start.
int cuda_device_count(std::string* reason);

// False when there is no such device.
bool cuda_device_id(int device, DeviceId* id);

// The device of the calling thread; 0 where it has chosen none or there is no driver.
int cuda_current_device();

// Chooses the device for the calling thread, as cudaSetDevice does. False: the driver refuses.
bool cuda_choose_device(int device);

}  // namespace weir::nccl
