// SPDX-License-Identifier: Apache-2.0
// WeirCall: one of Weir's operations as part of an operation from device to device, with that
// operation's deadline. Not thread-safe; used by the thread that runs the communicator's
// operations.
#pragma once

#include <utility>

#include "nccl/base/outcome.h"
#include "nccl/host/operation.h"
#include "weir/weir.h"

namespace weir::nccl {

class WeirCall {
 public:
  // Both outlive it.
  WeirCall(const Operation& operation, weir_comm_t comm) : operation_(operation), comm_(comm) {}
  // Weir's operations hold buffers until they have ended, which they do by their deadlines.
  ~WeirCall() {
    if (request_ == nullptr) return;
    [[maybe_unused]] const weir_result_t ended = weir_wait(&request_);
  }
  WeirCall(const WeirCall&) = delete;
  WeirCall& operator=(const WeirCall&) = delete;

  // Starts it by `call(comm, &request)`.
  template <typename Call>
  Outcome start(Call call) {
    const int64_t deadline_ms = operation_.options.timeout_ms;
    if (deadline_ms > 0) {
      Outcome outcome = result(weir_comm_set_timeout(comm_, deadline_ms));
      if (!outcome.ok()) return outcome;
    }
    Outcome outcome = result(call(comm_, &request_));
    if (!outcome.ok()) request_ = nullptr;
    if (deadline_ms > 0) {
      Outcome reset = result(weir_comm_set_timeout(comm_, operation_.comm->config().timeout_ms()));
      if (outcome.ok()) return reset;
    }
    return outcome;
  }

  // True when it has ended, or was never started; then `outcome` tells how.
  bool ended(Outcome* outcome) {
    if (request_ == nullptr) return true;
    int done = 0;
    const weir_result_t tested = weir_test(&request_, &done);
    if (done == 0 && request_ != nullptr) return false;
    request_ = nullptr;
    *outcome = result(tested);
    return true;
  }

 private:
  Outcome result(weir_result_t it) const {
    return operation_.comm->outcome(operation_.function, it);
  }

  const Operation& operation_;
  const weir_comm_t comm_;
  weir_request_t request_ = nullptr;
};

}  // namespace weir::nccl
