// SPDX-License-Identifier: Apache-2.0
// CollectiveQueue: the collectives of a communicator on memory of the host, one after the other in
// the order of the calls. The first of them runs: a plan of the planner, by a run of the engine.
//
// With the communicator's lock held.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/comm/collective/call_agreement.h"
#include "core/comm/collective/windows.h"
#include "core/comm/record/recorder.h"
#include "core/comm/record/ticks.h"
#include "core/comm/requests/operation_status.h"
#include "core/comm/requests/request.h"
#include "core/comm/requests/requests.h"
#include "core/comm/state/comm_state.h"
#include "core/comm/state/wait.h"
#include "core/engine/lane_run.h"
#include "core/engine/line_run.h"
#include "core/engine/mapped_run.h"
#include "core/engine/planner.h"

namespace weir::comm {

class CollectiveQueue {
 public:
  // All outlive it.
  CollectiveQueue(CommState& state, Requests& requests, Windows& windows)
      : state_(state), requests_(requests), agreement_(state, windows, line_run_) {}
  CollectiveQueue(const CollectiveQueue&) = delete;
  CollectiveQueue& operator=(const CollectiveQueue&) = delete;

  // Before all else.
  void open(std::unique_ptr<engine::Planner> planner) { planner_ = std::move(planner); }
  const engine::Planner* planner() const { return planner_.get(); }
  engine::Planner* planner() { return planner_.get(); }

  // How far run_warm has come.
  enum class Warm : uint8_t {
    kDone,
    kRefused,     // no effect: another call runs, or the plan is not at hand
    kUnderWay,    // slow: the caller gives the call a request by `take_over`
    kPublished,   // likewise, but it has not begun: its blocks have been published
    kOtherCalled  // as kUnderWay, but another rank made another call
  };
  // Runs a call whose plan is the latest and small to its end: the fast path of a warm call.
  [[gnu::always_inline]] Warm run_warm(const engine::Call& call);
  // The call with which run_warm has come as far as `warm` goes on as `request`, under the same
  // hold of the lock.
  void take_over(Request& request, Warm warm);

  void enqueue(Request& request);
  // Removes `request`, which has not begun or is paused, wherever it stands; without effect if it
  // is not there.
  void remove(const Request& request);
  // Begins and advances the collectives that can be; true when something moved.
  bool poll(OperationFailure* failure);
  void fail_all(const Status& status);

  // While it is held no collective begins; those that have begun go on.
  void hold() { held_ = true; }
  void release();
  bool is_held() const { return held_; }

  const Request* first() const { return first_; }
  bool is_empty() const { return first_ == nullptr; }
  // The ranks that the first one waits for. Sets `ranks`, which may have duplicates.
  void collect_awaited(std::vector<Rank>* ranks) const;
  Wait describe_wait() const;
  // Not one that has failed under way: its peers still need this rank.
  uint64_t finished_sequence() const {
    const bool under_way = active_run_ != nullptr || failed_under_way_;
    return under_way ? state_.context.sequence - 1 : state_.context.sequence;
  }
  const engine::LaneRun& lane_run() const { return lane_run_; }

 private:
  // Polls in one go before another thread gets a chance to use the communicator.
  static constexpr uint32_t kPollsPerTurn = 4096;

  // run_warm of an all_to_all_v.
  Warm run_warm_uneven(const engine::Call& call);
  // run_warm of a plan of slots, but for long ones.
  Warm run_warm_slots(const engine::Plan& plan, const engine::Call& call);
  // True when its run has started, or it has failed alone.
  bool begin(Request& request, OperationFailure* failure);
  // Lets all ranks meet before a call with a root that explores, which is measured from there:
  // otherwise a rank's time would say when the others have called. True when the run has started.
  bool meet(Request& request);
  void start(const engine::Plan& plan, const engine::Call& call);
  void report_failure(const Request& request, OperationFailure* failure) const;

  CommState& state_;
  Requests& requests_;
  std::unique_ptr<engine::Planner> planner_;
  engine::MappedRun mapped_run_;
  engine::LineRun line_run_;
  engine::LaneRun lane_run_;
  CallAgreement agreement_;
  const engine::Plan* active_plan_ = nullptr;
  engine::Run* active_run_ = nullptr;  // of the first one
  bool meeting_ = false;               // that run is the meeting before it
  bool failed_under_way_ = false;
  bool held_ = false;
  Request* first_ = nullptr;  // linked by Request::next
  Request* last_ = nullptr;
};

inline CollectiveQueue::Warm CollectiveQueue::run_warm(const engine::Call& call) {
  using engine::Advance;
  if (first_ != nullptr || held_) [[unlikely]]
    return Warm::kRefused;
  if (call.recv_counts != nullptr) return run_warm_uneven(call);
  engine::Context& context = state_.context;
  Recorder& recorder = state_.recorder;
  const engine::Plan* plan =
      planner_->diverts(context.sequence + 1) ? nullptr : planner_->latest(call);
  if (plan == nullptr || !context.may_begin()) return Warm::kRefused;
  if (plan->protocol != engine::Protocol::kLine) return run_warm_slots(*plan, call);
  const uint64_t begin_ns = planner_->times(context.sequence + 1) ? now_ns() : 0;
  line_run_.start(*plan->mapped, call, plan->fingerprint, context);
  Advance advance = line_run_.advance(context);
  if (recorder.on()) {
    // The published data is on its way. While waiting for the peers, reading the clock serves as a
    // pause.
    const bool waits = advance == Advance::kMoved || advance == Advance::kBlocked;
    recorder.begun(context.sequence, engine::call_flag(context.sequence, plan->fingerprint),
                   plan->what, call.count, waits ? ticks() : 0);
    if (waits) advance = line_run_.advance(context);
  }
  Waiter waiter(state_.wait_policy);
  for (uint32_t polls = 0; advance == Advance::kBlocked || advance == Advance::kMoved;) {
    if (++polls > kPollsPerTurn || (waiter.pause() && waiter.yields())) break;
    advance = line_run_.advance(context);
  }
  if (advance == Advance::kDone) {
    if (recorder.on()) recorder.finished(context.sequence);
    // One that takes longer than this waits for a late rank, and is not timed.
    if (begin_ns != 0) {
      planner_->measured(*plan, static_cast<double>(now_ns() - begin_ns));
      context.want_huge_pages();
    }
    return Warm::kDone;
  }
  active_plan_ = plan;
  return advance == Advance::kFailed ? Warm::kOtherCalled : Warm::kUnderWay;
}

}  // namespace weir::comm
