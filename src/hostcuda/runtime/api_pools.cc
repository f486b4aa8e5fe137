// SPDX-License-Identifier: Apache-2.0
// Memory in stream order, and its pools.
#include "hostcuda/core/pool.h"
#include "hostcuda/runtime/call.h"

using namespace weir::hostcuda;           // NOLINT: this file is their C interface
using namespace weir::hostcuda::runtime;  // NOLINT

namespace {

cudaMemPool_t handle_of(const PoolRef& pool) { return reinterpret_cast<cudaMemPool_t>(pool.get()); }

Error device_of(const struct cudaMemLocation& location, Device** device) {
  if (location.type != cudaMemLocationTypeDevice) return Error::kNotSupported;
  *device = device_at(location.id);
  return *device == nullptr ? Error::kInvalidDevice : Error::kSuccess;
}

}  // namespace

WEIR_CUDART cudaError_t cudaMallocAsync(void** address, size_t bytes, cudaStream_t handle) {
  return device_call([&] {
    if (address == nullptr) return Error::kInvalidValue;
    const StreamRef stream = find_stream(handle);
    if (stream == nullptr) return Error::kInvalidHandle;
    return current_pool(stream->device())->allocate(handle, bytes, address);
  });
}

WEIR_CUDART cudaError_t cudaMallocFromPoolAsync(void** address, size_t bytes, cudaMemPool_t handle,
                                                cudaStream_t stream) {
  return device_call([&] {
    const PoolRef pool = find_pool(handle);
    if (address == nullptr || pool == nullptr) return Error::kInvalidValue;
    return pool->allocate(stream, bytes, address);
  });
}

WEIR_CUDART cudaError_t cudaFreeAsync(void* address, cudaStream_t stream) {
  return device_call(
      [&] { return address == nullptr ? Error::kSuccess : Pool::free(stream, address); });
}

WEIR_CUDART cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int index) {
  return plain_call([&] {
    Device* const device = device_at(index);
    if (pool == nullptr) return Error::kInvalidValue;
    if (device == nullptr) return Error::kInvalidDevice;
    *pool = handle_of(default_pool(*device));
    return Error::kSuccess;
  });
}

WEIR_CUDART cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int index) {
  return plain_call([&] {
    Device* const device = device_at(index);
    if (pool == nullptr) return Error::kInvalidValue;
    if (device == nullptr) return Error::kInvalidDevice;
    *pool = handle_of(current_pool(*device));
    return Error::kSuccess;
  });
}

WEIR_CUDART cudaError_t cudaDeviceSetMemPool(int index, cudaMemPool_t pool) {
  return plain_call([&] {
    Device* const device = device_at(index);
    return device == nullptr ? Error::kInvalidDevice : set_current_pool(*device, pool);
  });
}

WEIR_CUDART cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool,
                                          const struct cudaMemPoolProps* properties) {
  return plain_call([&] {
    if (pool == nullptr || properties == nullptr ||
        properties->allocType != cudaMemAllocationTypePinned) {
      return Error::kInvalidValue;
    }
    // Pools are not exported to other processes.
    if (properties->handleTypes != cudaMemHandleTypeNone) return Error::kNotSupported;
    Device* device = nullptr;
    const Error found = device_of(properties->location, &device);
    if (found != Error::kSuccess) return found;
    void* made = nullptr;
    const Error error = create_pool(*device, properties->maxSize, &made);
    *pool = static_cast<cudaMemPool_t>(made);
    return error;
  });
}

WEIR_CUDART cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  return plain_call([&] { return destroy_pool(pool); });
}

WEIR_CUDART cudaError_t cudaMemPoolTrimTo(cudaMemPool_t handle, size_t bytes) {
  return plain_call([&] {
    const PoolRef pool = find_pool(handle);
    if (pool == nullptr) return Error::kInvalidValue;
    pool->trim(bytes);
    return Error::kSuccess;
  });
}

WEIR_CUDART cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t handle,
                                                enum cudaMemPoolAttr attribute, void* value) {
  return plain_call([&] {
    const PoolRef pool = find_pool(handle);
    return pool == nullptr || value == nullptr
               ? Error::kInvalidValue
               : pool->set(static_cast<PoolAttribute>(attribute), value);
  });
}

WEIR_CUDART cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t handle,
                                                enum cudaMemPoolAttr attribute, void* value) {
  return plain_call([&] {
    const PoolRef pool = find_pool(handle);
    return pool == nullptr || value == nullptr
               ? Error::kInvalidValue
               : pool->get(static_cast<PoolAttribute>(attribute), value);
  });
}

WEIR_CUDART cudaError_t cudaMemPoolSetAccess(cudaMemPool_t handle,
                                             const struct cudaMemAccessDesc* list, size_t count) {
  return plain_call([&] {
    const PoolRef pool = find_pool(handle);
    if (pool == nullptr || (count > 0 && list == nullptr)) return Error::kInvalidValue;
    for (size_t i = 0; i < count; ++i) {
      Device* device = nullptr;
      const Error error = device_of(list[i].location, &device);
      if (error != Error::kSuccess) return error;
    }
    return Error::kSuccess;  // all devices reach all memory
  });
}

WEIR_CUDART cudaError_t cudaMemPoolGetAccess(enum cudaMemAccessFlags* flags, cudaMemPool_t handle,
                                             struct cudaMemLocation* location) {
  return plain_call([&] {
    if (flags == nullptr || location == nullptr || find_pool(handle) == nullptr) {
      return Error::kInvalidValue;
    }
    Device* device = nullptr;
    const Error error = device_of(*location, &device);
    if (error == Error::kSuccess) *flags = cudaMemAccessFlagsProtReadWrite;
    return error;
  });
}
