// SPDX-License-Identifier: Apache-2.0
// What ranks tell each other of their processes before they reach for each other's memory.
// Thread-safe.
#pragma once

#include <array>
#include <cstdint>

namespace weir::nccl {

// A random number that only this process has; a forked child has another. Throws when there is none.
using ProcessNumber = std::array<unsigned char, 16>;
ProcessNumber this_process();

// NCCL_P2P_DISABLE: no rank reaches another's memory, be it of the same process.
bool direct_allowed();

}  // namespace weir::nccl
