// SPDX-License-Identifier: Apache-2.0
// Reduction and copy kernels: one source (reduce-inl via Highway), compiled for every instruction
// set and chosen at run time. f16, bf16 and fp8 are widened to f32, folded there over all sources,
// and rounded to nearest even once; so the fold of k sources in one call is not the same as k - 1
// calls. A scaled source is rounded to its type before it is folded, so that it makes no difference
// whether it is scaled in the same call. The bits of the result do not depend on instruction set,
// alignment or element count. Thread-safe.
//
// NaN: a NaN among the operands gives NaN in every fold, and so does inf - inf; it is always the
// positive quiet NaN (0x7fc00000, 0x7e00, 0x7fc0, 0x7f, 0x7f). -0 is less than +0. One source that
// is neither scaled nor divided is copied bit for bit. Overflow is visible: infinity where the type
// has it, NaN in fp8-e4m3 (the non-saturating conversion of the OCP 8-bit Floating Point
// Specification 1.0). Integer sums and products wrap. If the calling thread has changed its
// rounding mode or flush-to-zero flags, they apply.
//
// With Arithmetic::kNccl, as NCCL's kernels compute: too large a result in fp8 saturates to the
// largest number (448, 57344), also from infinity, and max and min ignore NaN unless all operands
// are NaN.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/types.h"

namespace weir {

inline constexpr uint32_t kNoSource = 0xffffffffu;

// Pointers may have any alignment; line-aligned ones are the fastest.
struct ReduceArgs {
  void* dst = nullptr;         // may be exactly any of the sources; no other overlap
  void* second_dst = nullptr;  // receives the same bytes, or nullptr
  const void* const* sources = nullptr;
  uint32_t source_count = 0;  // >= 1; folded from sources[0] on
  size_t element_count = 0;
  uint32_t scaled_source =
      kNoSource;                // this source is multiplied by *scale first (pre-multiplied sum)
  const void* scale = nullptr;  // one element of the data type
  uint32_t divisor = 1;  // the fold is divided by it (average); integers truncate towards zero
  // dst is written with non-temporal stores; the kernel ends with the store fence that this needs.
  bool streaming = false;
  // second_dst likewise, where both lie alike in their cache lines. Only with `streaming`.
  bool second_streaming = false;
};

using ReduceKernel = void (*)(const ReduceArgs& args);

// Never nullptr. The pointer is stable: look it up once, when a plan is bound.
ReduceKernel reduce_kernel(DataType type, Fold fold, Arithmetic arithmetic = Arithmetic::kIeee);

// dst = src, `bytes` of them; no overlap unless dst == src. With `streaming`, non-temporal stores
// and a closing store fence.
void copy_bytes(void* dst, const void* src, size_t bytes, bool streaming);

// Name of the instruction set in use, for weir-info: "AVX3", "AVX2", "NEON", …
const char* reduce_kernel_target();

}  // namespace weir
