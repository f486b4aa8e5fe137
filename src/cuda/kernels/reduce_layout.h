// SPDX-License-Identifier: Apache-2.0
// How a reduction is laid out over the threads of a launch. Pure function.
#pragma once

#include <cstddef>

#include "cuda/kernels/reduce_arguments.h"

namespace weir::kernels {

// Finds the elements that the kernel processes a vector at a time: those from the first one at
// which all buffers are aligned to a vector, if there is one. Returns how many blocks to launch.
unsigned lay_out(ReduceArguments* arguments, size_t element_bytes);

}  // namespace weir::kernels
