// SPDX-License-Identifier: Apache-2.0
// How operations and communicators of NCCL's are those of the core, where they are work of streams
// alone (core/comm/stream). Thread-safe.
#pragma once

#include <memory>

#include "core/comm/stream/message_call.h"
#include "core/comm/stream/stream_watches.h"
#include "core/engine/call.h"
#include "nccl/comm/comm.h"
#include "nccl/host/operation.h"

namespace weir::nccl {

// A collective.
engine::Call core_call(const Operation& operation);
comm::StreamMessage core_message(const Operation& operation);

// The communicator as those see it that watch its calls; keeps it.
std::shared_ptr<comm::StreamOwner> owner_of(std::shared_ptr<Comm> comm);

}  // namespace weir::nccl
