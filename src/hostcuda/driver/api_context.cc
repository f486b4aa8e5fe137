// SPDX-License-Identifier: Apache-2.0
// Contexts. A device has one, its primary context, which every context handle means: a further one
// (cuCtxCreate) would only isolate device code.
#include <vector>

#include "hostcuda/core/facts.h"
#include "hostcuda/core/per_thread.h"
#include "hostcuda/driver/call.h"

using namespace weir::hostcuda;          // NOLINT: this file is their C interface
using namespace weir::hostcuda::driver;  // NOLINT

namespace {

constexpr unsigned kFlags = 0xff;
struct ContextStack {
  std::vector<int> below;  // the current one
};
std::vector<int>& below() { return PerThread<ContextStack>::get().below; }

CUcontext context_of(int index) {
  return index < 0 ? nullptr : reinterpret_cast<CUcontext>(device_at(index));
}

// -1: no context.
int index_of(CUcontext context) {
  for (int i = 0; i < device_count(); ++i) {
    if (context_of(i) == context) return i;
  }
  return -1;
}

Error retain(int index) {
  Device* const device = device_at(index);
  if (device == nullptr) return Error::kInvalidDevice;
  const std::lock_guard lock(device->state);
  ++device->retained_count;
  device->active = true;
  return Error::kSuccess;
}

Error release(int index) {
  Device* const device = device_at(index);
  if (device == nullptr) return Error::kInvalidDevice;
  const std::lock_guard lock(device->state);
  if (device->retained_count == 0) return Error::kInvalidContext;
  --device->retained_count;
  return Error::kSuccess;
}

}  // namespace

WEIR_CUDA CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  return plain_call([&] {
    if (context == nullptr) return Error::kInvalidValue;
    const Error error = retain(device);
    *context = error == Error::kSuccess ? context_of(device) : nullptr;
    return error;
  });
}

WEIR_CUDA CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  return plain_call([&] { return release(device); });
}

WEIR_CUDA CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice index, unsigned int flags) {
  return plain_call([&] {
    Device* const device = device_at(index);
    if (device == nullptr) return Error::kInvalidDevice;
    if ((flags & ~kFlags) != 0) return Error::kInvalidValue;
    const std::lock_guard lock(device->state);
    device->flags = flags;
    return Error::kSuccess;
  });
}

WEIR_CUDA CUresult cuDevicePrimaryCtxGetState(CUdevice index, unsigned int* flags, int* active) {
  return plain_call([&] {
    Device* const device = device_at(index);
    if (flags == nullptr || active == nullptr) return Error::kInvalidValue;
    if (device == nullptr) return Error::kInvalidDevice;
    const std::lock_guard lock(device->state);
    *flags = device->flags;
    *active = device->active ? 1 : 0;
    return Error::kSuccess;
  });
}

WEIR_CUDA CUresult cuDevicePrimaryCtxReset_v2(CUdevice index) {
  return plain_call([&] {
    Device* const device = device_at(index);
    return device == nullptr ? Error::kInvalidDevice : reset_device(*device);
  });
}

WEIR_CUDA CUresult cuCtxCreate_v4(CUcontext* context, CUctxCreateParams* parameters, unsigned int,
                                  CUdevice device) {
  return plain_call([&] {
    if (context == nullptr) return Error::kInvalidValue;
    if (parameters != nullptr) return Error::kNotSupported;
    const Error error = retain(device);
    if (error != Error::kSuccess) return error;
    below().push_back(chosen_device());
    choose_device(device);
    *context = context_of(device);
    return Error::kSuccess;
  });
}

WEIR_CUDA CUresult cuCtxDestroy_v2(CUcontext context) {
  return plain_call([&] {
    const int index = index_of(context);
    if (index < 0) return Error::kInvalidContext;
    if (chosen_device() == index) {
      choose_device(below().empty() ? -1 : below().back());
      if (!below().empty()) below().pop_back();
    }
    return release(index);
  });
}

WEIR_CUDA CUresult cuCtxPushCurrent_v2(CUcontext context) {
  return plain_call([&] {
    const int index = index_of(context);
    if (index < 0) return Error::kInvalidContext;
    below().push_back(chosen_device());
    choose_device(index);
    return Error::kSuccess;
  });
}

WEIR_CUDA CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  return context_call([&] {
    if (context != nullptr) *context = context_of(chosen_device());
    choose_device(below().empty() ? -1 : below().back());
    if (!below().empty()) below().pop_back();
    return Error::kSuccess;
  });
}

WEIR_CUDA CUresult cuCtxSetCurrent(CUcontext context) {
  return plain_call([&] {
    const int index = index_of(context);
    if (context != nullptr && index < 0) return Error::kInvalidContext;
    choose_device(index);
    return Error::kSuccess;
  });
}

WEIR_CUDA CUresult cuCtxGetCurrent(CUcontext* context) {
  return plain_call([&] {
    if (context == nullptr) return Error::kInvalidValue;
    *context = context_of(chosen_device());
    return Error::kSuccess;
  });
}

WEIR_CUDA CUresult cuCtxGetDevice(CUdevice* device) {
  return context_call([&] {
    if (device == nullptr) return Error::kInvalidValue;
    *device = chosen_device();
    return Error::kSuccess;
  });
}

WEIR_CUDA CUresult cuCtxGetFlags(unsigned int* flags) {
  return context_call([&] {
    if (flags == nullptr) return Error::kInvalidValue;
    Device* const device = current_device();
    const std::lock_guard lock(device->state);
    *flags = device->flags;
    return Error::kSuccess;
  });
}

WEIR_CUDA CUresult cuCtxGetApiVersion(CUcontext context, unsigned int* version) {
  return plain_call([&] {
    if (version == nullptr) return Error::kInvalidValue;
    if (context != nullptr && index_of(context) < 0) return Error::kInvalidContext;
    *version = 3020;
    return Error::kSuccess;
  });
}

WEIR_CUDA CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return context_call([&] {
    if (least != nullptr) *least = kPriorityLow;
    if (greatest != nullptr) *greatest = kPriorityHigh;
    return Error::kSuccess;
  });
}

WEIR_CUDA CUresult cuCtxSynchronize(void) {
  return context_call([] { return synchronize_device(*current_device()); });
}

WEIR_CUDA CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags) {
  return context_call([&] {
    const int index = index_of(peer);
    if (flags != 0) return Error::kInvalidValue;
    return index < 0 ? Error::kInvalidContext : set_peer(*current_device(), index, true);
  });
}

WEIR_CUDA CUresult cuCtxDisablePeerAccess(CUcontext peer) {
  return context_call([&] {
    const int index = index_of(peer);
    return index < 0 ? Error::kInvalidContext : set_peer(*current_device(), index, false);
  });
}
