// SPDX-License-Identifier: Apache-2.0
#include "core/comm/device/device_context.h"

#include <fmt/format.h>

namespace weir::comm {

namespace {

using cuda::Driver;

Status failed(const Driver& driver, const char* function, int error) {
  const char* name = nullptr;
  if (driver.cuGetErrorName(error, &name) != 0 || name == nullptr) name = "an unknown error";
  return Status(Code::kSystem, fmt::format("{}: {} ({})", function, name, error));
}

}  // namespace

Result<std::unique_ptr<DeviceContext>> DeviceContext::open(int device) {
  const Driver* driver = cuda::find_driver(cuda::Look::kInUse);
  if (driver == nullptr || !driver->can_mark()) {
    return Status(
        Code::kUnsupported,
        "libcuda.so.1 lacks driver functions that Weir needs; install a newer NVIDIA driver");
  }
  std::unique_ptr<DeviceContext> made(new DeviceContext(*driver));
  made->device_ = device;
  int error = driver->cuDeviceGet(&made->handle_, device);
  if (error != 0) return failed(*driver, "cuDeviceGet", error);
  error = driver->cuDevicePrimaryCtxRetain(&made->context_, made->handle_);
  if (error == 0) return made;
  made->context_ = nullptr;
  return failed(*driver, "cuDevicePrimaryCtxRetain", error);
}

DeviceContext::~DeviceContext() {
  if (context_ == nullptr) return;
  {
    const Scope scope(this);
    for (void* event : free_) (void)driver_.cuEventDestroy_v2(event);
  }
  (void)driver_.cuDevicePrimaryCtxRelease_v2(handle_);
}

void DeviceContext::Scope::enter() {
  mode_ = cuda::kCaptureModeRelaxed;
  exchanged_ = context_->driver_.cuThreadExchangeStreamCaptureMode(&mode_) == 0;
  pushed_ = context_->driver_.cuCtxPushCurrent_v2(context_->context_) == 0;
}

void DeviceContext::Scope::leave() {
  void* popped = nullptr;
  if (pushed_) (void)context_->driver_.cuCtxPopCurrent_v2(&popped);
  if (exchanged_) (void)context_->driver_.cuThreadExchangeStreamCaptureMode(&mode_);
}

Result<StreamMark> DeviceContext::mark(void* stream) {
  const Scope scope(this);
  int capturing = cuda::kCaptureNone;
  int error = driver_.cuStreamIsCapturing(stream, &capturing);
  if (error != 0) return failed(driver_, "cuStreamIsCapturing", error);
  if (capturing != cuda::kCaptureNone) {
    return Status(Code::kUnsupported,
                  "the communicator's stream is being captured, and a message cannot become part "
                  "of a CUDA graph");
  }
  void* event = nullptr;
  if (free_.empty()) {
    error = driver_.cuEventCreate(&event, cuda::kEventDisableTiming);
    if (error != 0) return failed(driver_, "cuEventCreate", error);
  } else {
    event = free_.back();
    free_.pop_back();
  }
  error = driver_.cuEventRecord(event, stream);
  if (error == 0) return StreamMark(event, {this});
  free_.push_back(event);
  return failed(driver_, "cuEventRecord", error);
}

Result<bool> DeviceContext::reached(const StreamMark& mark) const {
  const Scope scope(this);
  const int error = driver_.cuEventQuery(mark.get());
  if (error == 0) return true;
  if (error == cuda::kErrorNotReady) return false;
  return failed(driver_, "cuEventQuery on the stream of a message", error);
}

void RemoveMark::operator()(void* mark) const { context->free_.push_back(mark); }

}  // namespace weir::comm
