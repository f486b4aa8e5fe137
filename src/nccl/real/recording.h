// SPDX-License-Identifier: Apache-2.0
// Recording of calls that go to the real NCCL, on request (WEIR_RECORDER_NCCL), in the files that
// weir-trace reads: the table of the real library's functions is then replaced by one whose
// collectives, messages and one-sided operations are recorded before they are called. When off, it
// adds nothing to a call. Thread-safe.
//
// A collective has "begun" when it is called and is "completed" when the call, or the outermost
// group around it, has returned; what a device does later is not seen. Ranks that disagree thus
// show in the calls that they made, and a rank that waits for ever in the number of its calls.
#pragma once

#include <cstdint>
#include <string>

#include "core/comm/record/recorder.h"
#include "weir/nccl.h"

namespace weir::nccl {

struct Backend;

// Does nothing when `on` is false or there is no real library.
void wrap_with_recording(bool on, Backend* backend);

struct RecordedComm {
  uint64_t comm_id = 0;   // public
  uint64_t instance = 0;  // the same on its ranks, another one in each run
  int rank = 0;
  int rank_count = 1;
  std::string name;
  comm::ClockReading earlier;  // some time before now
};

// Records the calls of the real library's communicator from now on, until its destroy or abort.
// Does nothing where recording is off.
void start_recording(ncclComm_t real, const RecordedComm& comm);

}  // namespace weir::nccl
