// SPDX-License-Identifier: Apache-2.0
#include "offload/kernels/parallel_step.h"

namespace weir::offload {

StepRange part_of(const StepRange& range, uint64_t begin, uint64_t count) {
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

void parallel_step(WorkerPool& pool, const StepFactors& factors, const StepRange& range) {
  // A range may begin anywhere; the blocks are cut where the chunk's are.
  pool.parallel_for(range.count, kStepBlock, [&](uint64_t begin, uint64_t end) {
    step_range(factors, part_of(range, begin, end - begin));
  });
}

}  // namespace weir::offload
