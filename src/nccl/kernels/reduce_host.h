// SPDX-License-Identifier: Apache-2.0
// The reduction kernels as functions of the host: what Weir's stand-in for CUDA runs in their place
// (hostcuda/core/kernels.cc), thread after thread of the launch. Thread-safe.
#pragma once

#include <cstdint>

#include "nccl/kernels/reduce_arguments.h"

namespace weir::kernels {

// `type`: an index of kReduceNames. The memory must be the host's to reach.
void reduce_on_host(uint32_t type, const ReduceArguments& arguments, uint64_t thread_count);

}  // namespace weir::kernels
