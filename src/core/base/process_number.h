// SPDX-License-Identifier: Apache-2.0
// What ranks exchange about their processes before they use each other's memory. Thread-safe.
#pragma once

#include <array>
#include <cstdint>

namespace weir {

// A random number of this process; a forked child has another one. Throws when none can be drawn.
using ProcessNumber = std::array<unsigned char, 16>;
ProcessNumber this_process();

}  // namespace weir
