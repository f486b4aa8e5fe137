// SPDX-License-Identifier: Apache-2.0
// The driver's functions by name and version, and the older forms of some that programs still ask for.
#include <algorithm>
#include <cstring>
#include <string_view>

#include "hostcuda/driver/call.h"

using weir::hostcuda::Error;
using weir::hostcuda::driver::number;

// ---- Older forms ------------------------------------------------------------------------------------

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

// ---- By name ----------------------------------------------------------------------------------------

namespace {

struct Name {
  std::string_view base;
  int since;  // the first version whose programs mean this form
  void* function;
};

#define WEIR_ROW(base, since, function) \
  { #base, since, reinterpret_cast < void*>(&function) }
#define WEIR_SAME(name, since) WEIR_ROW(name, since, name)

// By name, and of one name the newest form first.
const Name kNames[] = {
    WEIR_SAME(cuCtxDisablePeerAccess, 4000),
    WEIR_SAME(cuCtxEnablePeerAccess, 4000),
    WEIR_ROW(cuCtxCreate, 13000, cuCtxCreate_v4),
    WEIR_ROW(cuCtxCreate, 3020, cuCtxCreate_v2),
    WEIR_ROW(cuCtxDestroy, 4000, cuCtxDestroy_v2),
    WEIR_SAME(cuCtxGetApiVersion, 3020),
    WEIR_SAME(cuCtxGetCurrent, 4000),
    WEIR_SAME(cuCtxGetDevice, 2000),
    WEIR_SAME(cuCtxGetFlags, 7000),
    WEIR_SAME(cuCtxGetStreamPriorityRange, 5050),
    WEIR_ROW(cuCtxPopCurrent, 4000, cuCtxPopCurrent_v2),
    WEIR_ROW(cuCtxPushCurrent, 4000, cuCtxPushCurrent_v2),
    WEIR_SAME(cuCtxSetCurrent, 4000),
    WEIR_SAME(cuCtxSynchronize, 2000),
    WEIR_SAME(cuDeviceCanAccessPeer, 4000),
    WEIR_SAME(cuDeviceGet, 2000),
    WEIR_SAME(cuDeviceGetAttribute, 2000),
    WEIR_SAME(cuDeviceGetByPCIBusId, 4010),
    WEIR_SAME(cuDeviceGetCount, 2000),
    WEIR_SAME(cuDeviceGetName, 2000),
    WEIR_SAME(cuDeviceGetP2PAttribute, 8000),
    WEIR_SAME(cuDeviceGetPCIBusId, 4010),
    WEIR_ROW(cuDeviceGetUuid, 9020, cuDeviceGetUuid_v2),
    WEIR_SAME(cuDevicePrimaryCtxGetState, 7000),
    WEIR_ROW(cuDevicePrimaryCtxRelease, 7000, cuDevicePrimaryCtxRelease_v2),
    WEIR_ROW(cuDevicePrimaryCtxReset, 7000, cuDevicePrimaryCtxReset_v2),
    WEIR_SAME(cuDevicePrimaryCtxRetain, 7000),
    WEIR_ROW(cuDevicePrimaryCtxSetFlags, 7000, cuDevicePrimaryCtxSetFlags_v2),
    WEIR_ROW(cuDeviceTotalMem, 3020, cuDeviceTotalMem_v2),
    WEIR_SAME(cuDriverGetVersion, 2020),
    WEIR_SAME(cuEventCreate, 2000),
    WEIR_ROW(cuEventDestroy, 4000, cuEventDestroy_v2),
    WEIR_ROW(cuEventElapsedTime, 2000, cuEventElapsedTime_v2),
    WEIR_SAME(cuEventQuery, 2000),
    WEIR_SAME(cuEventRecord, 2000),
    WEIR_SAME(cuEventRecordWithFlags, 11010),
    WEIR_SAME(cuEventSynchronize, 2000),
    WEIR_SAME(cuGetErrorName, 6000),
    WEIR_SAME(cuGetErrorString, 6000),
    WEIR_ROW(cuGetProcAddress, 12000, cuGetProcAddress_v2),
    WEIR_ROW(cuGetProcAddress, 11030, cuGetProcAddress),
    WEIR_SAME(cuGraphLaunch, 10000),
    WEIR_SAME(cuGraphReleaseUserObject, 11030),
    WEIR_SAME(cuGraphRetainUserObject, 11030),
    WEIR_SAME(cuInit, 2000),
    WEIR_SAME(cuIpcCloseMemHandle, 4010),
    WEIR_SAME(cuIpcGetMemHandle, 4010),
    WEIR_ROW(cuIpcOpenMemHandle, 4010, cuIpcOpenMemHandle_v2),
    WEIR_SAME(cuLaunchHostFunc, 10000),
    WEIR_SAME(cuLaunchKernel, 4000),
    WEIR_SAME(cuMemAddressFree, 10020),
    WEIR_SAME(cuMemAddressReserve, 10020),
    WEIR_ROW(cuMemAlloc, 3020, cuMemAlloc_v2),
    WEIR_SAME(cuMemAllocAsync, 11020),
    WEIR_ROW(cuMemAllocHost, 3020, cuMemAllocHost_v2),
    WEIR_SAME(cuMemAllocManaged, 6000),
    WEIR_SAME(cuMemCreate, 10020),
    WEIR_SAME(cuMemExportToShareableHandle, 10020),
    WEIR_ROW(cuMemFree, 3020, cuMemFree_v2),
    WEIR_SAME(cuMemFreeAsync, 11020),
    WEIR_SAME(cuMemFreeHost, 2000),
    WEIR_SAME(cuMemGetAccess, 10020),
    WEIR_ROW(cuMemGetAddressRange, 3020, cuMemGetAddressRange_v2),
    WEIR_SAME(cuMemGetAllocationGranularity, 10020),
    WEIR_SAME(cuMemGetAllocationPropertiesFromHandle, 10020),
    WEIR_ROW(cuMemGetInfo, 3020, cuMemGetInfo_v2),
    WEIR_SAME(cuMemHostAlloc, 2020),
    WEIR_ROW(cuMemHostGetDevicePointer, 3020, cuMemHostGetDevicePointer_v2),
    WEIR_SAME(cuMemHostGetFlags, 2030),
    WEIR_ROW(cuMemHostRegister, 4000, cuMemHostRegister_v2),
    WEIR_SAME(cuMemHostUnregister, 4000),
    WEIR_SAME(cuMemImportFromShareableHandle, 10020),
    WEIR_SAME(cuMemMap, 10020),
    WEIR_SAME(cuMemRelease, 10020),
    WEIR_SAME(cuMemRetainAllocationHandle, 11000),
    WEIR_SAME(cuMemSetAccess, 10020),
    WEIR_SAME(cuMemUnmap, 10020),
    WEIR_SAME(cuMemcpy, 4000),
    WEIR_SAME(cuMemcpyAsync, 4000),
    WEIR_ROW(cuMemcpyDtoD, 3020, cuMemcpyDtoD_v2),
    WEIR_ROW(cuMemcpyDtoDAsync, 3020, cuMemcpyDtoDAsync_v2),
    WEIR_ROW(cuMemcpyDtoH, 3020, cuMemcpyDtoH_v2),
    WEIR_ROW(cuMemcpyDtoHAsync, 3020, cuMemcpyDtoHAsync_v2),
    WEIR_ROW(cuMemcpyHtoD, 3020, cuMemcpyHtoD_v2),
    WEIR_ROW(cuMemcpyHtoDAsync, 3020, cuMemcpyHtoDAsync_v2),
    WEIR_ROW(cuMemsetD16, 3020, cuMemsetD16_v2),
    WEIR_SAME(cuMemsetD16Async, 3020),
    WEIR_ROW(cuMemsetD32, 3020, cuMemsetD32_v2),
    WEIR_SAME(cuMemsetD32Async, 3020),
    WEIR_ROW(cuMemsetD8, 3020, cuMemsetD8_v2),
    WEIR_SAME(cuMemsetD8Async, 3020),
    WEIR_SAME(cuModuleGetFunction, 2000),
    WEIR_SAME(cuModuleLoadData, 2000),
    WEIR_SAME(cuModuleLoadDataEx, 2010),
    WEIR_SAME(cuModuleUnload, 2000),
    WEIR_SAME(cuPointerGetAttribute, 4000),
    WEIR_SAME(cuPointerGetAttributes, 7000),
    WEIR_SAME(cuPointerSetAttribute, 6000),
    WEIR_SAME(cuStreamAddCallback, 5000),
    WEIR_ROW(cuStreamBatchMemOp, 8000, cuStreamBatchMemOp_v2),
    WEIR_ROW(cuStreamBeginCapture, 10010, cuStreamBeginCapture_v2),
    WEIR_SAME(cuStreamCreate, 2000),
    WEIR_SAME(cuStreamCreateWithPriority, 5050),
    WEIR_ROW(cuStreamDestroy, 4000, cuStreamDestroy_v2),
    WEIR_SAME(cuStreamEndCapture, 10000),
    WEIR_ROW(cuStreamGetCaptureInfo, 12030, cuStreamGetCaptureInfo_v3),
    WEIR_ROW(cuStreamGetCaptureInfo, 11030, cuStreamGetCaptureInfo_v2),
    WEIR_SAME(cuStreamGetCtx, 9020),
    WEIR_SAME(cuStreamGetDevice, 12080),
    WEIR_SAME(cuStreamGetFlags, 5050),
    WEIR_SAME(cuStreamGetId, 12000),
    WEIR_SAME(cuStreamGetPriority, 5050),
    WEIR_SAME(cuStreamIsCapturing, 10000),
    WEIR_SAME(cuStreamQuery, 2000),
    WEIR_SAME(cuStreamSynchronize, 2000),
    WEIR_ROW(cuStreamUpdateCaptureDependencies, 12030, cuStreamUpdateCaptureDependencies_v2),
    WEIR_ROW(cuStreamUpdateCaptureDependencies, 11030, cuStreamUpdateCaptureDependencies),
    WEIR_SAME(cuStreamWaitEvent, 3020),
    WEIR_ROW(cuStreamWaitValue32, 8000, cuStreamWaitValue32_v2),
    WEIR_ROW(cuStreamWaitValue64, 9000, cuStreamWaitValue64_v2),
    WEIR_ROW(cuStreamWriteValue32, 8000, cuStreamWriteValue32_v2),
    WEIR_ROW(cuStreamWriteValue64, 9000, cuStreamWriteValue64_v2),
    WEIR_SAME(cuThreadExchangeStreamCaptureMode, 10010),
    WEIR_SAME(cuUserObjectCreate, 11030),
    WEIR_SAME(cuUserObjectRelease, 11030),
    WEIR_SAME(cuUserObjectRetain, 11030),
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
    if (name.base != symbol) continue;
    if (name.since > version) {
      state = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
      continue;
    }
    state = CU_GET_PROC_ADDRESS_SUCCESS;
    *function = name.function;
    break;
  }
  if (result != nullptr) *result = state;
  // As CUDA: with a place for the state, a symbol that is not there is no error.
  return state == CU_GET_PROC_ADDRESS_SUCCESS || result != nullptr ? CUDA_SUCCESS
                                                                   : number(Error::kNotFound);
}
