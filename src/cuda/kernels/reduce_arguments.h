// SPDX-License-Identifier: Apache-2.0
// The arguments of a reduction kernel on a device, passed by value. The layout is the same for the
// library, the kernels that nvcc compiles, and their host functions in Weir's stand-in for CUDA.
// Plain data.
#pragma once

#include <cstdint>

namespace weir::kernels {

// The most buffers of one launch, one for each rank of one machine.
inline constexpr uint32_t kRanksMax = 64;
// The threads of a block, and the most blocks of a launch.
inline constexpr uint32_t kBlockThreads = 256;
inline constexpr uint32_t kBlocksMax = 512;
// The bytes that a thread reads of each source at once, where all buffers allow it.
inline constexpr uint32_t kVectorBytes = 16;

inline constexpr uint32_t kScaled = 1;
inline constexpr uint32_t kScaledByMemory = 2;

enum class ReduceFold : uint32_t { kSum = 0, kProd = 1, kMax = 2, kMin = 3 };

// destinations[d][i] = fold(sources[0][i], sources[1][i], …) for i below `count` and all d. A
// destination may be exactly one of the sources. Every address is a multiple of the element's size.
struct ReduceArguments {
  uint64_t count = 0;
  uint32_t source_count = 0;       // 1 to kRanksMax
  uint32_t destination_count = 0;  // 1 to kRanksMax
  ReduceFold fold = ReduceFold::kSum;
  uint32_t divisor = 1;  // divides the fold; integers truncate towards zero
  // kScaled: source s is multiplied by scales[s] first, one element of the type in its first bytes,
  // and the product is rounded to the type; kScaledByMemory: by the element at that address.
  uint32_t scaled = 0;
  uint32_t zero = 0;
  uint64_t head_count = 0;  // elements before the first whole vector; `count`: there are no vectors
  const void* sources[kRanksMax] = {};
  void* destinations[kRanksMax] = {};
  uint64_t scales[kRanksMax] = {};
};
static_assert(sizeof(ReduceArguments) == 40 + 24 * kRanksMax);
static_assert(sizeof(ReduceArguments) < 4096, "parameters of a kernel");

// The name of the kernel for a data type, by the type's number in weir.h.
inline constexpr const char* kReduceNames[] = {
    "weir_reduce_int8",     "weir_reduce_uint8",      "weir_reduce_int32",
    "weir_reduce_uint32",   "weir_reduce_int64",      "weir_reduce_uint64",
    "weir_reduce_float16",  "weir_reduce_float32",    "weir_reduce_float64",
    "weir_reduce_bfloat16", "weir_reduce_float8e4m3", "weir_reduce_float8e5m2"};
inline constexpr uint32_t kReduceCount = sizeof kReduceNames / sizeof kReduceNames[0];

}  // namespace weir::kernels
