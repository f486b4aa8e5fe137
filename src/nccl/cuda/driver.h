// SPDX-License-Identifier: Apache-2.0
// The CUDA driver of a process that orders its work by streams, real or stand-in, and what the library
// does with its contexts and captures. Without one there is no table, and nothing else here.
// Thread-safe.
#pragma once

#include "cuda/driver_table.h"
#include "nccl/outcome.h"

namespace weir::cuda {

// nullptr when the process uses no CUDA, or one that lacks something. `asked`: a caller has named a
// stream, so that there is one to look for. Once found, it stays.
const Driver* driver(bool asked);

// The one that was found before, or nullptr; costs nothing.
const Driver* known_driver();

// For when a communicator is made: looks whether CUDA is loaded and has been initialized.
const Driver* driver_in_use();

// Of the calling thread's context; 0 where there is none.
int current_device();

// ncclUnhandledCudaError with CUDA's name for it.
nccl::Outcome failed(const Driver& driver, const char* function, const char* call, Result result);

// Makes a stream's context the current one, for as long as it lives; for the NULL stream `context`,
// or, when that is NULL too, the thread's own.
class ContextScope {
 public:
  ContextScope(const Driver& driver, Stream stream, Context context);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  const Driver& driver_;
  bool pushed_ = false;
};

// Allows calls that a stream capture of this thread otherwise forbids.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const Driver& driver);
  ~RelaxedCapture();
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const Driver& driver_;
  int mode_ = kCaptureModeRelaxed;
  bool exchanged_ = false;
};

// Whether only the device reaches it; managed, pinned and plain host memory is the host's as well.
bool only_on_device(const Driver& driver, const void* pointer);

}  // namespace weir::cuda
