// SPDX-License-Identifier: Apache-2.0
// Operations in stream order: where the process uses CUDA, an operation is enqueued on its stream and
// the call returns; the proxy runs it when the stream has come to it, and the stream goes on when it
// is done. Operations of one group on one communicator start when all their streams have come, and
// release them together. Under stream capture they become part of the graph. Thread-safe.
#pragma once

#include <memory>
#include <vector>

#include "nccl/operation.h"
#include "nccl/outcome.h"

namespace weir::nccl {

// Finds out whether it goes by a stream: the caller named one, or has a CUDA context, of whose
// default stream NULL is the name.
void find_order(Operation* operation);

// Of one group; all in stream order. The first error is returned; what has been enqueued stays.
Outcome enqueue(std::vector<Operation> operations);

// What cutting large operations into slices of a communicator's size is on this rank; 0 where CUDA
// is not used. The ranks agree on the least of those that are not 0.
uint64_t wanted_chunk_bytes();

// Host memory, no stream, and peers that have CUDA: they cut the operation, so it is cut here too, or
// they ask where its buffers lie, and this rank answers. False when neither is so.
bool must_cut(const Operation& operation);
Outcome run_cut(std::vector<Operation> operations);

}  // namespace weir::nccl
