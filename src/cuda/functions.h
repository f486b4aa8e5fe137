// SPDX-License-Identifier: Apache-2.0
// The one table of the functions of CUDA's driver API that the project knows, in CUDA's names and
// with CUDA's prototypes: those that Weir calls (driver_table.h), those that its stand-in provides
// to programs (src/hostcuda), and those of the tests' stand-ins. CUDA's documentation says what
// each does.
//
// X(name, symbol, since, caller, (parameters)): `since` is the first version of CUDA in which the
// name means this symbol, 0 if it means another one; `caller` is Weir where Weir itself calls it,
// otherwise Programs. Code that expands the rows must have the types of the parameters: CUDA's own,
// those of hostcuda/driver/types.h, or those of abi.h. Every function returns a CUresult.
#pragma once

// clang-format off
#define WEIR_CUDA_FUNCTIONS(X) \
  /* Library, errors, devices */ \
  X(cuInit, cuInit, 2000, Weir, (unsigned int flags)) \
  X(cuDriverGetVersion, cuDriverGetVersion, 2020, Programs, (int* version)) \
  X(cuGetErrorName, cuGetErrorName, 6000, Weir, (CUresult error, const char** text)) \
  X(cuGetErrorString, cuGetErrorString, 6000, Weir, (CUresult error, const char** text)) \
  X(cuGetProcAddress, cuGetProcAddress_v2, 12000, Programs, \
    (const char* symbol, void** function, int version, cuuint64_t flags, \
     CUdriverProcAddressQueryResult* result)) \
  X(cuGetExportTable, cuGetExportTable, 3000, Programs, (const void** table, const CUuuid* id)) \
  X(cuDeviceGet, cuDeviceGet, 2000, Weir, (CUdevice* device, int ordinal)) \
  X(cuDeviceGetCount, cuDeviceGetCount, 2000, Weir, (int* count)) \
  X(cuDeviceGetName, cuDeviceGetName, 2000, Weir, (char* name, int bytes, CUdevice device)) \
  X(cuDeviceGetUuid, cuDeviceGetUuid_v2, 9020, Weir, (CUuuid* uuid, CUdevice device)) \
  X(cuDeviceTotalMem, cuDeviceTotalMem_v2, 3020, Programs, (size_t* bytes, CUdevice device)) \
  X(cuDeviceGetAttribute, cuDeviceGetAttribute, 2000, Programs, \
    (int* value, CUdevice_attribute attribute, CUdevice device)) \
  X(cuDeviceGetPCIBusId, cuDeviceGetPCIBusId, 4010, Weir, \
    (char* text, int bytes, CUdevice device)) \
  X(cuDeviceGetByPCIBusId, cuDeviceGetByPCIBusId, 4010, Programs, \
    (CUdevice* device, const char* text)) \
  X(cuDeviceCanAccessPeer, cuDeviceCanAccessPeer, 4000, Programs, \
    (int* can, CUdevice device, CUdevice peer)) \
  X(cuDeviceGetP2PAttribute, cuDeviceGetP2PAttribute, 8000, Programs, \
    (int* value, CUdevice_P2PAttribute attribute, CUdevice source, CUdevice destination)) \
  /* Contexts */ \
  X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000, Weir, \
    (CUcontext* context, CUdevice device)) \
  X(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, 7000, Weir, (CUdevice device)) \
  X(cuDevicePrimaryCtxSetFlags, cuDevicePrimaryCtxSetFlags_v2, 7000, Programs, \
    (CUdevice device, unsigned int flags)) \
  X(cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState, 7000, Weir, \
    (CUdevice device, unsigned int* flags, int* active)) \
  X(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2, 7000, Programs, (CUdevice device)) \
  X(cuCtxCreate, cuCtxCreate_v4, 13000, Programs, \
    (CUcontext* context, CUctxCreateParams* parameters, unsigned int flags, CUdevice device)) \
  X(cuCtxDestroy, cuCtxDestroy_v2, 4000, Programs, (CUcontext context)) \
  X(cuCtxPushCurrent, cuCtxPushCurrent_v2, 4000, Weir, (CUcontext context)) \
  X(cuCtxPopCurrent, cuCtxPopCurrent_v2, 4000, Weir, (CUcontext* context)) \
  X(cuCtxSetCurrent, cuCtxSetCurrent, 4000, Weir, (CUcontext context)) \
  X(cuCtxGetCurrent, cuCtxGetCurrent, 4000, Weir, (CUcontext* context)) \
  X(cuCtxGetDevice, cuCtxGetDevice, 2000, Weir, (CUdevice* device)) \
  X(cuCtxGetFlags, cuCtxGetFlags, 7000, Programs, (unsigned int* flags)) \
  X(cuCtxGetApiVersion, cuCtxGetApiVersion, 3020, Programs, \
    (CUcontext context, unsigned int* version)) \
  X(cuCtxGetStreamPriorityRange, cuCtxGetStreamPriorityRange, 5050, Programs, \
    (int* least, int* greatest)) \
  X(cuCtxSynchronize, cuCtxSynchronize, 2000, Programs, (void)) \
  X(cuCtxEnablePeerAccess, cuCtxEnablePeerAccess, 4000, Weir, \
    (CUcontext peer, unsigned int flags)) \
  X(cuCtxDisablePeerAccess, cuCtxDisablePeerAccess, 4000, Programs, (CUcontext peer)) \
  /* Memory */ \
  X(cuMemGetInfo, cuMemGetInfo_v2, 3020, Programs, (size_t* free_bytes, size_t* total_bytes)) \
  X(cuMemAlloc, cuMemAlloc_v2, 3020, Weir, (CUdeviceptr* address, size_t bytes)) \
  X(cuMemAllocManaged, cuMemAllocManaged, 6000, Programs, \
    (CUdeviceptr* address, size_t bytes, unsigned int flags)) \
  X(cuMemFree, cuMemFree_v2, 3020, Weir, (CUdeviceptr address)) \
  X(cuMemGetAddressRange, cuMemGetAddressRange_v2, 3020, Weir, \
    (CUdeviceptr* base, size_t* bytes, CUdeviceptr address)) \
  X(cuMemAllocHost, cuMemAllocHost_v2, 3020, Programs, (void** address, size_t bytes)) \
  X(cuMemHostAlloc, cuMemHostAlloc, 2020, Weir, \
    (void** address, size_t bytes, unsigned int flags)) \
  X(cuMemFreeHost, cuMemFreeHost, 2000, Weir, (void* address)) \
  X(cuMemHostRegister, cuMemHostRegister_v2, 4000, Weir, \
    (void* address, size_t bytes, unsigned int flags)) \
  X(cuMemHostUnregister, cuMemHostUnregister, 4000, Programs, (void* address)) \
  X(cuMemHostGetDevicePointer, cuMemHostGetDevicePointer_v2, 3020, Weir, \
    (CUdeviceptr* device, void* host, unsigned int flags)) \
  X(cuMemHostGetFlags, cuMemHostGetFlags, 2030, Programs, (unsigned int* flags, void* host)) \
  X(cuMemAllocAsync, cuMemAllocAsync, 11020, Weir, \
    (CUdeviceptr* address, size_t bytes, CUstream stream)) \
  X(cuMemFreeAsync, cuMemFreeAsync, 11020, Weir, (CUdeviceptr address, CUstream stream)) \
  X(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync, 11020, Programs, \
    (CUdeviceptr* address, size_t bytes, CUmemoryPool pool, CUstream stream)) \
  X(cuDeviceGetDefaultMemPool, cuDeviceGetDefaultMemPool, 11020, Programs, \
    (CUmemoryPool* pool, CUdevice device)) \
  X(cuDeviceGetMemPool, cuDeviceGetMemPool, 11020, Programs, \
    (CUmemoryPool* pool, CUdevice device)) \
  X(cuDeviceSetMemPool, cuDeviceSetMemPool, 11020, Programs, \
    (CUdevice device, CUmemoryPool pool)) \
  X(cuMemGetDefaultMemPool, cuMemGetDefaultMemPool, 13000, Programs, \
    (CUmemoryPool* pool, CUmemLocation* location, CUmemAllocationType type)) \
  X(cuMemGetMemPool, cuMemGetMemPool, 13000, Programs, \
    (CUmemoryPool* pool, CUmemLocation* location, CUmemAllocationType type)) \
  X(cuMemSetMemPool, cuMemSetMemPool, 13000, Programs, \
    (CUmemLocation* location, CUmemAllocationType type, CUmemoryPool pool)) \
  X(cuMemPoolCreate, cuMemPoolCreate, 11020, Programs, \
    (CUmemoryPool* pool, const CUmemPoolProps* properties)) \
  X(cuMemPoolDestroy, cuMemPoolDestroy, 11020, Programs, (CUmemoryPool pool)) \
  X(cuMemPoolTrimTo, cuMemPoolTrimTo, 11020, Programs, (CUmemoryPool pool, size_t kept_bytes)) \
  X(cuMemPoolSetAttribute, cuMemPoolSetAttribute, 11020, Programs, \
    (CUmemoryPool pool, CUmemPool_attribute attribute, void* value)) \
  X(cuMemPoolGetAttribute, cuMemPoolGetAttribute, 11020, Programs, \
    (CUmemoryPool pool, CUmemPool_attribute attribute, void* value)) \
  X(cuMemPoolSetAccess, cuMemPoolSetAccess, 11020, Programs, \
    (CUmemoryPool pool, const CUmemAccessDesc* list, size_t count)) \
  X(cuMemPoolGetAccess, cuMemPoolGetAccess, 11020, Programs, \
    (CUmemAccess_flags* flags, CUmemoryPool pool, CUmemLocation* location)) \
  X(cuIpcGetMemHandle, cuIpcGetMemHandle, 4010, Weir, \
    (CUipcMemHandle* handle, CUdeviceptr address)) \
  X(cuIpcOpenMemHandle, cuIpcOpenMemHandle_v2, 4010, Weir, \
    (CUdeviceptr* address, CUipcMemHandle handle, unsigned int flags)) \
  X(cuIpcGetEventHandle, cuIpcGetEventHandle, 4010, Programs, \
    (CUipcEventHandle* handle, CUevent event)) \
  X(cuIpcOpenEventHandle, cuIpcOpenEventHandle, 4010, Programs, \
    (CUevent* event, CUipcEventHandle handle)) \
  X(cuIpcCloseMemHandle, cuIpcCloseMemHandle, 4010, Weir, (CUdeviceptr address)) \
  X(cuPointerGetAttribute, cuPointerGetAttribute, 4000, Programs, \
    (void* data, CUpointer_attribute attribute, CUdeviceptr address)) \
  X(cuPointerGetAttributes, cuPointerGetAttributes, 7000, Weir, \
    (unsigned int count, CUpointer_attribute* attributes, void** data, CUdeviceptr address)) \
  X(cuPointerSetAttribute, cuPointerSetAttribute, 6000, Programs, \
    (const void* value, CUpointer_attribute attribute, CUdeviceptr address)) \
  X(cuMemcpy, cuMemcpy, 4000, Programs, (CUdeviceptr to, CUdeviceptr from, size_t bytes)) \
  X(cuMemcpyAsync, cuMemcpyAsync, 4000, Weir, \
    (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)) \
  X(cuMemcpyHtoD, cuMemcpyHtoD_v2, 3020, Weir, (CUdeviceptr to, const void* from, size_t bytes)) \
  X(cuMemcpyDtoH, cuMemcpyDtoH_v2, 3020, Weir, (void* to, CUdeviceptr from, size_t bytes)) \
  X(cuMemcpyDtoD, cuMemcpyDtoD_v2, 3020, Programs, \
    (CUdeviceptr to, CUdeviceptr from, size_t bytes)) \
  X(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, 3020, Programs, \
    (CUdeviceptr to, const void* from, size_t bytes, CUstream stream)) \
  X(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, 3020, Programs, \
    (void* to, CUdeviceptr from, size_t bytes, CUstream stream)) \
  X(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2, 3020, Programs, \
    (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)) \
  X(cuMemsetD8, cuMemsetD8_v2, 3020, Programs, \
    (CUdeviceptr address, unsigned char value, size_t count)) \
  X(cuMemsetD16, cuMemsetD16_v2, 3020, Programs, \
    (CUdeviceptr address, unsigned short value, size_t count)) \
  X(cuMemsetD32, cuMemsetD32_v2, 3020, Programs, \
    (CUdeviceptr address, unsigned int value, size_t count)) \
  X(cuMemsetD8Async, cuMemsetD8Async, 3020, Programs, \
    (CUdeviceptr address, unsigned char value, size_t count, CUstream stream)) \
  X(cuMemsetD16Async, cuMemsetD16Async, 3020, Programs, \
    (CUdeviceptr address, unsigned short value, size_t count, CUstream stream)) \
  X(cuMemsetD32Async, cuMemsetD32Async, 3020, Programs, \
    (CUdeviceptr address, unsigned int value, size_t count, CUstream stream)) \
  /* Virtual memory */ \
  X(cuMemGetAllocationGranularity, cuMemGetAllocationGranularity, 10020, Weir, \
    (size_t* bytes, const CUmemAllocationProp* properties, \
     CUmemAllocationGranularity_flags option)) \
  X(cuMemCreate, cuMemCreate, 10020, Weir, \
    (CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* properties, \
     unsigned long long flags)) \
  X(cuMemRelease, cuMemRelease, 10020, Weir, (CUmemGenericAllocationHandle handle)) \
  X(cuMemAddressReserve, cuMemAddressReserve, 10020, Weir, \
    (CUdeviceptr* address, size_t bytes, size_t alignment, CUdeviceptr wanted, \
     unsigned long long flags)) \
  X(cuMemAddressFree, cuMemAddressFree, 10020, Weir, (CUdeviceptr address, size_t bytes)) \
  X(cuMemMap, cuMemMap, 10020, Weir, \
    (CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, \
     unsigned long long flags)) \
  X(cuMemUnmap, cuMemUnmap, 10020, Weir, (CUdeviceptr address, size_t bytes)) \
  X(cuMemSetAccess, cuMemSetAccess, 10020, Weir, \
    (CUdeviceptr address, size_t bytes, const CUmemAccessDesc* list, size_t count)) \
  X(cuMemGetAccess, cuMemGetAccess, 10020, Weir, \
    (unsigned long long* flags, const CUmemLocation* location, CUdeviceptr address)) \
  X(cuMemExportToShareableHandle, cuMemExportToShareableHandle, 10020, Weir, \
    (void* out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type, \
     unsigned long long flags)) \
  X(cuMemImportFromShareableHandle, cuMemImportFromShareableHandle, 10020, Weir, \
    (CUmemGenericAllocationHandle* handle, void* from, CUmemAllocationHandleType type)) \
  X(cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, 11000, Weir, \
    (CUmemGenericAllocationHandle* handle, void* address)) \
  X(cuMemGetAllocationPropertiesFromHandle, cuMemGetAllocationPropertiesFromHandle, 10020, \
    Programs, (CUmemAllocationProp* properties, CUmemGenericAllocationHandle handle)) \
  /* Modules, kernels */ \
  X(cuModuleLoadData, cuModuleLoadData, 2000, Weir, (CUmodule* module, const void* image)) \
  X(cuModuleLoadDataEx, cuModuleLoadDataEx, 2010, Programs, \
    (CUmodule* module, const void* image, unsigned int count, CUjit_option* options, \
     void** values)) \
  X(cuModuleUnload, cuModuleUnload, 2000, Programs, (CUmodule module)) \
  X(cuModuleGetFunction, cuModuleGetFunction, 2000, Weir, \
    (CUfunction* function, CUmodule module, const char* name)) \
  X(cuLaunchKernel, cuLaunchKernel, 4000, Weir, \
    (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, \
     unsigned int block_x, unsigned int block_y, unsigned int block_z, \
     unsigned int shared_bytes, CUstream stream, void** arguments, void** extra)) \
  /* Streams, events, stream memory operations */ \
  X(cuStreamCreate, cuStreamCreate, 2000, Weir, (CUstream* stream, unsigned int flags)) \
  X(cuStreamCreateWithPriority, cuStreamCreateWithPriority, 5050, Programs, \
    (CUstream* stream, unsigned int flags, int priority)) \
  X(cuStreamDestroy, cuStreamDestroy_v2, 4000, Weir, (CUstream stream)) \
  X(cuStreamGetPriority, cuStreamGetPriority, 5050, Programs, (CUstream stream, int* priority)) \
  X(cuStreamGetFlags, cuStreamGetFlags, 5050, Programs, (CUstream stream, unsigned int* flags)) \
  X(cuStreamGetAttribute, cuStreamGetAttribute, 11000, Programs, \
    (CUstream stream, CUstreamAttrID attribute, CUstreamAttrValue* value)) \
  X(cuStreamSetAttribute, cuStreamSetAttribute, 11000, Programs, \
    (CUstream stream, CUstreamAttrID attribute, const CUstreamAttrValue* value)) \
  X(cuStreamCopyAttributes, cuStreamCopyAttributes, 11000, Programs, \
    (CUstream to, CUstream from)) \
  X(cuStreamGetId, cuStreamGetId, 12000, Programs, (CUstream stream, unsigned long long* id)) \
  X(cuStreamGetCtx, cuStreamGetCtx, 9020, Weir, (CUstream stream, CUcontext* context)) \
  X(cuStreamGetDevice, cuStreamGetDevice, 12080, Programs, (CUstream stream, CUdevice* device)) \
  X(cuStreamQuery, cuStreamQuery, 2000, Weir, (CUstream stream)) \
  X(cuStreamSynchronize, cuStreamSynchronize, 2000, Weir, (CUstream stream)) \
  X(cuStreamWaitEvent, cuStreamWaitEvent, 3020, Weir, \
    (CUstream stream, CUevent event, unsigned int flags)) \
  X(cuStreamAddCallback, cuStreamAddCallback, 5000, Programs, \
    (CUstream stream, CUstreamCallback callback, void* data, unsigned int flags)) \
  X(cuLaunchHostFunc, cuLaunchHostFunc, 10000, Weir, \
    (CUstream stream, CUhostFn function, void* data)) \
  X(cuStreamBeginCapture, cuStreamBeginCapture_v2, 10010, Programs, \
    (CUstream stream, CUstreamCaptureMode mode)) \
  X(cuStreamEndCapture, cuStreamEndCapture, 10000, Programs, (CUstream stream, CUgraph* graph)) \
  X(cuStreamIsCapturing, cuStreamIsCapturing, 10000, Weir, \
    (CUstream stream, CUstreamCaptureStatus* status)) \
  X(cuStreamGetCaptureInfo, cuStreamGetCaptureInfo_v3, 12030, Weir, \
    (CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph, \
     const CUgraphNode** nodes, const CUgraphEdgeData** edges, size_t* count)) \
  X(cuStreamUpdateCaptureDependencies, cuStreamUpdateCaptureDependencies_v2, 12030, Programs, \
    (CUstream stream, CUgraphNode* nodes, const CUgraphEdgeData* edges, size_t count, \
     unsigned int flags)) \
  X(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, 10010, Weir, \
    (CUstreamCaptureMode* mode)) \
  X(cuGraphCreate, cuGraphCreate, 10000, Programs, (CUgraph* graph, unsigned int flags)) \
  X(cuGraphDestroy, cuGraphDestroy, 10000, Programs, (CUgraph graph)) \
  X(cuGraphClone, cuGraphClone, 10000, Programs, (CUgraph* clone, CUgraph graph)) \
  X(cuGraphInstantiate, cuGraphInstantiateWithFlags, 12000, Programs, \
    (CUgraphExec* executable, CUgraph graph, unsigned long long flags)) \
  X(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags, 11040, Programs, \
    (CUgraphExec* executable, CUgraph graph, unsigned long long flags)) \
  X(cuGraphInstantiateWithParams, cuGraphInstantiateWithParams, 12000, Programs, \
    (CUgraphExec* executable, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* parameters)) \
  X(cuGraphExecGetFlags, cuGraphExecGetFlags, 12000, Programs, \
    (CUgraphExec executable, cuuint64_t* flags)) \
  X(cuGraphExecUpdate, cuGraphExecUpdate_v2, 12000, Programs, \
    (CUgraphExec executable, CUgraph graph, CUgraphExecUpdateResultInfo* result)) \
  X(cuGraphExecDestroy, cuGraphExecDestroy, 10000, Programs, (CUgraphExec executable)) \
  X(cuGraphUpload, cuGraphUpload, 11010, Programs, \
    (CUgraphExec executable, CUstream stream)) \
  X(cuGraphLaunch, cuGraphLaunch, 10000, Programs, (CUgraphExec executable, CUstream stream)) \
  X(cuGraphRetainUserObject, cuGraphRetainUserObject, 11030, Weir, \
    (CUgraph graph, CUuserObject object, unsigned int count, unsigned int flags)) \
  X(cuGraphReleaseUserObject, cuGraphReleaseUserObject, 11030, Programs, \
    (CUgraph graph, CUuserObject object, unsigned int count)) \
  X(cuUserObjectCreate, cuUserObjectCreate, 11030, Weir, \
    (CUuserObject* object, void* data, CUhostFn destroy, unsigned int count, \
     unsigned int flags)) \
  X(cuUserObjectRetain, cuUserObjectRetain, 11030, Programs, \
    (CUuserObject object, unsigned int count)) \
  X(cuUserObjectRelease, cuUserObjectRelease, 11030, Weir, \
    (CUuserObject object, unsigned int count)) \
  X(cuStreamWaitValue32, cuStreamWaitValue32_v2, 8000, Weir, \
    (CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags)) \
  X(cuStreamWaitValue64, cuStreamWaitValue64_v2, 9000, Programs, \
    (CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags)) \
  X(cuStreamWriteValue32, cuStreamWriteValue32_v2, 8000, Weir, \
    (CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags)) \
  X(cuStreamWriteValue64, cuStreamWriteValue64_v2, 9000, Programs, \
    (CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags)) \
  X(cuStreamBatchMemOp, cuStreamBatchMemOp_v2, 8000, Weir, \
    (CUstream stream, unsigned int count, CUstreamBatchMemOpParams* operations, \
     unsigned int flags)) \
  X(cuEventCreate, cuEventCreate, 2000, Weir, (CUevent* event, unsigned int flags)) \
  X(cuEventDestroy, cuEventDestroy_v2, 4000, Weir, (CUevent event)) \
  X(cuEventRecord, cuEventRecord, 2000, Weir, (CUevent event, CUstream stream)) \
  X(cuEventRecordWithFlags, cuEventRecordWithFlags, 11010, Weir, \
    (CUevent event, CUstream stream, unsigned int flags)) \
  X(cuEventQuery, cuEventQuery, 2000, Weir, (CUevent event)) \
  X(cuEventSynchronize, cuEventSynchronize, 2000, Programs, (CUevent event)) \
  X(cuEventElapsedTime, cuEventElapsedTime_v2, 2000, Programs, \
    (float* ms, CUevent start, CUevent end))

// Older forms of some of them, which programs still use; CUDA's current header no longer has them.
#define WEIR_CUDA_OLDER_FUNCTIONS(X) \
  X(cuStreamWaitValue32, cuStreamWaitValue32, 0, Programs, \
    (CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags)) \
  X(cuStreamWaitValue64, cuStreamWaitValue64, 0, Programs, \
    (CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags)) \
  X(cuStreamWriteValue32, cuStreamWriteValue32, 0, Programs, \
    (CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags)) \
  X(cuStreamWriteValue64, cuStreamWriteValue64, 0, Programs, \
    (CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags)) \
  X(cuStreamBatchMemOp, cuStreamBatchMemOp, 0, Programs, \
    (CUstream stream, unsigned int count, CUstreamBatchMemOpParams* operations, \
     unsigned int flags)) \
  X(cuEventElapsedTime, cuEventElapsedTime, 0, Programs, (float* ms, CUevent start, CUevent end)) \
  X(cuDeviceGetUuid, cuDeviceGetUuid, 0, Weir, (CUuuid* uuid, CUdevice device)) \
  X(cuCtxCreate, cuCtxCreate_v2, 3020, Programs, \
    (CUcontext* context, unsigned int flags, CUdevice device)) \
  X(cuStreamGetCaptureInfo, cuStreamGetCaptureInfo_v2, 11030, Weir, \
    (CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph, \
     const CUgraphNode** nodes, size_t* count)) \
  X(cuStreamUpdateCaptureDependencies, cuStreamUpdateCaptureDependencies, 11030, Programs, \
    (CUstream stream, CUgraphNode* nodes, size_t count, unsigned int flags)) \
  X(cuGetProcAddress, cuGetProcAddress, 11030, Programs, \
    (const char* symbol, void** function, int version, cuuint64_t flags))
// clang-format on
