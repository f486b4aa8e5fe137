// SPDX-License-Identifier: Apache-2.0
// The driver's functions by name and version, and the older forms of some that programs still ask
// for.
#include <algorithm>
#include <cstring>
#include <string_view>

#include "hostcuda/driver/call.h"

using weir::hostcuda::Error;
using weir::hostcuda::driver::number;

// ---- Older forms --------------------------------------------------------------------------------

WEIR_CUDA CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr address, cuuint32_t value,
                                       unsigned int flags) {
  return cuStreamWaitValue32_v2(stream, address, value, flags);
}

WEIR_CUDA CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr address, cuuint64_t value,
                                       unsigned int flags) {
  return cuStreamWaitValue64_v2(stream, address, value, flags);
}

WEIR_CUDA CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr address, cuuint32_t value,
                                        unsigned int flags) {
  return cuStreamWriteValue32_v2(stream, address, value, flags);
}

WEIR_CUDA CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr address, cuuint64_t value,
                                        unsigned int flags) {
  return cuStreamWriteValue64_v2(stream, address, value, flags);
}

WEIR_CUDA CUresult cuStreamBatchMemOp(CUstream stream, unsigned int count,
                                      CUstreamBatchMemOpParams* operations, unsigned int flags) {
  return cuStreamBatchMemOp_v2(stream, count, operations, flags);
}

WEIR_CUDA CUresult cuEventElapsedTime(float* ms, CUevent start, CUevent end) {
  return cuEventElapsedTime_v2(ms, start, end);
}

WEIR_CUDA CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  return cuDeviceGetUuid_v2(uuid, device);
}

WEIR_CUDA CUresult cuCtxCreate_v2(CUcontext* context, unsigned int flags, CUdevice device) {
  return cuCtxCreate_v4(context, nullptr, flags, device);
}

WEIR_CUDA CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus* status,
                                             cuuint64_t* id, CUgraph* graph,
                                             const CUgraphNode** nodes, size_t* count) {
  return cuStreamGetCaptureInfo_v3(stream, status, id, graph, nodes, nullptr, count);
}

WEIR_CUDA CUresult cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode* nodes,
                                                     size_t count, unsigned int flags) {
  return cuStreamUpdateCaptureDependencies_v2(stream, nodes, nullptr, count, flags);
}

WEIR_CUDA CUresult cuGetProcAddress(const char* symbol, void** function, int version,
                                    cuuint64_t flags) {
  CUdriverProcAddressQueryResult result{};
  const CUresult outcome = cuGetProcAddress_v2(symbol, function, version, flags, &result);
  if (outcome != CUDA_SUCCESS) return outcome;
  return result == CU_GET_PROC_ADDRESS_SUCCESS ? CUDA_SUCCESS : number(Error::kNotFound);
}

// ---- By name ------------------------------------------------------------------------------------

namespace {

struct Name {
  std::string_view base;
  int since;  // the first version in which the name means this form; 0: none
  void* function;
};

// The newest form of a name comes first.
const Name kNames[] = {
#define WEIR_CUDA_NAME(name, symbol, since, caller, parameters) \
  {#name, since, reinterpret_cast<void*>(&symbol)},
    WEIR_CUDA_FUNCTIONS(WEIR_CUDA_NAME) WEIR_CUDA_OLDER_FUNCTIONS(WEIR_CUDA_NAME)
#undef WEIR_CUDA_NAME
};

}  // namespace

WEIR_CUDA CUresult cuGetProcAddress_v2(const char* symbol, void** function, int version,
                                       cuuint64_t flags, CUdriverProcAddressQueryResult* result) {
  constexpr cuuint64_t kFlags = 3;  // legacy or per-thread default streams
  if (symbol == nullptr || function == nullptr || (flags & ~kFlags) != 0) {
    return number(Error::kInvalidValue);
  }
  *function = nullptr;
  CUdriverProcAddressQueryResult state = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  for (const Name& name : kNames) {
    if (name.base != symbol || name.since == 0) continue;
    if (name.since > version) {
      state = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
      continue;
    }
    state = CU_GET_PROC_ADDRESS_SUCCESS;
    *function = name.function;
    break;
  }
  if (result != nullptr) *result = state;
  // As in CUDA, a missing symbol is not an error if the caller asks for the status.
  return state == CU_GET_PROC_ADDRESS_SUCCESS || result != nullptr ? CUDA_SUCCESS
                                                                   : number(Error::kNotFound);
}
