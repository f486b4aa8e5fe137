/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_NCCL_DEVICE_H_
#define WEIR_NCCL_DEVICE_H_

/*
 * nccl_device.h: NCCL's device API through 2.32, as code of the host sees it.
 *
 * What it is for. A program that may use NCCL's device API compiles against this header, too: the
 * structures in which it says what it requires, the functions of the host, and the names that its
 * kernels use. Names, numbers and layouts are NCCL's; a test compares them where both headers are
 * there.
 *
 * Weir has no device-side communicators: ncclDevCommCreate returns ncclInvalidUsage, and its text
 * says why. A program that checks this result starts no kernel that uses one. Kernels compile
 * nevertheless (with a warning), and would end with a message and a trap. What a kernel asks for
 * that this header does not name does not compile; the type templates say so themselves.
 * For kernels that communicate, compile against NVIDIA's header.
 *
 * Threads: values and declarations only.
 */

#include "nccl.h"

#ifndef WEIR_NCCL_DECLARE
#error "weir/nccl_device.h goes with weir/nccl.h: beside NVIDIA's nccl.h include NVIDIA's own"
#endif

#ifndef __cplusplus
#include <stdbool.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Types ---------------------------------------------------------------------------------- */

typedef struct ncclTeam {
  int nRanks, rank, stride;
} ncclTeam_t;

typedef uint32_t ncclDevResourceHandle;
typedef ncclDevResourceHandle ncclDevResourceHandle_t;
typedef uint32_t ncclGinSignal_t;
typedef uint32_t ncclGinCounter_t;
typedef uint32_t ncclCftLeId;
typedef ncclCftLeId ncclCftLeId_t;

typedef enum WEIR_NCCL_ENUM {
  NCCL_GIN_CONNECTION_NONE = 0,
  NCCL_GIN_CONNECTION_FULL = 1,
  NCCL_GIN_CONNECTION_RAIL = 2,
  NCCL_GIN_CONNECTION_CUSTOM_STRIDE = 3
} ncclGinConnectionType_t;

typedef enum WEIR_NCCL_ENUM {
  NCCL_GIN_TYPE_NONE = 0,
  NCCL_GIN_TYPE_PROXY = 2,
  NCCL_GIN_TYPE_GDAKI = 3,
  NCCL_GIN_TYPE_GPI = 4,
  NCCL_GIN_TYPE_EFA_GDA = 5,
  NCCL_GIN_MAX_TYPES = 6
} ncclGinType_t;

typedef enum WEIR_NCCL_ENUM {
  NCCL_CFT_TEAM_FLAT = 0,
  NCCL_CFT_TEAM_HIER_MULTIMEM = 1,
  NCCL_CFT_TEAM_HIER_LSA = 2
} ncclCftTeamMode_t;

typedef enum WEIR_NCCL_ENUM { NCCL_CFT_NONE = 0, NCCL_CFT = 1, NCCL_CFT_MULTIMEM = 2 } ncclCftCap_t;

typedef struct ncclMultimemHandle {
  void* mcBasePtr;
} ncclMultimemHandle_t;

typedef struct ncclLsaBarrierHandle {
  ncclDevResourceHandle_t bufHandle;
  int nBarriers;
} ncclLsaBarrierHandle_t;

typedef struct ncclCftBarrierHandle {
  ncclDevResourceHandle_t bufHandle;
  int nBarriers;
} ncclCftBarrierHandle_t;

typedef struct ncclGinBarrierHandle {
  ncclGinSignal_t signal0;
  ncclDevResourceHandle_t unused;
} ncclGinBarrierHandle_t;

typedef struct ncclLLA2AHandle {
  ncclDevResourceHandle_t bufHandle;
  uint32_t nSlots;
} ncclLLA2AHandle_t;

/* Of 2.29 and 2.30; this library does not read them. */
typedef struct ncclGinOutboxHandle ncclGinOutboxHandle_t;
typedef struct ncclGinInboxA2AHandle ncclGinInboxA2AHandle_t;

/* ---- What a program requires ---------------------------------------------------------------- */

typedef struct ncclDevResourceRequirements {
  struct ncclDevResourceRequirements* next;
  size_t bufferSize, bufferAlign;
  ncclDevResourceHandle_t* outBufferHandle;
  int ginSignalCount;
  int ginCounterCount;
  ncclGinSignal_t* outGinSignalStart;
  ncclGinCounter_t* outGinCounterStart;
} ncclDevResourceRequirements_t;

typedef struct ncclTeamRequirements {
  struct ncclTeamRequirements* next;
  ncclTeam_t team;
  bool multimem;
  ncclMultimemHandle_t* outMultimemHandle;
} ncclTeamRequirements_t;

typedef struct ncclDevCommRequirements {
  size_t size;
  unsigned int magic;
  unsigned int version;
  ncclDevResourceRequirements_t* resourceRequirementsList;
  ncclTeamRequirements_t* teamRequirementsList;
  bool lsaMultimem;
  int barrierCount;
  int lsaBarrierCount;
  int railGinBarrierCount;
  int lsaLLA2ABlockCount, lsaLLA2ASlotCount;
  bool ginForceEnable;
  int ginContextCount;
  int ginSignalCount;
  int ginCounterCount;
  ncclGinConnectionType_t ginConnectionType;
  bool ginExclusiveContexts;
  int ginQueueDepth;
  int ginTrafficClass;
  int worldGinBarrierCount;
  bool ginStrongSignalsRequired;
  bool ginVaSignalsRequired;
  int ginCustomStride;
  ncclGinType_t ginType;
  bool useRuntimeVersion;
  int cftCaps; /* ncclCftCap_t, combined */
  int cftBarrierCount;
} ncclDevCommRequirements_t;

/* clang-format off */
#define NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER                                                     \
  { sizeof(ncclDevCommRequirements_t), NCCL_API_MAGIC, NCCL_VERSION_CODE,                          \
    /* resourceRequirementsList */ NULL, /* teamRequirementsList */ NULL,                          \
    /* lsaMultimem */ false, /* barrierCount */ 0, /* lsaBarrierCount */ 0,                        \
    /* railGinBarrierCount */ 0, /* lsaLLA2ABlockCount */ 0, /* lsaLLA2ASlotCount */ 0,            \
    /* ginForceEnable */ false, /* ginContextCount */ 4, /* ginSignalCount */ 0,                   \
    /* ginCounterCount */ 0, /* ginConnectionType */ NCCL_GIN_CONNECTION_NONE,                     \
    /* ginExclusiveContexts */ false, /* ginQueueDepth */ 0, /* ginTrafficClass */ INT_MIN,        \
    /* worldGinBarrierCount */ 0, /* ginStrongSignalsRequired */ true,                             \
    /* ginVaSignalsRequired */ true, /* ginCustomStride */ 1, /* ginType */ NCCL_GIN_TYPE_NONE,    \
    /* useRuntimeVersion */ false, /* cftCaps */ NCCL_CFT_NONE, /* cftBarrierCount */ 0 }

/* Later versions add fields at its end; a call fills no more than `size` bytes. */
typedef struct ncclCommProperties {
  size_t size;
  unsigned int magic;
  unsigned int version;
  int rank;
  int nRanks;
  int cudaDev;
  int nvmlDev;
  bool deviceApiSupport; /* false here */
  bool multimemSupport;
  ncclGinType_t ginType;
  int nLsaTeams;
  bool hostRmaSupport;
  ncclGinType_t railedGinType;
  uint64_t commHash;
  int ginMinStride;
  ncclGinConnectionType_t ginConnectionType;
  bool ginSupport[64]; /* by ncclGinType_t */
  size_t devCommRuntimeVersionSize;
  bool cftSupport;
  bool cftMulticastSupport;
  bool cftCountedSupport;
} ncclCommProperties_t;

#define NCCL_COMM_PROPERTIES_INITIALIZER                                                           \
  { sizeof(ncclCommProperties_t), NCCL_API_MAGIC, NCCL_VERSION_CODE, /* rank */ 0, /* nRanks */ 0, \
    /* cudaDev */ 0, /* nvmlDev */ 0, /* deviceApiSupport */ false, /* multimemSupport */ false,   \
    /* ginType */ NCCL_GIN_TYPE_NONE, /* nLsaTeams */ 0, /* hostRmaSupport */ false,               \
    /* railedGinType */ NCCL_GIN_TYPE_NONE, /* commHash */ 0, /* ginMinStride */ 0,                \
    /* ginConnectionType */ NCCL_GIN_CONNECTION_NONE, /* ginSupport */ {false},                    \
    /* devCommRuntimeVersionSize */ 0, /* cftSupport */ false, /* cftMulticastSupport */ false,    \
    /* cftCountedSupport */ false }
/* clang-format on */

/* As large as NCCL's, which fills it where the real NCCL serves the communicator; the named fields
 * are those that kernels of programs use, and the others are NCCL's own. */
typedef struct ncclDevComm {
  unsigned int magic;
  unsigned int version;
  int rank, nRanks;
  uint32_t reserved0;
  int lsaRank, lsaSize;
  uint32_t reserved1;
  uint64_t reserved2[5];
  ncclMultimemHandle_t lsaMultimem;
  ncclLsaBarrierHandle_t lsaBarrier;
  ncclGinBarrierHandle_t railGinBarrier;
  uint64_t reserved3[5];
  int ginSignalCount;
  int ginCounterCount;
  uint64_t reserved4;
  uint32_t ginContextCount;
  uint32_t reserved5[5];
  ncclLsaBarrierHandle_t hybridLsaBarrier;
  ncclGinBarrierHandle_t hybridRailGinBarrier;
  ncclGinBarrierHandle_t worldGinBarrier;
  uint32_t reserved6[12];
} ncclDevComm_t;

/* ---- Functions of the host ------------------------------------------------------------------ */

WEIR_NCCL_DECLARE(ncclResult_t, CommQueryProperties, ncclComm_t comm, ncclCommProperties_t* props);
WEIR_NCCL_DECLARE(ncclResult_t, DevCommCreate, ncclComm_t comm,
                  const ncclDevCommRequirements_t* reqs, ncclDevComm_t* outDevComm);
WEIR_NCCL_DECLARE(ncclResult_t, DevCommDestroy, ncclComm_t comm, const ncclDevComm_t* devComm);

WEIR_NCCL_DECLARE(ncclResult_t, GetLsaMultimemDevicePointer, ncclWindow_t window, size_t offset,
                  void** outPtr);
WEIR_NCCL_DECLARE(ncclResult_t, GetMultimemDevicePointer, ncclWindow_t window, size_t offset,
                  ncclMultimemHandle_t multimem, void** outPtr);
WEIR_NCCL_DECLARE(ncclResult_t, GetLsaDevicePointer, ncclWindow_t window, size_t offset,
                  int lsaRank, void** outPtr);
WEIR_NCCL_DECLARE(ncclResult_t, GetPeerDevicePointer, ncclWindow_t window, size_t offset, int peer,
                  void** outPtr);
WEIR_NCCL_DECLARE(ncclResult_t, GetMultimemDeviceLeInfo, ncclWindow_t window, size_t offset,
                  ncclCftLeId* leId, size_t* leOffset);
WEIR_NCCL_DECLARE(ncclResult_t, GetCftDeviceLeInfo, ncclWindow_t window, size_t offset, int peerCft,
                  ncclTeam_t cftTeam, ncclCftLeId* leId, size_t* leOffset);
WEIR_NCCL_DECLARE(ncclResult_t, GetPeerDeviceLeInfo, ncclWindow_t window, size_t offset,
                  int peerWorld, ncclCftLeId* leId, size_t* leOffset);

WEIR_NCCL_DECLARE(ncclTeam_t, TeamWorld, ncclComm_t comm);
WEIR_NCCL_DECLARE(ncclTeam_t, TeamLsa, ncclComm_t comm);
WEIR_NCCL_DECLARE(ncclTeam_t, TeamRail, ncclComm_t comm);
/* WEIR_NCCL_NO_DEFAULTS: for code that uses the types of the functions. */
#if defined(__cplusplus) && !defined(WEIR_NCCL_NO_DEFAULTS)
#define WEIR_NCCL_DEFAULT(value) = (value)
#else
#define WEIR_NCCL_DEFAULT(value)
#endif
WEIR_NCCL_DECLARE(ncclTeam_t, TeamCft, ncclComm_t comm,
                  ncclCftTeamMode_t mode WEIR_NCCL_DEFAULT(NCCL_CFT_TEAM_FLAT));
WEIR_NCCL_DECLARE(ncclTeam_t, TeamCftMultimem, ncclComm_t comm);
WEIR_NCCL_DECLARE(int, TeamRankToWorld, ncclComm_t comm, ncclTeam_t team, int rank);
WEIR_NCCL_DECLARE(int, TeamRankToLsa, ncclComm_t comm, ncclTeam_t team, int rank);

WEIR_NCCL_DECLARE(ncclResult_t, LsaBarrierCreateRequirement, ncclTeam_t team, int nBarriers,
                  ncclLsaBarrierHandle_t* outHandle, ncclDevResourceRequirements_t* outReq);
WEIR_NCCL_DECLARE(ncclResult_t, GinBarrierCreateRequirement, ncclComm_t comm, ncclTeam_t team,
                  int nBarriers, ncclGinBarrierHandle_t* outHandle,
                  ncclDevResourceRequirements_t* outReq);
WEIR_NCCL_DECLARE(ncclResult_t, GinOutboxCreateRequirement, int nBlocks, int size_log2,
                  ncclGinOutboxHandle_t* outHandle, ncclDevResourceRequirements_t* outReq);
WEIR_NCCL_DECLARE(ncclResult_t, GinInboxA2ACreateRequirement, ncclTeam_t peers, int nBlocks,
                  int size_log2, ncclGinInboxA2AHandle_t* outHandle,
                  ncclDevResourceRequirements_t* outReq);
WEIR_NCCL_DECLARE(int, LLA2ACalcSlots, int maxElts, int maxEltSize);
WEIR_NCCL_DECLARE(ncclResult_t, LLA2ACreateRequirement, int nBlocks, int nSlots,
                  ncclLLA2AHandle_t* outHandle, ncclDevResourceRequirements_t* outReq);

#ifdef __cplusplus
}
#endif

#if defined(__CUDACC__) && defined(__cplusplus)
#include "nccl_device_code.h"
#endif

#endif /* WEIR_NCCL_DEVICE_H_ */
