// SPDX-License-Identifier: Apache-2.0
// The common part of every function of the driver API: no exception leaves it, and cuInit must have
// been called. Thread-safe.
#pragma once

#include <exception>
#include <new>

#include "hostcuda/core/device.h"
#include "hostcuda/core/error.h"
#include "hostcuda/driver/functions.h"

#define WEIR_CUDA extern "C" __attribute__((visibility("default")))

namespace weir::hostcuda::driver {

inline CUresult number(Error error) { return static_cast<CUresult>(error); }
inline void* pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }
inline CUdeviceptr address_of(const void* pointer) {
  return reinterpret_cast<CUdeviceptr>(pointer);
}

template <class Body>
CUresult plain_call(Body body) {
  try {
    if (!is_initialized()) return number(Error::kNotInitialized);
    const Error error = check_process();
    return number(error == Error::kSuccess ? body() : error);
  } catch (const std::bad_alloc&) {
    return number(Error::kOutOfMemory);
  } catch (const std::exception&) {
    return number(Error::kUnknown);
  }
}

// For functions that need a current context.
template <class Body>
CUresult context_call(Body body) {
  return plain_call([&] {
    const Device* const device = chosen_device() < 0 ? nullptr : current_device();
    if (device == nullptr) return Error::kInvalidContext;
    const Error error = device->failure();
    return error == Error::kSuccess ? body() : error;
  });
}

}  // namespace weir::hostcuda::driver
