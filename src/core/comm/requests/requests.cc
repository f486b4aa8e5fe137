// SPDX-License-Identifier: Apache-2.0
#include "core/comm/requests/requests.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <set>

#include "core/base/per_process.h"

namespace weir::comm {

// ---- The pool -----------------------------------------------------------------------------------

Request* Requests::acquire() {
  std::lock_guard lock(state_.lock);
  if (free_.empty()) {
    pool_.push_back(std::make_unique<Request>());
    free_.push_back(pool_.back().get());
    free_.reserve(pool_.size());
  }
  Request* request = free_.back();
  free_.pop_back();
  request->done.store(false, std::memory_order_relaxed);
  request->is_alive.store(true, std::memory_order_relaxed);
  return request;
}

void Requests::release(Request* request) {
  std::lock_guard lock(state_.lock);
  // Another thread that waited for it, too, has been faster.
  if (request->is_alive.load(std::memory_order_relaxed)) release_locked(request);
}

// It stays done, so that no thread waits for it for ever.
void Requests::release_locked(Request* request) {
  request->is_alive.store(false, std::memory_order_relaxed);
  request->kind = RequestKind::kCollective;
  request->call = engine::Call{};
  request->block_counts.clear();
  request->block_displacements.clear();
  request->recv_counts.clear();
  request->recv_displacements.clear();
  request->device.reset();
  request->op = {};
  request->completion = Completion{};
  request->next = nullptr;
  request->started = request->taken = request->described = request->ahead = false;
  request->timeout_ms = 0;
  request->deadline_ns = request->begin_ns = request->waited_ns = request->record = 0;
  request->explored = 0;
  request->status = Status();
  free_.push_back(request);
}

// ---- From the start to the end ------------------------------------------------------------------

void Requests::begin(Request& request) {
  in_flight_.fetch_add(1, std::memory_order_relaxed);
  request.taken = true;
  if (request.completion.callback != nullptr) {
    called_back_.push_back(&request);
    called_back_count_.fetch_add(1, std::memory_order_relaxed);
  }
}

void Requests::withdraw(Request& request) {
  in_flight_.fetch_sub(1, std::memory_order_relaxed);
  forget_callback(request);
}

void Requests::complete(Request& request, const Status& status) {
  request.status = status;
  reports_.end_wait();
  Recorder& recorder = state_.recorder;
  if (recorder.on() && status.ok()) {
    if (request.record != 0) recorder.message_finished(request.record);
    recorder.wait_ended();
  }
  in_flight_.fetch_sub(1, std::memory_order_relaxed);
  bool detached = false;
  if (request.device != nullptr) {
    detached = request.device->detached;
    request.device->mark.reset();
  }
  if (request.completion.callback != nullptr) {
    forget_callback(request);
    add_ready(this, request.completion, status.code());
  }
  request.done.store(true, std::memory_order_release);
  if (detached) release_locked(&request);
}

// ---- Callbacks ----------------------------------------------------------------------------------

Result<bool> Requests::call_back(Request& request, const Completion& completion) {
  const std::lock_guard lock(state_.lock);
  if (request.completion.callback != nullptr) {
    return Status(
        Code::kInvalidUsage,
        fmt::format("a request on '{}' has a callback already; a request takes one callback only",
                    state_.name));
  }
  // Also where it is done: the second one is refused in either case.
  request.completion = completion;
  if (request.done.load(std::memory_order_relaxed)) return true;
  if (request.taken) {
    called_back_.push_back(&request);
    called_back_count_.fetch_add(1, std::memory_order_relaxed);
  }
  return false;
}

void Requests::end_unstarted(Request& request, const Status& status) {
  const std::lock_guard lock(state_.lock);
  request.status = status;
  if (request.completion.callback != nullptr) add_ready(this, request.completion, status.code());
  request.done.store(true, std::memory_order_release);
}

void Requests::forget_callback(Request& request) {
  const auto found = std::find(called_back_.begin(), called_back_.end(), &request);
  if (found == called_back_.end()) return;
  *found = called_back_.back();
  called_back_.pop_back();
  called_back_count_.fetch_sub(1, std::memory_order_relaxed);
}

Request* Requests::next_with_callback() {
  return called_back_.empty() ? nullptr : called_back_[++next_ % called_back_.size()];
}

// ---- The end of the communicator ----------------------------------------------------------------

namespace {

// Requests that were not waited for before their communicator was destroyed.
struct LeftRequests {
  std::mutex lock;
  std::vector<std::unique_ptr<Request>> list;
};
constinit PerProcess<LeftRequests> left_requests;

}  // namespace

void Requests::leave(const Status& unfinished, bool call_back) {
  const std::set<const Request*> free(free_.begin(), free_.end());
  LeftRequests& left = left_requests.get();
  const std::lock_guard lock(left.lock);
  for (std::unique_ptr<Request>& request : pool_) {
    if (free.count(request.get()) != 0) continue;
    if (!request->done.load(std::memory_order_relaxed)) {
      request->status = unfinished;
      if (request->completion.callback != nullptr && call_back) {
        add_ready(this, request->completion, unfinished.code());
      }
    }
    request->comm = nullptr;
    left.list.push_back(std::move(request));
  }
}

void Requests::close(const Status& unfinished) {
  for (const auto& request : pool_) request->device.reset();
  leave(unfinished, true);
  finish_callbacks(this);
}

void Requests::leave_to_child(const Status& refusal) {
  for (const auto& request : pool_) (void)request->device.release();
  leave(refusal, false);
}

Status Requests::end_of_left(Request* request) {
  Status status = request->status;
  LeftRequests& left = left_requests.get();
  const std::lock_guard lock(left.lock);
  std::erase_if(left.list, [&](const auto& one) { return one.get() == request; });
  return status;
}

}  // namespace weir::comm
