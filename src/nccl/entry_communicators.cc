// SPDX-License-Identifier: Apache-2.0
// Exported: what is asked of a communicator, and what belongs to one.
#include "nccl/entry.h"

using weir::nccl::FunctionIndex;
using weir::nccl::make_from;
using weir::nccl::maker_route;
using weir::nccl::Route;
using weir::nccl::route;
using weir::nccl::Table;

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* new_comm,
                           ncclConfig_t* config) {
  return make_from<&Table::CommSplit>(FunctionIndex::kCommSplit, __builtin_return_address(0), comm,
                                      new_comm, color, key, new_comm, config);
}
WEIR_NCCL_TWIN(CommSplit);

ncclResult_t ncclCommShrink(ncclComm_t comm, int* excluded, int excluded_count,
                            ncclComm_t* new_comm, ncclConfig_t* config, int flags) {
  return make_from<&Table::CommShrink>(FunctionIndex::kCommShrink, __builtin_return_address(0),
                                       comm, new_comm, excluded, excluded_count, new_comm, config,
                                       flags);
}
WEIR_NCCL_TWIN(CommShrink);

ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId* id) {
  const Route way = maker_route(comm, FunctionIndex::kCommGetUniqueId, __builtin_return_address(0));
  return way.table->CommGetUniqueId(way.comm, id);
}
WEIR_NCCL_TWIN(CommGetUniqueId);

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  const Route way = route(comm);
  return way.table->CommFinalize(way.comm);
}
WEIR_NCCL_TWIN(CommFinalize);

ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags) {
  const Route way = route(comm);
  return way.table->CommRevoke(way.comm, flags);
}
WEIR_NCCL_TWIN(CommRevoke);

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  const Route way = route(comm);
  // A nonblocking communicator from which another is being made.
  if (way.comm != comm && weir::nccl::is_in_background(comm)) {
    return weir::nccl::backend().own->CommGetAsyncError(comm, error);
  }
  return way.table->CommGetAsyncError(way.comm, error);
}
WEIR_NCCL_TWIN(CommGetAsyncError);

ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  const Route way = route(comm);
  return way.table->CommCount(way.comm, count);
}
WEIR_NCCL_TWIN(CommCount);

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  const Route way = route(comm);
  return way.table->CommCuDevice(way.comm, device);
}
WEIR_NCCL_TWIN(CommCuDevice);

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  const Route way = route(comm);
  return way.table->CommUserRank(way.comm, rank);
}
WEIR_NCCL_TWIN(CommUserRank);

ncclResult_t ncclCommSuspend(ncclComm_t comm, int flags) {
  const Route way = route(comm);
  return way.table->CommSuspend(way.comm, flags);
}
WEIR_NCCL_TWIN(CommSuspend);

ncclResult_t ncclCommResume(ncclComm_t comm) {
  const Route way = route(comm);
  return way.table->CommResume(way.comm);
}
WEIR_NCCL_TWIN(CommResume);

ncclResult_t ncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t* value) {
  const Route way = route(comm);
  return way.table->CommMemStats(way.comm, stat, value);
}
WEIR_NCCL_TWIN(CommMemStats);

ncclResult_t ncclCommRegister(const ncclComm_t comm, void* buffer, size_t size, void** handle) {
  const Route way = route(comm);
  return way.table->CommRegister(way.comm, buffer, size, handle);
}
WEIR_NCCL_TWIN(CommRegister);

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle) {
  const Route way = route(comm);
  return way.table->CommDeregister(way.comm, handle);
}
WEIR_NCCL_TWIN(CommDeregister);

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* buffer, size_t size,
                                    ncclWindow_t* window, int flags) {
  const Route way = route(comm);
  return way.table->CommWindowRegister(way.comm, buffer, size, window, flags);
}
WEIR_NCCL_TWIN(CommWindowRegister);

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
  const Route way = route(comm);
  return way.table->CommWindowDeregister(way.comm, window);
}
WEIR_NCCL_TWIN(CommWindowDeregister);

ncclResult_t ncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t window, void** out) {
  const Route way = route(comm);
  return way.table->WinGetUserPtr(way.comm, window, out);
}
WEIR_NCCL_TWIN(WinGetUserPtr);

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t comm) {
  const Route way = route(comm);
  return way.table->RedOpCreatePreMulSum(op, scalar, type, residence, way.comm);
}
WEIR_NCCL_TWIN(RedOpCreatePreMulSum);

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  const Route way = route(comm);
  return way.table->RedOpDestroy(op, way.comm);
}
WEIR_NCCL_TWIN(RedOpDestroy);
