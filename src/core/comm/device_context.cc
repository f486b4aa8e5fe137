// SPDX-License-Identifier: Apache-2.0
#include "core/comm/device_context.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace weir::comm {

struct DriverFunctions {
  int (*get_error_name)(int error, const char** name) = nullptr;
  int (*device_get)(int* device, int ordinal) = nullptr;
  int (*primary_context_retain)(void** context, int device) = nullptr;
  int (*primary_context_release)(int device) = nullptr;
  int (*context_push)(void* context) = nullptr;
  int (*context_pop)(void** context) = nullptr;
  int (*stream_is_capturing)(void* stream, int* status) = nullptr;
  int (*event_create)(void** event, unsigned flags) = nullptr;
  int (*event_record)(void* event, void* stream) = nullptr;
  int (*event_query)(void* event) = nullptr;
  int (*event_destroy)(void* event) = nullptr;
  int (*exchange_capture_mode)(int* mode) = nullptr;
};

namespace {

// Of cuda.h: CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_CAPTURE_STATUS_NONE, CU_EVENT_DISABLE_TIMING,
// CUDA_ERROR_NOT_READY.
constexpr int kCaptureModeRelaxed = 2;
constexpr int kCaptureNone = 0;
constexpr unsigned kEventDisableTiming = 2;
constexpr int kNotReady = 600;

template <typename Function>
bool look_up(void* library, const char* symbol, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, symbol));
  return *function != nullptr;
}

// Null: the process has no driver, or one that lacks something.
const DriverFunctions* find_functions() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  auto* d = new DriverFunctions;
  const bool complete =
      look_up(library, "cuGetErrorName", &d->get_error_name) &&
      look_up(library, "cuDeviceGet", &d->device_get) &&
      look_up(library, "cuDevicePrimaryCtxRetain", &d->primary_context_retain) &&
      look_up(library, "cuDevicePrimaryCtxRelease_v2", &d->primary_context_release) &&
      look_up(library, "cuCtxPushCurrent_v2", &d->context_push) &&
      look_up(library, "cuCtxPopCurrent_v2", &d->context_pop) &&
      look_up(library, "cuStreamIsCapturing", &d->stream_is_capturing) &&
      look_up(library, "cuEventCreate", &d->event_create) &&
      look_up(library, "cuEventRecord", &d->event_record) &&
      look_up(library, "cuEventQuery", &d->event_query) &&
      look_up(library, "cuEventDestroy_v2", &d->event_destroy) &&
      look_up(library, "cuThreadExchangeStreamCaptureMode", &d->exchange_capture_mode);
  if (complete) return d;
  delete d;
  dlclose(library);
  return nullptr;
}

Status failed(const DriverFunctions& driver, const char* function, int error) {
  const char* name = nullptr;
  if (driver.get_error_name(error, &name) != 0 || name == nullptr) name = "an unknown error";
  return Status(Code::kSystem, fmt::format("{}: {} ({})", function, name, error));
}

}  // namespace

Result<std::unique_ptr<DeviceContext>> DeviceContext::open(int device) {
  // Kept, as the library is: threads may use it while the process ends.
  static const DriverFunctions* const driver = find_functions();
  if (driver == nullptr) {
    return Status(Code::kUnsupported, "libcuda.so.1 lacks functions of CUDA's driver");
  }
  std::unique_ptr<DeviceContext> made(new DeviceContext(*driver));
  made->device_ = device;
  int error = driver->device_get(&made->handle_, device);
  if (error != 0) return failed(*driver, "cuDeviceGet", error);
  error = driver->primary_context_retain(&made->context_, made->handle_);
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
  (void)driver_.primary_context_release(handle_);
}

void DeviceContext::Scope::enter() {
  mode_ = kCaptureModeRelaxed;
  exchanged_ = context_->driver_.exchange_capture_mode(&mode_) == 0;
  pushed_ = context_->driver_.context_push(context_->context_) == 0;
}

void DeviceContext::Scope::leave() {
  void* popped = nullptr;
  if (pushed_) (void)context_->driver_.context_pop(&popped);
  if (exchanged_) (void)context_->driver_.exchange_capture_mode(&mode_);
}

Result<DeviceContext::Mark> DeviceContext::mark(void* stream) {
  const Scope scope(this);
  int capturing = kCaptureNone;
  int error = driver_.stream_is_capturing(stream, &capturing);
  if (error != 0) return failed(driver_, "cuStreamIsCapturing", error);
  if (capturing != kCaptureNone) {
    return Status(Code::kUnsupported,
                  "its stream is being captured, and a message cannot become part of a graph");
  }
  void* event = nullptr;
  if (free_.empty()) {
    error = driver_.event_create(&event, kEventDisableTiming);
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
  if (error == kNotReady) return false;
  return failed(driver_, "the stream of a message", error);
}

void DeviceContext::remove(Mark mark) { free_.push_back(mark); }

}  // namespace weir::comm
