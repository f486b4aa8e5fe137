// SPDX-License-Identifier: Apache-2.0
// What host code uses of nccl_device.h: numbers, layouts and prototypes, as assertions that hold
// for the project's header and for NCCL's own. Compiled once with each. To be included after the
// header. Names are overloaded there for device code: the pointers' types choose.
#pragma once

#include <cstddef>
#include <cstdint>

#define FUNCTION(result, name, ...) \
  [[maybe_unused]] static constexpr result (*the_##name)(__VA_ARGS__) = &nccl##name

#if NCCL_VERSION_CODE >= 22800
static_assert(sizeof(ncclTeam_t) == 12 && offsetof(ncclTeam_t, rank) == 4 &&
              offsetof(ncclTeam_t, stride) == 8);
static_assert(sizeof(ncclMultimemHandle_t) == sizeof(void*));
FUNCTION(ncclResult_t, DevCommCreate, ncclComm_t, ncclDevCommRequirements_t const*, ncclDevComm_t*);
FUNCTION(ncclResult_t, DevCommDestroy, ncclComm_t, ncclDevComm_t const*);
FUNCTION(ncclTeam_t, TeamWorld, ncclComm_t);
FUNCTION(ncclTeam_t, TeamLsa, ncclComm_t);
FUNCTION(ncclTeam_t, TeamRail, ncclComm_t);
FUNCTION(int, TeamRankToWorld, ncclComm_t, ncclTeam_t, int);
FUNCTION(int, TeamRankToLsa, ncclComm_t, ncclTeam_t, int);
FUNCTION(ncclResult_t, LsaBarrierCreateRequirement, ncclTeam_t, int, ncclLsaBarrierHandle_t*,
         ncclDevResourceRequirements_t*);
FUNCTION(ncclResult_t, GinBarrierCreateRequirement, ncclComm_t, ncclTeam_t, int,
         ncclGinBarrierHandle_t*, ncclDevResourceRequirements_t*);
FUNCTION(int, LLA2ACalcSlots, int, int);
FUNCTION(ncclResult_t, LLA2ACreateRequirement, int, int, ncclLLA2AHandle_t*,
         ncclDevResourceRequirements_t*);
#endif

#if NCCL_VERSION_CODE >= 22902
FUNCTION(ncclResult_t, CommQueryProperties, ncclComm_t, ncclCommProperties_t*);
FUNCTION(ncclResult_t, GetLsaMultimemDevicePointer, ncclWindow_t, size_t, void**);
FUNCTION(ncclResult_t, GetMultimemDevicePointer, ncclWindow_t, size_t, ncclMultimemHandle_t,
         void**);
FUNCTION(ncclResult_t, GetLsaDevicePointer, ncclWindow_t, size_t, int, void**);
FUNCTION(ncclResult_t, GetPeerDevicePointer, ncclWindow_t, size_t, int, void**);
static_assert(offsetof(ncclCommProperties_t, rank) == 16);
static_assert(offsetof(ncclCommProperties_t, cudaDev) == 24);
static_assert(offsetof(ncclCommProperties_t, deviceApiSupport) == 32);
static_assert(offsetof(ncclCommProperties_t, ginType) == 36);
static_assert(offsetof(ncclCommProperties_t, nLsaTeams) == 40);
#endif

#if NCCL_VERSION_CODE >= 23100
FUNCTION(ncclTeam_t, TeamCft, ncclComm_t, ncclCftTeamMode_t);
FUNCTION(ncclTeam_t, TeamCftMultimem, ncclComm_t);
FUNCTION(ncclResult_t, GetMultimemDeviceLeInfo, ncclWindow_t, size_t, uint32_t*, size_t*);
FUNCTION(ncclResult_t, GetCftDeviceLeInfo, ncclWindow_t, size_t, int, ncclTeam_t, uint32_t*,
         size_t*);
FUNCTION(ncclResult_t, GetPeerDeviceLeInfo, ncclWindow_t, size_t, int, uint32_t*, size_t*);
static_assert(offsetof(ncclCommProperties_t, railedGinType) == 48);
static_assert(offsetof(ncclCommProperties_t, commHash) == 56);
static_assert(offsetof(ncclCommProperties_t, ginSupport) == 72);
static_assert(offsetof(ncclCommProperties_t, devCommRuntimeVersionSize) == 136);
#endif
#if NCCL_VERSION_CODE >= 23100 && NCCL_VERSION_CODE < 23200
static_assert(sizeof(ncclCommProperties_t) == 144);
#endif

#if NCCL_VERSION_CODE >= 23200
#define OFFSET(type, field, bytes) static_assert(offsetof(type, field) == (bytes), #field)
static_assert(sizeof(ncclDevCommRequirements_t) == 120);
OFFSET(ncclDevCommRequirements_t, resourceRequirementsList, 16);
OFFSET(ncclDevCommRequirements_t, teamRequirementsList, 24);
OFFSET(ncclDevCommRequirements_t, lsaMultimem, 32);
OFFSET(ncclDevCommRequirements_t, barrierCount, 36);
OFFSET(ncclDevCommRequirements_t, lsaBarrierCount, 40);
OFFSET(ncclDevCommRequirements_t, railGinBarrierCount, 44);
OFFSET(ncclDevCommRequirements_t, ginForceEnable, 56);
OFFSET(ncclDevCommRequirements_t, ginContextCount, 60);
OFFSET(ncclDevCommRequirements_t, ginSignalCount, 64);
OFFSET(ncclDevCommRequirements_t, ginConnectionType, 72);
OFFSET(ncclDevCommRequirements_t, worldGinBarrierCount, 88);
OFFSET(ncclDevCommRequirements_t, ginCustomStride, 96);
OFFSET(ncclDevCommRequirements_t, useRuntimeVersion, 104);
OFFSET(ncclDevCommRequirements_t, cftBarrierCount, 112);
static_assert(sizeof(ncclDevResourceRequirements_t) == 56);
OFFSET(ncclDevResourceRequirements_t, outGinCounterStart, 48);
static_assert(sizeof(ncclTeamRequirements_t) == 32);
OFFSET(ncclTeamRequirements_t, outMultimemHandle, 24);
static_assert(sizeof(ncclLsaBarrierHandle_t) == 8 && sizeof(ncclGinBarrierHandle_t) == 8 &&
              sizeof(ncclCftBarrierHandle_t) == 8 && sizeof(ncclLLA2AHandle_t) == 8);
static_assert(NCCL_GIN_CONNECTION_CUSTOM_STRIDE == 3 && NCCL_GIN_TYPE_PROXY == 2 &&
              NCCL_GIN_TYPE_EFA_GDA == 5 && NCCL_CFT_TEAM_HIER_LSA == 2 && NCCL_CFT_MULTIMEM == 2);
OFFSET(ncclCommProperties_t, cftSupport, 144);
OFFSET(ncclCommProperties_t, cftCountedSupport, 146);
static_assert(sizeof(ncclCommProperties_t) == 152);
// Where the real NCCL serves a communicator, it fills all of it.
static_assert(sizeof(ncclDevComm_t) == 248 && alignof(ncclDevComm_t) == 8);
OFFSET(ncclDevComm_t, rank, 8);
OFFSET(ncclDevComm_t, nRanks, 12);
OFFSET(ncclDevComm_t, lsaRank, 20);
OFFSET(ncclDevComm_t, lsaSize, 24);
OFFSET(ncclDevComm_t, lsaMultimem, 72);
OFFSET(ncclDevComm_t, lsaBarrier, 80);
OFFSET(ncclDevComm_t, railGinBarrier, 88);
OFFSET(ncclDevComm_t, ginSignalCount, 136);
OFFSET(ncclDevComm_t, ginCounterCount, 140);
OFFSET(ncclDevComm_t, ginContextCount, 152);
OFFSET(ncclDevComm_t, hybridLsaBarrier, 176);
OFFSET(ncclDevComm_t, hybridRailGinBarrier, 184);
OFFSET(ncclDevComm_t, worldGinBarrier, 192);

inline void initializers_set_what_a_program_may_leave() {
  constexpr ncclDevCommRequirements_t needs = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  static_assert(needs.size == sizeof needs && needs.magic == 0xcafebeef &&
                needs.version == NCCL_VERSION_CODE && needs.ginContextCount == 4 &&
                needs.ginConnectionType == NCCL_GIN_CONNECTION_NONE &&
                needs.ginTrafficClass == NCCL_CONFIG_UNDEF_INT && needs.ginStrongSignalsRequired &&
                needs.ginVaSignalsRequired && needs.ginCustomStride == 1 &&
                needs.cftBarrierCount == 0);
  constexpr ncclCommProperties_t properties = NCCL_COMM_PROPERTIES_INITIALIZER;
  static_assert(properties.size == sizeof properties && properties.magic == 0xcafebeef &&
                properties.version == NCCL_VERSION_CODE);
}
#endif
