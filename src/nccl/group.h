// SPDX-License-Identifier: Apache-2.0
// Groups: what a thread asks for between ncclGroupStart and the outermost ncclGroupEnd runs together
// at that end: first what makes or changes communicators, all at once, then operations, started in
// the order of the calls and waited for together, so that a group cannot wait for itself. A call
// outside a group is a group of one.
//
// With blocking communicators the end returns when all is done. With nonblocking ones it returns
// ncclInProgress and a thread of its own does the same; each communicator's ncclCommGetAsyncError
// tells when.
//
// A group belongs to its thread. The functions here are called by any.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "nccl/comm.h"
#include "nccl/operation.h"
#include "nccl/outcome.h"

namespace weir::nccl {

// Work on communicators that waits for other ranks: it may have to run beside that of others, and
// its caller may stop waiting for it (ncclCommAbort). So it owns all that it touches.
struct Setup {
  const char* function = "";
  std::shared_ptr<Comm> parent;  // empty: none. Setups of one parent run in the order of the calls
  std::shared_ptr<Comm> made;    // empty: it makes none
  ncclComm_t handle = nullptr;   // of `made`
  ncclComm_t* out = nullptr;     // where the caller reads it; NULL again when a blocking call fails
  std::function<Outcome()> work;
  std::function<void()> publish;  // after success and before the caller learns of it; may be empty

  // Whose configuration says whether to wait.
  const Comm& lead() const { return parent != nullptr ? *parent : *made; }
};

void group_start();
ncclResult_t group_end();
// Ends the group and drops what it holds.
Outcome group_drop(const char* function);

// An error of a call inside a group is the group's too; without a group it is the call's only.
ncclResult_t refuse(const Outcome& outcome, Comm* comm = nullptr);

// Runs it, or adds it to the thread's group.
ncclResult_t submit(Operation operation);
ncclResult_t submit(Setup setup);

}  // namespace weir::nccl
