// SPDX-License-Identifier: Apache-2.0
// AbortableCollectives: an all-gather, a broadcast and a minimum over a communicator of Weir's,
// with which ranks agree before one of the real NCCL's is made. Another thread's abort of the
// communicator that is being made ends them.
//
// A value; used by one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "nccl/base/outcome.h"
#include "nccl/comm/comm.h"
#include "weir/weir.h"

namespace weir::nccl {

// How far a rank's start of the real library is; the worst has the smallest number.
enum class StartState : int32_t { kFailed = 0, kRunning = 1, kDone = 2 };

class AbortableCollectives {
 public:
  // The abort of `comm` or of `parent` (nullptr: none) ends the collectives. Both outlive this
  // object.
  AbortableCollectives(const char* function, const Comm& comm, const Comm* parent,
                       weir_comm_t weir);

  int rank() const { return rank_; }
  int rank_count() const { return rank_count_; }
  bool aborted() const { return comm_.aborted() || (parent_ != nullptr && parent_->aborted()); }

  template <typename Value>
  Outcome all_gather(const Value& mine, std::vector<Value>* all) {
    all->resize(static_cast<size_t>(rank_count_));
    return gather_bytes(&mine, all->data(), sizeof mine);
  }
  template <typename Value>
  Outcome broadcast(Value* value) {
    return broadcast_bytes(value, sizeof *value);
  }
  Outcome minimum(StartState mine, StartState* of_all);

 private:
  Outcome gather_bytes(const void* mine, void* all, size_t bytes);
  Outcome broadcast_bytes(void* value, size_t bytes);
  Outcome finish(weir_result_t result, weir_request_t* request);

  const char* function_;
  const Comm& comm_;
  const Comm* parent_;
  weir_comm_t weir_;
  int rank_ = 0;
  int rank_count_ = 1;
};

}  // namespace weir::nccl
