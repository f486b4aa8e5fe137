// SPDX-License-Identifier: Apache-2.0
// CUDA's driver as a table of functions, found at run time in libcuda.so.1, so that everything is
// built and loaded without CUDA. Only this code looks for it. Looking does not start the driver: a
// process that has started it cannot use it in its forked children. Like src/net, it depends on no
// other part of Weir. Thread-safe.
#pragma once

#include <cstddef>
#include <string>

#include "cuda/abi.h"
#include "cuda/functions.h"

namespace weir::cuda {

// One member for each function that Weir calls, under its symbol; nullptr where the library lacks
// it.
struct Driver {
#define WEIR_CUDA_MEMBER_Weir(symbol, parameters) CUresult(*symbol) parameters = nullptr;
#define WEIR_CUDA_MEMBER_Programs(symbol, parameters)
#define WEIR_CUDA_MEMBER(name, symbol, since, caller, parameters) \
  WEIR_CUDA_MEMBER_##caller(symbol, parameters)
  WEIR_CUDA_FUNCTIONS(WEIR_CUDA_MEMBER)
  WEIR_CUDA_OLDER_FUNCTIONS(WEIR_CUDA_MEMBER)
#undef WEIR_CUDA_MEMBER
#undef WEIR_CUDA_MEMBER_Programs
#undef WEIR_CUDA_MEMBER_Weir
  bool is_stand_in = false;  // Weir's own: its devices are host memory
  // That one's weir_hostcuda_has_memory (weir/hostcuda.h); else nullptr.
  int (*has_memory)(const void* address, size_t bytes, int writes) = nullptr;

  // Why memory cannot be used, "begins at byte 0 of an allocation of 64 bytes and ends outside it";
  // "" where it can, and where the driver does not say.
  std::string fault_of(const void* memory, size_t bytes, bool writes) const;

  // Whether the driver has what is needed to tell devices apart and to choose one.
  bool can_choose_device() const {
    return has(cuInit, cuDeviceGetCount, cuDeviceGet, cuDeviceGetUuid_v2, cuCtxGetDevice,
               cuDevicePrimaryCtxRetain, cuCtxSetCurrent);
  }
  // The same for operations ordered by a program's streams.
  bool can_enqueue() const {
    return has(cuGetErrorName, cuGetErrorString, cuCtxGetCurrent, cuCtxGetDevice,
               cuCtxPushCurrent_v2, cuCtxPopCurrent_v2, cuPointerGetAttributes, cuMemHostAlloc,
               cuMemFreeHost, cuMemcpyAsync, cuStreamGetCtx, cuStreamWriteValue32_v2,
               cuStreamWaitValue32_v2, cuStreamWaitEvent, cuStreamIsCapturing, cuEventCreate,
               cuEventRecord, cuEventDestroy_v2, cuThreadExchangeStreamCaptureMode, cuStreamCreate,
               cuStreamDestroy_v2, cuStreamQuery);
  }
  // The same for learning the progress of a program's stream, in threads of any context.
  bool can_mark() const {
    return has(cuGetErrorName, cuDeviceGet, cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRelease_v2,
               cuCtxPushCurrent_v2, cuCtxPopCurrent_v2, cuStreamIsCapturing, cuEventCreate,
               cuEventRecord, cuEventQuery, cuEventDestroy_v2, cuThreadExchangeStreamCaptureMode);
  }
  // The same for memory of other processes.
  bool can_share() const {
    return cuIpcGetMemHandle != nullptr && cuIpcOpenMemHandle_v2 != nullptr;
  }
  // The same for such memory when it is made by mapping.
  bool can_share_mapped() const {
    return has(cuMemGetAddressRange_v2, cuMemRetainAllocationHandle, cuMemRelease,
               cuMemExportToShareableHandle, cuMemImportFromShareableHandle, cuMemAddressReserve,
               cuMemAddressFree, cuMemMap, cuMemUnmap, cuMemSetAccess);
  }
  // The same for the library's own kernels.
  bool can_launch() const {
    return has(cuCtxEnablePeerAccess, cuModuleLoadData, cuModuleGetFunction, cuLaunchKernel);
  }
  // The same for operations between devices that are work of the program's stream alone.
  bool can_stream() const {
    return has(cuMemAlloc_v2, cuMemHostRegister_v2, cuMemHostGetDevicePointer_v2,
               cuDevicePrimaryCtxRetain, cuStreamSynchronize, cuLaunchHostFunc);
  }
  // The same for records of a graph.
  bool can_capture() const {
    return cuUserObjectCreate != nullptr && cuUserObjectRelease != nullptr &&
           cuGraphRetainUserObject != nullptr && cuEventRecordWithFlags != nullptr &&
           (cuStreamGetCaptureInfo_v2 != nullptr || cuStreamGetCaptureInfo_v3 != nullptr);
  }

  // Whether all of these functions exist.
  template <typename... Functions>
  static bool has(Functions... functions) {
    return ((functions != nullptr) && ...);
  }
};

enum class Look {
  // Only if the process has loaded the driver, or CUDA's runtime, which loads it at its first call.
  kInUse,
  kAnyhow,  // loads it
};

// nullptr: there is no driver, or the process does not use it. Once found, the table stays, with
// its library, until the process ends, whichever way it was found. The caller must check for
// missing functions.
const Driver* find_driver(Look look);

}  // namespace weir::cuda
