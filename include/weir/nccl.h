/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_NCCL_H_
#define WEIR_NCCL_H_

/*
 * nccl.h: the host API of NCCL through 2.32, as Weir's libnccl.so.2 exports it.
 *
 * What it is for. A program written for NCCL compiles against this header on a machine that has
 * neither NCCL nor CUDA. Names, numbers and layouts are NCCL's, so that an object file compiled
 * against the one header runs with the library of the other; a test compares the two headers where
 * both are there. docs/nccl.md says what each function does on host memory.
 *
 * A program that includes NCCL's own header first uses that one: the two share the guard NCCL_H_.
 *
 * Threads. As NCCL: one communicator must not be called from two threads at once, but for
 * ncclCommAbort and ncclCommGetAsyncError. A group belongs to the thread that opened it.
 *
 * Every function has a twin with the prefix pnccl.
 */

#ifndef NCCL_H_
#define NCCL_H_

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

/* NCCL's header brings CUDA's; here the two types that it needs are declared where they are absent.
 * WEIR_NCCL_NO_CUDA: do not look for them. */
#if defined(__has_include) && !defined(WEIR_NCCL_NO_CUDA)
#if __has_include(<cuda_runtime.h>)
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#endif
#endif
typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;

#define NCCL_MAJOR 2
#define NCCL_MINOR 32
#define NCCL_PATCH 3
#define NCCL_SUFFIX ""

/* Until 2.8 a major version was worth 1000. */
#define NCCL_VERSION(major, minor, patch)                                \
  (((major) <= 2 && (minor) <= 8) ? (major)*1000 + (minor)*100 + (patch) \
                                  : (major)*10000 + (minor)*100 + (patch))
#define NCCL_VERSION_CODE 23203

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define WEIR_NCCL_API __attribute__((visibility("default")))
#else
#define WEIR_NCCL_API
#endif

/* Declares a function and its twin. */
#define WEIR_NCCL_DECLARE(type, name, ...)    \
  WEIR_NCCL_API type nccl##name(__VA_ARGS__); \
  WEIR_NCCL_API type pnccl##name(__VA_ARGS__)

/* ---- Types ---------------------------------------------------------------------------------- */

typedef struct ncclComm* ncclComm_t;
typedef struct ncclWindow_vidmem* ncclWindow_t;
typedef struct ncclParamHandle* ncclParamHandle_t;
#define NCCL_COMM_NULL NULL

/* Of fixed width in C++ too: a wrong number from a caller is an error, not undefined. */
#ifdef __cplusplus
#define WEIR_NCCL_ENUM : int
#else
#define WEIR_NCCL_ENUM
#endif

#define NCCL_UNIQUE_ID_BYTES 128
typedef struct {
  char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

typedef enum WEIR_NCCL_ENUM {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7,
  ncclTimeout = 8,
  ncclNumResults = 9
} ncclResult_t;

typedef enum WEIR_NCCL_ENUM {
  ncclInt8 = 0,
  ncclChar = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclInt = 2,
  ncclUint32 = 3,
  ncclInt64 = 4,
  ncclUint64 = 5,
  ncclFloat16 = 6,
  ncclHalf = 6,
  ncclFloat32 = 7,
  ncclFloat = 7,
  ncclFloat64 = 8,
  ncclDouble = 8,
  ncclBfloat16 = 9,
  ncclFloat8e4m3 = 10,
  ncclFloat8e5m2 = 11,
  ncclNumTypes = 12
} ncclDataType_t;

typedef enum WEIR_NCCL_ENUM { ncclNumOps_dummy = 5 } ncclRedOp_dummy_t;
typedef enum WEIR_NCCL_ENUM {
  ncclSum = 0,
  ncclProd = 1,
  ncclMax = 2,
  ncclMin = 3,
  ncclAvg = 4,
  ncclNumOps = 5, /* the first number that ncclRedOpCreatePreMulSum may give */
  ncclMaxRedOp = 0x7fffffff >> (32 - 8 * sizeof(ncclRedOp_dummy_t))
} ncclRedOp_t;

typedef enum WEIR_NCCL_ENUM {
  ncclScalarDevice = 0,
  ncclScalarHostImmediate = 1
} ncclScalarResidence_t;

typedef enum WEIR_NCCL_ENUM {
  ncclStatGpuMemSuspend = 0,
  ncclStatGpuMemSuspended = 1,
  ncclStatGpuMemPersist = 2,
  ncclStatGpuMemTotal = 3
} ncclCommMemStat_t;

typedef struct {
  int opCnt; /* signals to wait for */
  int peer;
  int sigIdx;
  int ctx;
} ncclWaitSignalDesc_t;

/* ---- Configurations --------------------------------------------------------------------------
 * Structures grow at their end; `size` says how much of one its owner knows. Start from the
 * initializer; a field left at its undefined value takes the default. */

#define NCCL_API_MAGIC 0xcafebeef
#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_CONFIG_UNDEF_PTR NULL
#define NCCL_UNDEF_FLOAT -1.0f
#define NCCL_SPLIT_NOCOLOR -1

#define NCCL_WIN_DEFAULT 0x00
#define NCCL_WIN_COLL_SYMMETRIC 0x01
#define NCCL_WIN_STRICT_ORDERING 0x02
#define NCCL_WIN_GIN_ONLY 0x04
#define NCCL_WIN_CFT_COUNTED 0x08 /* buffers aligned to 256 bytes, 256 GiB at most */
#define NCCL_WIN_REQUIRED_ALIGNMENT 4096

#define NCCL_CTA_POLICY_DEFAULT 0x00
#define NCCL_CTA_POLICY_EFFICIENCY 0x01
#define NCCL_CTA_POLICY_ZERO 0x02

#define NCCL_SHRINK_DEFAULT 0x00
#define NCCL_SHRINK_ABORT 0x01
#define NCCL_REVOKE_DEFAULT 0x00
#define NCCL_SUSPEND_MEM 0x01

typedef enum WEIR_NCCL_ENUM {
  ncclHostCftDefault = NCCL_CONFIG_UNDEF_INT,
  ncclHostCftEnable = 1,
  ncclHostCftDisable = 2,
  ncclHostCftFallback = 3
} ncclHostCftMode_t;

/* The flags of what is disabled may be combined. */
typedef enum WEIR_NCCL_ENUM {
  ncclNvlsHostModeDefault = NCCL_CONFIG_UNDEF_INT,
  ncclNvlsHostModeEnable = 0,
  ncclNvlsHostModeDisableTransport = 1,
  ncclNvlsHostModeDisableSymmetricMultimem = 2,
  ncclNvlsHostModeDisable = INT_MAX
} ncclNvlsHostMode_t;

typedef struct ncclConfig_v23100 {
  size_t size;
  unsigned int magic;
  unsigned int version;
  int blocking; /* 0: calls return ncclInProgress and ncclCommGetAsyncError tells the end */
  int cgaClusterSize;
  int minCTAs;
  int maxCTAs;
  const char* netName;
  int splitShare;
  int trafficClass;
  const char* commName;
  int collnetEnable;
  int CTAPolicy;
  int shrinkShare;
  int nvlsCTAs;
  int nChannelsPerNetPeer;
  int nvlinkCentricSched;
  int graphUsageMode;
  int numRmaCtx;
  int maxP2pPeers;
  int graphStreamOrdering;
  int launchOrderImplicit;
  int numRmaSig;
  int rmaEagerInit;
  int hostCftMode;
  int nvlsHostMode; /* ncclNvlsHostMode_t */
} ncclConfig_t;

/* clang-format off */
#define NCCL_CONFIG_INITIALIZER                                                                    \
  { sizeof(ncclConfig_t), NCCL_API_MAGIC, NCCL_VERSION_CODE,                                       \
    /* blocking */ INT_MIN, /* cgaClusterSize */ INT_MIN, /* minCTAs */ INT_MIN,                   \
    /* maxCTAs */ INT_MIN, /* netName */ NULL, /* splitShare */ INT_MIN,                           \
    /* trafficClass */ INT_MIN, /* commName */ NULL, /* collnetEnable */ INT_MIN,                  \
    /* CTAPolicy */ INT_MIN, /* shrinkShare */ INT_MIN, /* nvlsCTAs */ INT_MIN,                    \
    /* nChannelsPerNetPeer */ INT_MIN, /* nvlinkCentricSched */ INT_MIN,                           \
    /* graphUsageMode */ INT_MIN, /* numRmaCtx */ INT_MIN, /* maxP2pPeers */ INT_MIN,              \
    /* graphStreamOrdering */ INT_MIN, /* launchOrderImplicit */ INT_MIN,                          \
    /* numRmaSig */ INT_MIN, /* rmaEagerInit */ INT_MIN, /* hostCftMode */ INT_MIN,                \
    /* nvlsHostMode */ INT_MIN }
/* clang-format on */

/* A vendor's option of one call; a list that must not be circular. */
typedef struct ncclConfigExt {
  struct ncclConfigExt* next;
  struct {
    int vendorId;
    int optionId;
  } key;
  union {
    int i;
    const char* s;
    void* raw;
  } val;
} ncclConfigExt_t;

typedef struct ncclCollConfig_v23200 {
  size_t size;
  unsigned int magic;
  unsigned int version;
  ncclConfigExt_t* ext;
  int minCTAs;
  int maxCTAs;
  int nvlsCTAs;
  int cgaClusterSize;
  const char* algSelection;
  int forceAlgSelection; /* 1: a selection that cannot be met is an error */
  int CTAPolicy;
  uint64_t userProfilerTag;
  /* The caller's event, without timing: recorded in the stream of the call when the stream has
   * reached the call and the call has begun, which says nothing about its end. One a communicator
   * in a group. NULL: none. */
  cudaEvent_t launchCompletionEvent;
} ncclCollConfig_t;

/* clang-format off */
#define NCCL_COLLCONFIG_INITIALIZER                                                                \
  { sizeof(ncclCollConfig_t), NCCL_API_MAGIC, NCCL_VERSION_CODE, /* ext */ NULL,                   \
    /* minCTAs */ INT_MIN, /* maxCTAs */ INT_MIN, /* nvlsCTAs */ INT_MIN,                          \
    /* cgaClusterSize */ INT_MIN, /* algSelection */ NULL, /* forceAlgSelection */ 1,              \
    /* CTAPolicy */ INT_MIN, /* userProfilerTag */ 0, /* launchCompletionEvent */ NULL }

typedef struct ncclSimInfo_v22200 {
  size_t size;
  unsigned int magic;
  unsigned int version;
  float estimatedTime;
} ncclSimInfo_t;

#define NCCL_SIM_INFO_INITIALIZER                                                                  \
  { sizeof(ncclSimInfo_t), 0x74685283, NCCL_VERSION_CODE, NCCL_UNDEF_FLOAT }

typedef enum WEIR_NCCL_ENUM {
  NCCL_ENCRYPTION_MODE_NONE = 0,
  NCCL_ENCRYPTION_MODE_PSK = 1
} ncclEncryptionMode_t;

typedef struct ncclEncryptionConfig_v23200 {
  size_t size;
  unsigned int magic;
  unsigned int version;
  int mode;        /* ncclEncryptionMode_t */
  const char* psk; /* the key that all ranks share, of 32 characters or more; copied */
} ncclEncryptionConfig_t;

#define NCCL_ENCRYPTION_CONFIG_INITIALIZER                                                         \
  { sizeof(ncclEncryptionConfig_t), NCCL_API_MAGIC, NCCL_VERSION_CODE,                             \
    NCCL_ENCRYPTION_MODE_NONE, /* psk */ NULL }
/* clang-format on */

/* ---- The library ---------------------------------------------------------------------------- */

WEIR_NCCL_DECLARE(ncclResult_t, GetVersion, int* version);
WEIR_NCCL_DECLARE(ncclResult_t, GetUniqueId, ncclUniqueId* uniqueId);
WEIR_NCCL_DECLARE(const char*, GetErrorString, ncclResult_t result);
/* Text of the latest error; never NULL, and valid until 4096 other texts have been asked for. */
WEIR_NCCL_DECLARE(const char*, GetLastError, ncclComm_t comm);
WEIR_NCCL_DECLARE(void, ResetDebugInit, void);
/* For the communicators that are made from now on; NULL: as NCCL_ENCRYPTION_MODE_NONE. The config
 * stays the caller's. docs/nccl.md says what is encrypted. */
WEIR_NCCL_DECLARE(ncclResult_t, SetEncryption, const ncclEncryptionConfig_t* config);

WEIR_NCCL_DECLARE(ncclResult_t, MemAlloc, void** ptr, size_t size);
WEIR_NCCL_DECLARE(ncclResult_t, MemFree, void* ptr);

/* ---- Communicators -------------------------------------------------------------------------- */

WEIR_NCCL_DECLARE(ncclResult_t, CommInitRank, ncclComm_t* comm, int nranks, ncclUniqueId commId,
                  int rank);
WEIR_NCCL_DECLARE(ncclResult_t, CommInitRankConfig, ncclComm_t* comm, int nranks,
                  ncclUniqueId commId, int rank, ncclConfig_t* config);
WEIR_NCCL_DECLARE(ncclResult_t, CommInitRankScalable, ncclComm_t* newcomm, int nranks, int myrank,
                  int nId, ncclUniqueId* commIds, ncclConfig_t* config);
WEIR_NCCL_DECLARE(ncclResult_t, CommInitAll, ncclComm_t* comm, int ndev, const int* devlist);
WEIR_NCCL_DECLARE(ncclResult_t, CommSplit, ncclComm_t comm, int color, int key, ncclComm_t* newcomm,
                  ncclConfig_t* config);
WEIR_NCCL_DECLARE(ncclResult_t, CommShrink, ncclComm_t comm, int* excludeRanksList,
                  int excludeRanksCount, ncclComm_t* newcomm, ncclConfig_t* config,
                  int shrinkFlags);
WEIR_NCCL_DECLARE(ncclResult_t, CommGetUniqueId, ncclComm_t comm, ncclUniqueId* uniqueId);
WEIR_NCCL_DECLARE(ncclResult_t, CommGrow, ncclComm_t comm, int nRanks, const ncclUniqueId* uniqueId,
                  int rank, ncclComm_t* newcomm, ncclConfig_t* config);
WEIR_NCCL_DECLARE(ncclResult_t, CommFinalize, ncclComm_t comm);
WEIR_NCCL_DECLARE(ncclResult_t, CommDestroy, ncclComm_t comm);
WEIR_NCCL_DECLARE(ncclResult_t, CommAbort, ncclComm_t comm);
WEIR_NCCL_DECLARE(ncclResult_t, CommRevoke, ncclComm_t comm, int revokeFlags);
WEIR_NCCL_DECLARE(ncclResult_t, CommGetAsyncError, ncclComm_t comm, ncclResult_t* asyncError);
WEIR_NCCL_DECLARE(ncclResult_t, CommCount, const ncclComm_t comm, int* count);
WEIR_NCCL_DECLARE(ncclResult_t, CommCuDevice, const ncclComm_t comm, int* device);
WEIR_NCCL_DECLARE(ncclResult_t, CommUserRank, const ncclComm_t comm, int* rank);
WEIR_NCCL_DECLARE(ncclResult_t, CommSuspend, ncclComm_t comm, int flags);
WEIR_NCCL_DECLARE(ncclResult_t, CommResume, ncclComm_t comm);
WEIR_NCCL_DECLARE(ncclResult_t, CommMemStats, ncclComm_t comm, ncclCommMemStat_t stat,
                  uint64_t* value);

WEIR_NCCL_DECLARE(ncclResult_t, CommRegister, const ncclComm_t comm, void* buff, size_t size,
                  void** handle);
WEIR_NCCL_DECLARE(ncclResult_t, CommDeregister, const ncclComm_t comm, void* handle);
WEIR_NCCL_DECLARE(ncclResult_t, CommWindowRegister, ncclComm_t comm, void* buff, size_t size,
                  ncclWindow_t* win, int winFlags);
WEIR_NCCL_DECLARE(ncclResult_t, CommWindowDeregister, ncclComm_t comm, ncclWindow_t win);
WEIR_NCCL_DECLARE(ncclResult_t, WinGetUserPtr, ncclComm_t comm, ncclWindow_t win,
                  void** outUserPtr);

WEIR_NCCL_DECLARE(ncclResult_t, RedOpCreatePreMulSum, ncclRedOp_t* op, void* scalar,
                  ncclDataType_t datatype, ncclScalarResidence_t residence, ncclComm_t comm);
WEIR_NCCL_DECLARE(ncclResult_t, RedOpDestroy, ncclRedOp_t op, ncclComm_t comm);

/* ---- Collectives ---------------------------------------------------------------------------- */

WEIR_NCCL_DECLARE(ncclResult_t, Reduce, const void* sendbuff, void* recvbuff, size_t count,
                  ncclDataType_t datatype, ncclRedOp_t op, int root, ncclComm_t comm,
                  cudaStream_t stream);
WEIR_NCCL_DECLARE(ncclResult_t, Bcast, void* buff, size_t count, ncclDataType_t datatype, int root,
                  ncclComm_t comm, cudaStream_t stream);
WEIR_NCCL_DECLARE(ncclResult_t, Broadcast, const void* sendbuff, void* recvbuff, size_t count,
                  ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream);
WEIR_NCCL_DECLARE(ncclResult_t, AllReduce, const void* sendbuff, void* recvbuff, size_t count,
                  ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
WEIR_NCCL_DECLARE(ncclResult_t, ReduceScatter, const void* sendbuff, void* recvbuff,
                  size_t recvcount, ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                  cudaStream_t stream);
WEIR_NCCL_DECLARE(ncclResult_t, AllGather, const void* sendbuff, void* recvbuff, size_t sendcount,
                  ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream);
WEIR_NCCL_DECLARE(ncclResult_t, AlltoAll, const void* sendbuff, void* recvbuff, size_t count,
                  ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream);
WEIR_NCCL_DECLARE(ncclResult_t, Gather, const void* sendbuff, void* recvbuff, size_t count,
                  ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream);
WEIR_NCCL_DECLARE(ncclResult_t, Scatter, const void* sendbuff, void* recvbuff, size_t count,
                  ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream);

/* The same with options of the call; config may be NULL. */
WEIR_NCCL_DECLARE(ncclResult_t, AllReduceConfig, const void* sendbuff, void* recvbuff, size_t count,
                  ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream,
                  const ncclCollConfig_t* config);
WEIR_NCCL_DECLARE(ncclResult_t, BroadcastConfig, const void* sendbuff, void* recvbuff, size_t count,
                  ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream,
                  const ncclCollConfig_t* config);
WEIR_NCCL_DECLARE(ncclResult_t, ReduceConfig, const void* sendbuff, void* recvbuff, size_t count,
                  ncclDataType_t datatype, ncclRedOp_t op, int root, ncclComm_t comm,
                  cudaStream_t stream, const ncclCollConfig_t* config);
WEIR_NCCL_DECLARE(ncclResult_t, AllGatherConfig, const void* sendbuff, void* recvbuff,
                  size_t sendcount, ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream,
                  const ncclCollConfig_t* config);
WEIR_NCCL_DECLARE(ncclResult_t, ReduceScatterConfig, const void* sendbuff, void* recvbuff,
                  size_t recvcount, ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                  cudaStream_t stream, const ncclCollConfig_t* config);
WEIR_NCCL_DECLARE(ncclResult_t, AlltoAllConfig, const void* sendbuff, void* recvbuff, size_t count,
                  ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream,
                  const ncclCollConfig_t* config);
WEIR_NCCL_DECLARE(ncclResult_t, GatherConfig, const void* sendbuff, void* recvbuff, size_t count,
                  ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream,
                  const ncclCollConfig_t* config);
WEIR_NCCL_DECLARE(ncclResult_t, ScatterConfig, const void* sendbuff, void* recvbuff, size_t count,
                  ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream,
                  const ncclCollConfig_t* config);

/* ---- Point to point, one-sided, groups ------------------------------------------------------ */

WEIR_NCCL_DECLARE(ncclResult_t, Send, const void* sendbuff, size_t count, ncclDataType_t datatype,
                  int peer, ncclComm_t comm, cudaStream_t stream);
WEIR_NCCL_DECLARE(ncclResult_t, Recv, void* recvbuff, size_t count, ncclDataType_t datatype,
                  int peer, ncclComm_t comm, cudaStream_t stream);

WEIR_NCCL_DECLARE(ncclResult_t, PutSignal, const void* localbuff, size_t count,
                  ncclDataType_t datatype, int peer, ncclWindow_t peerWin, size_t peerWinOffset,
                  int sigIdx, int ctx, unsigned int flags, ncclComm_t comm, cudaStream_t stream);
WEIR_NCCL_DECLARE(ncclResult_t, Signal, int peer, int sigIdx, int ctx, unsigned int flags,
                  ncclComm_t comm, cudaStream_t stream);
WEIR_NCCL_DECLARE(ncclResult_t, WaitSignal, int nDesc, ncclWaitSignalDesc_t* signalDescs,
                  ncclComm_t comm, cudaStream_t stream);

WEIR_NCCL_DECLARE(ncclResult_t, GroupStart, void);
WEIR_NCCL_DECLARE(ncclResult_t, GroupEnd, void);
WEIR_NCCL_DECLARE(ncclResult_t, GroupSimulateEnd, ncclSimInfo_t* simInfo);

/* ---- Parameters ----------------------------------------------------------------------------- */

WEIR_NCCL_DECLARE(ncclResult_t, ParamBind, ncclParamHandle_t* out, const char* key);
WEIR_NCCL_DECLARE(ncclResult_t, ParamGetI8, ncclParamHandle_t h, int8_t* out);
WEIR_NCCL_DECLARE(ncclResult_t, ParamGetI16, ncclParamHandle_t h, int16_t* out);
WEIR_NCCL_DECLARE(ncclResult_t, ParamGetI32, ncclParamHandle_t h, int32_t* out);
WEIR_NCCL_DECLARE(ncclResult_t, ParamGetI64, ncclParamHandle_t h, int64_t* out);
WEIR_NCCL_DECLARE(ncclResult_t, ParamGetU8, ncclParamHandle_t h, uint8_t* out);
WEIR_NCCL_DECLARE(ncclResult_t, ParamGetU16, ncclParamHandle_t h, uint16_t* out);
WEIR_NCCL_DECLARE(ncclResult_t, ParamGetU32, ncclParamHandle_t h, uint32_t* out);
WEIR_NCCL_DECLARE(ncclResult_t, ParamGetU64, ncclParamHandle_t h, uint64_t* out);
WEIR_NCCL_DECLARE(ncclResult_t, ParamGetStr, ncclParamHandle_t h, const char** out);
WEIR_NCCL_DECLARE(ncclResult_t, ParamGet, ncclParamHandle_t h, void* out, int maxLen, int* len);
WEIR_NCCL_DECLARE(ncclResult_t, ParamGetParameter, const char* key, const char** value,
                  int* valueLen);
WEIR_NCCL_DECLARE(ncclResult_t, ParamGetAllParameterKeys, const char*** table, int* tableLen);
WEIR_NCCL_DECLARE(void, ParamDumpAll, void);

#ifdef __cplusplus
}
#endif

#endif /* NCCL_H_ */
#endif /* WEIR_NCCL_H_ */
