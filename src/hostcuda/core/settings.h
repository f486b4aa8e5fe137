// SPDX-License-Identifier: Apache-2.0
// What the environment says of the pretended devices. A value that does not parse is told on stderr
// and replaced by the default: a library that is loaded before main has nobody to hand an error to.
// Read once; thread-safe.
#pragma once

#include <cstddef>

namespace weir::hostcuda {

struct DeviceSettings {
  int device_count = 1;     // WEIR_HOSTCUDA_DEVICES: 0 to 64
  size_t device_bytes = 0;  // WEIR_HOSTCUDA_MEMORY: of each device
};

const DeviceSettings& device_settings();

// "16GiB", "512M", "4096". False when `text` is none.
bool parse_bytes(const char* text, size_t* bytes);

}  // namespace weir::hostcuda
