// SPDX-License-Identifier: Apache-2.0
// What the exported functions (entry_*.cc) share. An exported function does nothing but choose whose
// function of the same name is called: Weir's own or the real NCCL's.
//
// A blocking communicator that the ranks sent to the real NCCL is handed out as the real handle, in
// place of Weir's, when the call or the group that made it ends. Thread-safe.
#pragma once

#include "nccl/backend.h"
#include "nccl/reentry.h"
#include "nccl/route.h"

// The twin of an exported function: pncclX is another name of ncclX, for tools that put their own
// ncclX before it. To stand in the file that defines ncclX.
#define WEIR_NCCL_TWIN(name) \
  extern "C" WEIR_NCCL_API __attribute__((alias("nccl" #name))) decltype(nccl##name) pnccl##name

#define WEIR_NCCL_PASSES_BY(it) ::weir::nccl::passes_by(it, __builtin_return_address(0))

namespace weir::nccl {

// A maker of communicators has returned `result` and left a handle of Weir's in *out: what it stands
// for is handed out in its place, at once or when the thread's group ends.
ncclResult_t hand_out(ncclResult_t result, ncclComm_t* out, int count = 1);

// The way of a call that makes a communicator from another. Where the ranks met for a communicator of
// the real library's, they meet again: the call is Weir's, which asks the real library.
Route maker_route(ncclComm_t comm, FunctionIndex function, const void* return_address);

// Calls a maker on its way.
template <auto member, typename... Arguments>
ncclResult_t make_from(FunctionIndex function, const void* return_address, ncclComm_t comm,
                       ncclComm_t* out, Arguments... arguments) {
  const Route way = maker_route(comm, function, return_address);
  const ncclResult_t result = (way.table->*member)(way.comm, arguments...);
  return way.table == backend().real ? result : hand_out(result, out);
}

// Before the abort of a communicator of the real library's: nobody waits any more for what is being made
// from it.
void stop_making_from(ncclComm_t comm);

// Whether a handle of Weir's has work that its caller does not wait for.
bool is_in_background(ncclComm_t comm);

// For functions that have no communicator: the real library's, where one is behind this library and
// has the function.
const Table& table_without_comm(FunctionIndex function);

}  // namespace weir::nccl
