// SPDX-License-Identifier: Apache-2.0
#include "core/comm/operations.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace weir::comm {

namespace {

void sort_unique(std::vector<Rank>* ranks) {
  std::sort(ranks->begin(), ranks->end());
  ranks->erase(std::unique(ranks->begin(), ranks->end()), ranks->end());
}

void report_one_sided(const OneSidedService::Failure& from, const std::string& transport_error,
                      OperationFailure* failure) {
  const std::string text = from.text.empty() ? fmt::format("one-sided messages with rank {}: {}",
                                                           from.peer, transport_error)
                                             : from.text;
  failure->status = Status(static_cast<Code>(from.result), text);
  failure->request = from.request;
  failure->peer = from.peer;
}

}  // namespace

void Operations::open(std::unique_ptr<engine::Planner> planner) {
  queue_.open(std::move(planner));
  awaited_.reserve(64 + 4 * size_t{state_.rank_count()});
}

void Operations::open_one_sided(Requests& requests, Records& records) {
  service_requests_ = &requests;
  service_ = std::make_unique<OneSidedService>(
      state_.context, [&requests, &records](Request& request, const Status& status) {
        // An operation that failed stays as it was in the record.
        if (status.ok()) records.one_sided_done(request.record);
        requests.complete(request, status);
      });
}

// ---- From the start to the end ------------------------------------------------------------------

Status Operations::start(Request& request, OperationFailure* failure) {
  switch (request.kind) {
    case RequestKind::kCollective:
      queue_.enqueue(request);
      break;
    case RequestKind::kDevice:
      return device_side_.start(request);
    case RequestKind::kOneSided: {
      request.started = true;
      OneSidedService::Failure it;
      if (!service_->start(request, &it)) report_one_sided(it, state_.transport_error, failure);
      break;
    }
    case RequestKind::kSend:
    case RequestKind::kRecv:
      messages_.start(request, failure);
      break;
  }
  return Status();
}

bool Operations::poll(OperationFailure* failure) {
  const DeviceContext::Scope scope(messages_.device_context());
  bool moved = device_side_.is_open() && device_side_.poll(failure);
  if (!queue_.is_empty() && !failure->happened() && queue_.poll(failure)) moved = true;
  if (!messages_.is_empty() && !failure->happened() && messages_.poll(failure)) moved = true;
  if (!failure->happened() && service_ != nullptr && poll_one_sided(failure)) moved = true;
  return moved || failure->happened();
}

bool Operations::poll_one_sided(OperationFailure* failure) {
  OneSidedService::Failure it;
  const bool moved = service_->poll(&it);
  for (uint32_t ended = service_->take_ended(); ended > 0; --ended) service_requests_->end_watch();
  if (it.result != WEIR_OK) report_one_sided(it, state_.transport_error, failure);
  return moved;
}

void Operations::fail_all(const Status& status) {
  // A caller that learns of the failure may free its buffers.
  const bool one_sided = service_ != nullptr && !service_->is_idle();
  if (state_.failure.is_set() || !queue_.is_empty() || !messages_.posted().empty() || one_sided) {
    state_.context.quiesce();
  }
  queue_.fail_all(status);
  messages_.fail_all(status);
  if (service_ != nullptr) service_->fail_all(status);
  device_side_.fail_all(status);
}

// ---- What is waited for -------------------------------------------------------------------------

bool Operations::any() const {
  return !queue_.is_empty() || !messages_.is_empty() || !device_side_.is_empty() ||
         (service_ != nullptr && !service_->is_idle());
}

void Operations::collect_awaited(const Request& request, std::vector<Rank>* ranks) const {
  ranks->clear();
  switch (request.kind) {
    case RequestKind::kSend:
    case RequestKind::kRecv:
      if (!messages_.waits_for_stream(request)) ranks->push_back(request.peer);
      return;
    case RequestKind::kOneSided:
      if (request.one_sided == nullptr) {
        ranks->push_back(request.peer);
      } else if (request.one_sided->kind != OneSidedKind::kWaitSignal) {
        service_->collect_awaited(request, ranks);
      } else {
        // Any rank may signal that has not left.
        for (Rank p = 0; p < state_.rank_count(); ++p) {
          if (p != state_.rank() && !reports_.is_gone(p)) ranks->push_back(p);
        }
      }
      break;
    case RequestKind::kDevice:
      if (device_side_.has(request)) {
        for (Rank p = 0; p < state_.rank_count(); ++p) {
          if (p != state_.rank()) ranks->push_back(p);
        }
        break;
      }
      [[fallthrough]];  // waits in the meeting
    case RequestKind::kCollective:
      queue_.collect_awaited(ranks);
      break;
  }
  sort_unique(ranks);
}

void Operations::collect_awaited_by_all(std::vector<Rank>* ranks) const {
  ranks->clear();
  if (!queue_.is_empty()) collect_awaited(*queue_.first(), ranks);
  if (!device_side_.is_empty()) collect_awaited(*device_side_.first(), ranks);
  if (service_ != nullptr) {
    std::vector<Rank> some;
    for (const Request* request : service_->requests()) {
      collect_awaited(*request, &some);
      ranks->insert(ranks->end(), some.begin(), some.end());
      sort_unique(ranks);
    }
  }
  if (messages_.posted().empty()) return;
  // However many messages there are, each rank is listed at most twice.
  for (const Request* message : messages_.posted()) {
    if (ranks->size() >= size_t{state_.rank_count()} * 2) sort_unique(ranks);
    ranks->push_back(message->peer);
  }
  sort_unique(ranks);
}

Wait Operations::describe_wait(const Request& request) const {
  // Whichever collective is waited for, the first of the queue is what holds it up.
  if (request.kind == RequestKind::kCollective && !queue_.is_empty()) {
    return queue_.describe_wait();
  }
  Wait wait;
  if (request.kind == RequestKind::kOneSided) {
    const OneSidedCall& call = *request.one_sided;
    wait.kind = record_kind(call);
    wait.count = record_units(call);
    wait.sequence = request.record;
    return wait;
  }
  wait.kind = request.kind == RequestKind::kSend ? RecordKind::kSend : RecordKind::kRecv;
  wait.sequence = request.record;
  wait.count = request.bytes;
  return wait;
}

void Operations::excuse(Rank rank) {
  if (service_ != nullptr) service_->excuse(rank);
}

SleepPlace Operations::sleep_place(const Request& request) {
  if (!state_.context.mapped() || request.kind != RequestKind::kCollective) return {};
  collect_awaited(request, &awaited_);
  if (awaited_.empty()) return {};
  auto& wakeup = state_.context.control(awaited_.front()).wakeup;
  return {&wakeup.sleepers, &wakeup.wake};
}

}  // namespace weir::comm
