// SPDX-License-Identifier: Apache-2.0
// Versions, errors, and the way to the driver's functions.
#include <dlfcn.h>

#include <string>

#include "hostcuda/core/capture.h"
#include "hostcuda/runtime/call.h"

namespace weir::hostcuda::runtime {

namespace {

constexpr int kVersion = 13000;
thread_local Error last_error = Error::kSuccess;

}  // namespace

cudaError_t record(Error error) {
  if (error != Error::kSuccess) last_error = error;
  return number(error);
}

Error use_device() {
  if (device_count() == 0) return Error::kNoDevice;
  if (chosen_device() < 0) choose_device(0);
  Device* const device = current_device();
  if (device == nullptr) return Error::kInvalidDevice;
  const std::lock_guard lock(device->state);
  device->active = true;
  return device->failure();
}

}  // namespace weir::hostcuda::runtime

using namespace weir::hostcuda;           // NOLINT: this file is their C interface
using namespace weir::hostcuda::runtime;  // NOLINT

WEIR_CUDART cudaError_t cudaRuntimeGetVersion(int* version) {
  return plain_call([&] {
    if (version == nullptr) return Error::kInvalidValue;
    *version = kVersion;
    return Error::kSuccess;
  });
}

WEIR_CUDART cudaError_t cudaDriverGetVersion(int* version) {
  return cudaRuntimeGetVersion(version);
}

WEIR_CUDART cudaError_t cudaGetLastError(void) {
  const Error error = last_error;
  last_error = Error::kSuccess;
  return number(error);
}

WEIR_CUDART cudaError_t cudaPeekAtLastError(void) { return number(last_error); }

WEIR_CUDART const char* cudaGetErrorName(cudaError_t error) {
  const ErrorText* const row = error_text(error);
  return row == nullptr || row->runtime_name == nullptr ? "unrecognized error code"
                                                        : row->runtime_name;
}

WEIR_CUDART const char* cudaGetErrorString(cudaError_t error) {
  const ErrorText* const row = error_text(error);
  return row == nullptr ? "unrecognized error code" : row->text;
}

WEIR_CUDART cudaError_t cudaGetDriverEntryPointByVersion(
    const char* symbol, void** function, unsigned int version, unsigned long long flags,
    enum cudaDriverEntryPointQueryResult* result) {
  return plain_call([&] {
    if (symbol == nullptr || function == nullptr) return Error::kInvalidValue;
    *function = nullptr;
    using Lookup = int (*)(const char*, void**, int, unsigned long long, int*);
    // The driver library in this library's folder: a program may have no other reason to load it.
    static const Lookup lookup = [] {
      Dl_info self{};
      if (dladdr(reinterpret_cast<void*>(&cudaRuntimeGetVersion), &self) == 0) return Lookup{};
      std::string path = self.dli_fname;
      const size_t slash = path.rfind('/');
      path = (slash == std::string::npos ? std::string() : path.substr(0, slash + 1));
      void* const driver = dlopen((path + "libcuda.so.1").c_str(), RTLD_NOW | RTLD_LOCAL);
      if (driver == nullptr) return Lookup{};
      return reinterpret_cast<Lookup>(dlsym(driver, "cuGetProcAddress_v2"));
    }();
    int state = 1;
    if (lookup != nullptr) {
      (void)lookup(symbol, function, static_cast<int>(version), flags, &state);
    }
    if (result != nullptr) *result = static_cast<enum cudaDriverEntryPointQueryResult>(state);
    // As in CUDA, a missing symbol is not an error if the caller asks for the result.
    return state == 0 || result != nullptr ? Error::kSuccess : Error::kNotFound;
  });
}

// Kept in CUDA 13 only as a symbol, for programs compiled earlier.
WEIR_CUDART cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function,
                                                unsigned long long flags,
                                                enum cudaDriverEntryPointQueryResult* result) {
  return cudaGetDriverEntryPointByVersion(symbol, function, kVersion, flags, result);
}

WEIR_CUDART cudaError_t cudaProfilerStart(void) { return cudaSuccess; }
WEIR_CUDART cudaError_t cudaProfilerStop(void) { return cudaSuccess; }
