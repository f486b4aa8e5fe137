// SPDX-License-Identifier: Apache-2.0
// Counters of calls by function and communicator, and the file in Prometheus' text format that
// shows them. The file is replaced as a whole, once a second while something changes and when the
// process ends. Communicators are numbered in the order in which they are first seen. A forked
// child counts from zero. Thread-safe; a call takes a lock.
#pragma once

#include <cstdint>
#include <string>

#include "nccl/api/functions.h"

namespace weir::nccl {

struct Call {
  FunctionIndex function = FunctionIndex::kCount;
  bool real = false;  // made in the real library
  ncclComm_t comm = nullptr;
  uint64_t bytes = 0;
  uint64_t nanoseconds = 0;
  bool failed = false;
};

// %p in `path` becomes the number of the process, %h the name of the host.
void start_counting(std::string path);

// Counts it. True when the communicator's rank is not known yet.
bool count_call(const Call& call);
void name_communicator(ncclComm_t comm, int rank, int rank_count);
// From now on the handle may mean another communicator.
void end_communicator(ncclComm_t comm);

}  // namespace weir::nccl
