// SPDX-License-Identifier: Apache-2.0
// Operations in stream order. Where the process uses CUDA, an operation is enqueued on its stream
// and the call returns; the proxy runs it when the stream has reached it, and the stream goes on
// when it is done. Operations of one group on one communicator start when all their streams have
// reached them, and release the streams together. Under stream capture they become part of the
// graph. Thread-safe.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "nccl/base/outcome.h"
#include "nccl/host/operation.h"

namespace weir::nccl {

// Finds out whether the operation is ordered by a stream: the caller named one, or NULL means a
// default stream: that of the caller's CUDA context, or, where its thread has none and the buffers
// lie on a device, the legacy default stream of the communicator's device.
void find_order(Operation* operation);

// The operations of one group, all in stream order, on the streams as the calling thread means
// them. Returns the first error; what has been enqueued stays. They are not run before `may_run` is
// true, and Comm::wait_for_streams does not wait for them until then; empty: they may run at once.
Outcome enqueue(std::vector<Operation> operations,
                const std::shared_ptr<const std::atomic<bool>>& may_run = nullptr);

// An operation without a stream that is work of a stream on its peers (goes_by_stream): it goes
// into a stream of the library's own, for whose end the caller then waits.
Outcome use_own_stream(Operation* operation);
Outcome wait_for_own_stream(const char* function, Comm& comm);

// The slice size that this rank proposes for large operations; 0 without CUDA. The ranks agree on
// the smallest that is not 0.
uint64_t wanted_chunk_bytes();

// Whether an operation on host memory without a stream must be run as its peers run it: they have
// CUDA and cut it, or they ask where its buffers lie and this rank must answer.
bool must_cut(const Operation& operation);
Outcome run_cut(std::vector<Operation> operations);

}  // namespace weir::nccl
