// SPDX-License-Identifier: Apache-2.0
// nccl.h: making, querying and ending communicators.
#include <fmt/format.h>

#include <vector>

#include "cuda/driver.h"
#include "nccl/api/own.h"
#include "nccl/api/translate.h"
#include "nccl/base/outcome.h"
#include "nccl/comm/comm.h"
#include "nccl/cuda/current_device.h"
#include "nccl/own/group.h"
#include "nccl/own/setups.h"

using weir::nccl::Comm;
using weir::nccl::invalid_argument;
using weir::nccl::Outcome;
using weir::nccl::Setup;
using weir::nccl::with_comm;

namespace {

// `make` fills a Setup and returns an Outcome; the setup then runs, or joins the group.
template <typename Make>
ncclResult_t set_up(const char* function, Make make) noexcept {
  try {
    Setup setup;
    const Outcome outcome = make(&setup);
    if (!outcome.ok()) return weir::nccl::refuse(outcome, setup.parent.get());
    return weir::nccl::submit(std::move(setup));
  } catch (...) {
    return weir::nccl::report(weir::nccl::outcome_of_exception(function, std::current_exception()));
  }
}

// with_comm() for a number that is known once the communicator is made.
template <typename Ask>
ncclResult_t number_of(const char* function, ncclComm_t handle, int* number, Ask ask) noexcept {
  return with_comm(function, handle, [&](Comm& comm) -> Outcome {
    if (number == nullptr) {
      return invalid_argument(fmt::format("{}: the pointer for the result is NULL", function));
    }
    Outcome outcome = comm.made(function);
    if (outcome.ok()) *number = ask(comm);
    return outcome;
  });
}

}  // namespace

// ---- Making -------------------------------------------------------------------------------------

ncclResult_t weir::nccl::own::CommInitRankConfig(ncclComm_t* comm, int rank_count, ncclUniqueId id,
                                                 int rank, ncclConfig_t* config) {
  return set_up("ncclCommInitRankConfig", [&](Setup* setup) {
    return weir::nccl::make_init("ncclCommInitRankConfig", comm, rank_count, {id}, rank,
                                 weir::nccl::current_device(), config, setup);
  });
}

ncclResult_t weir::nccl::own::CommInitRank(ncclComm_t* comm, int rank_count, ncclUniqueId id,
                                           int rank) {
  return set_up("ncclCommInitRank", [&](Setup* setup) {
    return weir::nccl::make_init("ncclCommInitRank", comm, rank_count, {id}, rank,
                                 weir::nccl::current_device(), nullptr, setup);
  });
}

ncclResult_t weir::nccl::own::CommInitRankScalable(ncclComm_t* comm, int rank_count, int rank,
                                                   int id_count, ncclUniqueId* ids,
                                                   ncclConfig_t* config) {
  constexpr const char* kFunction = "ncclCommInitRankScalable";
  return set_up(kFunction, [&](Setup* setup) -> Outcome {
    if (ids == nullptr) return invalid_argument(fmt::format("{}: commIds is NULL", kFunction));
    if (id_count < 1 || id_count > rank_count) {
      return invalid_argument(fmt::format("{}: nId is {}, allowed are 1 to the number of ranks, {}",
                                          kFunction, id_count, rank_count));
    }
    return weir::nccl::make_init(kFunction, comm, rank_count, {ids, ids + id_count}, rank,
                                 weir::nccl::current_device(), config, setup);
  });
}

ncclResult_t weir::nccl::own::CommInitAll(ncclComm_t* comms, int count, const int* devices) {
  constexpr const char* kFunction = "ncclCommInitAll";
  try {
    if (comms == nullptr) {
      return weir::nccl::refuse(invalid_argument(fmt::format("{}: comm is NULL", kFunction)));
    }
    if (count < 1) {
      return weir::nccl::refuse(
          invalid_argument(fmt::format("{}: ndev is {}, at least 1 is needed", kFunction, count)));
    }
    const int device_count = devices != nullptr ? weir::cuda::device_count_if_loaded() : 0;
    for (int i = 0; devices != nullptr && i < count; ++i) {
      if (devices[i] < 0) {
        return weir::nccl::refuse(
            invalid_argument(fmt::format("{}: devlist[{}] is {}", kFunction, i, devices[i])));
      }
      if (device_count > 0 && devices[i] >= device_count) {
        return weir::nccl::refuse(invalid_argument(
            fmt::format("{}: devlist[{}] is {}, but there {} {} device{}: allowed are 0 to {}",
                        kFunction, i, devices[i], device_count == 1 ? "is" : "are", device_count,
                        device_count == 1 ? "" : "s", device_count - 1)));
      }
    }
    ncclUniqueId id;
    if (const Outcome made = weir::nccl::make_unique_id(kFunction, &id); !made.ok()) {
      return weir::nccl::refuse(made);
    }
    weir::nccl::group_start();
    try {
      for (int rank = 0; rank < count; ++rank) {
        Setup setup;
        const Outcome outcome =
            weir::nccl::make_init(kFunction, &comms[rank], count, {id}, rank,
                                  devices != nullptr ? devices[rank] : rank, nullptr, &setup);
        if (!outcome.ok()) {
          (void)weir::nccl::refuse(outcome);
          break;
        }
        (void)weir::nccl::submit(std::move(setup));
      }
    } catch (...) {
      // Reported by the end of the group, which undoes what was made: the group of this call must
      // not stay open.
      (void)weir::nccl::refuse(
          weir::nccl::outcome_of_exception(kFunction, std::current_exception()));
    }
    return weir::nccl::group_end();
  } catch (...) {
    return weir::nccl::report(
        weir::nccl::outcome_of_exception(kFunction, std::current_exception()));
  }
}

ncclResult_t weir::nccl::own::CommSplit(ncclComm_t handle, int color, int key, ncclComm_t* new_comm,
                                        ncclConfig_t* config) {
  constexpr const char* kFunction = "ncclCommSplit";
  return set_up(kFunction, [&](Setup* setup) -> Outcome {
    const Parent parent = weir::nccl::find_parent(handle);
    if (parent.comm == nullptr) return weir::nccl::no_such_handle(kFunction, handle);
    setup->parent = parent.comm;
    Outcome outcome = parent.comm->shareable(kFunction);
    if (!outcome.ok()) return outcome;
    return weir::nccl::make_split(kFunction, parent, color, key, new_comm, config, setup);
  });
}

ncclResult_t weir::nccl::own::CommShrink(ncclComm_t handle, int* excluded, int excluded_count,
                                         ncclComm_t* new_comm, ncclConfig_t* config, int flags) {
  constexpr const char* kFunction = "ncclCommShrink";
  return set_up(kFunction, [&](Setup* setup) -> Outcome {
    const Parent parent = weir::nccl::find_parent(handle);
    if (parent.comm == nullptr) return weir::nccl::no_such_handle(kFunction, handle);
    setup->parent = parent.comm;
    if (flags != NCCL_SHRINK_DEFAULT && flags != NCCL_SHRINK_ABORT) {
      return invalid_argument(
          fmt::format("{}: shrinkFlags {:#x} is neither NCCL_SHRINK_DEFAULT nor NCCL_SHRINK_ABORT",
                      kFunction, flags));
    }
    if (excluded == nullptr || excluded_count < 1) {
      return invalid_argument(
          fmt::format("{}: excludeRanksList {} with excludeRanksCount {} names no rank", kFunction,
                      fmt::ptr(excluded), excluded_count));
    }
    if (excluded_count > parent.comm->rank_count()) {
      return invalid_argument(
          fmt::format("{}: excludeRanksCount is {}, the communicator has {} ranks", kFunction,
                      excluded_count, parent.comm->rank_count()));
    }
    Outcome outcome = flags == NCCL_SHRINK_ABORT ? parent.comm->stop(kFunction)
                                                 : parent.comm->shareable(kFunction);
    if (!outcome.ok()) return outcome;
    return weir::nccl::make_shrink(kFunction, parent,
                                   std::vector<int>(excluded, excluded + excluded_count), flags,
                                   new_comm, config, setup);
  });
}

ncclResult_t weir::nccl::own::CommGetUniqueId(ncclComm_t handle, ncclUniqueId* id) {
  constexpr const char* kFunction = "ncclCommGetUniqueId";
  const auto ask = [&](Comm& comm) -> Outcome {
    Outcome outcome = comm.ready(kFunction);
    if (outcome.ok()) outcome = weir::nccl::make_unique_id(kFunction, id);
    if (outcome.ok()) comm.hold_grow_id(weir::nccl::to_weir_id(*id));
    return outcome;
  };
  return with_comm(kFunction, handle, ask,
                   [](ncclComm_t it) { return weir::nccl::find_parent(it).comm; });
}

ncclResult_t weir::nccl::own::CommGrow(ncclComm_t handle, int rank_count, const ncclUniqueId* id,
                                       int rank, ncclComm_t* new_comm, ncclConfig_t* config) {
  constexpr const char* kFunction = "ncclCommGrow";
  return set_up(kFunction, [&](Setup* setup) -> Outcome {
    Parent parent;
    if (handle != nullptr) {
      parent = weir::nccl::find_parent(handle);
      if (parent.comm == nullptr) return weir::nccl::no_such_handle(kFunction, handle);
      setup->parent = parent.comm;
      Outcome outcome = parent.comm->ready(kFunction);
      if (!outcome.ok()) return outcome;
    }
    return weir::nccl::make_grow(kFunction, parent, rank_count, id, rank, new_comm, config, setup);
  });
}

// ---- Ending -------------------------------------------------------------------------------------

ncclResult_t weir::nccl::own::CommFinalize(ncclComm_t handle) {
  return with_comm("ncclCommFinalize", handle,
                   [](Comm& comm) { return comm.finalize("ncclCommFinalize"); });
}

ncclResult_t weir::nccl::own::CommDestroy(ncclComm_t handle) {
  return guarded("ncclCommDestroy", [&]() -> Outcome {
    if (handle == nullptr) return {};
    const auto comm = weir::nccl::close_handle(handle);
    if (comm == nullptr && weir::nccl::leave_handle_to_parent(handle)) return {};
    if (comm == nullptr) return weir::nccl::no_such_handle("ncclCommDestroy", handle);
    comm->check_streams({});  // the peers are told of operations that a reset of the device ended
    if (comm->in_background()) comm->abort();
    return {};
  });
}

ncclResult_t weir::nccl::own::CommAbort(ncclComm_t handle) {
  return guarded("ncclCommAbort", [&]() -> Outcome {
    if (handle == nullptr) return {};
    const auto comm = weir::nccl::close_handle(handle);
    if (comm == nullptr && weir::nccl::leave_handle_to_parent(handle)) return {};
    if (comm == nullptr) return weir::nccl::no_such_handle("ncclCommAbort", handle);
    comm->abort();
    return {};
  });
}

ncclResult_t weir::nccl::own::CommRevoke(ncclComm_t handle, int flags) {
  return with_comm("ncclCommRevoke", handle, [&](Comm& comm) -> Outcome {
    if (flags != NCCL_REVOKE_DEFAULT) {
      return invalid_argument(
          fmt::format("ncclCommRevoke: revokeFlags {:#x} is not NCCL_REVOKE_DEFAULT", flags));
    }
    return comm.revoke("ncclCommRevoke");
  });
}

// ---- Asking -------------------------------------------------------------------------------------

ncclResult_t weir::nccl::own::CommGetAsyncError(ncclComm_t handle, ncclResult_t* error) {
  return with_comm("ncclCommGetAsyncError", handle, [&](Comm& comm) -> Outcome {
    if (error == nullptr) return invalid_argument("ncclCommGetAsyncError: asyncError is NULL");
    *error = comm.async_error();
    return {};
  });
}

ncclResult_t weir::nccl::own::CommCount(const ncclComm_t comm, int* count) {
  return number_of("ncclCommCount", comm, count, [](Comm& it) { return it.rank_count(); });
}

ncclResult_t weir::nccl::own::CommCuDevice(const ncclComm_t comm, int* device) {
  return number_of("ncclCommCuDevice", comm, device, [](Comm& it) { return it.device(); });
}

ncclResult_t weir::nccl::own::CommUserRank(const ncclComm_t comm, int* rank) {
  return number_of("ncclCommUserRank", comm, rank, [](Comm& it) { return it.rank(); });
}

// Weir's communicators hold no device memory that could be released.

ncclResult_t weir::nccl::own::CommSuspend(ncclComm_t handle, int flags) {
  return with_comm("ncclCommSuspend", handle, [&](Comm& comm) -> Outcome {
    if (flags != NCCL_SUSPEND_MEM) {
      return invalid_argument(
          fmt::format("ncclCommSuspend: flags {:#x} is not NCCL_SUSPEND_MEM", flags));
    }
    return comm.suspend("ncclCommSuspend");
  });
}

ncclResult_t weir::nccl::own::CommResume(ncclComm_t handle) {
  return with_comm("ncclCommResume", handle,
                   [](Comm& comm) { return comm.resume("ncclCommResume"); });
}

ncclResult_t weir::nccl::own::CommMemStats(ncclComm_t handle, ncclCommMemStat_t stat,
                                           uint64_t* value) {
  return with_comm("ncclCommMemStats", handle, [&](Comm& comm) -> Outcome {
    if (value == nullptr) return invalid_argument("ncclCommMemStats: value is NULL");
    const auto number = static_cast<unsigned>(stat);
    if (number > ncclStatGpuMemTotal) {
      return invalid_argument(fmt::format("ncclCommMemStats: stat {} is none of 0 to {}", number,
                                          static_cast<int>(ncclStatGpuMemTotal)));
    }
    Outcome outcome = comm.made("ncclCommMemStats");
    if (outcome.ok()) *value = stat == ncclStatGpuMemSuspended && comm.suspended() ? 1 : 0;
    return outcome;
  });
}
