// SPDX-License-Identifier: Apache-2.0
#include "plugins/nccl/driver.h"

namespace weir::plugins::nccl {

namespace {

// What the transport calls.
bool is_complete(const Driver& d) {
  return Driver::has(d.cuInit, d.cuGetErrorName, d.cuDeviceGet, d.cuDeviceGetUuid_v2,
                     d.cuDevicePrimaryCtxRetain, d.cuDevicePrimaryCtxRelease_v2,
                     d.cuCtxPushCurrent_v2, d.cuCtxPopCurrent_v2, d.cuMemAllocAsync,
                     d.cuMemFreeAsync, d.cuMemcpyAsync, d.cuStreamCreate, d.cuStreamDestroy_v2,
                     d.cuStreamIsCapturing, d.cuEventCreate, d.cuEventRecord, d.cuEventQuery,
                     d.cuEventDestroy_v2, d.cuThreadExchangeStreamCaptureMode);
}

}  // namespace

std::string name_of(const Driver& driver, int error) {
  const char* name = nullptr;
  if (driver.cuGetErrorName(error, &name) != 0 || name == nullptr) name = "an unknown error";
  return std::string(name) + " (" + std::to_string(error) + ")";
}

const Driver* driver(std::string* reason) {
  const Driver* it = cuda::find_driver(cuda::Look::kAnyhow);
  if (it == nullptr) {
    *reason = "there is no CUDA driver (libcuda.so.1)";
  } else if (!is_complete(*it)) {
    *reason = "libcuda.so.1 lacks driver functions that Weir needs; install a newer NVIDIA driver";
  } else {
    return it;
  }
  return nullptr;
}

DriverScope::DriverScope(const Driver& driver, void* context)
    : driver_(driver), mode_(cuda::kCaptureModeRelaxed) {
  exchanged_ = driver_.cuThreadExchangeStreamCaptureMode(&mode_) == 0;
  pushed_ = context != nullptr && driver_.cuCtxPushCurrent_v2(context) == 0;
}

DriverScope::~DriverScope() {
  void* popped = nullptr;
  if (pushed_) (void)driver_.cuCtxPopCurrent_v2(&popped);
  if (exchanged_) (void)driver_.cuThreadExchangeStreamCaptureMode(&mode_);
}

}  // namespace weir::plugins::nccl
