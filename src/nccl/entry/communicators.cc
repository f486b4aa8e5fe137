// SPDX-License-Identifier: Apache-2.0
// Exported: functions that make a communicator from another one, and the error of a communicator.
#include "nccl/entry/entry.h"

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

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  const Route way = route(comm);
  // A nonblocking communicator from which another one is being made.
  if (way.comm != comm && weir::nccl::is_in_background(comm)) {
    return weir::nccl::backend().own->CommGetAsyncError(comm, error);
  }
  return way.table->CommGetAsyncError(way.comm, error);
}
WEIR_NCCL_TWIN(CommGetAsyncError);
