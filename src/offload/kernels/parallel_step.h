// SPDX-License-Identifier: Apache-2.0
// A step over a range, shared out to a pool's threads; same bits as step_range(). One thread at a
// time per pool.
#pragma once

#include "offload/kernels/step_kernel.h"
#include "offload/kernels/worker_pool.h"

namespace weir::offload {

// What one worker takes at a time: long enough for the streams, short enough to end together.
inline constexpr uint64_t kStepBlock = 32 * 1024;  // elements; a multiple of kMomentBlock

// `count` elements of `range` from its own element `begin` on, as a range.
StepRange part_of(const StepRange& range, uint64_t begin, uint64_t count);

void parallel_step(WorkerPool& pool, const StepFactors& factors, const StepRange& range);

}  // namespace weir::offload
