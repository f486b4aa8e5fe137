// SPDX-License-Identifier: Apache-2.0
// The host functions of NCCL's device API as its own header declares them, beside what device_api.h
// says of them. Names are overloaded there for device code: the pointers' types choose.
#include <cstddef>
#include <cstdint>

// It does not stand alone.
#include <nccl.h>
#include <nccl_device.h>

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
static_assert(sizeof(ncclCommProperties_t) == 144);
#endif
