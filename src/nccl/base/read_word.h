// SPDX-License-Identifier: Apache-2.0
// Reads memory at an address that a caller passed, which may point anywhere. Thread-safe.
#pragma once

#include <cstdint>

namespace weir::nccl {

// The kernel reads, so that an invalid address gives false and not a fault.
bool read_word(const void* address, uint64_t* word);

}  // namespace weir::nccl
