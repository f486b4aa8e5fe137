// SPDX-License-Identifier: Apache-2.0
// The operation of a communicator: start, poll, wait; and the API's queries of its health.
#include <fmt/format.h>
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <mutex>
#include <set>

#include "core/base/clock.h"
#include "core/comm/communicator.h"
#include "core/comm/process.h"
#include "core/comm/requests/request_text.h"

namespace weir::comm {

namespace {

// Polls under the lock before another thread gets a chance to use the communicator.
constexpr uint32_t kPollsPerTurn = 4096;
constexpr uint32_t kYieldsPerTurn = 64;
// Of a communicator that carries one-sided operations, between two looks at its owner's transport.
constexpr uint32_t kPollsPerOwner = 64;
constexpr uint64_t kAbortPatienceNs = 20'000'000;
constexpr timespec kNap{0, 50'000};

bool is_done(const Request& request) { return request.done.load(std::memory_order_relaxed); }

}  // namespace

// ---- The start ----------------------------------------------------------------------------------

Status Communicator::run(const engine::Call& call) {
  if (devices_.is_possible() || !state_.context.mapped()) [[unlikely]]
    return run_slowly(call);
  {
    SpinLockHold hold(state_.lock);
    if (!state_.failure.is_set()) [[likely]] {
      const CollectiveQueue::Warm warm = operations_.queue().run_warm(call);
      if (warm == CollectiveQueue::Warm::kDone) [[likely]]
        return Status();
      if (warm != CollectiveQueue::Warm::kRefused) {
        hold.release();
        return go_on_slowly(call, warm);
      }
    }
  }
  return run_slowly(call);
}

// The call continues as any other request, for which failures are checked.
Status Communicator::go_on_slowly(const engine::Call& call, CollectiveQueue::Warm warm) {
  Request request;
  {
    const std::lock_guard lock(state_.lock, std::adopt_lock);
    request.comm = this;
    request.call = call;
    requests_.begin_watch();
    operations_.queue().take_over(request, warm);
    if (warm == CollectiveQueue::Warm::kOtherCalled) {
      health_.fail(OperationFailure{Status(Code::kMismatch, ""), &request});
    }
  }
  return wait(request);
}

Status Communicator::run_slowly(const engine::Call& call) {
  // The program may have begun to use CUDA since.
  if (devices_.is_possible_now()) {
    const Result<int> device = device_of_collective(call);
    if (!device.ok()) return explain_refusal(device.status());
    if (device.value() >= 0) {
      Request* request = requests_.acquire();
      request->call = call;
      devices_.mark_collective(*request, device.value());
      Status status = start(*request);
      if (status.ok()) return finish(request);
      requests_.release(request);
      return status;
    }
  }
  Request request;
  request.call = call;
  Status status = start(request);
  return status.ok() ? wait(request) : status;
}

Status Communicator::route(Request& request) {
  if (request.known_device >= 0) {
    return messages().take_device_buffer(request, request.known_device);
  }
  if (!devices_.is_possible_now()) return Status();
  if (request.kind == RequestKind::kCollective) {
    const Result<int> device = device_of_collective(request.call);
    if (!device.ok()) return explain_refusal(device.status());
    if (device.value() >= 0) devices_.mark_collective(request, device.value());
    return Status();
  }
  const bool is_message = request.kind == RequestKind::kSend || request.kind == RequestKind::kRecv;
  if (is_message && request.bytes == 0) {
    // Both ends decide alike: where an empty buffer lies says nothing.
    std::string why_not;
    if (devices_.on_stream() && is_stream_message_possible(&why_not)) {
      devices_.mark_message(request, operations_.device_side().device());
    }
    return Status();
  }
  if (is_message) {
    const Result<int> found = devices_.device_of_message(request);
    if (!found.ok()) return explain_refusal(found.status());
    const int device = found.value();
    if (device < 0) return Status();
    WEIR_RETURN_IF_ERROR(devices_.check_message(request));
    std::string why_not;
    if (is_stream_message_possible(&why_not)) {
      devices_.mark_message(request, device);
      return Status();
    }
    return messages().take_device_buffer(request, device, why_not);
  }
  if ((request.kind == RequestKind::kTagSend || request.kind == RequestKind::kTagRecv) &&
      request.bytes > 0) {
    const int device = device_of_memory(request.call.input);
    if (device >= 0) {
      return Status(Code::kUnsupported,
                    fmt::format("the buffer of a {} lies on device {}: messages with tags take "
                                "host memory only; copy the data, or use weir_send and weir_recv",
                                describe(request, state_), device));
    }
  }
  return Status();
}

// Memory goes with its context.
Status Communicator::explain_refusal(const Status& refused) {
  const StreamParts parts = stream_parts();
  if (refused.code() != Code::kInvalidArgument || parts.memory == nullptr) return refused;
  Status lost = parts.explain_loss(Status(Code::kSystem, refused.text()));
  if (!parts.memory->context_check().is_lost()) return refused;
  parts.owner->give_up(lost, {});
  return lost;
}

Status Communicator::await_device_side() {
  for (;;) {
    {
      const std::lock_guard lock(state_.lock);
      const bool moved = poll_locked();
      if (state_.failure.is_set()) return state_.failure.status();
      Request* const request = operations_.device_side().deciding();
      if (request == nullptr) return Status();
      if (!moved) health_.check(*request);
    }
    sched_yield();
  }
}

// Where an empty buffer lies says nothing, and ranks may choose streams differently: they decide by
// what they have agreed on.
Result<int> Communicator::device_of_collective(const engine::Call& call) {
  if (call.count > 0 || !DeviceStreams::can_take(call)) return devices_.device_of(call);
  DeviceSide& side = operations_.device_side();
  bool is_deciding = false;
  {
    const std::lock_guard lock(state_.lock);
    is_deciding = side.deciding() != nullptr;
  }
  if (is_deciding) WEIR_RETURN_IF_ERROR(await_device_side());
  const std::lock_guard lock(state_.lock);
  return side.is_ready() ? side.device() : -1;
}

bool Communicator::is_stream_message_possible(std::string* why_not) {
  const std::lock_guard lock(state_.lock);
  return operations_.device_side().takes_message(why_not);
}

Status Communicator::start(Request& request, const CallGroup* group) {
  Status status;
  for (;;) {
    std::unique_lock lock(state_.lock);
    // Work of streams is chosen now, and not when its turn comes.
    if (request.kind != RequestKind::kDevice || !operations_.queue().is_held()) {
      status = start_locked(request);
      break;
    }
    lock.unlock();
    nanosleep(&kNap, nullptr);
  }
  // Otherwise each call of a large group would look at all those before it, which cannot begin yet.
  if (group == nullptr) act_on_poll();
  return status;
}

Status Communicator::start_locked(Request& request) {
  // Other calls wait, and look then; work of a stream would only fail behind the caller's back.
  if (request.is_of_device_side() && !state_.failure.is_set()) health_.fail_as_reported();
  if (state_.failure.is_set()) return state_.failure.status();
  request.comm = this;
  request.timeout_ms = state_.timeout_ms.load();
  engine::Call& call = request.call;
  if (!request.block_counts.empty()) call.block_counts = request.block_counts.data();
  if (!request.block_displacements.empty()) {
    call.block_displacements = request.block_displacements.data();
  }
  if (!request.recv_counts.empty()) call.recv_counts = request.recv_counts.data();
  if (!request.recv_displacements.empty()) {
    call.recv_displacements = request.recv_displacements.data();
  }
  requests_.begin(request);
  OperationFailure failure;
  if (Status status = operations_.start(request, &failure); !status.ok()) {
    requests_.withdraw(request);
    return status;
  }
  if (failure.happened()) health_.fail(failure);
  poll_locked();
  return Status();
}

// ---- Progress -----------------------------------------------------------------------------------

bool Communicator::poll_locked() {
  OperationFailure failure;
  const bool moved = operations_.poll(&failure);
  if (failure.happened()) health_.fail(failure);
  if (!moved && operations_.one_sided_service() != nullptr) poll_owner();
  return moved;
}

// Work that the owner's transport still has to do for its peers, such as handing messages of a
// failed transport to the one that takes over, must not wait until this rank calls the owner again.
void Communicator::poll_owner() {
  thread_local uint32_t polls = 0;
  Communicator* outer = ++polls % kPollsPerOwner == 0 ? outer_.load() : nullptr;
  if (outer == nullptr || !outer->state_.lock.try_lock()) return;
  const std::lock_guard lock(outer->state_.lock, std::adopt_lock);
  const engine::Context& its = outer->state_.context;
  if (!its.mapped() && !outer->state_.failure.is_set()) its.transport->progress(its.instance);
}

bool Communicator::try_poll() {
  if (!state_.lock.try_lock()) return false;
  bool moved = false;
  {
    const std::lock_guard lock(state_.lock, std::adopt_lock);
    moved = poll_locked();
  }
  operations_.device_side().enqueue_pending();
  return moved;
}

void Communicator::tend(uint64_t now_ns) {
  constexpr uint64_t kTendNs = 20'000'000;
  if (now_ns - tended_ns_.load(std::memory_order_relaxed) < kTendNs) return;
  if (!state_.lock.try_lock()) return;
  const std::lock_guard lock(state_.lock, std::adopt_lock);
  tended_ns_.store(now_ns, std::memory_order_relaxed);
  if (state_.failure.is_set()) return;
  OperationFailure failure;
  operations_.tend(&failure);
  if (failure.happened()) health_.fail(failure);
}

void Communicator::advance() {
  {
    const std::lock_guard lock(state_.lock);
    poll_locked();
  }
  act_on_poll();
}

void Communicator::act_on_poll() {
  operations_.device_side().enqueue_pending();
  run_ready();
}

void Communicator::attend() {
  const DeviceSide& device_side = operations_.device_side();
  const bool looks_after = device_side.is_open() || requests_.any_with_callback();
  const bool shows = reports_.show_interval_ns() != 0 && !state_.failure.is_set();
  if ((!looks_after && !shows) || !state_.lock.try_lock()) return;
  const std::lock_guard lock(state_.lock, std::adopt_lock);
  Request* detached = state_.failure.is_set() ? nullptr : device_side.first_detached();
  if (detached != nullptr) health_.check(*detached);
  // Then a deadline, a death or an abort is found here.
  if (Request* request = requests_.next_with_callback()) health_.check(*request);
  health_.show_life();
}

// ---- Waiting ------------------------------------------------------------------------------------

bool Communicator::test(Request& request) {
  if (!request.done.load(std::memory_order_acquire)) {
    const std::lock_guard lock(state_.lock);
    if (!is_done(request)) {
      if (poll_locked()) {
        health_.note_progress();
      } else {
        check(request);
      }
    }
  }
  if (request.done.load(std::memory_order_acquire)) end_wait_elsewhere();
  act_on_poll();
  return request.done.load(std::memory_order_acquire);
}

Status Communicator::wait(Request& request) {
  // A device takes longer than a core is worth spinning for.
  constexpr WaitPolicy kOnDevice{200, 0};
  Waiter waiter(request.is_of_device_side() ? kOnDevice : state_.wait_policy);
  while (!request.done.load(std::memory_order_acquire)) {
    bool slow = false;
    bool sleep = false;
    {
      const std::lock_guard lock(state_.lock);
      uint32_t yields = 0;
      for (uint32_t polls = 0; polls < kPollsPerTurn && yields < kYieldsPerTurn; ++polls) {
        if (is_done(request)) break;
        if (poll_locked()) {
          waiter.reset();
          health_.note_progress();
          continue;
        }
        if (is_done(request)) break;
        if (state_.failure.abort_asked()) break;
        sleep = waiter.should_sleep();
        if (sleep) break;
        slow = waiter.pause();
        yields += slow ? 1 : 0;
        if (slow) break;
      }
      if (!is_done(request) && (slow || sleep || state_.failure.abort_asked())) {
        check(request);
      }
    }
    act_on_poll();
    if (request.done.load(std::memory_order_acquire)) break;
    progress_others(this);
    if (sleep && !request.done.load(std::memory_order_acquire)) {
      SleepPlace place;
      {
        const std::lock_guard lock(state_.lock);
        place = operations_.sleep_place(request);
      }
      napping_.fetch_add(1, std::memory_order_relaxed);
      waiter.sleep(place, [&] {
        const std::lock_guard lock(state_.lock);
        return !is_done(request) && !poll_locked() && !is_done(request);
      });
      napping_.fetch_sub(1, std::memory_order_relaxed);
    }
  }
  end_wait_elsewhere();
  run_ready();
  return request.status;
}

void Communicator::check(Request& request) {
  health_.check(request);
  Communicator* const other = related();
  if (other == nullptr || is_done(request) || !health_.has_waited_long(request)) return;
  // Its lock may be held by a thread that waits for this one's.
  if (!other->state_.lock.try_lock()) return;
  const std::lock_guard lock(other->state_.lock, std::adopt_lock);
  operations_.collect_awaited_by_all(&awaited_);
  other->health_.note_elsewhere(this, awaited_);
  waits_elsewhere_ = true;
}

void Communicator::end_wait_elsewhere() {
  if (!waits_elsewhere_) return;
  {
    const std::lock_guard lock(state_.lock);
    if (operations_.any()) return;  // another thread still waits
    waits_elsewhere_ = false;
  }
  Communicator* const other = related();
  if (other == nullptr) return;
  const std::lock_guard lock(other->state_.lock);
  other->health_.note_elsewhere(this, {});
}

Status Communicator::finish(Request* request) {
  if (request->is_of_device_side() && request->device->on_stream) {
    settle(*request);
    std::unique_lock lock(state_.lock);
    if (!is_done(*request)) {
      request->device->detached = true;
      lock.unlock();
      watch_requests();  // a thread must notice its end
      return Status();
    }
  } else {
    (void)wait(*request);
  }
  Status status = request->status;
  requests_.release(request);
  return status;
}

void Communicator::settle(Request& request) {
  if (!request.is_of_device_side() || !request.device->on_stream) return;
  for (;;) {
    {
      const std::lock_guard lock(state_.lock);
      const auto settled = [&] { return is_done(request) || request.device->enqueued; };
      if (settled()) return;
      if (!poll_locked()) health_.check(request);
      if (settled()) return;
    }
    operations_.device_side().enqueue_pending();
    progress_others(this);
    nanosleep(&kNap, nullptr);
  }
}

// ---- Health -------------------------------------------------------------------------------------

void Communicator::revoke() {
  if (Communicator* inner = inner_.load()) inner->revoke();
  health_.abort(/*revokes=*/true);
}

void Communicator::abort() {
  if (Communicator* inner = inner_.load()) inner->abort();
  health_.abort();
  const bool on_device = operations_.device_side().is_open();
  if (!reports_.on_board() && !on_device) return;
  // A thread that waits holds the lock for the time of a poll, and tells the peers itself when it
  // has seen the abort; so nothing is missed when there is no time to wait for it.
  const uint64_t until = now_ns() + kAbortPatienceNs;
  while (now_ns() < until) {
    if (state_.lock.try_lock()) {
      const std::lock_guard lock(state_.lock, std::adopt_lock);
      health_.tell_failure();
      if (on_device) operations_.device_side().fail_all(state_.failure.status());
      return;
    }
    sched_yield();
  }
}

std::vector<Rank> Communicator::lost_ranks() {
  std::set<Rank> lost;
  health_.collect_lost(&lost);
  if (Communicator* inner = inner_.load()) inner->health_.collect_lost(&lost);
  return {lost.begin(), lost.end()};
}

std::vector<Rank> Communicator::gone_ranks() { return health_.gone_ranks(); }

void Communicator::note_stuck(const void* call, const std::vector<Rank>& awaited) {
  health_.note_stuck(call, awaited);
}

bool Communicator::find_culprits(const std::vector<Rank>& awaited, const WaitTime& time,
                                 uint64_t timeout_ns, std::vector<Rank>* culprits) {
  return health_.find_culprits(awaited, time, timeout_ns, culprits);
}

std::string Communicator::describe_lost(const std::vector<Rank>& ranks) {
  const std::lock_guard lock(state_.lock);
  return health_.describe_lost(ranks);
}

std::string Communicator::calls_elsewhere(const std::vector<Rank>& ranks) {
  const std::lock_guard lock(state_.lock);
  return health_.calls_elsewhere(ranks);
}

Status Communicator::async_error() {
  Status status = health();
  if (!status.ok()) return status;
  if (Communicator* inner = inner_.load()) {
    status = inner->async_error();
    if (!status.ok()) return status;
  }
  return health_.reported_failure();
}

void Communicator::give_up(const Status& reason, const std::vector<Rank>& blamed) {
  if (Communicator* inner = inner_.load()) inner->give_up(reason, blamed);
  health_.adopt(reason, blamed);
}

std::vector<Rank> Communicator::waiting_for_this_rank(const std::vector<Rank>& ranks) {
  const std::lock_guard lock(state_.lock);
  reports_.look_at_board(now_ns(), 0);
  std::vector<Rank> waiting;
  std::vector<Rank> awaited;
  for (const Rank rank : ranks) {
    reports_.collect_awaited_by(rank, &awaited);
    if (std::find(awaited.begin(), awaited.end(), state_.rank()) != awaited.end()) {
      waiting.push_back(rank);
    }
  }
  return waiting;
}

}  // namespace weir::comm
