// SPDX-License-Identifier: Apache-2.0
// What the first device does by itself, for figures of collectives to be compared with. One thread.
#pragma once

#include <cstdint>

namespace weir::perf {

// Prints the rates of copies within the device and of the library's kernel that adds two arrays
// (bytes read and written), and of copies from and to pinned memory, each way alone and both at
// once. `bytes`: of a copy. The exit status of the program: 1 where a sum is wrong or the device
// refuses.
int device_figures(uint64_t bytes);

}  // namespace weir::perf
