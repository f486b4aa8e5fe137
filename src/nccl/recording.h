// SPDX-License-Identifier: Apache-2.0
// Recording of calls that go to the real NCCL, on request (WEIR_RECORDER_NCCL), in the files that
// weir-trace reads: then the table of the real library's functions is replaced by one whose
// collectives, messages and one-sided operations write what they were asked for before they are made. Off, nothing is on
// the way of a call. Thread-safe.
//
// A collective has "begun" when it is called and is "completed" when the call, or the outermost group
// around it, has returned: what a device does with it later is not seen. So ranks that differ show in
// what they called, and a rank that waits for ever in the number of calls that it made.
#pragma once

#include <cstdint>
#include <string>

#include "core/comm/recorder.h"
#include "weir/nccl.h"

namespace weir::nccl {

struct Backend;

// `on` false, or no real library: nothing.
void wrap_with_recording(bool on, Backend* backend);

struct RecordedComm {
  uint64_t comm_id = 0;   // public
  uint64_t instance = 0;  // the same on its ranks, another one in each run
  int rank = 0;
  int rank_count = 1;
  std::string name;
  comm::ClockReading earlier;  // some time before now
};

// From now on the calls of the real library's communicator are recorded, until its destroy or abort.
// Nothing where recording is off.
void start_recording(ncclComm_t real, const RecordedComm& comm);

}  // namespace weir::nccl
