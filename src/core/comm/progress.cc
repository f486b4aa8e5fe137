// SPDX-License-Identifier: Apache-2.0
// The daily work of a communicator: start, poll, wait.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/per_process.h"
#include "core/comm/communicator.h"
#include "core/comm/process.h"

namespace weir::comm {

using engine::Advance;
using engine::Protocol;

namespace {

constexpr uint32_t kPointToPointLane = 0;
// Polls under the lock before another thread gets a chance to use the communicator.
constexpr uint32_t kPollsPerTurn = 4096;
constexpr uint32_t kYieldsPerTurn = 64;

}  // namespace

Request::Request(Request&& other) noexcept
    : comm(other.comm),
      kind(other.kind),
      call(other.call),
      block_counts(std::move(other.block_counts)),
      block_displacements(std::move(other.block_displacements)),
      peer(other.peer),
      bytes(other.bytes) {
  WEIR_CHECK(!other.started, "a request in flight stays where it is");
}

Status Communicator::run(const engine::Call& call) {
  if (may_have_device_memory()) [[unlikely]] {
    const Result<int> device = device_of(call);
    if (!device.ok()) return device.status();
    if (device.value() >= 0) return run_on_device(call, device.value());
  }
  {
    std::unique_lock lock(lock_);
    if (first_ == nullptr && failed_code_.load(std::memory_order_relaxed) == 0) [[likely]] {
      const engine::Plan* plan = planner_->explains() ? nullptr : planner_->latest(call);
      if (plan != nullptr && plan->protocol == Protocol::kLine && context_.may_begin()) {
        line_run_.start(*plan->mapped, call, plan->fingerprint, context_);
        Advance advance = line_run_.advance(context_);
        if (recorder_.on()) {
          // What is published is on its way. Where the peers are waited for, reading the clock is as
          // good as a pause.
          const bool waits = advance == Advance::kMoved || advance == Advance::kBlocked;
          recorder_.begun(context_.sequence, line_run_.flag(), plan->what, call.count,
                          waits ? ticks() : 0);
          if (waits) advance = line_run_.advance(context_);
        }
        Waiter waiter(wait_policy_);
        for (uint32_t polls = 0; advance == Advance::kBlocked || advance == Advance::kMoved;) {
          if (++polls > kPollsPerTurn || (waiter.pause() && waiter.yields())) break;
          advance = line_run_.advance(context_);
        }
        if (advance == Advance::kDone) {
          if (recorder_.on()) recorder_.finished(context_.sequence);
          return Status();
        }
        // Slow or wrong: go on as any other request, where trouble is looked after.
        Request request;
        request.comm = this;
        request.call = call;
        request.started = true;
        request.sequence = context_.sequence;
        request.next = nullptr;
        first_ = last_ = &request;
        active_plan_ = plan;
        active_run_ = &line_run_;
        in_flight_.fetch_add(1, std::memory_order_relaxed);
        if (advance == Advance::kFailed) fail(mismatch_report(request));
        lock.unlock();
        return wait(request);
      }
    }
  }
  // The program may have begun to use CUDA since.
  if (!host_memory_ && !driver_is_known() && look_for_driver()) return run(call);
  Request request;
  request.comm = this;
  request.call = call;
  Status status = start(request);
  return status.ok() ? wait(request) : status;
}

Status Communicator::start(Request& request) {
  std::lock_guard lock(lock_);
  return start_locked(request);
}

Status Communicator::start_locked(Request& request) {
  if (failed_code_.load(std::memory_order_acquire) != 0) return health();
  request.comm = this;
  request.timeout_ms = timeout_ms_.load();
  if (!request.block_counts.empty()) request.call.block_counts = request.block_counts.data();
  if (!request.block_displacements.empty()) {
    request.call.block_displacements = request.block_displacements.data();
  }
  in_flight_.fetch_add(1, std::memory_order_relaxed);
  if (recorder_.on() && request.kind != RequestKind::kCollective &&
      request.kind != RequestKind::kDevice) {
    record_message(request);
  }
  switch (request.kind) {
    case RequestKind::kCollective:
      enqueue(request);
      break;
    case RequestKind::kDevice:
      if (const Status status = take_on_device(request); !status.ok()) {
        in_flight_.fetch_sub(1, std::memory_order_relaxed);
        return status;
      }
      break;
    case RequestKind::kAllToAllV:
    case RequestKind::kSend:
    case RequestKind::kRecv:
      request.started = true;
      if (waiting_.empty() && (request.device == nullptr || request.device->mark == nullptr)) {
        post(request);
      } else {
        waiting_.push_back(&request);
      }
      break;
  }
  poll_locked();
  return Status();
}

void Communicator::post(Request& request) {
  const DeviceContext::Scope scope(message_device_.get());
  const weir_transport_functions_t& transport = *context_.transport;
  if (request.kind == RequestKind::kAllToAllV) {
    // Receives first, so that what arrives finds its place.
    for (Request& part : request.parts) {
      part.comm = this;
      part.started = true;
      const bool sends = part.kind == RequestKind::kSend;
      const weir_result_t result =
          sends ? transport.send(context_.instance, part.peer, kPointToPointLane, part.call.input,
                                 part.bytes, &part.op)
                : transport.recv(context_.instance, part.peer, kPointToPointLane, part.call.output,
                                 part.bytes, &part.op);
      if (result == WEIR_OK) {
        part.done.store(true, std::memory_order_relaxed);
      } else if (result != WEIR_IN_PROGRESS) {
        part.status = Status(static_cast<Code>(result),
                             fmt::format("{} rank {}: {}", sends ? "send to" : "receive from",
                                         part.peer, transport_error_));
        part.done.store(true, std::memory_order_relaxed);
      }
    }
    messages_.push_back(&request);
    return;
  }
  const bool sends = request.kind == RequestKind::kSend;
  const engine::Call& call = request.call;
  weir_result_t result = WEIR_OK;
  if (request.device == nullptr) {
    result = sends ? transport.send(context_.instance, request.peer, kPointToPointLane, call.input,
                                    request.bytes, &request.op)
                   : transport.recv(context_.instance, request.peer, kPointToPointLane, call.output,
                                    request.bytes, &request.op);
  } else {
    const int device = request.device->device;
    result = sends ? transport.device_send(context_.instance, request.peer, kPointToPointLane,
                                           call.input, request.bytes, device, &request.op)
                   : transport.device_recv(context_.instance, request.peer, kPointToPointLane,
                                           call.output, request.bytes, device, &request.op);
  }
  if (result == WEIR_OK) return complete(request, Status());
  if (result == WEIR_IN_PROGRESS) {
    messages_.push_back(&request);
    return;
  }
  const Status status(static_cast<Code>(result),
                      fmt::format("{} rank {}: {}", sends ? "send to" : "receive from",
                                  request.peer, transport_error_));
  // Nothing has been posted.
  if (request.device != nullptr && result == WEIR_ERROR_UNSUPPORTED) {
    return complete(request, status);
  }
  messages_.push_back(&request);  // ends with all others
  std::vector<Rank> blamed;
  const Status reason = why_failed(status, request, &blamed);
  fail(reason, blamed);
}

void Communicator::record_message(Request& request) {
  uint64_t bytes = request.bytes;
  RecordKind kind = request.kind == RequestKind::kSend ? RecordKind::kSend : RecordKind::kRecv;
  if (request.kind == RequestKind::kAllToAllV) {
    kind = RecordKind::kAllToAllV;
    for (const Request& part : request.parts) bytes += part.bytes;
  }
  request.record = recorder_.message_begun(kind, request.peer, bytes);
}

uint64_t Communicator::one_sided_begun(RecordKind kind, Rank peer, uint64_t units) {
  const std::lock_guard lock(lock_);
  return recorder_.on() ? recorder_.message_begun(kind, peer, units) : 0;
}

void Communicator::one_sided_waits(uint64_t number, RecordKind kind, uint64_t units,
                                   uint64_t since_ns, std::span<const Rank> awaited) {
  if (number == 0) return;
  const uint64_t now = now_ns();
  const std::lock_guard lock(lock_);
  if (!recorder_.on() || !recorder_.looked(since_ns, now)) return;
  Wait wait;
  wait.kind = kind;
  wait.sequence = number;
  wait.count = units;
  wait.since_ns = since_ns;
  wait.awaited = awaited;
  recorder_.waits(wait, now);
}

void Communicator::one_sided_done(uint64_t number) {
  if (number == 0) return;
  const std::lock_guard lock(lock_);
  if (!recorder_.on()) return;
  recorder_.message_finished(number);
  recorder_.wait_ended();
}

void Communicator::enqueue(Request& request) {
  request.next = nullptr;
  if (first_ == nullptr) {
    first_ = last_ = &request;
  } else {
    last_->next = &request;
    last_ = &request;
  }
}

void Communicator::complete(Request& request, const Status& status) {
  request.status = status;
  if (beat_ns_ != 0) end_beats();
  if (recorder_.on() && status.ok()) {
    if (request.record != 0) recorder_.message_finished(request.record);
    recorder_.wait_ended();
  }
  in_flight_.fetch_sub(1, std::memory_order_relaxed);
  const bool detached = request.device != nullptr && request.device->detached;
  drop_mark(request);
  request.done.store(true, std::memory_order_release);
  if (detached) release_locked(&request);
}

bool Communicator::begin_collective(Request& request) {
  if (!context_.may_begin()) return false;
  if (is_meeting(request) && !device_->exchanging) return false;
  bool windows = false;
  if (has_windows() && !agree_on_windows(request, &windows)) return false;
  auto found = planner_->plan_for(request.call, windows);
  if (!found.ok()) {
    // The same call fails in the same way on every rank, and nothing has been sent.
    first_ = request.next;
    complete(request, found.status());
    return true;
  }
  const engine::Plan& plan = *found.value();
  request.started = true;
  switch (plan.protocol) {
    case Protocol::kLine:
      line_run_.start(*plan.mapped, request.call, plan.fingerprint, context_);
      active_run_ = &line_run_;
      break;
    case Protocol::kSlots:
      mapped_run_.start(*plan.mapped, request.call, plan.fingerprint, context_);
      active_run_ = &mapped_run_;
      break;
    case Protocol::kWindows:
      mapped_run_.start(*plan.mapped, request.call, plan.fingerprint, context_, peer_inputs_,
                        peer_outputs_);
      active_run_ = &mapped_run_;
      break;
    case Protocol::kLanes:
      lane_run_.start(*plan.lanes, request.call, plan.fingerprint, context_);
      active_run_ = &lane_run_;
      break;
  }
  request.sequence = context_.sequence;
  if (recorder_.on()) {
    recorder_.begun(request.sequence, engine::call_flag(request.sequence, plan.fingerprint),
                    plan.what, request.call.count, ticks());
  }
  active_plan_ = &plan;
  if (planner_->explains()) request.begin_ns = now_ns();
  return true;
}

bool Communicator::poll_message(Request& request, Status* failure) {
  auto ask = [&](Request& part) {
    if (part.done.load(std::memory_order_relaxed)) return;
    const weir_result_t result = context_.transport->test(context_.instance, &part.op);
    if (result == WEIR_IN_PROGRESS) return;
    if (result != WEIR_OK) {
      part.status = Status(static_cast<Code>(result),
                           fmt::format("message with rank {}: {}", part.peer, transport_error_));
    }
    part.done.store(true, std::memory_order_relaxed);
  };
  Status status;
  if (request.kind == RequestKind::kAllToAllV) {
    bool all = true;
    for (Request& part : request.parts) {
      ask(part);
      all = all && part.done.load(std::memory_order_relaxed);
      if (status.ok() && !part.status.ok()) status = part.status;
    }
    if (!all && status.ok()) return false;
  } else {
    const weir_result_t result = context_.transport->test(context_.instance, &request.op);
    if (result == WEIR_IN_PROGRESS) return false;
    if (result != WEIR_OK) {
      status = Status(static_cast<Code>(result),
                      fmt::format("message with rank {}: {}", request.peer, transport_error_));
    }
  }
  *failure = status;
  if (status.ok()) complete(request, status);
  return true;
}

bool Communicator::poll_locked() {
  const DeviceContext::Scope scope(message_device_.get());
  bool moved = device_ != nullptr && poll_device();
  while (first_ != nullptr) {
    Request& request = *first_;
    if (active_run_ == nullptr && !begin_collective(request)) break;
    if (first_ != &request) {  // it failed to begin
      moved = true;
      continue;
    }
    const Advance advance = active_run_->advance(context_);
    moved = moved || advance != Advance::kBlocked;
    if (advance == Advance::kDone) {
      active_run_ = nullptr;
      if (recorder_.on()) recorder_.finished_at(request.sequence, ticks());
      if (request.begin_ns != 0) {
        planner_->measured(*active_plan_, static_cast<double>(now_ns() - request.begin_ns));
      }
      if (is_meeting(request)) {
        exchange_done();
        continue;
      }
      first_ = request.next;
      complete(request, Status());
      continue;
    }
    if (advance == Advance::kFailed) {
      Status status = active_run_->status();
      // The transport has told more than its code.
      if (!status.text().empty() && !transport_error_.empty()) {
        status = Status(status.code(), fmt::format("{}: {}", status.text(), transport_error_));
      }
      const bool told = status.code() != Code::kMismatch || !status.text().empty();
      std::vector<Rank> blamed;
      status = told ? why_failed(status.with_context(describe(request)), request, &blamed)
                    : mismatch_report(request);
      fail(status, blamed);
      return true;
    }
    break;
  }
  if (!waiting_.empty() && post_waiting()) moved = true;
  if (!messages_.empty()) {
    context_.transport->progress(context_.instance);
    for (size_t i = 0; i < messages_.size();) {
      Request& request = *messages_[i];
      Status failure;
      if (!poll_message(request, &failure)) {
        ++i;
        continue;
      }
      if (!failure.ok()) {
        std::vector<Rank> blamed;
        const Status reason = why_failed(failure, request, &blamed);
        fail(reason, blamed);
        return true;
      }
      moved = true;
      messages_[i] = messages_.back();
      messages_.pop_back();
    }
  }
  return moved;
}

bool Communicator::try_poll() {
  if (!lock_.try_lock()) return false;
  std::lock_guard lock(lock_, std::adopt_lock);
  return poll_locked();
}

bool Communicator::test(Request& request) {
  if (!request.done.load(std::memory_order_acquire)) {
    std::lock_guard lock(lock_);
    if (!request.done.load(std::memory_order_relaxed)) {
      if (poll_locked()) {
        lost_looks_ = 0;
      } else {
        check_slowly(request);
      }
    }
  }
  return request.done.load(std::memory_order_acquire);
}

Status Communicator::wait(Request& request) {
  // A device takes longer than a core is worth spinning for.
  constexpr WaitPolicy kOnDevice{200, 0};
  Waiter waiter(request.kind == RequestKind::kDevice ? kOnDevice : wait_policy_);
  while (!request.done.load(std::memory_order_acquire)) {
    bool slow = false;
    bool sleep = false;
    {
      std::lock_guard lock(lock_);
      uint32_t yields = 0;
      for (uint32_t polls = 0; polls < kPollsPerTurn && yields < kYieldsPerTurn; ++polls) {
        if (request.done.load(std::memory_order_relaxed)) return request.status;
        if (poll_locked()) {
          waiter.reset();
          lost_looks_ = 0;
          continue;
        }
        if (request.done.load(std::memory_order_relaxed)) return request.status;
        if (aborted_.load(std::memory_order_relaxed)) break;
        sleep = waiter.should_sleep();
        if (sleep) break;
        slow = waiter.pause();
        yields += slow ? 1 : 0;
        if (slow) break;
      }
      if (slow || sleep || aborted_.load(std::memory_order_relaxed)) check_slowly(request);
    }
    progress_others(this);
    if (sleep && !request.done.load(std::memory_order_acquire)) {
      waiter.sleep(sleep_place(request), [&] {
        std::lock_guard lock(lock_);
        return !request.done.load(std::memory_order_relaxed) && !poll_locked() &&
               !request.done.load(std::memory_order_relaxed);
      });
    }
  }
  return request.status;
}

Request* Communicator::acquire_request() {
  std::lock_guard lock(lock_);
  if (free_requests_.empty()) {
    pool_.push_back(std::make_unique<Request>());
    free_requests_.push_back(pool_.back().get());
    free_requests_.reserve(pool_.size());
  }
  Request* request = free_requests_.back();
  free_requests_.pop_back();
  return request;
}

void Communicator::release_request(Request* request) {
  std::lock_guard lock(lock_);
  release_locked(request);
}

void Communicator::release_locked(Request* request) {
  request->kind = RequestKind::kCollective;
  request->call = engine::Call{};
  request->block_counts.clear();
  request->block_displacements.clear();
  request->parts.clear();
  drop_mark(*request);
  request->device.reset();
  request->op = {};
  request->next = nullptr;
  request->started = request->described = false;
  request->timeout_ms = 0;
  request->deadline_ns = request->begin_ns = request->waited_ns = request->record = 0;
  request->status = Status();
  request->done.store(false, std::memory_order_relaxed);
  free_requests_.push_back(request);
}

namespace {

// Requests whose communicator went before they were waited for.
struct LeftRequests {
  std::mutex lock;
  std::vector<std::unique_ptr<Request>> list;
};
constinit PerProcess<LeftRequests> left_requests;

}  // namespace

void Communicator::leave_requests(const Status& unfinished) {
  const std::set<const Request*> free(free_requests_.begin(), free_requests_.end());
  LeftRequests& left = left_requests.get();
  const std::lock_guard lock(left.lock);
  for (std::unique_ptr<Request>& request : pool_) {
    if (free.count(request.get()) != 0) continue;
    request->comm = nullptr;
    if (!request->done.load(std::memory_order_relaxed)) request->status = unfinished;
    left.list.push_back(std::move(request));
  }
}

Status Communicator::end_of_left(Request* request) {
  Status status = request->status;
  LeftRequests& left = left_requests.get();
  const std::lock_guard lock(left.lock);
  std::erase_if(left.list, [&](const auto& one) { return one.get() == request; });
  return status;
}

}  // namespace weir::comm
