// SPDX-License-Identifier: Apache-2.0
// Sizes, offsets and numbers of the types of CUDA 13's driver API.
// Included after a header that declares them.
#pragma once

#include <cstddef>

static_assert(CUDA_SUCCESS == 0);
static_assert(CUDA_ERROR_INVALID_VALUE == 1);
static_assert(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK == 1);
static_assert(CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED == 2);
static_assert(CU_POINTER_ATTRIBUTE_CONTEXT == 1);
static_assert(CU_POINTER_ATTRIBUTE_MEMORY_TYPE == 2);
static_assert(CU_POINTER_ATTRIBUTE_DEVICE_POINTER == 3);
static_assert(CU_POINTER_ATTRIBUTE_HOST_POINTER == 4);
static_assert(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS == 6);
static_assert(CU_POINTER_ATTRIBUTE_BUFFER_ID == 7);
static_assert(CU_POINTER_ATTRIBUTE_IS_MANAGED == 8);
static_assert(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL == 9);
static_assert(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE == 10);
static_assert(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR == 11);
static_assert(CU_POINTER_ATTRIBUTE_RANGE_SIZE == 12);
static_assert(CU_POINTER_ATTRIBUTE_MAPPED == 13);
static_assert(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES == 14);
static_assert(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE == 15);
static_assert(CU_POINTER_ATTRIBUTE_ACCESS_FLAGS == 16);
static_assert(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE == 17);
static_assert(CU_MEMORYTYPE_HOST == 1);
static_assert(CU_MEMORYTYPE_DEVICE == 2);
static_assert(CU_STREAM_CAPTURE_MODE_GLOBAL == 0);
static_assert(CU_STREAM_CAPTURE_STATUS_NONE == 0);
static_assert(CU_STREAM_MEM_OP_WAIT_VALUE_32 == 1);
static_assert(CU_STREAM_MEM_OP_WRITE_VALUE_32 == 2);
static_assert(CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES == 3);
static_assert(CU_STREAM_MEM_OP_WAIT_VALUE_64 == 4);
static_assert(CU_STREAM_MEM_OP_WRITE_VALUE_64 == 5);
static_assert(CU_STREAM_MEM_OP_BARRIER == 6);
static_assert(CU_MEM_ALLOCATION_TYPE_PINNED == 1);
static_assert(CU_MEM_HANDLE_TYPE_NONE == 0);
static_assert(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR == 1);
static_assert(CU_MEM_LOCATION_TYPE_INVALID == 0);
static_assert(CU_MEM_LOCATION_TYPE_DEVICE == 1);
static_assert(CU_MEM_LOCATION_TYPE_HOST == 2);
static_assert(CU_MEM_ACCESS_FLAGS_PROT_NONE == 0);
static_assert(CU_MEM_ACCESS_FLAGS_PROT_READ == 1);
static_assert(CU_MEM_ACCESS_FLAGS_PROT_READWRITE == 3);
static_assert(CU_MEM_ALLOC_GRANULARITY_MINIMUM == 0);
static_assert(CU_MEM_ALLOC_GRANULARITY_RECOMMENDED == 1);
static_assert(CU_GET_PROC_ADDRESS_SUCCESS == 0);
static_assert(CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND == 1);
static_assert(CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT == 2);
static_assert(sizeof(CUipcMemHandle) == 64);
static_assert(sizeof(CUgraphEdgeData) == 8);
static_assert(offsetof(CUgraphEdgeData, from_port) == 0);
static_assert(offsetof(CUgraphEdgeData, to_port) == 1);
static_assert(offsetof(CUgraphEdgeData, type) == 2);
static_assert(sizeof(CUmemLocation) == 8);
static_assert(offsetof(CUmemLocation, type) == 0);
static_assert(offsetof(CUmemLocation, id) == 4);
static_assert(sizeof(CUmemAllocationProp) == 32);
static_assert(offsetof(CUmemAllocationProp, type) == 0);
static_assert(offsetof(CUmemAllocationProp, requestedHandleTypes) == 4);
static_assert(offsetof(CUmemAllocationProp, location) == 8);
static_assert(offsetof(CUmemAllocationProp, win32HandleMetaData) == 16);
static_assert(offsetof(CUmemAllocationProp, allocFlags) == 24);
static_assert(sizeof(CUmemAccessDesc) == 12);
static_assert(offsetof(CUmemAccessDesc, location) == 0);
static_assert(offsetof(CUmemAccessDesc, flags) == 8);
static_assert(offsetof(CUstreamBatchMemOpParams, operation) == 0);
static_assert(offsetof(CUstreamBatchMemOpParams, waitValue.address) == 8);
static_assert(offsetof(CUstreamBatchMemOpParams, waitValue.value) == 16);
static_assert(offsetof(CUstreamBatchMemOpParams, waitValue.flags) == 24);
static_assert(offsetof(CUstreamBatchMemOpParams, writeValue.address) == 8);
static_assert(offsetof(CUstreamBatchMemOpParams, writeValue.value) == 16);
static_assert(offsetof(CUstreamBatchMemOpParams, writeValue.flags) == 24);
static_assert(offsetof(CUstreamBatchMemOpParams, memoryBarrier.flags) == 4);
static_assert(offsetof(CUstreamBatchMemOpParams, flushRemoteWrites.flags) == 4);
static_assert(sizeof(CUstreamBatchMemOpParams) == 48);
