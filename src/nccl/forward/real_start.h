// SPDX-License-Identifier: Apache-2.0
// The start of a communicator of the real NCCL on all its ranks, or on none. Each rank starts it in
// a thread of its own, which may wait for ever for a rank that has failed, and the ranks exchange
// how far they are until all are done or one has failed.
//
// Thread-safe; start_real waits for other ranks.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/comm/record/recorder.h"
#include "nccl/api/functions.h"
#include "nccl/base/outcome.h"
#include "nccl/comm/comm.h"
#include "nccl/forward/abortable_collectives.h"
#include "nccl/forward/derived_ids.h"
#include "weir/nccl.h"

namespace weir::nccl {

// Makes the communicator: *out stays NULL where the rank is to get none.
using MakeReal = std::function<ncclResult_t(const Table& real, ncclComm_t* out)>;

struct RealStart {
  const char* function = "";
  Comm* comm = nullptr;  // that is to be served; nullptr: the rank takes part and gets none
  AbortableCollectives* all = nullptr;  // of all ranks that take part
  // Of the ranks that get the communicator; may be `all`. nullptr where comm is.
  AbortableCollectives* members = nullptr;
  bool from_another = false;  // it is made from another communicator
  ncclComm_t parent =
      nullptr;          // the real library's handle of that one; nullptr: none, or a new rank
  int device = 0;       // that the calling thread is to choose
  bool forced = false;  // a failure is an error
  Secret secret;        // from which the ids of further communicators are derived
  std::string reason;   // why the real NCCL
  comm::ClockReading earlier;  // some time before now
  MakeReal make;
};

// Collective over `all` and `members`. Success with comm->real(): the real NCCL does the work.
// Success without: Weir does it, and rank 0 has explained it. All members return the same error.
Outcome start_real(const RealStart& start);

// Rank 0 says in the log, and with WEIR_EXPLAIN on stderr, whether the real NCCL or Weir does a
// communicator's work.
void explain_backend(const Comm& comm, const AbortableCollectives& collectives,
                     const std::string& text);

// Handles a failure before or during the start: returns an error where the real NCCL is forced;
// else Weir does the work.
Outcome fall_back_or_fail(const RealStart& start, ncclResult_t code, const std::string& why);

// What the real library says of its error.
std::string text_of(const Table& real, ncclResult_t code);

}  // namespace weir::nccl
