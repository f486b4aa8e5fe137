// SPDX-License-Identifier: Apache-2.0
// Launches, and the functions that code compiled by nvcc calls before main to register its kernels.
#include <cstring>
#include <vector>

#include "hostcuda/core/kernels.h"
#include "hostcuda/core/memory.h"
#include "hostcuda/core/per_thread.h"
#include "hostcuda/runtime/boxes.h"
#include "hostcuda/runtime/call.h"

using namespace weir::hostcuda;           // NOLINT: this file is their C interface
using namespace weir::hostcuda::runtime;  // NOLINT

namespace {

struct Configuration {
  dim3 grid;
  dim3 block;
  size_t shared_bytes;
  cudaStream_t stream;
};
// Of launches that are being made.
struct Configurations {
  std::vector<Configuration> all;
};
std::vector<Configuration>& configurations() { return PerThread<Configurations>::get().all; }

cudaError_t launch_kernel(const void* symbol, const dim3& grid, const dim3& block, void** arguments,
                          size_t shared_bytes, cudaStream_t stream) {
  return device_call([&] {
    KernelOperation operation;
    const Error error =
        make_kernel(symbol, shape_of(grid, block, shared_bytes), arguments, &operation);
    return error == Error::kSuccess ? issue(stream, std::move(operation)) : error;
  });
}

cudaStream_t own(cudaStream_t stream) {
  return stream == nullptr ? reinterpret_cast<cudaStream_t>(kPerThreadHandle) : stream;
}

}  // namespace

WEIR_CUDART cudaError_t cudaLaunchKernel(const void* symbol, struct dim3 grid, struct dim3 block,
                                         void** arguments, size_t shared_bytes,
                                         cudaStream_t stream) {
  return launch_kernel(symbol, grid, block, arguments, shared_bytes, stream);
}

WEIR_CUDART cudaError_t cudaLaunchCooperativeKernel(const void* symbol, struct dim3 grid,
                                                    struct dim3 block, void** arguments,
                                                    size_t shared_bytes, cudaStream_t stream) {
  return launch_kernel(symbol, grid, block, arguments, shared_bytes, stream);
}

WEIR_CUDART cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* symbol,
                                            void** arguments) {
  if (config == nullptr) return record(Error::kInvalidValue);
  return launch_kernel(symbol, config->gridDim, config->blockDim, arguments,
                       config->dynamicSmemBytes, config->stream);
}

WEIR_CUDART cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes* attributes,
                                              const void* symbol) {
  return device_call([&] {
    if (attributes == nullptr) return Error::kInvalidValue;
    if (kernel_name(symbol) == nullptr) return Error::kInvalidDeviceFunction;
    std::memset(attributes, 0, sizeof *attributes);
    attributes->maxThreadsPerBlock = 1024;
    attributes->ptxVersion = 90;
    attributes->binaryVersion = 90;
    return Error::kSuccess;
  });
}

WEIR_CUDART cudaError_t cudaFuncSetAttribute(const void* symbol, enum cudaFuncAttribute, int) {
  return device_call([&] {
    return kernel_name(symbol) == nullptr ? Error::kInvalidDeviceFunction : Error::kSuccess;
  });
}

WEIR_CUDART cudaError_t cudaFuncSetCacheConfig(const void* symbol, enum cudaFuncCache) {
  return device_call([&] {
    return kernel_name(symbol) == nullptr ? Error::kInvalidDeviceFunction : Error::kSuccess;
  });
}

WEIR_CUDART cudaError_t cudaFuncGetName(const char** name, const void* symbol) {
  return plain_call([&] {
    if (name == nullptr) return Error::kInvalidValue;
    *name = kernel_name(symbol);
    return *name == nullptr ? Error::kInvalidDeviceFunction : Error::kSuccess;
  });
}

WEIR_CUDART cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* count,
                                                                      const void* symbol,
                                                                      int block_size, size_t) {
  return device_call([&] {
    if (count == nullptr || block_size <= 0) return Error::kInvalidValue;
    if (kernel_name(symbol) == nullptr) return Error::kInvalidDeviceFunction;
    *count = block_size <= 1024 ? 2048 / block_size : 0;
    if (*count > 32) *count = 32;
    return Error::kSuccess;
  });
}

WEIR_CUDART cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* count, const void* symbol, int block_size, size_t shared_bytes, unsigned int flags) {
  if (flags > 1) return record(Error::kInvalidValue);
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(count, symbol, block_size, shared_bytes);
}

// ---- Called by nvcc's code ----------------------------------------------------------------------

// NOLINTBEGIN(bugprone-reserved-identifier): the names are CUDA's.
WEIR_CUDART void** __cudaRegisterFatBinary(void* binary) {
  // Device code is not examined; the handle only has to exist.
  return new void*(binary);
}

WEIR_CUDART void __cudaRegisterFatBinaryEnd(void**) {}

WEIR_CUDART void __cudaUnregisterFatBinary(void** handle) { delete handle; }

WEIR_CUDART void __cudaRegisterFunction(void**, const char* symbol, char*, const char* name, int,
                                        struct uint3*, struct uint3*, struct dim3*, struct dim3*,
                                        int*) {
  add_kernel_symbol(symbol, name);
}

WEIR_CUDART void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
WEIR_CUDART void __cudaRegisterHostVar(void**, const char*, char*, size_t) {}

WEIR_CUDART void __cudaRegisterManagedVar(void**, void** address, char*, const char*, int,
                                          size_t bytes, int, int) {
  Device* const device = device_at(0);
  if (device != nullptr) (void)allocate_device(*device, bytes, MemoryKind::kManaged, address);
}

WEIR_CUDART char __cudaInitModule(void**) { return 0; }

WEIR_CUDART unsigned __cudaPushCallConfiguration(struct dim3 grid, struct dim3 block,
                                                 size_t shared_bytes, cudaStream_t stream) {
  configurations().push_back({grid, block, shared_bytes, stream});
  return 0;
}

WEIR_CUDART cudaError_t __cudaPopCallConfiguration(struct dim3* grid, struct dim3* block,
                                                   size_t* shared_bytes, void* stream) {
  if (configurations().empty()) return record(Error::kInvalidConfiguration);
  const Configuration last = configurations().back();
  configurations().pop_back();
  *grid = last.grid;
  *block = last.block;
  *shared_bytes = last.shared_bytes;
  *static_cast<cudaStream_t*>(stream) = last.stream;
  return cudaSuccess;
}

WEIR_CUDART cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* symbol) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(symbol));
  return cudaSuccess;
}

WEIR_CUDART cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, struct dim3 grid, struct dim3 block,
                                           void** arguments, size_t shared_bytes,
                                           cudaStream_t stream) {
  return launch_kernel(kernel, grid, block, arguments, shared_bytes, stream);
}

WEIR_CUDART cudaError_t __cudaLaunchKernel_ptsz(cudaKernel_t kernel, struct dim3 grid,
                                                struct dim3 block, void** arguments,
                                                size_t shared_bytes, cudaStream_t stream) {
  return launch_kernel(kernel, grid, block, arguments, shared_bytes, own(stream));
}

// NOLINTEND(bugprone-reserved-identifier)

WEIR_CUDART cudaError_t cudaLaunchKernel_ptsz(const void* symbol, struct dim3 grid,
                                              struct dim3 block, void** arguments,
                                              size_t shared_bytes, cudaStream_t stream) {
  return launch_kernel(symbol, grid, block, arguments, shared_bytes, own(stream));
}

WEIR_CUDART cudaError_t cudaLaunchCooperativeKernel_ptsz(const void* symbol, struct dim3 grid,
                                                         struct dim3 block, void** arguments,
                                                         size_t shared_bytes, cudaStream_t stream) {
  return launch_kernel(symbol, grid, block, arguments, shared_bytes, own(stream));
}

WEIR_CUDART cudaError_t cudaLaunchKernelExC_ptsz(const cudaLaunchConfig_t* config,
                                                 const void* symbol, void** arguments) {
  if (config == nullptr) return record(Error::kInvalidValue);
  return launch_kernel(symbol, config->gridDim, config->blockDim, arguments,
                       config->dynamicSmemBytes, own(config->stream));
}
