// SPDX-License-Identifier: Apache-2.0
// GroupFork: the calls of a group in which several communicators use one stream of the caller's, or
// streams that wait for each other since one is the legacy default stream.
// Peers may have the communicators in another order, so that none may wait for another: each gets a
// stream of the library's own, which begins where the caller's is, and for whose end the caller's
// waits.
//
// Used by the thread that ends the group, without the lock of a communicator.
#pragma once

#include <vector>

#include "core/base/status.h"
#include "core/comm/device/stream_parts.h"
#include "core/comm/requests/request.h"
#include "cuda/driver.h"

namespace weir::comm {

class GroupFork {
 public:
  // Before the calls are started: chooses their streams. Calls of communicators that do not go
  // directly between devices, or not yet, keep theirs.
  void begin(const std::vector<Request*>& requests);
  // Once they are on their streams. After an error of CUDA's the communicators concerned fail.
  Status end();

 private:
  struct Branch {
    Communicator* comm = nullptr;
    StreamParts parts;
    cuda::Stream of_caller = nullptr;
    StreamLease own = nullptr;  // nullptr: the caller's serves
  };

  Branch& branch_of(const Request& request, const StreamParts& parts);
  bool is_shared(const Branch& branch) const;
  void fork(Branch& branch);

  std::vector<Branch> branches_;
};

}  // namespace weir::comm
