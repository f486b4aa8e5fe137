// SPDX-License-Identifier: Apache-2.0
// The kernels behind reduce_kernel(), one file per family of element types so that each compiles
// quickly. They return nullptr for a type of another family. Thread-safe.
#pragma once

#include "core/engine/reduce.h"

namespace weir {

ReduceKernel float_kernel(DataType type, Fold fold, Arithmetic arithmetic);   // f32, f64
ReduceKernel half_kernel(DataType type, Fold fold, Arithmetic arithmetic);    // f16, bf16
ReduceKernel float8_kernel(DataType type, Fold fold, Arithmetic arithmetic);  // both 8-bit floats
ReduceKernel byte_kernel(DataType type, Fold fold);                           // i8, u8
ReduceKernel integer_kernel(DataType type, Fold fold);                        // i32, u32, i64, u64

}  // namespace weir
