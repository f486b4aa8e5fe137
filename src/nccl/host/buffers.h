// SPDX-License-Identifier: Apache-2.0
// The buffers of an operation: whether they overlap, and, on Weir's stand-in for CUDA, which knows
// all memory of devices, whether they are there. There a buffer that is too short, or was freed, is
// an error of the call, as it is of a copy. A GPU would fault, or overwrite other memory; a device
// of host memory would always do the latter. Thread-safe.
#pragma once

#include "nccl/base/outcome.h"
#include "nccl/host/operation.h"

namespace weir::nccl {

// Of a call that is captured: its buffers must still be CUDA's, where they are now, when a graph is
// launched.
void note_buffers(Operation* operation);

// The buffers must be apart, or exactly in place.
Outcome check_overlap(const Operation& operation);

// The buffers, and the scalar on a device of a pre-multiplied sum. Success where CUDA is real or
// not in use, and for memory that CUDA does not know.
Outcome check_buffers(const Operation& operation);

}  // namespace weir::nccl
