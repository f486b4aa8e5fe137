// SPDX-License-Identifier: Apache-2.0
// One optimizer step over a range of a chunk, in one pass: gradient in, state in, state out,
// parameters out. One source per method (Highway), compiled for every instruction set and chosen at
// run time. The bits of the results depend on the arguments' values alone: not on instruction set,
// alignment, range boundaries, thread count or the caller's floating-point control register (the
// kernel sets its own, float_environment.h). Thread-safe; disjoint ranges may run at once.
//
// Arithmetic is f32. x*y + z is fused (one rounding) on every instruction set; square root and
// division are exact; subnormals are zero. NaN results are 0x7fc00000. In this order:
//   g  = gradient * gradient_factor;  with l2:  g = fma(l2, p, g)
//   m' = fma(beta1_other, g, beta1 m);          v' = fma(beta2_other g, g, beta2 v)
//   p' = p - decay p - step_size (m' / (sqrt(v') + eps))
// where fused operations correct the roundings of the sum and of the quotient to first order
// (updated() in step_rules-inl.h). Adagrad: v' = fma(g, g, v), p' = p - step_size (g / (sqrt(v') +
// eps)) likewise. SgdMomentum: m' = fma(beta1, m, g), p' = fma(-step_size, m', p). Lion: p1 =
// fma(-decay, p, p), p' = fma(-step_size, sign(fma(beta1_other, g, beta1 m)), p1), m' =
// fma(beta2_other, g, beta2 m).
// The update uses the moments before they are rounded to the state format.
#pragma once

#include <cstdint>

#include "core/base/status.h"
#include "core/base/types.h"
#include "offload/kernels/method.h"
#include "offload/kernels/state_format.h"

namespace weir::offload {

// Nothing is owned. Data pointers may have any alignment unless said otherwise; those on lines are
// the fastest. Arrays per element point at element `first`.
struct StepRange {
  const ChunkLayout* layout = nullptr;
  const unsigned char* source = nullptr;  // the chunk as it is; only state_bytes are read
  unsigned char* destination = nullptr;   // the chunk as it will be; == source: in place
  uint64_t first = 0;                     // of the chunk; kHalfMaster8: multiple of kMomentBlock
  uint64_t count = 0;                     // kHalfMaster8: so is the end, or it is the chunk's

  const void* gradient = nullptr;
  DataType gradient_type = DataType::kFloat32;  // or kBfloat16, kFloat16
  float gradient_factor = 1;                    // 1 / loss scale times the clipping factor

  // Half-master formats: the bf16 copy in memory before and after; may be the same.
  const uint16_t* copy_in = nullptr;
  uint16_t* copy_out = nullptr;
  bool write_copy_plane = false;  // and to the destination's kParameterCopy

  // The updated parameters in a type of their own, or nullptr.
  void* parameter_out = nullptr;
  DataType parameter_type = DataType::kBfloat16;  // or kFloat16, kFloat32
  bool stochastic_rounding = false;               // of a 16-bit parameter_out; else nearest even
  bool streaming = true;  // parameter_out is written past the caches, where its address allows

  // Keys of stochastic rounding, of parameter_out and of the moments of half formats: the seed, and
  // the index that element `first` has in the whole parameter group, however it is sharded.
  uint64_t seed = 0;
  uint64_t first_index = 0;
};

// Checks the arguments of step_range; the error names the field and says what is wrong with it.
Status validate(const StepRange& range);

// The range must be valid; its method must be that of the factors. Returns whether every gradient
// times its factor was finite; where one was not, the state has been changed all the same.
bool step_range(const StepFactors& factors, const StepRange& range);

// Name of the instruction set in use: "AVX3", "AVX2", "NEON", …
const char* step_kernel_target();

// The instruction sets that are compiled in and that this machine has, as bits of hwy/targets.h.
// Tests and measurements choose one with hwy::SetSupportedTargetsForTest.
int64_t step_kernel_targets();

}  // namespace weir::offload
