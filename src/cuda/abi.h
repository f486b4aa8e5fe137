// SPDX-License-Identifier: Apache-2.0
// The part of CUDA's driver interface that Weir uses, declared here so that Weir is built and
// loaded without CUDA. tests/nccl/cuda_abi_real.cc compares them with cuda.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weir::cuda {

using Result = int;
using Device = int;
using Context = void*;
using Stream = void*;
using Event = void*;
using Graph = void*;
using UserObject = void*;
using Module = void*;
using Function = void*;
using DevicePointer = unsigned long long;
using AllocationHandle = unsigned long long;
using HostFunction = void (*)(void* argument);

inline constexpr Result kSuccess = 0;
inline constexpr Result kErrorInvalidHandle = 400;
inline constexpr Result kErrorStreamCaptureImplicit = 906;
inline constexpr Result kErrorNotReady = 600;
inline constexpr Result kErrorPeerAlreadyEnabled = 704;
inline constexpr Result kErrorContextIsDestroyed = 709;
inline constexpr Result kErrorNotPermitted = 800;
inline constexpr Result kErrorNotSupported = 801;

// CUpointer_attribute
inline constexpr int kAttributeContext = 1;
inline constexpr int kAttributeMemoryType = 2;
inline constexpr int kAttributeBufferId = 7;
inline constexpr int kAttributeIsManaged = 8;
inline constexpr int kAttributeDeviceOrdinal = 9;
inline constexpr int kAttributeIsIpcCapable = 10;
inline constexpr int kAttributeRangeStart = 11;
inline constexpr int kAttributeRangeBytes = 12;
inline constexpr int kAttributeAllowedHandles = 14;
inline constexpr int kAttributePool = 17;
// CUmemorytype
inline constexpr unsigned kMemoryHost = 1;
inline constexpr unsigned kMemoryDevice = 2;
// cuMemHostAlloc
inline constexpr unsigned kHostPortable = 0x1;
inline constexpr unsigned kHostDeviceMap = 0x2;
// cuStreamCreate
inline constexpr unsigned kStreamNonBlocking = 0x1;
// cuIpcOpenMemHandle
inline constexpr unsigned kIpcLazyEnablePeerAccess = 0x1;
// CUmemAllocationHandleType
inline constexpr int kHandleDescriptor = 0x1;
// CUmemAllocationType
inline constexpr int kAllocationPinned = 0x1;
// CUmemAllocationGranularity_flags
inline constexpr int kGranularityRecommended = 0x1;
// CUmemLocationType
inline constexpr int kLocationDevice = 0x1;
// CUmemAccess_flags
inline constexpr int kAccessReadWrite = 0x3;
// cuEventCreate
inline constexpr unsigned kEventDisableTiming = 0x2;
inline constexpr unsigned kEventWaitExternal = 0x1;    // CU_EVENT_WAIT_EXTERNAL
inline constexpr unsigned kEventRecordExternal = 0x1;  // CU_EVENT_RECORD_EXTERNAL
// CUstreamBatchMemOpType
inline constexpr uint32_t kWaitValue32 = 1;
inline constexpr uint32_t kWriteValue32 = 2;
inline constexpr unsigned kBatchMax = 255;
// CUstreamWaitValue_flags, CUstreamWriteValue_flags
inline constexpr unsigned kWaitEqual = 0x1;
inline constexpr unsigned kWriteDefault = 0x0;
// CUstreamCaptureStatus
inline constexpr int kCaptureNone = 0;
inline constexpr int kCaptureActive = 1;
inline constexpr int kCaptureInvalidated = 2;
// CUstreamCaptureMode
inline constexpr int kCaptureModeRelaxed = 2;
// CUuserObject_flags, CUuserObjectRetain_flags
inline constexpr unsigned kNoDestructorSync = 1;
inline constexpr unsigned kObjectMove = 1;

// CUuuid
struct Uuid {
  unsigned char bytes[16] = {};
};

// CUipcMemHandle
struct IpcHandle {
  char reserved[64] = {};
};

// CUmemLocation
struct MemoryLocation {
  int type = 0;
  int id = 0;
};

// CUmemAllocationProp
struct AllocationProperties {
  int type = 0;
  int handle_types = 0;
  MemoryLocation location;
  void* windows = nullptr;
  unsigned char compression = 0;
  unsigned char rdma_capable = 0;
  unsigned short usage = 0;
  unsigned char reserved[4] = {};
};

// CUmemAccessDesc
struct MemoryAccess {
  MemoryLocation location;
  int flags = 0;
};

// CUstreamBatchMemOpParams, as its waitValue and its writeValue.
struct BatchEntry {
  uint32_t operation = 0;
  DevicePointer address = 0;
  uint64_t value = 0;
  unsigned flags = 0;
  DevicePointer alias = 0;
  uint64_t reserved = 0;
};

// The same under the names in the table of functions (functions.h).
using CUresult = Result;
using CUdevice = Device;
using CUcontext = Context;
using CUstream = Stream;
using CUevent = Event;
using CUgraph = Graph;
using CUgraphNode = const void*;
using CUgraphExec = void*;
using CUgraphEdgeData = void;
using CUgraphExecUpdateResultInfo = void;
using CUDA_GRAPH_INSTANTIATE_PARAMS = void;
using CUuserObject = UserObject;
using CUmodule = Module;
using CUfunction = Function;
using CUdeviceptr = DevicePointer;
using CUmemGenericAllocationHandle = AllocationHandle;
using CUhostFn = HostFunction;
using CUstreamCallback = void (*)(Stream stream, Result status, void* data);
using CUuuid = Uuid;
using CUipcMemHandle = IpcHandle;
using CUipcEventHandle = IpcHandle;
using CUmemLocation = MemoryLocation;
using CUmemAccessDesc = MemoryAccess;
using CUstreamBatchMemOpParams = BatchEntry;
using CUmemAllocationProp = AllocationProperties;
using CUmemAllocationType = int;
using CUmemAccess_flags = int;
using CUmemoryPool = void*;
using CUmemPool_attribute = int;
using CUmemPoolProps = void;
using CUctxCreateParams = void;
using CUdevice_attribute = int;
using CUdevice_P2PAttribute = int;
using CUpointer_attribute = int;
using CUjit_option = int;
using CUmemAllocationHandleType = int;
using CUmemAllocationGranularity_flags = int;
using CUstreamAttrID = int;
using CUstreamAttrValue = void;
using CUstreamCaptureMode = int;
using CUstreamCaptureStatus = int;
using CUdriverProcAddressQueryResult = int;
using cuuint32_t = uint32_t;
using cuuint64_t = uint64_t;

}  // namespace weir::cuda
