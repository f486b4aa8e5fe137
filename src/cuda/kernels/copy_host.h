// SPDX-License-Identifier: Apache-2.0
// The kernel that makes several copies at once as a function of the host, which Weir's stand-in for
// CUDA runs in its place. Thread-safe.
#pragma once

#include "cuda/kernels/copy_arguments.h"

namespace weir::kernels {

// The host must be able to access the memory.
void copy_on_host(const CopyArguments& arguments, uint32_t block_count);

}  // namespace weir::kernels
