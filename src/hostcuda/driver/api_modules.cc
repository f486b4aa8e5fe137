// SPDX-License-Identifier: Apache-2.0
// Modules and launches of their kernels.
#include "hostcuda/core/capture.h"
#include "hostcuda/core/kernels.h"
#include "hostcuda/core/modules.h"
#include "hostcuda/core/operation.h"
#include "hostcuda/driver/call.h"

using namespace weir::hostcuda;          // NOLINT: this file is their C interface
using namespace weir::hostcuda::driver;  // NOLINT

WEIR_CUDA CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  return context_call([&] {
    if (module == nullptr) return Error::kInvalidValue;
    if (in_host_function()) return Error::kNotPermitted;
    if (const Error error = check_unsafe(); error != Error::kSuccess) return error;
    void* handle = nullptr;
    const Error error = load_module(image, &handle);
    *module = static_cast<CUmodule>(handle);
    return error;
  });
}

WEIR_CUDA CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned int count,
                                      CUjit_option* options, void** values) {
  // Options are for a compiler, which this library lacks.
  if (count > 0 && (options == nullptr || values == nullptr)) return number(Error::kInvalidValue);
  return cuModuleLoadData(module, image);
}

WEIR_CUDA CUresult cuModuleUnload(CUmodule module) {
  return context_call([&] {
    if (in_host_function()) return Error::kNotPermitted;
    if (const Error error = check_unsafe(); error != Error::kSuccess) return error;
    return unload_module(module);
  });
}

WEIR_CUDA CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  return context_call([&] {
    if (function == nullptr) return Error::kInvalidValue;
    void* address = nullptr;
    const Error error = module_function(module, name, &address);
    *function = static_cast<CUfunction>(address);
    return error;
  });
}

WEIR_CUDA CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                                  unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                  unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                                  void** arguments, void** extra) {
  return context_call([&] {
    if (extra != nullptr) return Error::kNotSupported;
    if (function == nullptr || kernel_name(function) == nullptr) return Error::kInvalidHandle;
    const LaunchShape shape{{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes};
    KernelOperation operation;
    const Error error = make_kernel(function, shape, arguments, &operation);
    // The driver has one error for all arguments that do not fit.
    if (error == Error::kInvalidConfiguration) return Error::kInvalidValue;
    return error == Error::kSuccess ? issue(stream, std::move(operation)) : error;
  });
}
