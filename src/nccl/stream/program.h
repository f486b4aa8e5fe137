// SPDX-License-Identifier: Apache-2.0
// The stream's half of a flight: copies and flags, as calls to CUDA in the order in which the stream
// is to carry them out. All of them may be captured into a graph. Not thread-safe.
#pragma once

#include "nccl/cuda/driver.h"
#include "nccl/outcome.h"
#include "nccl/stream/flight.h"

namespace weir::nccl {

// Enqueues the flight, which has its staging and number, on `stream`. On an error the flight's
// `rings` tells how often the stream will ring nevertheless.
Outcome enqueue_program(const cuda::Driver& driver, cuda::Stream stream, Flight& flight);

}  // namespace weir::nccl
