// SPDX-License-Identifier: Apache-2.0
// How a reduction is laid out over the threads of a launch. Pure function.
#pragma once

#include <cstddef>

#include "nccl/kernels/reduce_arguments.h"

namespace weir::kernels {

// Finds the elements that the kernel takes a vector at a time: those from which on all buffers are at a
// multiple of a vector's size, if there is such a place. Returns how many blocks to launch.
unsigned lay_out(ReduceArguments* arguments, size_t element_bytes);

}  // namespace weir::kernels
