// SPDX-License-Identifier: Apache-2.0
// Compiled only: Weir's own declarations of CUDA's driver are those of cuda.h.
#include <cstddef>
#include <string_view>
#include <type_traits>

// Before cuda.h, which defines some of the names as macros for others.
#include "cuda/driver_table.h"
// clang-format off
#include <cuda.h>
// clang-format on

namespace weir::cuda {
namespace {

// Handles are pointers of another type, enumerations are int: what counts is size and kind.
template <typename A, typename B>
constexpr bool same_word() {
  return sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B>;
}

template <typename Ours, typename Theirs>
struct SameCall : std::false_type {};
template <typename RA, typename... A, typename RB, typename... B>
struct SameCall<RA (*)(A...), RB (*)(B...)> {
  static constexpr bool words() {
    if constexpr (sizeof...(A) == sizeof...(B)) {
      return same_word<RA, RB>() && (same_word<A, B>() && ...);
    } else {
      return false;
    }
  }
  static constexpr bool value = words();
};

// What `name` stands for in this header is one of the symbols: of those with several forms, see
// below.
#define SAME_CALL_Weir(name, symbol)                                              \
  static_assert(std::string_view(#name) == "cuStreamGetCaptureInfo" ||            \
                    SameCall<decltype(Driver::symbol), decltype(&::name)>::value, \
                #name);
#define SAME_CALL_Programs(name, symbol)
#define SAME_CALL(name, symbol, since, caller, parameters) SAME_CALL_##caller(name, symbol)
WEIR_CUDA_FUNCTIONS(SAME_CALL)
#if CUDA_VERSION >= 13000
static_assert(SameCall<decltype(Driver::cuStreamGetCaptureInfo_v3),
                       decltype(&cuStreamGetCaptureInfo)>::value);
#elif CUDA_VERSION >= 12000
static_assert(SameCall<decltype(Driver::cuStreamGetCaptureInfo_v2),
                       decltype(&cuStreamGetCaptureInfo)>::value);
#endif

static_assert(sizeof(DevicePointer) == sizeof(::CUdeviceptr));
static_assert(sizeof(Device) == sizeof(::CUdevice));
static_assert(kSuccess == CUDA_SUCCESS);
static_assert(kAttributeMemoryType == CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
static_assert(kErrorNotReady == CUDA_ERROR_NOT_READY);
static_assert(kErrorPeerAlreadyEnabled == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
static_assert(kAttributeContext == CU_POINTER_ATTRIBUTE_CONTEXT);
static_assert(kAttributeDeviceOrdinal == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
static_assert(kAttributeIsIpcCapable == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE);
static_assert(kAttributeBufferId == CU_POINTER_ATTRIBUTE_BUFFER_ID);
static_assert(kAttributeRangeStart == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR);
static_assert(kAttributeRangeBytes == CU_POINTER_ATTRIBUTE_RANGE_SIZE);
static_assert(kAttributeAllowedHandles == CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES);
static_assert(kAttributePool == CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE);
static_assert(kHandleDescriptor == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
static_assert(kLocationDevice == CU_MEM_LOCATION_TYPE_DEVICE);
static_assert(kAccessReadWrite == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
static_assert(sizeof(AllocationHandle) == sizeof(::CUmemGenericAllocationHandle));
static_assert(sizeof(MemoryLocation) == sizeof(::CUmemLocation));
static_assert(offsetof(MemoryLocation, type) == offsetof(::CUmemLocation, type));
static_assert(offsetof(MemoryLocation, id) == offsetof(::CUmemLocation, id));
static_assert(kAllocationPinned == CU_MEM_ALLOCATION_TYPE_PINNED);
static_assert(kGranularityRecommended == CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
static_assert(kErrorNotPermitted == CUDA_ERROR_NOT_PERMITTED);
static_assert(kErrorNotSupported == CUDA_ERROR_NOT_SUPPORTED);
static_assert(sizeof(AllocationProperties) == sizeof(::CUmemAllocationProp));
static_assert(offsetof(AllocationProperties, type) == offsetof(::CUmemAllocationProp, type));
static_assert(offsetof(AllocationProperties, handle_types) ==
              offsetof(::CUmemAllocationProp, requestedHandleTypes));
static_assert(offsetof(AllocationProperties, location) ==
              offsetof(::CUmemAllocationProp, location));
static_assert(sizeof(MemoryAccess) == sizeof(::CUmemAccessDesc));
static_assert(offsetof(MemoryAccess, location) == offsetof(::CUmemAccessDesc, location));
static_assert(offsetof(MemoryAccess, flags) == offsetof(::CUmemAccessDesc, flags));
static_assert(kStreamNonBlocking == CU_STREAM_NON_BLOCKING);
static_assert(kIpcLazyEnablePeerAccess == CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
static_assert(sizeof(Uuid) == sizeof(::CUuuid));
static_assert(kAttributeDeviceOrdinal == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
static_assert(sizeof(IpcHandle) == sizeof(::CUipcMemHandle));
static_assert(kAttributeIsManaged == CU_POINTER_ATTRIBUTE_IS_MANAGED);
static_assert(kMemoryDevice == CU_MEMORYTYPE_DEVICE);
static_assert(kHostPortable == CU_MEMHOSTALLOC_PORTABLE);
static_assert(kHostDeviceMap == CU_MEMHOSTALLOC_DEVICEMAP);
static_assert(kEventDisableTiming == CU_EVENT_DISABLE_TIMING);
static_assert(kWaitValue32 == CU_STREAM_MEM_OP_WAIT_VALUE_32);
static_assert(kWriteValue32 == CU_STREAM_MEM_OP_WRITE_VALUE_32);
static_assert(kWaitEqual == CU_STREAM_WAIT_VALUE_EQ);
static_assert(kWriteDefault == CU_STREAM_WRITE_VALUE_DEFAULT);
static_assert(kCaptureNone == CU_STREAM_CAPTURE_STATUS_NONE);
static_assert(kCaptureActive == CU_STREAM_CAPTURE_STATUS_ACTIVE);
static_assert(kCaptureInvalidated == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
static_assert(kCaptureModeRelaxed == CU_STREAM_CAPTURE_MODE_RELAXED);
static_assert(kNoDestructorSync == CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
static_assert(kObjectMove == CU_GRAPH_USER_OBJECT_MOVE);

using Wait = ::CUstreamBatchMemOpParams::CUstreamMemOpWaitValueParams_st;
using Write = ::CUstreamBatchMemOpParams::CUstreamMemOpWriteValueParams_st;
static_assert(sizeof(BatchEntry) == sizeof(::CUstreamBatchMemOpParams));
static_assert(offsetof(BatchEntry, operation) == offsetof(Wait, operation));
static_assert(offsetof(BatchEntry, address) == offsetof(Wait, address));
static_assert(offsetof(BatchEntry, value) == offsetof(Wait, value));
static_assert(offsetof(BatchEntry, flags) == offsetof(Wait, flags));
static_assert(offsetof(BatchEntry, address) == offsetof(Write, address));
static_assert(offsetof(BatchEntry, value) == offsetof(Write, value));
static_assert(offsetof(BatchEntry, flags) == offsetof(Write, flags));

}  // namespace
}  // namespace weir::cuda
