// SPDX-License-Identifier: Apache-2.0
// The start of a communicator of the real NCCL on all its ranks, or on none. Each rank starts it in a
// thread of its own, since it may wait for ever for one that has failed, and they exchange how far
// they are until all are done or one has failed.
//
// Thread-safe; start_real waits for other ranks.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/comm/recorder.h"
#include "nccl/comm.h"
#include "nccl/functions.h"
#include "nccl/kin.h"
#include "nccl/meeting.h"
#include "nccl/outcome.h"
#include "weir/nccl.h"

namespace weir::nccl {

// Makes it: *out stays NULL where the rank is to get none.
using MakeReal = std::function<ncclResult_t(const Table& real, ncclComm_t* out)>;

struct RealStart {
  const char* function = "";
  Comm* comm = nullptr;         // that is to be served; nullptr: the rank takes part and gets none
  Meeting* all = nullptr;       // of all ranks that take part
  Meeting* members = nullptr;   // of those that get it; may be `all`. nullptr where comm is
  bool from_another = false;    // it is made from another communicator
  ncclComm_t parent = nullptr;  // that one of the real library's; nullptr: none, or the rank is new
  int device = 0;               // that the calling thread is to choose
  bool forced = false;          // a failure is an error
  Secret secret;                // from which further meetings of its ranks are derived
  std::string reason;           // why the real NCCL
  comm::ClockReading earlier;   // some time before now
  MakeReal make;
};

// Collective over both meetings. Success with comm->real(): the real NCCL does the work. Success
// without: Weir is to do it, and rank 0 has said so. An error is one on all members.
Outcome start_real(const RealStart& start);

// Rank 0 of the meeting says in the log, and where it is asked for, which way a communicator goes.
void explain_way(const Comm& comm, const Meeting& meeting, const std::string& text);

// After rank 0's failure to begin at all: as after one of the start.
Outcome fall_or_fail(const RealStart& start, ncclResult_t code, const std::string& why);

// What the real library says of its error.
std::string text_of(const Table& real, ncclResult_t code);

}  // namespace weir::nccl
