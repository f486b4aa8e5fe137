// SPDX-License-Identifier: Apache-2.0
// The reduction kernels as host functions, which Weir's stand-in for CUDA runs in their place
// (hostcuda/core/kernels.cc), one thread of the launch after another. Thread-safe.
#pragma once

#include <cstdint>

#include "cuda/kernels/reduce_arguments.h"

namespace weir::kernels {

// `type`: an index of kReduceNames. The host must be able to access the memory.
void reduce_on_host(uint32_t type, const ReduceArguments& arguments, uint64_t thread_count);

}  // namespace weir::kernels
