// SPDX-License-Identifier: Apache-2.0
// The functions of CUDA's driver that the transport needs, found at run time in libcuda.so.1. Looking for
// them does not start the driver: a process that has started it cannot use it in its forked children.
// Thread-safe.
#pragma once

#include <string>

namespace weir::plugins::nccl {

struct Driver {
  int (*init)(unsigned flags) = nullptr;
  int (*get_error_name)(int error, const char** name) = nullptr;
  int (*device_get)(int* device, int ordinal) = nullptr;
  int (*device_get_uuid)(void* uuid, int device) = nullptr;
  int (*primary_context_retain)(void** context, int device) = nullptr;
  int (*primary_context_release)(int device) = nullptr;
  int (*context_push)(void* context) = nullptr;
  int (*context_pop)(void** context) = nullptr;
  int (*stream_create)(void** stream, unsigned flags) = nullptr;
  int (*stream_destroy)(void* stream) = nullptr;
  int (*stream_is_capturing)(void* stream, int* status) = nullptr;
  int (*event_create)(void** event, unsigned flags) = nullptr;
  int (*event_record)(void* event, void* stream) = nullptr;
  int (*event_query)(void* event) = nullptr;
  int (*event_destroy)(void* event) = nullptr;
  int (*exchange_capture_mode)(int* mode) = nullptr;
  bool is_stand_in = false;  // Weir's own: its devices are host memory

  // CUDA's name of an error.
  std::string name_of(int error) const;
};

// nullptr: `reason` says what is missing.
const Driver* driver(std::string* reason);

// Makes a context the thread's current one and allows calls that the capture of a stream by any thread
// otherwise forbids, for as long as it lives.
class DriverScope {
 public:
  DriverScope(const Driver& driver, void* context);
  ~DriverScope();
  DriverScope(const DriverScope&) = delete;
  DriverScope& operator=(const DriverScope&) = delete;

 private:
  const Driver& driver_;
  int mode_;
  bool exchanged_ = false;
  bool pushed_ = false;
};

}  // namespace weir::plugins::nccl
