// SPDX-License-Identifier: Apache-2.0
// Memory of devices and of the host, and attributes of addresses.
#include <cstring>

#include "hostcuda/core/capture.h"
#include "hostcuda/core/memory.h"
#include "hostcuda/runtime/call.h"

using namespace weir::hostcuda;           // NOLINT: this file is their C interface
using namespace weir::hostcuda::runtime;  // NOLINT

namespace {

constexpr size_t kPitchBytes = 512;

Error allocate(void** out, size_t bytes, MemoryKind kind) {
  if (out == nullptr) return Error::kInvalidValue;
  *out = nullptr;
  if (in_host_function()) return Error::kNotPermitted;
  if (const Error error = check_unsafe(); error != Error::kSuccess) return error;
  return allocate_device(*current_device(), bytes, kind, out);
}

bool pitched_size(size_t width, size_t rows, size_t* pitch, size_t* bytes) {
  if (width > SIZE_MAX - kPitchBytes) return false;
  *pitch = (width + kPitchBytes - 1) / kPitchBytes * kPitchBytes;
  return !__builtin_mul_overflow(*pitch, rows, bytes);
}

}  // namespace

WEIR_CUDART cudaError_t cudaMalloc(void** address, size_t bytes) {
  return device_call([&] { return allocate(address, bytes, MemoryKind::kDevice); });
}

WEIR_CUDART cudaError_t cudaMallocPitch(void** address, size_t* pitch, size_t width,
                                        size_t height) {
  return device_call([&] {
    size_t bytes = 0;
    if (pitch == nullptr) return Error::kInvalidValue;
    if (!pitched_size(width, height, pitch, &bytes)) return Error::kOutOfMemory;
    return allocate(address, bytes, MemoryKind::kDevice);
  });
}

WEIR_CUDART cudaError_t cudaMalloc3D(struct cudaPitchedPtr* pitched, struct cudaExtent extent) {
  return device_call([&] {
    if (pitched == nullptr) return Error::kInvalidValue;
    size_t rows = 0;
    size_t bytes = 0;
    cudaPitchedPtr made{nullptr, 0, extent.width, extent.height};
    if (__builtin_mul_overflow(extent.height, extent.depth, &rows) ||
        !pitched_size(extent.width, rows, &made.pitch, &bytes)) {
      return Error::kOutOfMemory;
    }
    const Error error = allocate(&made.ptr, bytes, MemoryKind::kDevice);
    if (error == Error::kSuccess) *pitched = made;
    return error;
  });
}

WEIR_CUDART cudaError_t cudaMallocManaged(void** address, size_t bytes, unsigned int flags) {
  return device_call([&] {
    if (flags != 1 && flags != 2) return Error::kInvalidValue;  // attached to all, or to the host
    if (bytes == 0) return Error::kInvalidValue;
    return allocate(address, bytes, MemoryKind::kManaged);
  });
}

WEIR_CUDART cudaError_t cudaFree(void* address) {
  return device_call([&] { return free_device(address); });
}

WEIR_CUDART cudaError_t cudaMallocHost(void** address, size_t bytes) {
  return cudaHostAlloc(address, bytes, 0);
}

WEIR_CUDART cudaError_t cudaHostAlloc(void** address, size_t bytes, unsigned int flags) {
  return device_call([&] {
    return address == nullptr ? Error::kInvalidValue : allocate_host(bytes, flags, address);
  });
}

WEIR_CUDART cudaError_t cudaFreeHost(void* address) {
  return device_call([&] { return free_host(address); });
}

WEIR_CUDART cudaError_t cudaHostRegister(void* address, size_t bytes, unsigned int flags) {
  return device_call([&] { return register_host(address, bytes, flags); });
}

WEIR_CUDART cudaError_t cudaHostUnregister(void* address) {
  return device_call([&] { return unregister_host(address); });
}

WEIR_CUDART cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned int flags) {
  return device_call([&] {
    if (device == nullptr || flags != 0) return Error::kInvalidValue;
    const auto found = find_allocation(host);
    if (!found.has_value() || !found->on_host()) return Error::kInvalidValue;
    *device = host;
    return Error::kSuccess;
  });
}

WEIR_CUDART cudaError_t cudaHostGetFlags(unsigned int* flags, void* host) {
  return device_call([&] {
    const auto found = find_allocation(host);
    if (flags == nullptr || !found.has_value() || found->kind != MemoryKind::kHost) {
      return Error::kInvalidValue;
    }
    *flags = found->flags | 2;  // with unified addresses all of it is mapped
    return Error::kSuccess;
  });
}

WEIR_CUDART cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  return device_call([&] {
    if (free_bytes == nullptr || total_bytes == nullptr) return Error::kInvalidValue;
    const Arena& arena = current_device()->arena;
    *free_bytes = arena.free_bytes();
    *total_bytes = arena.total_bytes();
    return Error::kSuccess;
  });
}

WEIR_CUDART cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes* attributes,
                                                 const void* address) {
  return device_call([&] {
    if (attributes == nullptr) return Error::kInvalidValue;
    std::memset(attributes, 0, sizeof *attributes);
    void* const pointer = const_cast<void*>(address);
    const auto found = find_allocation(address);
    if (!found.has_value()) {
      attributes->type = cudaMemoryTypeUnregistered;
      attributes->device = -2;  // cudaInvalidDeviceId
      attributes->hostPointer = pointer;
      return Error::kSuccess;
    }
    attributes->device = found->device;
    attributes->devicePointer = pointer;
    if (found->on_device()) {
      attributes->type = cudaMemoryTypeDevice;
      return Error::kSuccess;
    }
    attributes->hostPointer = pointer;
    attributes->type =
        found->kind == MemoryKind::kManaged ? cudaMemoryTypeManaged : cudaMemoryTypeHost;
    return Error::kSuccess;
  });
}

WEIR_CUDART cudaError_t cudaMemAdvise(const void* address, size_t bytes, enum cudaMemoryAdvise,
                                      struct cudaMemLocation) {
  return device_call([&] {
    const auto found = find_allocation(address);
    if (!found.has_value() || found->kind != MemoryKind::kManaged) return Error::kInvalidValue;
    return check_range(address, bytes);
  });
}

WEIR_CUDART cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* address) {
  return device_call([&] {
    if (handle == nullptr) return Error::kInvalidValue;
    IpcHandle made{};
    const Error error = ipc_export(address, &made);
    if (error == Error::kSuccess) std::memcpy(handle, &made, sizeof made);
    return error;
  });
}

WEIR_CUDART cudaError_t cudaIpcOpenMemHandle(void** address, cudaIpcMemHandle_t handle,
                                             unsigned int flags) {
  return device_call([&] {
    if (address == nullptr || flags != 1) return Error::kInvalidValue;  // lazy peer access
    IpcHandle given{};
    static_assert(sizeof given == sizeof handle);
    std::memcpy(&given, &handle, sizeof given);
    return ipc_open(given, address);
  });
}

WEIR_CUDART cudaError_t cudaIpcCloseMemHandle(void* address) {
  return device_call([&] { return ipc_close(address); });
}
