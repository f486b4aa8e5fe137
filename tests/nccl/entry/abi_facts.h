// SPDX-License-Identifier: Apache-2.0
// What a program's object file holds of nccl.h: numbers, sizes, offsets and prototypes, as
// assertions that hold for the project's header and for NCCL's own of any version from 2.18.
// Compiled once with each; what both fulfil, they agree on. To be included after the header.
#pragma once

#include <cstddef>
#include <type_traits>

#define VALUE(name, number) static_assert(static_cast<long long>(name) == (number), #name)
#define OFFSET(type, field, bytes) static_assert(offsetof(type, field) == (bytes), #field)
#define FUNCTION(result, name, ...)                                                     \
  static_assert(std::is_same_v<decltype(&nccl##name), result (*)(__VA_ARGS__)>, #name); \
  static_assert(std::is_same_v<decltype(&pnccl##name), result (*)(__VA_ARGS__)>, "p" #name)

static_assert(NCCL_VERSION(2, 8, 4) == 2804 && NCCL_VERSION(2, 28, 9) == 22809);
static_assert(NCCL_VERSION_CODE == NCCL_VERSION(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH));

VALUE(ncclSuccess, 0);
VALUE(ncclUnhandledCudaError, 1);
VALUE(ncclSystemError, 2);
VALUE(ncclInternalError, 3);
VALUE(ncclInvalidArgument, 4);
VALUE(ncclInvalidUsage, 5);
VALUE(ncclRemoteError, 6);
VALUE(ncclInProgress, 7);

VALUE(ncclInt8, 0);
VALUE(ncclChar, 0);
VALUE(ncclUint8, 1);
VALUE(ncclInt32, 2);
VALUE(ncclInt, 2);
VALUE(ncclUint32, 3);
VALUE(ncclInt64, 4);
VALUE(ncclUint64, 5);
VALUE(ncclFloat16, 6);
VALUE(ncclHalf, 6);
VALUE(ncclFloat32, 7);
VALUE(ncclFloat, 7);
VALUE(ncclFloat64, 8);
VALUE(ncclDouble, 8);
VALUE(ncclBfloat16, 9);

VALUE(ncclSum, 0);
VALUE(ncclProd, 1);
VALUE(ncclMax, 2);
VALUE(ncclMin, 3);
VALUE(ncclAvg, 4);
VALUE(ncclNumOps, 5);
VALUE(ncclMaxRedOp, 0x7fffffff);
VALUE(ncclScalarDevice, 0);
VALUE(ncclScalarHostImmediate, 1);
static_assert(sizeof(ncclResult_t) == 4 && sizeof(ncclDataType_t) == 4 && sizeof(ncclRedOp_t) == 4);

VALUE(NCCL_UNIQUE_ID_BYTES, 128);
static_assert(sizeof(ncclUniqueId) == 128 && alignof(ncclUniqueId) == 1);
VALUE(NCCL_SPLIT_NOCOLOR, -1);
VALUE(NCCL_CONFIG_UNDEF_INT, -2147483647LL - 1);

OFFSET(ncclConfig_t, size, 0);
OFFSET(ncclConfig_t, magic, 8);
OFFSET(ncclConfig_t, version, 12);
OFFSET(ncclConfig_t, blocking, 16);
OFFSET(ncclConfig_t, cgaClusterSize, 20);
OFFSET(ncclConfig_t, minCTAs, 24);
OFFSET(ncclConfig_t, maxCTAs, 28);
OFFSET(ncclConfig_t, netName, 32);
OFFSET(ncclConfig_t, splitShare, 40);
#if NCCL_VERSION_CODE >= 22700
OFFSET(ncclConfig_t, trafficClass, 44);
OFFSET(ncclConfig_t, commName, 48);
OFFSET(ncclConfig_t, collnetEnable, 56);
OFFSET(ncclConfig_t, CTAPolicy, 60);
OFFSET(ncclConfig_t, shrinkShare, 64);
OFFSET(ncclConfig_t, nvlsCTAs, 68);
VALUE(NCCL_WIN_DEFAULT, 0);
VALUE(NCCL_WIN_COLL_SYMMETRIC, 1);
VALUE(NCCL_CTA_POLICY_EFFICIENCY, 1);
VALUE(NCCL_SHRINK_ABORT, 1);
#endif
#if NCCL_VERSION_CODE >= 22800
OFFSET(ncclConfig_t, nChannelsPerNetPeer, 72);
OFFSET(ncclConfig_t, nvlinkCentricSched, 76);
VALUE(ncclFloat8e4m3, 10);
VALUE(ncclFloat8e5m2, 11);
VALUE(ncclNumTypes, 12);
#endif
#if NCCL_VERSION_CODE >= 22800 && NCCL_VERSION_CODE < 22900
static_assert(sizeof(ncclConfig_t) == 80);
#endif
#if NCCL_VERSION_CODE >= 22900
OFFSET(ncclConfig_t, graphUsageMode, 80);
OFFSET(ncclConfig_t, numRmaCtx, 84);
static_assert(sizeof(ncclWaitSignalDesc_t) == 16);
OFFSET(ncclWaitSignalDesc_t, opCnt, 0);
OFFSET(ncclWaitSignalDesc_t, peer, 4);
OFFSET(ncclWaitSignalDesc_t, sigIdx, 8);
OFFSET(ncclWaitSignalDesc_t, ctx, 12);
#endif
#if NCCL_VERSION_CODE >= 23100
OFFSET(ncclConfig_t, maxP2pPeers, 88);
OFFSET(ncclConfig_t, graphStreamOrdering, 92);
OFFSET(ncclConfig_t, launchOrderImplicit, 96);
OFFSET(ncclConfig_t, numRmaSig, 100);
OFFSET(ncclConfig_t, rmaEagerInit, 104);
OFFSET(ncclConfig_t, hostCftMode, 108);
OFFSET(ncclCollConfig_t, ext, 16);
OFFSET(ncclCollConfig_t, minCTAs, 24);
OFFSET(ncclCollConfig_t, maxCTAs, 28);
OFFSET(ncclCollConfig_t, nvlsCTAs, 32);
OFFSET(ncclCollConfig_t, cgaClusterSize, 36);
OFFSET(ncclCollConfig_t, algSelection, 40);
OFFSET(ncclCollConfig_t, forceAlgSelection, 48);
OFFSET(ncclCollConfig_t, CTAPolicy, 52);
OFFSET(ncclCollConfig_t, userProfilerTag, 56);
OFFSET(ncclConfigExt_t, key, 8);
OFFSET(ncclConfigExt_t, val, 16);
static_assert(sizeof(ncclConfigExt_t) == 24);
VALUE(ncclTimeout, 8);
VALUE(ncclNumResults, 9);
VALUE(ncclStatGpuMemSuspend, 0);
VALUE(ncclStatGpuMemSuspended, 1);
VALUE(ncclStatGpuMemPersist, 2);
VALUE(ncclStatGpuMemTotal, 3);
VALUE(NCCL_SUSPEND_MEM, 1);
VALUE(NCCL_API_MAGIC, 0xcafebeef);
#endif
#if NCCL_VERSION_CODE >= 23100 && NCCL_VERSION_CODE < 23200
static_assert(sizeof(ncclConfig_t) == 112);
static_assert(sizeof(ncclCollConfig_t) == 64);
#endif
#if NCCL_VERSION_CODE >= 23200
OFFSET(ncclConfig_t, nvlsHostMode, 112);
OFFSET(ncclCollConfig_t, launchCompletionEvent, 64);
OFFSET(ncclEncryptionConfig_t, size, 0);
OFFSET(ncclEncryptionConfig_t, magic, 8);
OFFSET(ncclEncryptionConfig_t, version, 12);
OFFSET(ncclEncryptionConfig_t, mode, 16);
OFFSET(ncclEncryptionConfig_t, psk, 24);
VALUE(NCCL_WIN_GIN_ONLY, 4);
VALUE(NCCL_WIN_CFT_COUNTED, 8);
VALUE(ncclNvlsHostModeDefault, -2147483647LL - 1);
VALUE(ncclNvlsHostModeEnable, 0);
VALUE(ncclNvlsHostModeDisableTransport, 1);
VALUE(ncclNvlsHostModeDisableSymmetricMultimem, 2);
VALUE(ncclNvlsHostModeDisable, 0x7fffffff);
VALUE(NCCL_ENCRYPTION_MODE_NONE, 0);
VALUE(NCCL_ENCRYPTION_MODE_PSK, 1);
#endif
#if NCCL_VERSION_CODE >= 23200 && NCCL_VERSION_CODE < 23300
static_assert(sizeof(ncclConfig_t) == 120);
static_assert(sizeof(ncclCollConfig_t) == 72);
static_assert(sizeof(ncclEncryptionConfig_t) == 32);
#endif
#if NCCL_VERSION_CODE >= 22200
OFFSET(ncclSimInfo_t, estimatedTime, 16);
static_assert(sizeof(ncclSimInfo_t) == 24);
#endif

// The initializers begin as every version's do.
inline void initializers_begin_with_size_magic_and_version() {
  constexpr ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  static_assert(config.size == sizeof config && config.magic == 0xcafebeef &&
                config.version == NCCL_VERSION_CODE && config.blocking == NCCL_CONFIG_UNDEF_INT &&
                config.netName == nullptr && config.splitShare == NCCL_CONFIG_UNDEF_INT);
#if NCCL_VERSION_CODE >= 23100
  static_assert(config.hostCftMode == NCCL_CONFIG_UNDEF_INT && config.commName == nullptr);
  constexpr ncclCollConfig_t call = NCCL_COLLCONFIG_INITIALIZER;
  static_assert(call.size == sizeof call && call.magic == 0xcafebeef &&
                call.forceAlgSelection == 1 && call.CTAPolicy == NCCL_CONFIG_UNDEF_INT &&
                call.userProfilerTag == 0);
#endif
#if NCCL_VERSION_CODE >= 23200
  static_assert(config.nvlsHostMode == NCCL_CONFIG_UNDEF_INT &&
                call.launchCompletionEvent == nullptr);
  constexpr ncclEncryptionConfig_t encryption = NCCL_ENCRYPTION_CONFIG_INITIALIZER;
  static_assert(encryption.size == sizeof encryption && encryption.magic == 0xcafebeef &&
                encryption.mode == NCCL_ENCRYPTION_MODE_NONE && encryption.psk == nullptr);
#endif
#if NCCL_VERSION_CODE >= 22200
  constexpr ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  static_assert(info.size == sizeof info && info.magic == 0x74685283 && info.estimatedTime == -1);
#endif
}

FUNCTION(ncclResult_t, GetVersion, int*);
FUNCTION(ncclResult_t, GetUniqueId, ncclUniqueId*);
FUNCTION(const char*, GetErrorString, ncclResult_t);
FUNCTION(ncclResult_t, CommInitRank, ncclComm_t*, int, ncclUniqueId, int);
FUNCTION(ncclResult_t, CommInitAll, ncclComm_t*, int, const int*);
FUNCTION(ncclResult_t, CommDestroy, ncclComm_t);
FUNCTION(ncclResult_t, CommCount, const ncclComm_t, int*);
FUNCTION(ncclResult_t, CommCuDevice, const ncclComm_t, int*);
FUNCTION(ncclResult_t, CommUserRank, const ncclComm_t, int*);
FUNCTION(ncclResult_t, Reduce, const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, int,
         ncclComm_t, cudaStream_t);
FUNCTION(ncclResult_t, Bcast, void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
FUNCTION(ncclResult_t, Broadcast, const void*, void*, size_t, ncclDataType_t, int, ncclComm_t,
         cudaStream_t);
FUNCTION(ncclResult_t, AllReduce, const void*, void*, size_t, ncclDataType_t, ncclRedOp_t,
         ncclComm_t, cudaStream_t);
FUNCTION(ncclResult_t, ReduceScatter, const void*, void*, size_t, ncclDataType_t, ncclRedOp_t,
         ncclComm_t, cudaStream_t);
FUNCTION(ncclResult_t, AllGather, const void*, void*, size_t, ncclDataType_t, ncclComm_t,
         cudaStream_t);
FUNCTION(ncclResult_t, GroupStart, void);
FUNCTION(ncclResult_t, GroupEnd, void);
#if NCCL_VERSION_CODE >= 20402
FUNCTION(ncclResult_t, CommAbort, ncclComm_t);
FUNCTION(ncclResult_t, CommGetAsyncError, ncclComm_t, ncclResult_t*);
#endif
#if NCCL_VERSION_CODE >= 20703
FUNCTION(ncclResult_t, Send, const void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
FUNCTION(ncclResult_t, Recv, void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
#endif
#if NCCL_VERSION_CODE >= 21104
FUNCTION(ncclResult_t, RedOpCreatePreMulSum, ncclRedOp_t*, void*, ncclDataType_t,
         ncclScalarResidence_t, ncclComm_t);
FUNCTION(ncclResult_t, RedOpDestroy, ncclRedOp_t, ncclComm_t);
#endif
#if NCCL_VERSION_CODE >= 21304
FUNCTION(const char*, GetLastError, ncclComm_t);
#endif
#if NCCL_VERSION_CODE >= 21403
FUNCTION(ncclResult_t, CommInitRankConfig, ncclComm_t*, int, ncclUniqueId, int, ncclConfig_t*);
FUNCTION(ncclResult_t, CommFinalize, ncclComm_t);
#endif
#if NCCL_VERSION_CODE >= 21801
FUNCTION(ncclResult_t, CommSplit, ncclComm_t, int, int, ncclComm_t*, ncclConfig_t*);
#endif
#if NCCL_VERSION_CODE >= 21901
FUNCTION(ncclResult_t, MemAlloc, void**, size_t);
FUNCTION(ncclResult_t, MemFree, void*);
FUNCTION(ncclResult_t, CommRegister, const ncclComm_t, void*, size_t, void**);
FUNCTION(ncclResult_t, CommDeregister, const ncclComm_t, void*);
#endif
#if NCCL_VERSION_CODE >= 22203
FUNCTION(ncclResult_t, GroupSimulateEnd, ncclSimInfo_t*);
#endif
#if NCCL_VERSION_CODE >= 22304
FUNCTION(ncclResult_t, CommInitRankScalable, ncclComm_t*, int, int, int, ncclUniqueId*,
         ncclConfig_t*);
#endif
#if NCCL_VERSION_CODE >= 22403
// (ncclResetDebugInit is declared for one operating system only.)
#endif
#if NCCL_VERSION_CODE >= 22703
FUNCTION(ncclResult_t, CommShrink, ncclComm_t, int*, int, ncclComm_t*, ncclConfig_t*, int);
FUNCTION(ncclResult_t, CommWindowRegister, ncclComm_t, void*, size_t, ncclWindow_t*, int);
FUNCTION(ncclResult_t, CommWindowDeregister, ncclComm_t, ncclWindow_t);
#endif
#if NCCL_VERSION_CODE >= 22803
FUNCTION(ncclResult_t, AlltoAll, const void*, void*, size_t, ncclDataType_t, ncclComm_t,
         cudaStream_t);
FUNCTION(ncclResult_t, Gather, const void*, void*, size_t, ncclDataType_t, int, ncclComm_t,
         cudaStream_t);
FUNCTION(ncclResult_t, Scatter, const void*, void*, size_t, ncclDataType_t, int, ncclComm_t,
         cudaStream_t);
#endif
#if NCCL_VERSION_CODE >= 22807
FUNCTION(ncclResult_t, CommRevoke, ncclComm_t, int);
#endif
#if NCCL_VERSION_CODE >= 22902
FUNCTION(ncclResult_t, CommGetUniqueId, ncclComm_t, ncclUniqueId*);
FUNCTION(ncclResult_t, CommGrow, ncclComm_t, int, const ncclUniqueId*, int, ncclComm_t*,
         ncclConfig_t*);
FUNCTION(ncclResult_t, WinGetUserPtr, ncclComm_t, ncclWindow_t, void**);
FUNCTION(ncclResult_t, PutSignal, const void*, size_t, ncclDataType_t, int, ncclWindow_t, size_t,
         int, int, unsigned int, ncclComm_t, cudaStream_t);
FUNCTION(ncclResult_t, Signal, int, int, int, unsigned int, ncclComm_t, cudaStream_t);
FUNCTION(ncclResult_t, WaitSignal, int, ncclWaitSignalDesc_t*, ncclComm_t, cudaStream_t);
#endif
#if NCCL_VERSION_CODE >= 22907
FUNCTION(ncclResult_t, CommSuspend, ncclComm_t, int);
FUNCTION(ncclResult_t, CommResume, ncclComm_t);
FUNCTION(ncclResult_t, CommMemStats, ncclComm_t, ncclCommMemStat_t, uint64_t*);
#endif
#if NCCL_VERSION_CODE >= 23004
FUNCTION(ncclResult_t, ParamBind, ncclParamHandle_t*, const char*);
FUNCTION(ncclResult_t, ParamGetI8, ncclParamHandle_t, int8_t*);
FUNCTION(ncclResult_t, ParamGetI16, ncclParamHandle_t, int16_t*);
FUNCTION(ncclResult_t, ParamGetI32, ncclParamHandle_t, int32_t*);
FUNCTION(ncclResult_t, ParamGetI64, ncclParamHandle_t, int64_t*);
FUNCTION(ncclResult_t, ParamGetU8, ncclParamHandle_t, uint8_t*);
FUNCTION(ncclResult_t, ParamGetU16, ncclParamHandle_t, uint16_t*);
FUNCTION(ncclResult_t, ParamGetU32, ncclParamHandle_t, uint32_t*);
FUNCTION(ncclResult_t, ParamGetU64, ncclParamHandle_t, uint64_t*);
FUNCTION(ncclResult_t, ParamGetStr, ncclParamHandle_t, const char**);
FUNCTION(ncclResult_t, ParamGet, ncclParamHandle_t, void*, int, int*);
FUNCTION(ncclResult_t, ParamGetParameter, const char*, const char**, int*);
FUNCTION(ncclResult_t, ParamGetAllParameterKeys, const char***, int*);
FUNCTION(void, ParamDumpAll, void);
#endif
#if NCCL_VERSION_CODE >= 23100
FUNCTION(ncclResult_t, AllReduceConfig, const void*, void*, size_t, ncclDataType_t, ncclRedOp_t,
         ncclComm_t, cudaStream_t, const ncclCollConfig_t*);
FUNCTION(ncclResult_t, BroadcastConfig, const void*, void*, size_t, ncclDataType_t, int, ncclComm_t,
         cudaStream_t, const ncclCollConfig_t*);
FUNCTION(ncclResult_t, ReduceConfig, const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, int,
         ncclComm_t, cudaStream_t, const ncclCollConfig_t*);
FUNCTION(ncclResult_t, AllGatherConfig, const void*, void*, size_t, ncclDataType_t, ncclComm_t,
         cudaStream_t, const ncclCollConfig_t*);
FUNCTION(ncclResult_t, ReduceScatterConfig, const void*, void*, size_t, ncclDataType_t, ncclRedOp_t,
         ncclComm_t, cudaStream_t, const ncclCollConfig_t*);
FUNCTION(ncclResult_t, AlltoAllConfig, const void*, void*, size_t, ncclDataType_t, ncclComm_t,
         cudaStream_t, const ncclCollConfig_t*);
FUNCTION(ncclResult_t, GatherConfig, const void*, void*, size_t, ncclDataType_t, int, ncclComm_t,
         cudaStream_t, const ncclCollConfig_t*);
FUNCTION(ncclResult_t, ScatterConfig, const void*, void*, size_t, ncclDataType_t, int, ncclComm_t,
         cudaStream_t, const ncclCollConfig_t*);
#endif
#if NCCL_VERSION_CODE >= 23200
FUNCTION(ncclResult_t, SetEncryption, const ncclEncryptionConfig_t*);
#endif
