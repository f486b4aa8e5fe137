// SPDX-License-Identifier: Apache-2.0
// DirectCall: a collective on memory of devices that ranks of one machine carry out in each other's
// buffers. No data pass through host memory.
//
//   each rank:  tells where its buffers lie               a small all-gather
//               maps those that it needs                  a vote: all or none
//               copies on its DeviceQueue, or reduces     its part
//               waits for the others                      a barrier, which returns the buffers
//
// The receiver copies. A reduction is cut into as many parts as there are ranks: each rank reduces
// one part, from all ranks' buffers in the order of the ranks, and writes it to every rank that
// receives it. No other rank reads or writes that part, so that the operation may be in place.
// Since every rank contributes to each result, the barrier of a reduction is a vote on whether each
// rank has done its part.
//
// The all-gather, the vote and the barrier are collectives of the communicator, so that deadlines,
// lost ranks and ranks that disagree are reported as for any collective. Where one rank's buffers
// cannot be used this way, all ranks learn it in the same step, and the operation is staged. Where
// a rank cannot reach another's memory at all, the communicator gives direct access up, on all
// ranks after the same operation.
//
// Not thread-safe; used by the thread that runs the communicator's operations.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "nccl/base/outcome.h"
#include "nccl/direct/device_queue.h"
#include "nccl/direct/direct_operation.h"
#include "nccl/direct/reach.h"
#include "nccl/direct/reduce_kernels.h"
#include "nccl/direct/weir_call.h"
#include "nccl/host/operation.h"

namespace weir::nccl {

class DirectCall : public DirectOperation {
 public:
  // `queue` empty: this rank's buffers do not lie on a device. `factor`: of a pre-multiplied sum,
  // in memory of the host; else nullptr. The operation must stay until the call has ended.
  DirectCall(const Operation& operation, std::shared_ptr<DeviceQueue> queue, const void* factor);
  ~DirectCall() override;

  Outcome advance(State* state, bool* moved) override;

 private:
  struct Entry;
  enum class Phase { kBegin, kExchange, kVote, kWorking, kBarrier };

  Outcome begin();
  Outcome vote();
  Outcome copy();
  Outcome reduce();
  Outcome start_barrier();
  Outcome compare() const;
  std::string describe(const Entry& entry) const;
  void refused();
  bool reach_all();
  bool reach_for_reduction();
  // True when there is an address; else the reason is kept.
  bool found(const Reached& reached, size_t rank);

  const Operation& operation_;
  const Comm& comm_;
  const std::shared_ptr<DeviceQueue> queue_;
  const void* const factor_;
  const ReduceKernels* kernels_ = nullptr;
  Phase phase_ = Phase::kBegin;
  uint32_t mark_ = 0;
  Outcome failure_;  // of the copies or the reduction
  std::vector<Entry> entries_;
  std::vector<Reached> sends_;     // by rank
  std::vector<Reached> receives_;  // by rank, of a reduction
  std::string reason_;
  static constexpr uint32_t kNobody = UINT32_MAX;
  // In a vote: this rank, if it refuses, and the first rank that did.
  uint32_t refusal_ = kNobody;
  uint32_t first_refusal_ = kNobody;
  WeirCall call_;  // the call in progress; uses the members above
};

}  // namespace weir::nccl
