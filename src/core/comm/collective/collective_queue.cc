// SPDX-License-Identifier: Apache-2.0
#include "core/comm/collective/collective_queue.h"

#include <fmt/format.h>

#include "core/base/clock.h"
#include "core/comm/requests/request_text.h"

namespace weir::comm {

using engine::Advance;
using engine::Control;
using engine::Protocol;

namespace {

// A call of more slices takes so long that its request costs nothing beside it, and other
// operations of the communicator get their turn between its slices.
constexpr uint64_t kWarmSlicesMax = 4;

}  // namespace

void CollectiveQueue::take_over(Request& request, Warm warm) {
  request.next = nullptr;
  request.explored = 0;
  first_ = last_ = &request;
  if (warm == Warm::kPublished) {
    request.described = request.ahead = true;
    return;
  }
  request.started = true;
  request.sequence = state_.context.sequence;
  active_run_ = active_plan_->protocol == Protocol::kSlots ? static_cast<engine::Run*>(&mapped_run_)
                                                           : &line_run_;
}

CollectiveQueue::Warm CollectiveQueue::run_warm_slots(const engine::Plan& plan,
                                                      const engine::Call& call) {
  engine::Context& context = state_.context;
  if (plan.protocol != Protocol::kSlots || plan.mapped->slice_count() > kWarmSlicesMax ||
      !agreement_.is_needless(call)) {
    return Warm::kRefused;
  }
  Recorder& recorder = state_.recorder;
  const uint64_t begin_ns = planner_->times(context.sequence + 1) ? now_ns() : 0;
  mapped_run_.start(*plan.mapped, call, plan.fingerprint, context);
  if (recorder.on()) {
    recorder.begun(context.sequence, engine::call_flag(context.sequence, plan.fingerprint),
                   plan.what, call.count, ticks());
  }
  active_plan_ = &plan;
  Waiter waiter(state_.wait_policy);
  uint32_t polls = 0;
  for (;;) {
    const Advance advance = mapped_run_.advance(context);
    if (advance == Advance::kDone) break;
    if (advance == Advance::kFailed) return Warm::kOtherCalled;
    if (++polls > kPollsPerTurn) return Warm::kUnderWay;
    if (advance == Advance::kMoved) {
      waiter.reset();
    } else if (waiter.pause() && waiter.yields()) {
      return Warm::kUnderWay;
    }
  }
  if (recorder.on()) recorder.finished_at(context.sequence, ticks());
  if (begin_ns != 0) planner_->measured(plan, static_cast<double>(now_ns() - begin_ns));
  return Warm::kDone;
}

CollectiveQueue::Warm CollectiveQueue::run_warm_uneven(const engine::Call& call) {
  engine::Context& context = state_.context;
  Recorder& recorder = state_.recorder;
  const engine::Plan* plan =
      planner_->diverts(context.sequence + 1) ? nullptr : planner_->latest_uneven(call);
  if (plan == nullptr || plan->protocol != Protocol::kLine || !context.may_begin()) {
    return Warm::kRefused;
  }
  const uint64_t begin_ns = planner_->times(context.sequence + 1) ? now_ns() : 0;
  agreement_.publish_blocks(call, *plan);
  uint64_t begin_ticks = 0;
  Waiter waiter(state_.wait_policy);
  for (uint32_t polls = 0; !agreement_.blocks_arrived();) {
    if (polls == 0 && recorder.on()) begin_ticks = ticks();
    if (++polls > kPollsPerTurn || (waiter.pause() && waiter.yields())) return Warm::kPublished;
  }
  line_run_.start(*plan->mapped, call, plan->fingerprint, context);
  if (recorder.on()) {
    recorder.begun(context.sequence, engine::call_flag(context.sequence, plan->fingerprint),
                   plan->what, call.count, begin_ticks);
  }
  active_plan_ = plan;
  const Advance advance = line_run_.advance(context);
  // Only if another process has overwritten its blocks.
  if (advance != Advance::kDone) {
    return advance == Advance::kFailed ? Warm::kOtherCalled : Warm::kUnderWay;
  }
  if (recorder.on()) recorder.finished(context.sequence);
  if (begin_ns != 0) {
    planner_->measured(*plan, static_cast<double>(now_ns() - begin_ns));
    context.want_huge_pages();
  }
  return Warm::kDone;
}

void CollectiveQueue::enqueue(Request& request) {
  request.next = nullptr;
  request.explored = 0;
  if (first_ == nullptr) {
    first_ = last_ = &request;
  } else {
    last_->next = &request;
    last_ = &request;
  }
}

void CollectiveQueue::release() {
  held_ = false;
  // What they have waited until now was no fault of a rank that they will wait for.
  for (Request* it = first_; it != nullptr; it = it->next) it->deadline_ns = 0;
}

void CollectiveQueue::remove(const Request& request) {
  Request* before = nullptr;
  for (Request* it = first_; it != nullptr; before = it, it = it->next) {
    if (it != &request) continue;
    (before == nullptr ? first_ : before->next) = it->next;
    if (last_ == it) last_ = before;
    return;
  }
}

bool CollectiveQueue::meet(Request& request) {
  // The run refers to it until it is done.
  static const engine::Call barrier;
  engine::Context& context = state_.context;
  auto found = planner_->plan_for(barrier, false);
  if (!found.ok()) return false;
  const engine::Plan& plan = *found.value();
  start(plan, barrier);
  meeting_ = true;
  request.started = true;
  request.explored = request.sequence = context.sequence;
  if (state_.recorder.on()) {
    state_.recorder.begun(request.sequence, engine::call_flag(request.sequence, plan.fingerprint),
                          plan.what, 0, ticks());
  }
  return true;
}

void CollectiveQueue::start(const engine::Plan& plan, const engine::Call& call) {
  engine::Context& context = state_.context;
  active_plan_ = &plan;
  switch (plan.protocol) {
    case Protocol::kLine:
      line_run_.start(*plan.mapped, call, plan.fingerprint, context);
      active_run_ = &line_run_;
      break;
    case Protocol::kSlots:
      mapped_run_.start(*plan.mapped, call, plan.fingerprint, context);
      active_run_ = &mapped_run_;
      break;
    case Protocol::kWindows:
      if (call.told) {
        mapped_run_.start_told(*plan.mapped, call, plan.fingerprint, context, agreement_.tell(call),
                               agreement_);
      } else {
        mapped_run_.start(*plan.mapped, call, plan.fingerprint, context, agreement_.inputs(),
                          agreement_.outputs());
      }
      active_run_ = &mapped_run_;
      break;
    case Protocol::kLanes:
      lane_run_.start(*plan.lanes, call, plan.fingerprint, context);
      active_run_ = &lane_run_;
      break;
  }
}

bool CollectiveQueue::begin(Request& request, OperationFailure* failure) {
  engine::Context& context = state_.context;
  if (held_ || !context.may_begin() || request.paused) return false;
  const uint64_t next = context.sequence + 1;
  if (request.explored == 0 && planner_->explores(next)) {
    const bool rooted = is_rooted(request.call.collective) && context.rank_count > 1;
    if (rooted && !context.mapped() && meet(request)) return true;
    if (!rooted) request.explored = next;
  }
  bool in_windows = false;
  Status disagreement;
  if (!agreement_.reached(request, *planner_, &in_windows, &disagreement)) {
    if (disagreement.ok()) return false;
    request.sequence = context.sequence + 1;
    failure->status = disagreement.with_context(describe(request, state_));
    failure->request = &request;
    return false;
  }
  auto found = request.explored != 0
                   ? planner_->plan_to_explore(request.call, in_windows, request.explored)
                   : planner_->plan_for(request.call, in_windows);
  if (!found.ok()) {
    // The same call fails in the same way on every rank, and nothing has been sent.
    first_ = request.next;
    requests_.complete(request, found.status());
    return true;
  }
  const engine::Plan& plan = *found.value();
  request.started = true;
  start(plan, request.call);
  request.sequence = context.sequence;
  if (state_.recorder.on()) {
    // A record has no block counts, and a reader checks the mark without them.
    const uint32_t mark = request.call.block_counts == nullptr
                              ? plan.fingerprint
                              : engine::fingerprint(plan.what, request.call.count);
    state_.recorder.begun(request.sequence, engine::call_flag(request.sequence, mark), plan.what,
                          request.call.count, ticks());
  }
  request.begin_ns = request.explored != 0 || planner_->times(request.sequence) ? now_ns() : 0;
  return true;
}

bool CollectiveQueue::poll(OperationFailure* failure) {
  bool moved = false;
  while (first_ != nullptr) {
    Request& request = *first_;
    if (active_run_ == nullptr && !begin(request, failure)) return moved || failure->happened();
    if (first_ != &request) {  // it failed to begin
      moved = true;
      continue;
    }
    const Advance advance = active_run_->advance(state_.context);
    if (advance == Advance::kFailed) {
      report_failure(request, failure);
      return true;
    }
    moved = moved || advance != Advance::kBlocked;
    if (advance != Advance::kDone) break;
    if (active_run_ == &mapped_run_ && active_plan_->protocol == Protocol::kWindows) {
      agreement_.count_touched(mapped_run_.touched_bytes());
    }
    active_run_ = nullptr;
    if (state_.recorder.on()) state_.recorder.finished_at(request.sequence, ticks());
    if (meeting_) {
      meeting_ = request.started = false;
      continue;
    }
    if (request.begin_ns != 0) {
      planner_->measured(*active_plan_, static_cast<double>(now_ns() - request.begin_ns),
                         request.explored != 0);
      state_.context.want_huge_pages();
    }
    if (request.repeats) {
      request.started = request.described = false;
      request.explored = 0;
      request.paused = true;
      break;
    }
    first_ = request.next;
    requests_.complete(request, Status());
  }
  return moved;
}

void CollectiveQueue::report_failure(const Request& request, OperationFailure* failure) const {
  Status status = active_run_->status();
  // The transport has given a text in addition to its code.
  if (!status.text().empty() && !state_.transport_error.empty()) {
    status = Status(status.code(), fmt::format("{}: {}", status.text(), state_.transport_error));
  }
  const bool is_told = status.code() != Code::kMismatch || !status.text().empty();
  failure->status = is_told ? status.with_context(describe(request, state_)) : status;
  failure->request = &request;
}

void CollectiveQueue::fail_all(const Status& status) {
  failed_under_way_ = failed_under_way_ || active_run_ != nullptr;
  active_run_ = nullptr;
  meeting_ = false;
  while (first_ != nullptr) {
    Request* request = first_;
    first_ = request->next;
    requests_.complete(*request, status);
  }
}

void CollectiveQueue::collect_awaited(std::vector<Rank>* ranks) const {
  const engine::Context& context = state_.context;
  if (active_run_ != nullptr) return active_run_->collect_awaited(context, ranks);
  ranks->clear();
  if (!context.mapped()) return;
  // Not begun: a rank is too far behind, or has not yet called the operation whose windows are to
  // be agreed on.
  const uint64_t next = context.sequence + 1;
  const uint64_t needed =
      next > engine::kOperationsAhead
          ? context.end_position[(next - engine::kOperationsAhead) % context.end_position.size()]
          : 0;
  for (Rank p = 0; p < context.rank_count; ++p) {
    if (p == context.rank) continue;
    const Control& control = context.control(p);
    const bool behind = control.done.position.load(std::memory_order_acquire) < needed;
    const bool silent = first_ != nullptr && first_->described &&
                        control.descriptor[next % engine::kDescriptorCount].sequence.load() != next;
    if (behind || silent) ranks->push_back(p);
  }
}

Wait CollectiveQueue::describe_wait() const {
  const Request& first = *first_;
  Wait wait;
  wait.kind = first.started ? RecordKind::kCollective : RecordKind::kQueued;
  wait.sequence = first.started ? first.sequence : state_.context.sequence + 1;
  wait.what = engine::pack_what(first.call);
  wait.count = first.call.count;
  if (active_run_ != nullptr) {
    const engine::RunPosition at = active_run_->position();
    wait.step = at.step;
    wait.step_count = at.step_count;
    wait.slice = at.slice;
    wait.slice_count = at.slice_count;
  }
  if (const engine::Plan* plan = first.started ? active_plan_ : nullptr) {
    wait.algorithm = plan->algorithm->name;
    wait.protocol = engine::name_of(plan->protocol);
  }
  return wait;
}

}  // namespace weir::comm
