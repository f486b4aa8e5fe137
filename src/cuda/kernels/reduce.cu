// SPDX-License-Identifier: Apache-2.0
// The reduction kernels, one for each data type. See reduce_arguments.h.
#include "cuda/kernels/reduce_loop.h"

using namespace weir::kernels;  // NOLINT: this file is their interface

#define WEIR_REDUCE(name, ...)                                                         \
  extern "C" __global__ void __launch_bounds__(kBlockThreads)                          \
      weir_reduce_##name(const __grid_constant__ ReduceArguments arguments) {          \
    reduce<__VA_ARGS__>(arguments, uint64_t{blockIdx.x} * kBlockThreads + threadIdx.x, \
                        uint64_t{gridDim.x} * kBlockThreads);                          \
  }

WEIR_REDUCE(int8, IntegerMath<int8_t, uint8_t>)
WEIR_REDUCE(uint8, IntegerMath<uint8_t, uint8_t>)
WEIR_REDUCE(int32, IntegerMath<int32_t, uint32_t>)
WEIR_REDUCE(uint32, IntegerMath<uint32_t, uint32_t>)
WEIR_REDUCE(int64, IntegerMath<int64_t, uint64_t>)
WEIR_REDUCE(uint64, IntegerMath<uint64_t, uint64_t>)
WEIR_REDUCE(float16, Float16)
WEIR_REDUCE(float32, Float<float>)
WEIR_REDUCE(float64, Float<double>)
WEIR_REDUCE(bfloat16, Bfloat16)
WEIR_REDUCE(float8e4m3, Float8E4M3)
WEIR_REDUCE(float8e5m2, Float8E5M2)
