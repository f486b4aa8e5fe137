// SPDX-License-Identifier: Apache-2.0
// Memory, attributes of addresses, copies and fills.
#include <cstring>

#include "hostcuda/core/capture.h"
#include "hostcuda/core/memory.h"
#include "hostcuda/core/operation.h"
#include "hostcuda/core/pool.h"
#include "hostcuda/driver/call.h"

using namespace weir::hostcuda;          // NOLINT: this file is their C interface
using namespace weir::hostcuda::driver;  // NOLINT

namespace {

Error allocate(CUdeviceptr* out, size_t bytes, MemoryKind kind) {
  if (out == nullptr || bytes == 0) return Error::kInvalidValue;
  *out = 0;
  if (in_host_function()) return Error::kNotPermitted;
  if (const Error error = check_unsafe(); error != Error::kSuccess) return error;
  void* made = nullptr;
  const Error error = allocate_device(*current_device(), bytes, kind, &made);
  *out = address_of(made);
  return error;
}

Error copy_flat(void* to, const void* from, size_t bytes, CopyKind kind, CUstream stream,
                bool synchronous) {
  CopyOperation operation;
  operation.destination = to;
  operation.source = from;
  operation.width_bytes = bytes;
  operation.destination_pitch = bytes;
  operation.source_pitch = bytes;
  operation.kind = kind;
  return copy(std::move(operation), stream, synchronous);
}

Error fill_flat(CUdeviceptr address, unsigned value, unsigned element_bytes, size_t count,
                CUstream stream, bool synchronous) {
  if (address % element_bytes != 0) return Error::kInvalidValue;
  FillOperation operation;
  operation.destination = pointer(address);
  operation.value = value;
  operation.element_bytes = element_bytes;
  operation.width = count;
  return fill(operation, stream, synchronous);
}

template <class Type>
void put(void* data, Type value) {
  std::memcpy(data, &value, sizeof(Type));
}

Error read_attribute(void* data, CUpointer_attribute attribute, const Allocation& found,
                     CUdeviceptr address) {
  const bool mapped = found.kind == MemoryKind::kMapped;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      put(data, reinterpret_cast<CUcontext>(device_at(found.device)));
      return Error::kSuccess;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      put(data, found.on_host() ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
      return Error::kSuccess;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      put(data, address);
      return Error::kSuccess;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (found.on_device()) return Error::kInvalidValue;
      put(data, pointer(address));
      return Error::kSuccess;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      put(data, 0u);
      return Error::kSuccess;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      put(data, static_cast<unsigned long long>(found.id));
      return Error::kSuccess;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      put(data, static_cast<bool>(found.kind == MemoryKind::kManaged));
      return Error::kSuccess;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      put(data, found.device);
      return Error::kSuccess;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      put(data, static_cast<bool>(found.kind == MemoryKind::kDevice && found.pool == nullptr));
      return Error::kSuccess;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      // For mapped memory, these two return the reservation and cuMemGetAddressRange the mapping.
      put(data, reinterpret_cast<void*>(mapped ? found.reserved_base : found.base));
      return Error::kSuccess;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      put(data, mapped ? found.reserved_bytes : found.bytes);
      return Error::kSuccess;
    case CU_POINTER_ATTRIBUTE_MAPPED:
      put(data, true);
      return Error::kSuccess;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      put(data, static_cast<unsigned long long>(found.handle_types));
      return Error::kSuccess;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      put(data, false);
      return Error::kSuccess;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      put(data, 3u);
      return Error::kSuccess;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      put(data, found.pool.get());
      return Error::kSuccess;
  }
  return Error::kNotSupported;
}

}  // namespace

WEIR_CUDA CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  return context_call([&] {
    if (free_bytes == nullptr || total_bytes == nullptr) return Error::kInvalidValue;
    *free_bytes = current_device()->arena.free_bytes();
    *total_bytes = current_device()->arena.total_bytes();
    return Error::kSuccess;
  });
}

WEIR_CUDA CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  return context_call([&] { return allocate(address, bytes, MemoryKind::kDevice); });
}

WEIR_CUDA CUresult cuMemAllocManaged(CUdeviceptr* address, size_t bytes, unsigned int flags) {
  return context_call([&] {
    if (flags != 1 && flags != 2) return Error::kInvalidValue;
    return allocate(address, bytes, MemoryKind::kManaged);
  });
}

WEIR_CUDA CUresult cuMemFree_v2(CUdeviceptr address) {
  return context_call([&] { return free_device(pointer(address)); });
}

WEIR_CUDA CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
  return context_call([&] {
    const auto found = find_allocation(pointer(address));
    if (!found.has_value()) return Error::kNotFound;
    if (base != nullptr) *base = found->base;
    if (bytes != nullptr) *bytes = found->bytes;
    return Error::kSuccess;
  });
}

WEIR_CUDA CUresult cuMemAllocHost_v2(void** address, size_t bytes) {
  return cuMemHostAlloc(address, bytes, 0);
}

WEIR_CUDA CUresult cuMemHostAlloc(void** address, size_t bytes, unsigned int flags) {
  return context_call([&] {
    if (address == nullptr || bytes == 0) return Error::kInvalidValue;
    return allocate_host(bytes, flags, address);
  });
}

WEIR_CUDA CUresult cuMemFreeHost(void* address) {
  return context_call([&] { return free_host(address); });
}

WEIR_CUDA CUresult cuMemHostRegister_v2(void* address, size_t bytes, unsigned int flags) {
  return context_call([&] { return register_host(address, bytes, flags); });
}

WEIR_CUDA CUresult cuMemHostUnregister(void* address) {
  return context_call([&] { return unregister_host(address); });
}

WEIR_CUDA CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* device, void* host,
                                                unsigned int flags) {
  return context_call([&] {
    const auto found = find_allocation(host);
    if (device == nullptr || flags != 0 || !found.has_value() || !found->on_host()) {
      return Error::kInvalidValue;
    }
    *device = address_of(host);
    return Error::kSuccess;
  });
}

WEIR_CUDA CUresult cuMemHostGetFlags(unsigned int* flags, void* host) {
  return context_call([&] {
    const auto found = find_allocation(host);
    if (flags == nullptr || !found.has_value() || found->kind != MemoryKind::kHost) {
      return Error::kInvalidValue;
    }
    *flags = found->flags | 2;
    return Error::kSuccess;
  });
}

WEIR_CUDA CUresult cuMemAllocAsync(CUdeviceptr* address, size_t bytes, CUstream handle) {
  return context_call([&] {
    if (address == nullptr || bytes == 0) return Error::kInvalidValue;
    const StreamRef stream = find_stream(handle);
    if (stream == nullptr) return Error::kInvalidHandle;
    void* made = nullptr;
    const Error error = current_pool(stream->device())->allocate(handle, bytes, &made);
    *address = address_of(made);
    return error;
  });
}

WEIR_CUDA CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  return context_call([&] { return Pool::free(stream, pointer(address)); });
}

WEIR_CUDA CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  return context_call([&] {
    if (handle == nullptr) return Error::kInvalidValue;
    IpcHandle made{};
    const Error error = ipc_export(pointer(address), &made);
    if (error == Error::kSuccess) std::memcpy(handle, &made, sizeof made);
    return error;
  });
}

WEIR_CUDA CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* address, CUipcMemHandle handle,
                                         unsigned int flags) {
  return context_call([&] {
    if (address == nullptr || flags != 1) return Error::kInvalidValue;
    IpcHandle given{};
    std::memcpy(&given, &handle, sizeof given);
    void* opened = nullptr;
    const Error error = ipc_open(given, &opened);
    *address = address_of(opened);
    return error;
  });
}

WEIR_CUDA CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  return context_call([&] { return ipc_close(pointer(address)); });
}

WEIR_CUDA CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute,
                                         CUdeviceptr address) {
  return plain_call([&] {
    if (data == nullptr) return Error::kInvalidValue;
    const auto found = find_allocation(pointer(address));
    if (!found.has_value()) return Error::kInvalidValue;
    return read_attribute(data, attribute, *found, address);
  });
}

WEIR_CUDA CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute* attributes,
                                          void** data, CUdeviceptr address) {
  return plain_call([&] {
    if (attributes == nullptr || data == nullptr) return Error::kInvalidValue;
    // For an address unknown to CUDA, the call succeeds and every attribute is zero.
    const auto found = find_allocation(pointer(address));
    for (unsigned i = 0; i < count; ++i) {
      if (found.has_value()) {
        const Error error = read_attribute(data[i], attributes[i], *found, address);
        if (error == Error::kSuccess) continue;
        if (error != Error::kInvalidValue) return error;
      }
      switch (attributes[i]) {
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
          put(data[i], -2);
          break;
        case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        case CU_POINTER_ATTRIBUTE_MAPPED:
        case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
          put(data[i], false);
          break;
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
          put(data[i], 0u);
          break;
        default:
          put(data[i], uint64_t{0});
      }
    }
    return Error::kSuccess;
  });
}

WEIR_CUDA CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute attribute,
                                         CUdeviceptr address) {
  return plain_call([&] {
    const auto found = find_allocation(pointer(address));
    // Only CU_POINTER_ATTRIBUTE_SYNC_MEMOPS may be set; it asks for synchronous copies, which these
    // are.
    return value != nullptr && found.has_value() && attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
               ? Error::kSuccess
               : Error::kInvalidValue;
  });
}

WEIR_CUDA CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return context_call([&] {
    return copy_flat(pointer(to), pointer(from), bytes, CopyKind::kDefault, nullptr, true);
  });
}

WEIR_CUDA CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return context_call([&] {
    return copy_flat(pointer(to), pointer(from), bytes, CopyKind::kDefault, stream, false);
  });
}

WEIR_CUDA CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
  return context_call(
      [&] { return copy_flat(pointer(to), from, bytes, CopyKind::kHostToDevice, nullptr, true); });
}

WEIR_CUDA CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
  return context_call(
      [&] { return copy_flat(to, pointer(from), bytes, CopyKind::kDeviceToHost, nullptr, true); });
}

WEIR_CUDA CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return context_call([&] {
    return copy_flat(pointer(to), pointer(from), bytes, CopyKind::kDeviceToDevice, nullptr, true);
  });
}

WEIR_CUDA CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes,
                                        CUstream stream) {
  return context_call(
      [&] { return copy_flat(pointer(to), from, bytes, CopyKind::kHostToDevice, stream, false); });
}

WEIR_CUDA CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return context_call(
      [&] { return copy_flat(to, pointer(from), bytes, CopyKind::kDeviceToHost, stream, false); });
}

WEIR_CUDA CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                                        CUstream stream) {
  return context_call([&] {
    return copy_flat(pointer(to), pointer(from), bytes, CopyKind::kDeviceToDevice, stream, false);
  });
}

WEIR_CUDA CUresult cuMemsetD8_v2(CUdeviceptr address, unsigned char value, size_t count) {
  return context_call([&] { return fill_flat(address, value, 1, count, nullptr, true); });
}

WEIR_CUDA CUresult cuMemsetD16_v2(CUdeviceptr address, unsigned short value, size_t count) {
  return context_call([&] { return fill_flat(address, value, 2, count, nullptr, true); });
}

WEIR_CUDA CUresult cuMemsetD32_v2(CUdeviceptr address, unsigned int value, size_t count) {
  return context_call([&] { return fill_flat(address, value, 4, count, nullptr, true); });
}

WEIR_CUDA CUresult cuMemsetD8Async(CUdeviceptr address, unsigned char value, size_t count,
                                   CUstream stream) {
  return context_call([&] { return fill_flat(address, value, 1, count, stream, false); });
}

WEIR_CUDA CUresult cuMemsetD16Async(CUdeviceptr address, unsigned short value, size_t count,
                                    CUstream stream) {
  return context_call([&] { return fill_flat(address, value, 2, count, stream, false); });
}

WEIR_CUDA CUresult cuMemsetD32Async(CUdeviceptr address, unsigned int value, size_t count,
                                    CUstream stream) {
  return context_call([&] { return fill_flat(address, value, 4, count, stream, false); });
}
