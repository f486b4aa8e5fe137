// SPDX-License-Identifier: Apache-2.0
#include "plugins/nccl/driver.h"

#include <dlfcn.h>

namespace weir::plugins::nccl {

namespace {

constexpr int kCaptureModeRelaxed = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED

template <typename Function>
bool look_up(void* library, const char* symbol, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, symbol));
  return *function != nullptr;
}

struct Found {
  Driver driver;
  std::string missing;  // "": complete
};

Found find() {
  Found found;
  Driver& d = found.driver;
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    found.missing = "there is no CUDA driver (libcuda.so.1)";
    return found;
  }
  const bool complete =
      look_up(library, "cuInit", &d.init) &&
      look_up(library, "cuGetErrorName", &d.get_error_name) &&
      look_up(library, "cuDeviceGet", &d.device_get) &&
      (look_up(library, "cuDeviceGetUuid_v2", &d.device_get_uuid) ||
       look_up(library, "cuDeviceGetUuid", &d.device_get_uuid)) &&
      look_up(library, "cuDevicePrimaryCtxRetain", &d.primary_context_retain) &&
      look_up(library, "cuDevicePrimaryCtxRelease_v2", &d.primary_context_release) &&
      look_up(library, "cuCtxPushCurrent_v2", &d.context_push) &&
      look_up(library, "cuCtxPopCurrent_v2", &d.context_pop) &&
      look_up(library, "cuStreamCreate", &d.stream_create) &&
      look_up(library, "cuStreamDestroy_v2", &d.stream_destroy) &&
      look_up(library, "cuStreamIsCapturing", &d.stream_is_capturing) &&
      look_up(library, "cuEventCreate", &d.event_create) &&
      look_up(library, "cuEventRecord", &d.event_record) &&
      look_up(library, "cuEventQuery", &d.event_query) &&
      look_up(library, "cuEventDestroy_v2", &d.event_destroy) &&
      look_up(library, "cuThreadExchangeStreamCaptureMode", &d.exchange_capture_mode);
  d.is_stand_in = dlsym(library, "weir_hostcuda_register_kernel") != nullptr;
  if (!complete) found.missing = "libcuda.so.1 lacks functions of CUDA's driver";
  return found;
}

}  // namespace

std::string Driver::name_of(int error) const {
  const char* name = nullptr;
  if (get_error_name(error, &name) != 0 || name == nullptr) name = "an unknown error";
  return std::string(name) + " (" + std::to_string(error) + ")";
}

// Stays loaded. Threads may use it while the process ends: never destroyed.
const Driver* driver(std::string* reason) {
  static const Found* found = new Found(find());
  if (found->missing.empty()) return &found->driver;
  *reason = found->missing;
  return nullptr;
}

DriverScope::DriverScope(const Driver& driver, void* context)
    : driver_(driver), mode_(kCaptureModeRelaxed) {
  exchanged_ = driver_.exchange_capture_mode(&mode_) == 0;
  pushed_ = context != nullptr && driver_.context_push(context) == 0;
}

DriverScope::~DriverScope() {
  void* popped = nullptr;
  if (pushed_) (void)driver_.context_pop(&popped);
  if (exchanged_) (void)driver_.exchange_capture_mode(&mode_);
}

}  // namespace weir::plugins::nccl
