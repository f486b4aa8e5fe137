// SPDX-License-Identifier: Apache-2.0
// What a pretended device says of itself. Thread-safe.
#pragma once

#include "hostcuda/core/device.h"
#include "hostcuda/core/error.h"

namespace weir::hostcuda {

inline constexpr const char* kDeviceName = "Weir host memory device";

// By the number that cudaDeviceAttr and CUdevice_attribute share. What the device lacks is 0.
Error device_attribute(const Device& device, int attribute, int* value);
// The same for one machine and one index, so that ranks on one machine see shared devices as such.
void device_uuid(int index, char out[16]);
int pci_bus(int index);
// From "0000:01:00.0", "01:00.0" or "0000:01:00".
Error device_of_pci(const char* text, int* index);
Error set_peer(Device& device, int peer, bool enabled);

}  // namespace weir::hostcuda
