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

  // Of a stream of the caller's, before anything is on it. kInvalidArgument: there is no such
  // stream, although the context is there.
  Status find_capture(const char* function, cuda::Stream stream, Capture* capture) const {
    Status status = capture_of(memory->driver(), function, stream, capture);
    if (capture->has_stream || memory->context_check().look()) return status;
    return invalid_argument(status.text() +
                            ": give weir_comm_set_stream one that exists, and keep it until its "
                            "calls have ended. The call had no effect, and may be repeated");
  }
};

// CU_STREAM_PER_THREAD, by which each thread means another stream.
inline bool is_stream_of_thread(cuda::Stream stream) {
  return reinterpret_cast<uintptr_t>(stream) == 2;
}

}  // namespace weir::comm
