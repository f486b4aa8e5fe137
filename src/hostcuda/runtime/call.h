// SPDX-License-Identifier: Apache-2.0
// The common part of every function of the runtime: no exception leaves it, it fails in a forked
// process, and its error becomes the thread's last error. Thread-safe.
#pragma once

#include <exception>
#include <new>
#include <system_error>

#include "hostcuda/core/device.h"
#include "hostcuda/core/error.h"
#include "hostcuda/runtime/functions.h"

#define WEIR_CUDART extern "C" __attribute__((visibility("default")))

namespace weir::hostcuda::runtime {

// Stores the thread's last error and returns it.
cudaError_t record(Error error);

inline cudaError_t number(Error error) { return static_cast<cudaError_t>(error); }

// The thread's device becomes current, as by CUDA's implicit initialization.
Error use_device();

// As in CUDA, the driver is initialized by it.
template <class Body>
cudaError_t plain_call(Body body) {
  try {
    Error error = check_process();
    if (error == Error::kSuccess) {
      mark_initialized();
      error = body();
    }
    return record(error);
  } catch (const std::bad_alloc&) {
    return record(Error::kOutOfMemory);
  } catch (const std::exception&) {
    return record(Error::kUnknown);
  }
}

// For functions that need a device.
template <class Body>
cudaError_t device_call(Body body) {
  return plain_call([&] {
    const Error error = use_device();
    return error == Error::kSuccess ? body() : error;
  });
}

}  // namespace weir::hostcuda::runtime
