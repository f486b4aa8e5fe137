// SPDX-License-Identifier: Apache-2.0
// A step in parts: of a range one after the other, or shared out to a pool's threads.
#pragma once

#include "offload/kernels/step_kernel.h"
#include "offload/kernels/worker_pool.h"

namespace weir::offload::test {

// What one worker takes at a time, in elements; a multiple of kMomentBlock.
inline constexpr uint64_t kStepBlock = 32 * 1024;

// `count` elements of `range` from its own element `begin` on, as a range.
inline StepRange part_of(const StepRange& range, uint64_t begin, uint64_t count) {
  StepRange part = range;
  part.first += begin;
  part.count = count;
  part.first_index += begin;
  part.gradient = static_cast<const unsigned char*>(range.gradient) +
                  begin * element_bytes(range.gradient_type);
  if (range.copy_in != nullptr) part.copy_in += begin;
  if (range.copy_out != nullptr) part.copy_out += begin;
  if (range.parameter_out != nullptr) {
    part.parameter_out = static_cast<unsigned char*>(range.parameter_out) +
                         begin * element_bytes(range.parameter_type);
  }
  return part;
}

inline void parallel_step(WorkerPool& pool, const StepFactors& factors, const StepRange& range) {
  // A range may begin anywhere; the blocks are cut where the chunk's are.
  pool.parallel_for(range.count, kStepBlock, [&](uint64_t begin, uint64_t end) {
    step_range(factors, part_of(range, begin, end - begin));
  });
}

}  // namespace weir::offload::test
