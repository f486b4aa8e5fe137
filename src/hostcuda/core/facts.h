// SPDX-License-Identifier: Apache-2.0
// The properties that an emulated device reports. Thread-safe.
#pragma once

#include <string>

#include "hostcuda/core/device.h"
#include "hostcuda/core/error.h"
#include "hostcuda/core/topology_file.h"

namespace weir::hostcuda {

inline constexpr const char* kDeviceName = "Weir host memory device";

// By the number that cudaDeviceAttr and CUdevice_attribute share. 0 for a feature that the device
// lacks.
Error device_attribute(const Device& device, int attribute, int* value);
// What names a device: the same in all processes of a machine, so that ranks recognize a shared
// device.
void device_uuid(int machine_index, char out[16]);
std::string uuid_text(int machine_index);  // "GPU-77656972-…"
// Of the file of WEIR_TOPOLOGY_FILE, if it has as many GPUs; otherwise buses 1, 2, ….
PciAddress pci_address(int machine_index);
std::string pci_text(int machine_index);  // "0000:01:00.0"
// From "0000:01:00.0", "01:00.0" or "0000:01:00".
Error device_of_pci(const char* text, int* index);
Error set_peer(Device& device, int peer, bool enabled);

}  // namespace weir::hostcuda
