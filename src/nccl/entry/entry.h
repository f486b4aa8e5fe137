// SPDX-License-Identifier: Apache-2.0
// Helpers of the exported functions. An exported function only chooses which function of the same
// name is called: Weir's own or the real NCCL's.
//
// When the ranks have chosen the real NCCL for a blocking communicator, the caller gets the real
// handle in place of Weir's, when the call or the group that made it ends. Thread-safe.
#pragma once

#include "nccl/entry/route.h"
#include "nccl/real/backend.h"
#include "nccl/real/reentry.h"

// The twin of an exported function: pncclX is another name of ncclX, for tools that interpose their
// own ncclX. Belongs in the file that defines ncclX.
#define WEIR_NCCL_TWIN(name) \
  extern "C" WEIR_NCCL_API __attribute__((alias("nccl" #name))) decltype(nccl##name) pnccl##name

#define WEIR_NCCL_PASSES_BY(it) ::weir::nccl::passes_by(it, __builtin_return_address(0))

namespace weir::nccl {

// A function that makes communicators has returned `result` and left a handle of Weir's in *out: if
// the real NCCL serves it, *out becomes the real handle, at once or when the thread's group ends.
ncclResult_t hand_out(ncclResult_t result, ncclComm_t* out, int count = 1);

// The route of a call that makes a communicator from another one. Where Weir keeps a communicator
// for the real library's one, the call goes to Weir's function: there the ranks meet again and then
// call the real library.
Route maker_route(ncclComm_t comm, FunctionIndex function, const void* return_address);

// Calls the function on that route.
template <auto member, typename... Arguments>
ncclResult_t make_from(FunctionIndex function, const void* return_address, ncclComm_t comm,
                       ncclComm_t* out, Arguments... arguments) {
  const Route way = maker_route(comm, function, return_address);
  const ncclResult_t result = (way.table->*member)(way.comm, arguments...);
  return way.table == backend().real ? result : hand_out(result, out);
}

// Called before a communicator of the real library is aborted: ends the wait for communicators that
// are being made from it.
void stop_making_from(ncclComm_t comm);

// Whether a handle of Weir's has a call in the background.
bool is_in_background(ncclComm_t comm);

// For functions without a communicator: the real library's table, where one is behind this library
// and has the function, else Weir's.
const Table& table_without_comm(FunctionIndex function);

}  // namespace weir::nccl
