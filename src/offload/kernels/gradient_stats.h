// SPDX-License-Identifier: Apache-2.0
// Statistics of all gradients that a step needs before it starts: the sum of their squares, for
// clipping by the global norm, and whether all are finite (overflow). When one gradient is not, the
// step is not run and the state stays as it is.
//
// Squares are taken and summed in double: exact squares, no overflow. Within a block of
// kStatsBlock elements the order is fixed (32 interleaved partial sums); over blocks the sum is
// exact. So the result has the same bits for any instruction set, thread count, order of
// submission, chunking and sharding whose borders are multiples of kStatsBlock; the alignment and
// the caller's control register do not matter. Subnormal f32 and bf16 gradients count as zero, as
// they do in the step. Thread-safe functions; one thread at a time per object.
#pragma once

#include <cstdint>

#include "core/base/types.h"
#include "offload/kernels/exact_sum.h"

namespace weir::offload {

inline constexpr uint64_t kStatsBlock = 4096;  // elements

class WorkerPool;

class GradientStats {
 public:
  // Gradients in f32, bf16 or f16, at any alignment. A partial last block counts as a block.
  void add(const void* gradient, DataType type, uint64_t count);
  // The same, over a pool.
  void add(WorkerPool& pool, const void* gradient, DataType type, uint64_t count);
  // Adds the statistics of another thread or rank.
  void add(const GradientStats& other) { sum_.add(other.sum_); }

  double sum_of_squares() const { return sum_.value(); }  // of the gradients as stored, unscaled
  bool all_finite() const { return std::isfinite(sum_of_squares()); }

 private:
  ExactSum sum_;
};

// Factor by which a step multiplies gradients: divides by the loss scale, and clips the global norm
// to `norm_max` (0: no clipping) where the norm is finite in double. Computed in double, rounded
// once; 1 where nothing is to be done.
float gradient_factor(double sum_of_squares, double loss_scale, double norm_max);

// The sum of squares of at most kStatsBlock elements.
double block_sum_of_squares(const void* gradient, DataType type, uint64_t count);

}  // namespace weir::offload
