// SPDX-License-Identifier: Apache-2.0
// The host functions of NCCL's device API. Weir's transports have no device-side communicators:
// functions that would make one are refused, and arithmetic on ranks is answered.
#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <cstdint>
#include <cstring>

#include "nccl/api/own.h"
#include "nccl/base/outcome.h"
#include "nccl/comm/comm.h"
#include "nccl/comm/config.h"
#include "nccl/host/one_sided.h"
#include "weir/nccl_device.h"

using weir::nccl::Comm;
using weir::nccl::guarded;
using weir::nccl::invalid_usage;
using weir::nccl::Outcome;

namespace {

ncclResult_t no_device(const char* function, ncclComm_t handle = nullptr) noexcept {
  return guarded(function, [&]() -> Outcome {
    Outcome outcome = invalid_usage(fmt::format(
        "{}: device-side communication needs NCCL's own transports; this communicator runs on host "
        "memory",
        function));
    if (const auto comm = weir::nccl::find(handle)) comm->note_error(outcome.text);
    return outcome;
  });
}

// {0, 0, 0} for an invalid communicator, since these functions return no error.
template <typename Make>
ncclTeam_t team_of(const char* function, ncclComm_t handle, Make make) noexcept {
  ncclTeam_t team{0, 0, 0};
  (void)weir::nccl::with_comm(function, handle, [&](Comm& comm) -> Outcome {
    Outcome outcome = comm.made(function);
    if (outcome.ok()) team = make(comm);
    return outcome;
  });
  return team;
}

// Without devices no rank can load from another's memory: every rank is a team of its own.
ncclTeam_t alone(const Comm&) { return {1, 0, 1}; }
ncclTeam_t everybody(const Comm& comm) { return {comm.rank_count(), comm.rank(), 1}; }

int narrowed(int64_t value, int otherwise) {
  return value >= INT_MIN && value <= INT_MAX ? static_cast<int>(value) : otherwise;
}

// A rank of `team` as a rank of `others`; the caller is in both. -1: it is not in `others`.
int rank_in(ncclTeam_t others, ncclTeam_t team, int rank) {
  if (others.nRanks == 0) return -1;
  const int64_t steps = int64_t{rank} - team.rank;
  int64_t distance = 0;
  if (__builtin_mul_overflow(steps, int64_t{team.stride}, &distance)) return -1;
  return __builtin_add_overflow(distance, int64_t{others.rank}, &distance) ? -1
                                                                           : narrowed(distance, -1);
}

}  // namespace

ncclResult_t weir::nccl::own::CommQueryProperties(ncclComm_t handle, ncclCommProperties* props) {
  constexpr const char* kFunction = "ncclCommQueryProperties";
  return weir::nccl::with_comm(kFunction, handle, [&](Comm& comm) -> Outcome {
    if (props == nullptr) return invalid_argument(fmt::format("{}: props is NULL", kFunction));
    constexpr size_t kBytesMin = offsetof(ncclCommProperties, rank);
    Outcome outcome = weir::nccl::check_head(kFunction, "props", props, kBytesMin, NCCL_API_MAGIC,
                                             "NCCL_COMM_PROPERTIES_INITIALIZER");
    if (outcome.ok()) outcome = comm.made(kFunction);
    if (!outcome.ok()) return outcome;
    ncclCommProperties own{};
    own.rank = comm.rank();
    own.nRanks = comm.rank_count();
    own.cudaDev = comm.device();
    own.nvmlDev = comm.device();
    own.nLsaTeams = comm.rank_count();
    own.hostRmaSupport = true;
    const size_t bytes = std::min(props->size, sizeof own);
    std::memcpy(reinterpret_cast<char*>(props) + kBytesMin,
                reinterpret_cast<const char*>(&own) + kBytesMin, bytes - kBytesMin);
    return {};
  });
}

ncclResult_t weir::nccl::own::DevCommCreate(ncclComm_t comm, const ncclDevCommRequirements*,
                                            ncclDevComm*) {
  return no_device("ncclDevCommCreate", comm);
}

ncclResult_t weir::nccl::own::DevCommDestroy(ncclComm_t comm, const ncclDevComm*) {
  return no_device("ncclDevCommDestroy", comm);
}

ncclResult_t weir::nccl::own::GetLsaMultimemDevicePointer(ncclWindow_t, size_t, void**) {
  return no_device("ncclGetLsaMultimemDevicePointer");
}

ncclResult_t weir::nccl::own::GetMultimemDevicePointer(ncclWindow_t, size_t, ncclMultimemHandle,
                                                       void**) {
  return no_device("ncclGetMultimemDevicePointer");
}

ncclResult_t weir::nccl::own::GetLsaDevicePointer(ncclWindow_t, size_t, int, void**) {
  return no_device("ncclGetLsaDevicePointer");
}

ncclResult_t weir::nccl::own::GetPeerDevicePointer(ncclWindow_t handle, size_t offset, int peer,
                                                   void** out) {
  constexpr const char* kFunction = "ncclGetPeerDevicePointer";
  return guarded(kFunction, [&]() -> Outcome {
    if (out == nullptr) return invalid_argument(fmt::format("{}: outPtr is NULL", kFunction));
    *out = nullptr;
    const auto window = find_window(handle);
    if (!window.has_value()) {
      return invalid_argument(fmt::format(
          "{}: window was not made by ncclCommWindowRegister, or was deregistered", kFunction));
    }
    const auto& peers = window->shared->peers;
    if (peer < 0 || static_cast<size_t>(peer) >= peers.size()) {
      return invalid_argument(
          fmt::format("{}: peer {} is not a rank of {}", kFunction, peer, peers.size()));
    }
    const SharedWindow::Peer& it = peers[static_cast<size_t>(peer)];
    if (offset > it.bytes) {
      return invalid_argument(fmt::format("{}: offset {} is beyond the {} bytes of rank {}",
                                          kFunction, offset, it.bytes, peer));
    }
    // NULL, as NCCL has it, where only messages reach the peer.
    if (it.address != nullptr) *out = it.address + offset;
    return {};
  });
}

ncclResult_t weir::nccl::own::GetMultimemDeviceLeInfo(ncclWindow_t, size_t, uint32_t*, size_t*) {
  return no_device("ncclGetMultimemDeviceLeInfo");
}

ncclResult_t weir::nccl::own::GetCftDeviceLeInfo(ncclWindow_t, size_t, int, ncclTeam_t, uint32_t*,
                                                 size_t*) {
  return no_device("ncclGetCftDeviceLeInfo");
}

ncclResult_t weir::nccl::own::GetPeerDeviceLeInfo(ncclWindow_t, size_t, int, uint32_t*, size_t*) {
  return no_device("ncclGetPeerDeviceLeInfo");
}

// ---- Teams --------------------------------------------------------------------------------------

ncclTeam_t weir::nccl::own::TeamWorld(ncclComm_t comm) {
  return team_of("ncclTeamWorld", comm, everybody);
}

ncclTeam_t weir::nccl::own::TeamLsa(ncclComm_t comm) { return team_of("ncclTeamLsa", comm, alone); }

ncclTeam_t weir::nccl::own::TeamRail(ncclComm_t comm) {
  return team_of("ncclTeamRail", comm, everybody);
}

ncclTeam_t weir::nccl::own::TeamCft(ncclComm_t comm, ncclCftTeamMode_t) {
  return team_of("ncclTeamCft", comm, alone);
}

ncclTeam_t weir::nccl::own::TeamCftMultimem(ncclComm_t comm) {
  return team_of("ncclTeamCftMultimem", comm, alone);
}

int weir::nccl::own::TeamRankToWorld(ncclComm_t comm, ncclTeam_t team, int rank) {
  return rank_in(team_of("ncclTeamRankToWorld", comm, everybody), team, rank);
}

int weir::nccl::own::TeamRankToLsa(ncclComm_t comm, ncclTeam_t team, int rank) {
  return rank_in(team_of("ncclTeamRankToLsa", comm, alone), team, rank);
}

// ---- Requirements -------------------------------------------------------------------------------

ncclResult_t weir::nccl::own::LsaBarrierCreateRequirement(ncclTeam_t, int, ncclLsaBarrierHandle*,
                                                          ncclDevResourceRequirements*) {
  return no_device("ncclLsaBarrierCreateRequirement");
}

ncclResult_t weir::nccl::own::GinBarrierCreateRequirement(ncclComm_t comm, ncclTeam_t, int,
                                                          ncclGinBarrierHandle*,
                                                          ncclDevResourceRequirements*) {
  return no_device("ncclGinBarrierCreateRequirement", comm);
}

ncclResult_t weir::nccl::own::GinOutboxCreateRequirement(int, int, ncclGinOutboxHandle*,
                                                         ncclDevResourceRequirements*) {
  return no_device("ncclGinOutboxCreateRequirement");
}

ncclResult_t weir::nccl::own::GinInboxA2ACreateRequirement(ncclTeam_t, int, int,
                                                           ncclGinInboxA2AHandle*,
                                                           ncclDevResourceRequirements*) {
  return no_device("ncclGinInboxA2ACreateRequirement");
}

// One slot holds 8 bytes.
int weir::nccl::own::LLA2ACalcSlots(int elements_max, int element_bytes_max) {
  return narrowed(int64_t{elements_max} * ((int64_t{element_bytes_max} + 7) / 8), INT_MAX);
}

ncclResult_t weir::nccl::own::LLA2ACreateRequirement(int, int, ncclLLA2AHandle*,
                                                     ncclDevResourceRequirements*) {
  return no_device("ncclLLA2ACreateRequirement");
}
