// SPDX-License-Identifier: Apache-2.0
// Which operations on memory of devices are tried from device to device, and how that is explained.
// Thread-safe.
#pragma once

#include <cstddef>
#include <string>

#include "core/comm/stream/stream_call.h"
#include "nccl/host/operation.h"

namespace weir::nccl {

// Whether an operation is work of its stream alone, on all ranks (core/comm/stream).
bool goes_by_stream(const Operation& operation);

// Writes `text` to the log, and with WEIR_EXPLAIN to stderr.
void explain(const Comm& comm, const std::string& text);

// The first operation of a kind that is work of its stream alone, with `explain`.
void explain_first(Comm& comm, OperationKind kind, bool in_windows);
// With WEIR_EXPLAIN, on rank 0: once for each kind of call, the way that it goes.
void explain_way(Comm& comm, const engine::Call& call, const comm::CallWay& way);

}  // namespace weir::nccl
