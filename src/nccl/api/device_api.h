// SPDX-License-Identifier: Apache-2.0
// The host functions of NCCL's device API, as nccl_device.h of 2.28 to 2.31 declares them. A
// program that uses them includes NCCL's own header, which is C++ for device code; this file
// declares only the types that the functions take and return.
#pragma once

#include <cstddef>
#include <cstdint>

#include "weir/nccl.h"

extern "C" {

struct ncclTeam {
  int nRanks, rank, stride;
};
typedef struct ncclTeam ncclTeam_t;

// Structures of the caller that this library does not read.
struct ncclDevComm;
struct ncclDevCommRequirements;
struct ncclDevResourceRequirements;
struct ncclLsaBarrierHandle;
struct ncclGinBarrierHandle;
struct ncclGinOutboxHandle;
struct ncclGinInboxA2AHandle;
struct ncclLLA2AHandle;

// Passed by value.
struct ncclMultimemHandle {
  void* base;
};

// Later versions add fields at its end.
struct ncclCommProperties {
  size_t size;
  unsigned int magic;
  unsigned int version;
  int rank;
  int nRanks;
  int cudaDev;
  int nvmlDev;
  bool deviceApiSupport;
  bool multimemSupport;
  int ginType;
  int nLsaTeams;
  bool hostRmaSupport;
  int railedGinType;
  uint64_t commHash;
  int ginMinStride;
  int ginConnectionType;
  bool ginSupport[64];
  size_t devCommRuntimeVersionSize;
};

WEIR_NCCL_DECLARE(ncclResult_t, CommQueryProperties, ncclComm_t comm,
                  struct ncclCommProperties* props);
WEIR_NCCL_DECLARE(ncclResult_t, DevCommCreate, ncclComm_t comm,
                  const struct ncclDevCommRequirements* reqs, struct ncclDevComm* out);
WEIR_NCCL_DECLARE(ncclResult_t, DevCommDestroy, ncclComm_t comm, const struct ncclDevComm* dev);

WEIR_NCCL_DECLARE(ncclResult_t, GetLsaMultimemDevicePointer, ncclWindow_t window, size_t offset,
                  void** out);
WEIR_NCCL_DECLARE(ncclResult_t, GetMultimemDevicePointer, ncclWindow_t window, size_t offset,
                  struct ncclMultimemHandle multimem, void** out);
WEIR_NCCL_DECLARE(ncclResult_t, GetLsaDevicePointer, ncclWindow_t window, size_t offset,
                  int lsa_rank, void** out);
WEIR_NCCL_DECLARE(ncclResult_t, GetPeerDevicePointer, ncclWindow_t window, size_t offset, int peer,
                  void** out);
WEIR_NCCL_DECLARE(ncclResult_t, GetMultimemDeviceLeInfo, ncclWindow_t window, size_t offset,
                  uint32_t* le_id, size_t* le_offset);
WEIR_NCCL_DECLARE(ncclResult_t, GetCftDeviceLeInfo, ncclWindow_t window, size_t offset, int peer,
                  ncclTeam_t team, uint32_t* le_id, size_t* le_offset);
WEIR_NCCL_DECLARE(ncclResult_t, GetPeerDeviceLeInfo, ncclWindow_t window, size_t offset, int peer,
                  uint32_t* le_id, size_t* le_offset);

WEIR_NCCL_DECLARE(ncclTeam_t, TeamWorld, ncclComm_t comm);
WEIR_NCCL_DECLARE(ncclTeam_t, TeamLsa, ncclComm_t comm);
WEIR_NCCL_DECLARE(ncclTeam_t, TeamRail, ncclComm_t comm);
WEIR_NCCL_DECLARE(ncclTeam_t, TeamCft, ncclComm_t comm, int mode);
WEIR_NCCL_DECLARE(ncclTeam_t, TeamCftMultimem, ncclComm_t comm);
WEIR_NCCL_DECLARE(int, TeamRankToWorld, ncclComm_t comm, ncclTeam_t team, int rank);
WEIR_NCCL_DECLARE(int, TeamRankToLsa, ncclComm_t comm, ncclTeam_t team, int rank);

WEIR_NCCL_DECLARE(ncclResult_t, LsaBarrierCreateRequirement, ncclTeam_t team, int barriers,
                  struct ncclLsaBarrierHandle* handle, struct ncclDevResourceRequirements* out);
WEIR_NCCL_DECLARE(ncclResult_t, GinBarrierCreateRequirement, ncclComm_t comm, ncclTeam_t team,
                  int barriers, struct ncclGinBarrierHandle* handle,
                  struct ncclDevResourceRequirements* out);
WEIR_NCCL_DECLARE(ncclResult_t, GinOutboxCreateRequirement, int blocks, int size_log2,
                  struct ncclGinOutboxHandle* handle, struct ncclDevResourceRequirements* out);
WEIR_NCCL_DECLARE(ncclResult_t, GinInboxA2ACreateRequirement, ncclTeam_t peers, int blocks,
                  int size_log2, struct ncclGinInboxA2AHandle* handle,
                  struct ncclDevResourceRequirements* out);
WEIR_NCCL_DECLARE(int, LLA2ACalcSlots, int elements_max, int element_bytes_max);
WEIR_NCCL_DECLARE(ncclResult_t, LLA2ACreateRequirement, int blocks, int slots,
                  struct ncclLLA2AHandle* handle, struct ncclDevResourceRequirements* out);

}  // extern "C"
