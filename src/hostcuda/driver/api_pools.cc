// SPDX-License-Identifier: Apache-2.0
// Memory pools. They are not exported to other processes, and hold memory of devices only.
#include "hostcuda/core/pool.h"
#include "hostcuda/driver/call.h"

using namespace weir::hostcuda;          // NOLINT: this file is their C interface
using namespace weir::hostcuda::driver;  // NOLINT

namespace {

CUmemoryPool handle_of(const PoolRef& pool) { return reinterpret_cast<CUmemoryPool>(pool.get()); }

Error device_of(const CUmemLocation* location, Device** device) {
  if (location == nullptr) return Error::kInvalidValue;
  if (location->type != CU_MEM_LOCATION_TYPE_DEVICE) return Error::kNotSupported;
  *device = device_at(location->id);
  return *device == nullptr ? Error::kInvalidDevice : Error::kSuccess;
}

using FindPool = PoolRef (*)(Device& device);

CUresult pool_of_device(CUmemoryPool* out, CUdevice index, FindPool find) {
  return plain_call([&] {
    Device* const device = device_at(index);
    if (out == nullptr) return Error::kInvalidValue;
    if (device == nullptr) return Error::kInvalidDevice;
    *out = handle_of(find(*device));
    return Error::kSuccess;
  });
}

CUresult pool_of_location(CUmemoryPool* out, const CUmemLocation* location,
                          CUmemAllocationType type, FindPool find) {
  return plain_call([&] {
    Device* device = nullptr;
    if (out == nullptr) return Error::kInvalidValue;
    if (type != CU_MEM_ALLOCATION_TYPE_PINNED) return Error::kNotSupported;
    const Error error = device_of(location, &device);
    if (error == Error::kSuccess) *out = handle_of(find(*device));
    return error;
  });
}

}  // namespace

WEIR_CUDA CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t bytes, CUmemoryPool handle,
                                           CUstream stream) {
  return context_call([&] {
    const PoolRef pool = find_pool(handle);
    if (address == nullptr || bytes == 0 || pool == nullptr) return Error::kInvalidValue;
    void* made = nullptr;
    const Error error = pool->allocate(stream, bytes, &made);
    *address = address_of(made);
    return error;
  });
}

WEIR_CUDA CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device) {
  return pool_of_device(pool, device, default_pool);
}

WEIR_CUDA CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice device) {
  return pool_of_device(pool, device, current_pool);
}

WEIR_CUDA CUresult cuDeviceSetMemPool(CUdevice index, CUmemoryPool pool) {
  return plain_call([&] {
    Device* const device = device_at(index);
    return device == nullptr ? Error::kInvalidDevice : set_current_pool(*device, pool);
  });
}

WEIR_CUDA CUresult cuMemGetDefaultMemPool(CUmemoryPool* pool, CUmemLocation* location,
                                          CUmemAllocationType type) {
  return pool_of_location(pool, location, type, default_pool);
}

WEIR_CUDA CUresult cuMemGetMemPool(CUmemoryPool* pool, CUmemLocation* location,
                                   CUmemAllocationType type) {
  return pool_of_location(pool, location, type, current_pool);
}

WEIR_CUDA CUresult cuMemSetMemPool(CUmemLocation* location, CUmemAllocationType type,
                                   CUmemoryPool pool) {
  return plain_call([&] {
    Device* device = nullptr;
    if (type != CU_MEM_ALLOCATION_TYPE_PINNED) return Error::kNotSupported;
    const Error error = device_of(location, &device);
    return error == Error::kSuccess ? set_current_pool(*device, pool) : error;
  });
}

WEIR_CUDA CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* properties) {
  return plain_call([&] {
    if (pool == nullptr || properties == nullptr ||
        properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED) {
      return Error::kInvalidValue;
    }
    if (properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE) return Error::kNotSupported;
    Device* device = nullptr;
    const Error found = device_of(&properties->location, &device);
    if (found != Error::kSuccess) return found;
    void* made = nullptr;
    const Error error = create_pool(*device, properties->maxSize, &made);
    *pool = static_cast<CUmemoryPool>(made);
    return error;
  });
}

WEIR_CUDA CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  return plain_call([&] { return destroy_pool(pool); });
}

WEIR_CUDA CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t bytes) {
  return plain_call([&] {
    const PoolRef pool = find_pool(handle);
    if (pool == nullptr) return Error::kInvalidValue;
    pool->trim(bytes);
    return Error::kSuccess;
  });
}

WEIR_CUDA CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute,
                                         void* value) {
  return plain_call([&] {
    const PoolRef pool = find_pool(handle);
    return pool == nullptr || value == nullptr
               ? Error::kInvalidValue
               : pool->set(static_cast<PoolAttribute>(attribute), value);
  });
}

WEIR_CUDA CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute,
                                         void* value) {
  return plain_call([&] {
    const PoolRef pool = find_pool(handle);
    return pool == nullptr || value == nullptr
               ? Error::kInvalidValue
               : pool->get(static_cast<PoolAttribute>(attribute), value);
  });
}

WEIR_CUDA CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc* list,
                                      size_t count) {
  return plain_call([&] {
    const PoolRef pool = find_pool(handle);
    if (pool == nullptr || (count > 0 && list == nullptr)) return Error::kInvalidValue;
    for (size_t i = 0; i < count; ++i) {
      Device* device = nullptr;
      const Error error = device_of(&list[i].location, &device);
      if (error != Error::kSuccess) return error;
      // Access of its own device cannot be taken from a pool.
      if (list[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE && device == &pool->device()) {
        return Error::kInvalidDevice;
      }
    }
    return Error::kSuccess;  // all devices reach all memory
  });
}

WEIR_CUDA CUresult cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool handle,
                                      CUmemLocation* location) {
  return plain_call([&] {
    if (flags == nullptr || find_pool(handle) == nullptr) return Error::kInvalidValue;
    Device* device = nullptr;
    const Error error = device_of(location, &device);
    if (error == Error::kSuccess) *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return error;
  });
}
