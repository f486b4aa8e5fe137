// SPDX-License-Identifier: Apache-2.0
#include "core/comm/device_context.h"

#include <fmt/format.h>

namespace weir::comm {

namespace {

using cuda::Driver;

Status failed(const Driver& driver, const char* function, int error) {
  const char* name = nullptr;
  if (driver.get_error_name(error, &name) != 0 || name == nullptr) name = "an unknown error";
  return Status(Code::kSystem, fmt::format("{}: {} ({})", function, name, error));
}

}  // namespace

Result<std::unique_ptr<DeviceContext>> DeviceContext::open(int device) {
  const Driver* driver = cuda::find_driver(cuda::Look::kInUse);
  if (driver == nullptr || !driver->can_mark()) {
    return Status(Code::kUnsupported, "libcuda.so.1 lacks functions of CUDA's driver");
  }
  std::unique_ptr<DeviceContext> made(new DeviceContext(*driver));
  made->device_ = device;
  int error = driver->device_get(&made->handle_, device);
  if (error != 0) return failed(*driver, "cuDeviceGet", error);
  error = driver->device_primary_ctx_retain(&made->context_, made->handle_);
  if (error == 0) return made;
  made->context_ = nullptr;
  return failed(*driver, "cuDevicePrimaryCtxRetain", error);
}

DeviceContext::~DeviceContext() {
  if (context_ == nullptr) return;
  {
    const Scope scope(this);
    for (void* event : free_) (void)driver_.event_destroy(event);
  }
  (void)driver_.device_primary_ctx_release(handle_);
}

void DeviceContext::Scope::enter() {
  mode_ = cuda::kCaptureModeRelaxed;
  exchanged_ = context_->driver_.thread_exchange_stream_capture_mode(&mode_) == 0;
  pushed_ = context_->driver_.ctx_push_current(context_->context_) == 0;
}

void DeviceContext::Scope::leave() {
  void* popped = nullptr;
  if (pushed_) (void)context_->driver_.ctx_pop_current(&popped);
  if (exchanged_) (void)context_->driver_.thread_exchange_stream_capture_mode(&mode_);
}

Result<DeviceContext::Mark> DeviceContext::mark(void* stream) {
  const Scope scope(this);
  int capturing = cuda::kCaptureNone;
  int error = driver_.stream_is_capturing(stream, &capturing);
  if (error != 0) return failed(driver_, "cuStreamIsCapturing", error);
  if (capturing != cuda::kCaptureNone) {
    return Status(Code::kUnsupported,
                  "its stream is being captured, and a message cannot become part of a graph");
  }
  void* event = nullptr;
  if (free_.empty()) {
    error = driver_.event_create(&event, cuda::kEventDisableTiming);
    if (error != 0) return failed(driver_, "cuEventCreate", error);
  } else {
    event = free_.back();
    free_.pop_back();
  }
  error = driver_.event_record(event, stream);
  if (error == 0) return event;
  free_.push_back(event);
  return failed(driver_, "cuEventRecord", error);
}

Result<bool> DeviceContext::reached(Mark mark) const {
  const Scope scope(this);
  const int error = driver_.event_query(mark);
  if (error == 0) return true;
  if (error == cuda::kErrorNotReady) return false;
  return failed(driver_, "the stream of a message", error);
}

void DeviceContext::remove(Mark mark) { free_.push_back(mark); }

}  // namespace weir::comm
