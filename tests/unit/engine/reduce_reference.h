// SPDX-License-Identifier: Apache-2.0
// What the reduction kernels must compute, one element at a time and the slow way: small floats are
// decoded with ldexp and encoded by searching the list of all their values. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/engine/reduce.h"

namespace weir::test {

// Value of a code of a 2-byte or 1-byte float.
float decode_small_float(DataType type, uint32_t code);
// The code nearest to `value`, ties to the even code; NaN is 0x7e00, 0x7fc0, 0x7f, 0x7f.
uint32_t encode_small_float(DataType type, float value);

// dst[0, args.element_count) as reduce_kernel(type, fold)(args) must leave it.
std::vector<uint8_t> reference_reduce(DataType type, Fold fold, const ReduceArgs& args);

}  // namespace weir::test
