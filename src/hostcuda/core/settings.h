// SPDX-License-Identifier: Apache-2.0
// The environment's settings for the emulated devices. A value that does not parse is reported on
// stderr and replaced by the default: a library that is loaded before main has no caller to return
// an error to. Read once; thread-safe.
#pragma once

#include <cstddef>
#include <vector>

namespace weir::hostcuda {

struct DeviceSettings {
  int machine_count = 1;     // WEIR_HOSTCUDA_DEVICES, 0 to 64: the devices of the machine
  std::vector<int> visible;  // those of them that the process sees, by CUDA_VISIBLE_DEVICES
  size_t nominal_bytes = 0;  // WEIR_HOSTCUDA_MEMORY: of each device
  size_t device_bytes = 0;   // the 63/64 of it that are for programs
};

const DeviceSettings& device_settings();

// The devices that a value of CUDA_VISIBLE_DEVICES chooses of a machine's, as CUDA documents it:
// numbers or beginnings of UUIDs, up to the first that is none; none at all if one comes twice.
std::vector<int> visible_devices(const char* text, int machine_count);

// "16GiB", "512M", "4096". False when `text` is not a size.
bool parse_bytes(const char* text, size_t* bytes);

}  // namespace weir::hostcuda
