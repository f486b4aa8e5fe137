// SPDX-License-Identifier: Apache-2.0
// Groups: what a thread requests between ncclGroupStart and the outermost ncclGroupEnd runs
// together at that end. First come the calls that make or change communicators, all at once, then
// operations, which are started in the order of the calls and waited for together, so that a group
// cannot wait for itself. A call outside a group is a group of one.
//
// With blocking communicators the end returns when everything is done. With nonblocking ones it
// puts operations on their streams, returns ncclInProgress, and a thread of the library does the
// rest; each communicator's ncclCommGetAsyncError tells when it is done.
//
// A group belongs to its thread. Any thread may call the functions here.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "nccl/base/outcome.h"
#include "nccl/comm/comm.h"
#include "nccl/host/operation.h"

namespace weir::nccl {

// Work on communicators that waits for other ranks. It may have to run at the same time as that of
// others, and its caller may stop waiting for it (ncclCommAbort), so it owns everything that it
// uses.
struct Setup {
  const char* function = "";
  std::shared_ptr<Comm> parent;  // empty: none. Setups of one parent run in the order of the calls
  std::shared_ptr<Comm> made;    // empty: it makes none
  ncclComm_t handle = nullptr;   // of `made`
  ncclComm_t* out = nullptr;     // where the caller reads it; NULL again when a blocking call fails
  std::function<Outcome()> work;
  std::function<void()> publish;  // after success and before the caller learns of it; may be empty

  // The communicator whose configuration says whether to wait.
  const Comm& lead() const { return parent != nullptr ? *parent : *made; }
};

void group_start();
ncclResult_t group_end();
// Ends the group and drops its calls.
Outcome group_drop(const char* function);

// Reports an error, which inside a group is the group's error, too.
ncclResult_t refuse(const Outcome& outcome, Comm* comm = nullptr);

// Runs it, or adds it to the thread's group.
ncclResult_t submit(Operation operation);
ncclResult_t submit(Setup setup);

}  // namespace weir::nccl
