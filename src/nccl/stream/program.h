// SPDX-License-Identifier: Apache-2.0
// The stream's half of flights: copies and flags, as calls to CUDA in the order in which the stream
// is to carry them out. All of them may be captured into a graph. Not thread-safe.
#pragma once

#include <vector>

#include "nccl/cuda/driver.h"
#include "nccl/outcome.h"
#include "nccl/stream/flight.h"

namespace weir::nccl {

// Enqueues the flights of one group, which have their stagings and numbers, on `stream`: it rings for
// all of them before it waits for one. On an error each flight's `rings` tells how often the stream
// will ring nevertheless.
Outcome enqueue_program(const cuda::Driver& driver, cuda::Stream stream,
                        const std::vector<Flight*>& flights);

}  // namespace weir::nccl
