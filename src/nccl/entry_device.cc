// SPDX-License-Identifier: Apache-2.0
// Exported: the host functions of the device API.
#include "nccl/comm.h"
#include "nccl/entry.h"

using weir::nccl::FunctionIndex;
using weir::nccl::Route;
using weir::nccl::route;
using weir::nccl::table_without_comm;

namespace {

// Windows have no communicator with them: those of Weir's communicators are known.
const weir::nccl::Table& table_of_window(ncclWindow_t window) {
  const weir::nccl::Backend& it = weir::nccl::backend();
  if (it.disabled || (it.real != nullptr && !weir::nccl::is_own_window(window))) return *it.real;
  return *it.own;
}

}  // namespace

ncclResult_t ncclCommQueryProperties(ncclComm_t comm, ncclCommProperties* props) {
  const Route way = route(comm);
  return way.table->CommQueryProperties(way.comm, props);
}
WEIR_NCCL_TWIN(CommQueryProperties);

ncclResult_t ncclDevCommCreate(ncclComm_t comm, const ncclDevCommRequirements* requirements,
                               ncclDevComm* out) {
  const Route way = route(comm);
  return way.table->DevCommCreate(way.comm, requirements, out);
}
WEIR_NCCL_TWIN(DevCommCreate);

ncclResult_t ncclDevCommDestroy(ncclComm_t comm, const ncclDevComm* device) {
  const Route way = route(comm);
  return way.table->DevCommDestroy(way.comm, device);
}
WEIR_NCCL_TWIN(DevCommDestroy);

ncclResult_t ncclGetLsaMultimemDevicePointer(ncclWindow_t window, size_t offset, void** out) {
  return table_of_window(window).GetLsaMultimemDevicePointer(window, offset, out);
}
WEIR_NCCL_TWIN(GetLsaMultimemDevicePointer);

ncclResult_t ncclGetMultimemDevicePointer(ncclWindow_t window, size_t offset,
                                          ncclMultimemHandle multimem, void** out) {
  return table_of_window(window).GetMultimemDevicePointer(window, offset, multimem, out);
}
WEIR_NCCL_TWIN(GetMultimemDevicePointer);

ncclResult_t ncclGetLsaDevicePointer(ncclWindow_t window, size_t offset, int lsa_rank, void** out) {
  return table_of_window(window).GetLsaDevicePointer(window, offset, lsa_rank, out);
}
WEIR_NCCL_TWIN(GetLsaDevicePointer);

ncclResult_t ncclGetPeerDevicePointer(ncclWindow_t window, size_t offset, int peer, void** out) {
  return table_of_window(window).GetPeerDevicePointer(window, offset, peer, out);
}
WEIR_NCCL_TWIN(GetPeerDevicePointer);

ncclResult_t ncclGetMultimemDeviceLeInfo(ncclWindow_t window, size_t offset, uint32_t* le_id,
                                         size_t* le_offset) {
  return table_of_window(window).GetMultimemDeviceLeInfo(window, offset, le_id, le_offset);
}
WEIR_NCCL_TWIN(GetMultimemDeviceLeInfo);

ncclResult_t ncclGetCftDeviceLeInfo(ncclWindow_t window, size_t offset, int peer, ncclTeam_t team,
                                    uint32_t* le_id, size_t* le_offset) {
  return table_of_window(window).GetCftDeviceLeInfo(window, offset, peer, team, le_id, le_offset);
}
WEIR_NCCL_TWIN(GetCftDeviceLeInfo);

ncclResult_t ncclGetPeerDeviceLeInfo(ncclWindow_t window, size_t offset, int peer, uint32_t* le_id,
                                     size_t* le_offset) {
  return table_of_window(window).GetPeerDeviceLeInfo(window, offset, peer, le_id, le_offset);
}
WEIR_NCCL_TWIN(GetPeerDeviceLeInfo);

ncclTeam_t ncclTeamWorld(ncclComm_t comm) {
  const Route way = route(comm);
  return way.table->TeamWorld(way.comm);
}
WEIR_NCCL_TWIN(TeamWorld);

ncclTeam_t ncclTeamLsa(ncclComm_t comm) {
  const Route way = route(comm);
  return way.table->TeamLsa(way.comm);
}
WEIR_NCCL_TWIN(TeamLsa);

ncclTeam_t ncclTeamRail(ncclComm_t comm) {
  const Route way = route(comm);
  return way.table->TeamRail(way.comm);
}
WEIR_NCCL_TWIN(TeamRail);

ncclTeam_t ncclTeamCft(ncclComm_t comm, int mode) {
  const Route way = route(comm);
  return way.table->TeamCft(way.comm, mode);
}
WEIR_NCCL_TWIN(TeamCft);

ncclTeam_t ncclTeamCftMultimem(ncclComm_t comm) {
  const Route way = route(comm);
  return way.table->TeamCftMultimem(way.comm);
}
WEIR_NCCL_TWIN(TeamCftMultimem);

int ncclTeamRankToWorld(ncclComm_t comm, ncclTeam_t team, int rank) {
  const Route way = route(comm);
  return way.table->TeamRankToWorld(way.comm, team, rank);
}
WEIR_NCCL_TWIN(TeamRankToWorld);

int ncclTeamRankToLsa(ncclComm_t comm, ncclTeam_t team, int rank) {
  const Route way = route(comm);
  return way.table->TeamRankToLsa(way.comm, team, rank);
}
WEIR_NCCL_TWIN(TeamRankToLsa);

ncclResult_t ncclLsaBarrierCreateRequirement(ncclTeam_t team, int barriers,
                                             ncclLsaBarrierHandle* handle,
                                             ncclDevResourceRequirements* out) {
  return table_without_comm(FunctionIndex::kLsaBarrierCreateRequirement)
      .LsaBarrierCreateRequirement(team, barriers, handle, out);
}
WEIR_NCCL_TWIN(LsaBarrierCreateRequirement);

ncclResult_t ncclGinBarrierCreateRequirement(ncclComm_t comm, ncclTeam_t team, int barriers,
                                             ncclGinBarrierHandle* handle,
                                             ncclDevResourceRequirements* out) {
  const Route way = route(comm);
  return way.table->GinBarrierCreateRequirement(way.comm, team, barriers, handle, out);
}
WEIR_NCCL_TWIN(GinBarrierCreateRequirement);

ncclResult_t ncclGinOutboxCreateRequirement(int blocks, int size_log2, ncclGinOutboxHandle* handle,
                                            ncclDevResourceRequirements* out) {
  return table_without_comm(FunctionIndex::kGinOutboxCreateRequirement)
      .GinOutboxCreateRequirement(blocks, size_log2, handle, out);
}
WEIR_NCCL_TWIN(GinOutboxCreateRequirement);

ncclResult_t ncclGinInboxA2ACreateRequirement(ncclTeam_t peers, int blocks, int size_log2,
                                              ncclGinInboxA2AHandle* handle,
                                              ncclDevResourceRequirements* out) {
  return table_without_comm(FunctionIndex::kGinInboxA2ACreateRequirement)
      .GinInboxA2ACreateRequirement(peers, blocks, size_log2, handle, out);
}
WEIR_NCCL_TWIN(GinInboxA2ACreateRequirement);

int ncclLLA2ACalcSlots(int elements_max, int element_bytes_max) {
  return table_without_comm(FunctionIndex::kLLA2ACalcSlots)
      .LLA2ACalcSlots(elements_max, element_bytes_max);
}
WEIR_NCCL_TWIN(LLA2ACalcSlots);

ncclResult_t ncclLLA2ACreateRequirement(int blocks, int slots, ncclLLA2AHandle* handle,
                                        ncclDevResourceRequirements* out) {
  return table_without_comm(FunctionIndex::kLLA2ACreateRequirement)
      .LLA2ACreateRequirement(blocks, slots, handle, out);
}
WEIR_NCCL_TWIN(LLA2ACreateRequirement);
