// SPDX-License-Identifier: Apache-2.0
#include "nccl/strict_cuda/strict_cuda.h"

#include <algorithm>
#include <atomic>
#include <cstdio>

#include "nccl/strict_cuda/world.h"

using namespace strict_cuda;  // NOLINT: this is a part of it

namespace {

// Below the current context. Exit handlers use it: nothing that a thread's end destroys.
constexpr size_t kBelowMax = 64;
thread_local Context t_below[kBelowMax];
thread_local size_t t_below_count = 0;

std::atomic<bool> initialized{false};  // of the process

// How often each primary context has been retained. What lies on its device outlives it here.
std::atomic<int> retained[kContextCount];

bool is_alive(Context context) { return retained[index_of(context)].load() > 0; }

}  // namespace

// ---- Errors, contexts ---------------------------------------------------------------------------

STRICT_CUDA_API cuInit(unsigned) {
  initialized.store(true);
  return kSuccess;
}

STRICT_CUDA_API cuGetErrorName(Result error, const char** name) {
  static const std::map<Result, const char*> names = {
      {kErrorInvalidValue, "CUDA_ERROR_INVALID_VALUE"},
      {kErrorInvalidContext, "CUDA_ERROR_INVALID_CONTEXT"},
      {kErrorInvalidHandle, "CUDA_ERROR_INVALID_HANDLE"},
      {kErrorCaptureUnsupported, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
      {kErrorCaptureInvalidated, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"},
      {kErrorCaptureIsolation, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION"},
      {kErrorNotFound, "CUDA_ERROR_NOT_FOUND"},
      {kErrorInjected, "CUDA_ERROR_UNKNOWN"}};
  const auto found = names.find(error);
  *name = found == names.end() ? nullptr : found->second;
  return found == names.end() ? kErrorInvalidValue : kSuccess;
}
STRICT_CUDA_API cuGetErrorString(Result error, const char** text) {
  return cuGetErrorName(error, text);
}

STRICT_CUDA_API cuDeviceGetCount(int* count) {
  if (!initialized.load()) return kErrorNotInitialized;
  *count = kContextCount;
  return kSuccess;
}

STRICT_CUDA_API cuDeviceGetPCIBusId(char* text, int bytes, Device device) {
  std::snprintf(text, static_cast<size_t>(bytes), "0000:%02x:00.0", 0xa0 + device);
  return kSuccess;
}
STRICT_CUDA_API cuDevicePrimaryCtxRetain(Context* context, Device device) {
  if (device < 0 || device >= kContextCount) return kErrorInvalidValue;
  *context = &contexts[device];
  ++retained[device];
  return kSuccess;
}
STRICT_CUDA_API cuDevicePrimaryCtxRelease_v2(Device device) {
  if (device < 0 || device >= kContextCount || retained[device].load() == 0) {
    return kErrorInvalidContext;
  }
  --retained[device];
  return kSuccess;
}
STRICT_CUDA_API cuDevicePrimaryCtxGetState(Device device, unsigned* flags, int* active) {
  if (device < 0 || device >= kContextCount) return kErrorInvalidValue;
  *flags = 0;
  *active = is_alive(&contexts[device]) ? 1 : 0;
  return kSuccess;
}
STRICT_CUDA_API cuCtxSetCurrent(Context context) {
  if (context != nullptr && !is_alive(context)) return kErrorContextIsDestroyed;
  t_context = context;
  return kSuccess;
}
STRICT_CUDA_API cuCtxGetCurrent(Context* context) {
  if (!initialized.load()) return kErrorNotInitialized;
  *context = t_context;
  return kSuccess;
}
STRICT_CUDA_API cuCtxGetDevice(Device* device) {
  if (t_context == nullptr) return kErrorInvalidContext;
  *device = static_cast<Device>(static_cast<int*>(t_context) - contexts);
  return kSuccess;
}
STRICT_CUDA_API cuCtxPushCurrent_v2(Context context) {
  if (t_below_count == kBelowMax) return kErrorInvalidValue;
  if (!is_alive(context)) return kErrorContextIsDestroyed;
  t_below[t_below_count++] = t_context;
  t_context = context;
  return kSuccess;
}
STRICT_CUDA_API cuCtxPopCurrent_v2(Context* context) {
  if (t_below_count == 0) return kErrorInvalidContext;
  *context = t_context;
  t_context = t_below[--t_below_count];
  return kSuccess;
}

// ---- For tests ----------------------------------------------------------------------------------

extern "C" void strict_cuda_fail(const char* function, int calls) {
  World& it = world();
  std::lock_guard lock(it.lock);
  it.faults[function] = calls;
}

extern "C" int strict_cuda_user_objects() {
  World& it = world();
  std::lock_guard lock(it.lock);
  return it.objects;
}

extern "C" int strict_cuda_events() {
  World& it = world();
  std::lock_guard lock(it.lock);
  return static_cast<int>(it.events.size());
}

extern "C" void strict_cuda_slow(int copy_ms) {
  World& it = world();
  std::lock_guard lock(it.lock);
  it.copy_ms = copy_ms;
}

extern "C" int strict_cuda_host_copies() {
  World& it = world();
  std::lock_guard lock(it.lock);
  return it.host_copies;
}

extern "C" int strict_cuda_device_copies(int device) {
  World& it = world();
  std::lock_guard lock(it.lock);
  return it.device_copies[&contexts[device]];
}

extern "C" int strict_cuda_kernels() {
  World& it = world();
  std::lock_guard lock(it.lock);
  return it.kernels;
}

extern "C" int strict_cuda_copied_from(int device, int* from, int capacity) {
  World& it = world();
  std::lock_guard lock(it.lock);
  const std::vector<int>& all = it.copied_from[&contexts[device]];
  const auto count = std::min(all.size(), static_cast<size_t>(capacity));
  std::copy_n(all.begin(), count, from);
  return static_cast<int>(all.size());
}

extern "C" void strict_cuda_queue(int calls) {
  World& it = world();
  std::lock_guard lock(it.lock);
  it.queue_max = static_cast<size_t>(calls);
}

extern "C" void strict_cuda_lose(int device, int error) {
  World& it = world();
  std::lock_guard lock(it.lock);
  it.lost[&contexts[device]] = error;
}

extern "C" void strict_cuda_load_lazily() {
  Submission submission(world());
  submission.wait_for_device();
}
