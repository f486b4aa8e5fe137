// SPDX-License-Identifier: Apache-2.0
// Counts what the calling thread allocates with operator new, in the program and in the libraries
// that it loads: an executable's operator new takes precedence. Link allocations.cc to use it.
#pragma once

#include <cstdint>

namespace weir::test {

// Allocations of this thread so far.
uint64_t allocation_count();

}  // namespace weir::test
