// SPDX-License-Identifier: Apache-2.0
// StreamParts: what the calls of a communicator that are work of streams alone have in common. A
// value.
#pragma once

#include <memory>
#include <string>

#include "core/base/status.h"
#include "core/comm/stream/capture.h"
#include "core/comm/stream/stream_memory.h"
#include "core/comm/stream/stream_owner.h"
#include "core/comm/stream/stream_record.h"
#include "core/comm/stream/stream_watches.h"

namespace weir::comm {

struct StreamParts {
  std::shared_ptr<StreamMemory> memory;
  std::shared_ptr<StreamOwner> owner;
  std::shared_ptr<StreamRecord> record;  // empty: nothing is recorded
  std::shared_ptr<StreamWatches> watches;

  // Of calls to CUDA: where one has failed since the context is lost, no call on a stream ends.
  Status explain_loss(const Status& status) const {
    if (status.code() != Code::kSystem || !memory->context_check().look()) return status;
    watches->lose_all();
    return Status(Code::kSystem, status.text() + ", on rank " + std::to_string(memory->rank()) +
                                     ": " + memory->context_check().reason());
  }

  // Of a stream of the caller's, before anything is on it; the stream's context is current. While
  // the communicator's is there, kInvalidArgument: there is no such stream, or it does not reach
  // the peers' memory; kInvalidUsage: it cannot be used now. The call may be repeated then.
  Status find_capture(const char* function, cuda::Stream stream, Capture* capture) const;
};

// CU_STREAM_PER_THREAD, by which each thread means another stream.
inline bool is_stream_of_thread(cuda::Stream stream) {
  return reinterpret_cast<uintptr_t>(stream) == 2;
}

}  // namespace weir::comm
