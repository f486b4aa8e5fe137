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

// For functions that have no communicator: the real library's, where one is behind this library and
// has the function.
const Table& table_without_comm(FunctionIndex function);

}  // namespace weir::nccl
