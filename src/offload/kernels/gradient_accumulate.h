// SPDX-License-Identifier: Apache-2.0
// Gradient accumulation: total += gradient, in f32, over micro-batches. Same bits for any
// instruction set, alignment and chunking; subnormals are zero. Thread-safe.
#pragma once

#include <cstdint>

#include "core/base/types.h"

namespace weir::offload {

// total[i] += gradient[i], `count` of them; gradient in f32, bf16 or f16, at any alignment; total
// as well. The two do not overlap, except that an f32 gradient may be `total` itself.
void gradient_accumulate(float* total, const void* gradient, DataType type, uint64_t count);

}  // namespace weir::offload
