// SPDX-License-Identifier: Apache-2.0
// DirectCall: a collective on memory of devices that ranks of one machine carry out in each other's
// buffers, with nothing of it passing through host memory.
//
//   each rank:  tells where its buffers lie       a small all-gather
//               reaches for those that it needs   a vote: all or none
//               copies them on its DeviceQueue, or reduces a part of them there
//               meets the others                  a barrier: the buffers are their owners' again
//
// What is copied, its receiver copies. What is reduced is cut into as many parts as there are ranks: each
// folds one, from all ranks' buffers in the order of the ranks, and writes it to all that receive it. No
// other rank reads or writes that part, so that all of it may be in place. Since a rank's result is then
// made by all, they meet in a vote on whether each has done its part.
//
// The three are collectives of the communicator, so that deadlines, lost ranks and ranks that do not
// agree are told as always. Where one rank's buffers cannot be used this way, all ranks learn of it in
// the same step and go the other way. Where a rank cannot reach another's memory at all, the
// communicator gives direct access up, on all ranks after the same operation.
//
// Not thread-safe; used by the thread that runs the communicator's operations.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "nccl/direct/device_queue.h"
#include "nccl/direct/direct_operation.h"
#include "nccl/direct/reach.h"
#include "nccl/direct/reduce_kernels.h"
#include "nccl/direct/weir_call.h"
#include "nccl/operation.h"
#include "nccl/outcome.h"

namespace weir::nccl {

class DirectCall : public DirectOperation {
 public:
  // `queue` empty: this rank's buffers do not lie on a device. `factor`: of a pre-multiplied sum, in
  // memory of the host; else nullptr. The operation must stay until the call has ended.
  DirectCall(const Operation& operation, std::shared_ptr<DeviceQueue> queue, const void* factor);
  ~DirectCall() override;

  Outcome advance(State* state, bool* moved) override;

 private:
  struct Entry;
  enum class Phase { kBegin, kTelling, kVoting, kWorking, kMeeting };

  Outcome begin();
  Outcome vote();
  Outcome copy();
  Outcome reduce();
  Outcome meet();
  Outcome compare() const;
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
  // In a vote: this rank, if it says no, and the first that did.
  uint32_t refusal_ = kNobody;
  uint32_t first_refusal_ = kNobody;
  WeirCall call_;  // the one that is under way; uses what is above
};

}  // namespace weir::nccl
