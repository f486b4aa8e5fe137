// SPDX-License-Identifier: Apache-2.0
// Exported: errors, memory outside of communicators, and the functions that make and end
// communicators.
#include <cstring>
#include <string_view>
#include <unordered_map>

#include "core/base/per_process.h"
#include "nccl/base/outcome.h"
#include "nccl/cuda/device_query.h"
#include "nccl/entry/entry.h"
#include "nccl/host/symmetric.h"

using weir::nccl::Backend;
using weir::nccl::backend;
using weir::nccl::FunctionIndex;
using weir::nccl::leave_route;
using weir::nccl::make_from;
using weir::nccl::Route;
using weir::nccl::route;
using weir::nccl::Table;

namespace {

// Weir's ids begin like this. With another id the ranks meet in the real library that made it.
bool is_weirs(const ncclUniqueId& id) {
  return std::string_view(id.internal, sizeof id.internal).starts_with("weirid");
}

// Whether the real library makes the communicator of an id without Weir.
bool goes_straight(const Backend& it, const ncclUniqueId& id, const void* return_address) {
  return weir::nccl::passes_by(it, return_address) || (it.real != nullptr && !is_weirs(id));
}

// Memory that the real library allocated; only the process that requested it may free it.
constinit weir::InheritedState<std::unordered_map<void*, weir::MakingProcess>> real_memory;

bool memory_is_on_devices(const Backend& it) {
  std::string reason;
  return it.real != nullptr && it.library->has(FunctionIndex::kMemAlloc) &&
         (it.requested == weir::nccl::RequestedBackend::kNccl ||
          weir::nccl::cuda_device_count(&reason) > 0);
}

}  // namespace

const weir::nccl::Table& weir::nccl::table_without_comm(FunctionIndex function) {
  const Backend& it = backend();
  if (it.disabled) return *it.real;
  return it.real != nullptr && it.library->has(function) ? *it.real : *it.own;
}

// ---- The library --------------------------------------------------------------------------------

const char* ncclGetErrorString(ncclResult_t result) {
  const Backend& it = backend();
  return WEIR_NCCL_PASSES_BY(it) && it.library != nullptr &&
                 it.library->has(FunctionIndex::kGetErrorString)
             ? it.real->GetErrorString(result)
             : it.own->GetErrorString(result);
}
WEIR_NCCL_TWIN(GetErrorString);

// The later of the two libraries' texts.
const char* ncclGetLastError(ncclComm_t comm) {
  const Backend& it = backend();
  if (it.library == nullptr || !it.library->has(FunctionIndex::kGetLastError)) {
    return it.own->GetLastError(it.disabled ? nullptr : comm);
  }
  const Route way = route(comm);
  if (comm != nullptr && way.table != it.real) return it.own->GetLastError(comm);
  const char* real = it.real->GetLastError(way.comm);
  if (weir::nccl::own_error_is_later(real)) return it.own->GetLastError(nullptr);
  return real != nullptr && *real != '\0' ? real : it.own->GetLastError(nullptr);
}
WEIR_NCCL_TWIN(GetLastError);

void ncclResetDebugInit(void) {
  const Backend& it = backend();
  it.own->ResetDebugInit();
  if (it.library != nullptr && it.library->has(FunctionIndex::kResetDebugInit)) {
    it.real->ResetDebugInit();
  }
}
WEIR_NCCL_TWIN(ResetDebugInit);

ncclResult_t ncclMemAlloc(void** memory, size_t bytes) {
  const Backend& it = backend();
  if (WEIR_NCCL_PASSES_BY(it)) return it.real->MemAlloc(memory, bytes);
  if (!memory_is_on_devices(it)) return it.own->MemAlloc(memory, bytes);
  const ncclResult_t result = it.real->MemAlloc(memory, bytes);
  if (result != ncclSuccess || memory == nullptr || *memory == nullptr) return result;
  return weir::nccl::guarded("ncclMemAlloc", [&]() -> weir::nccl::Outcome {
    real_memory.use()->insert_or_assign(*memory, weir::MakingProcess());
    return {};
  });
}
WEIR_NCCL_TWIN(MemAlloc);

ncclResult_t ncclMemFree(void* memory) {
  const Backend& it = backend();
  if (WEIR_NCCL_PASSES_BY(it)) return it.real->MemFree(memory);
  bool is_real = false;
  const ncclResult_t result = weir::nccl::guarded("ncclMemFree", [&]() -> weir::nccl::Outcome {
    const auto blocks = real_memory.use();
    const auto found = blocks->find(memory);
    if (found == blocks->end()) return {};
    if (!found->second.is_this()) return weir::nccl::not_freed("ncclMemFree", found->second);
    blocks->erase(found);
    is_real = true;
    return {};
  });
  if (result != ncclSuccess) return result;
  return is_real ? it.real->MemFree(memory) : it.own->MemFree(memory);
}
WEIR_NCCL_TWIN(MemFree);

// ---- Making communicators -----------------------------------------------------------------------

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const Backend& it = backend();
  return WEIR_NCCL_PASSES_BY(it) ? it.real->GetUniqueId(id) : it.own->GetUniqueId(id);
}
WEIR_NCCL_TWIN(GetUniqueId);

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int rank_count, ncclUniqueId id, int rank) {
  const Backend& it = backend();
  if (goes_straight(it, id, __builtin_return_address(0))) {
    return it.real->CommInitRank(comm, rank_count, id, rank);
  }
  return weir::nccl::hand_out(it.own->CommInitRank(comm, rank_count, id, rank), comm);
}
WEIR_NCCL_TWIN(CommInitRank);

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int rank_count, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  const Backend& it = backend();
  if (goes_straight(it, id, __builtin_return_address(0))) {
    return it.real->CommInitRankConfig(comm, rank_count, id, rank, config);
  }
  return weir::nccl::hand_out(it.own->CommInitRankConfig(comm, rank_count, id, rank, config), comm);
}
WEIR_NCCL_TWIN(CommInitRankConfig);

ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int rank_count, int rank, int id_count,
                                      ncclUniqueId* ids, ncclConfig_t* config) {
  const Backend& it = backend();
  const bool has_id = ids != nullptr && id_count > 0;
  if (has_id ? goes_straight(it, ids[0], __builtin_return_address(0)) : WEIR_NCCL_PASSES_BY(it)) {
    return it.real->CommInitRankScalable(comm, rank_count, rank, id_count, ids, config);
  }
  return weir::nccl::hand_out(
      it.own->CommInitRankScalable(comm, rank_count, rank, id_count, ids, config), comm);
}
WEIR_NCCL_TWIN(CommInitRankScalable);

ncclResult_t ncclCommInitAll(ncclComm_t* comms, int count, const int* devices) {
  const Backend& it = backend();
  if (WEIR_NCCL_PASSES_BY(it)) return it.real->CommInitAll(comms, count, devices);
  return weir::nccl::hand_out(it.own->CommInitAll(comms, count, devices), comms, count);
}
WEIR_NCCL_TWIN(CommInitAll);

// New ranks have no communicator yet: the id tells which library the others use.
ncclResult_t ncclCommGrow(ncclComm_t comm, int rank_count, const ncclUniqueId* id, int rank,
                          ncclComm_t* new_comm, ncclConfig_t* config) {
  const Backend& it = backend();
  if (comm == nullptr && id != nullptr && goes_straight(it, *id, __builtin_return_address(0))) {
    return it.real->CommGrow(comm, rank_count, id, rank, new_comm, config);
  }
  return make_from<&Table::CommGrow>(FunctionIndex::kCommGrow, __builtin_return_address(0), comm,
                                     new_comm, rank_count, id, rank, new_comm, config);
}
WEIR_NCCL_TWIN(CommGrow);

// ---- Ending them --------------------------------------------------------------------------------

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const Route way = leave_route(comm);
  return way.table->CommDestroy(way.comm);
}
WEIR_NCCL_TWIN(CommDestroy);

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  weir::nccl::stop_making_from(comm);
  const Route way = leave_route(comm);
  return way.table->CommAbort(way.comm);
}
WEIR_NCCL_TWIN(CommAbort);
