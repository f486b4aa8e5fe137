// SPDX-License-Identifier: Apache-2.0
// The double of the real NCCL (nccl_double.cc) and its operations, of which there are two kinds:
// marked.cc and computed.cc. A library is linked with one of them. DOUBLE_VERSION is the version
// that it plays.
#pragma once

#define WEIR_NCCL_NO_CUDA
#include <cstddef>

#include "weir/nccl.h"

#define DOUBLE_API extern "C" __attribute__((visibility("default")))

// Counts a call of the function `name`; returns ncclSuccess.
extern "C" __attribute__((visibility("hidden"))) int nccl_double_note(const char* name);

namespace nccl_double {

constexpr unsigned long long kMark = 0x0280028002800280ull;

// What the operations of a communicator need; of the kind.
struct Work;

struct Comm {
  unsigned long long mark = kMark;
  int rank = 0;
  int rank_count = 0;
  int device = 0;
  int polls = 0;  // looks at ncclCommGetAsyncError until it has started
  char name[64] = "";
  Work* work = nullptr;
};

inline Comm& comm_of(ncclComm_t handle) { return *reinterpret_cast<Comm*>(handle); }

// Makes `text` the latest error; returns `code`.
ncclResult_t fail(ncclResult_t code, const char* text);
bool is_in_group();
// An operation was called.
void count_operation();
// The value of a variable, -1 without it.
int number(const char* variable);

// ---- What each kind has.

// Writes what the ranks of a communicator need in order to find each other, at most `size` bytes.
ncclResult_t write_place(char* text, size_t size);
// Starts the work of a new communicator. `place` is what `write_place` wrote; nullptr: the
// communicator is made from another.
ncclResult_t begin_work(Comm& comm, const char* place, const ncclConfig_t* config);
// The state of a communicator, as ncclCommGetAsyncError tells it.
ncclResult_t state_of_work(Comm& comm);
void abort_work(Comm& comm);
// Waits for the operations under way.
void end_work(Comm& comm);
// Starts what the calling thread has called in the group that ends.
ncclResult_t start_group();

}  // namespace nccl_double
