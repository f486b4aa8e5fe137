// SPDX-License-Identifier: Apache-2.0
// The environment's settings for the emulated devices. A value that does not parse is reported on
// stderr and replaced by the default: a library that is loaded before main has no caller to return
// an error to. Read once; thread-safe.
#pragma once

#include <cstddef>

namespace weir::hostcuda {

struct DeviceSettings {
  int device_count = 1;     // WEIR_HOSTCUDA_DEVICES: 0 to 64
  size_t device_bytes = 0;  // of each device, for programs: 63/64 of WEIR_HOSTCUDA_MEMORY
};

const DeviceSettings& device_settings();

// "16GiB", "512M", "4096". False when `text` is not a size.
bool parse_bytes(const char* text, size_t* bytes);

}  // namespace weir::hostcuda
