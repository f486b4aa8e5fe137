// SPDX-License-Identifier: Apache-2.0
#include "core/comm/operations.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "core/base/clock.h"
#include "core/engine/transport_lanes.h"

namespace weir::comm {

namespace {

constexpr const char* kOneSidedMessages = "one-sided messages";
constexpr const char* kTaggedMessages = "messages with tags";

void sort_unique(std::vector<Rank>* ranks) {
  std::sort(ranks->begin(), ranks->end());
  ranks->erase(std::unique(ranks->begin(), ranks->end()), ranks->end());
}

// Of a message.
RecordKind record_kind(RequestKind kind) {
  switch (kind) {
    case RequestKind::kSend:
      return RecordKind::kSend;
    case RequestKind::kTagSend:
      return RecordKind::kTagSend;
    case RequestKind::kTagRecv:
      return RecordKind::kTagRecv;
    default:
      return RecordKind::kRecv;
  }
}

void report_service(const ServiceFailure& from, const char* messages,
                    const std::string& transport_error, OperationFailure* failure) {
  const std::string text =
      from.text.empty() ? fmt::format("{} with rank {}: {}", messages, from.peer, transport_error)
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
      if (!service_->start(request, &it)) {
        report_service(it, kOneSidedMessages, state_.transport_error, failure);
      }
      break;
    }
    case RequestKind::kTagSend:
    case RequestKind::kTagRecv:
      return start_tagged(request, failure);
    case RequestKind::kSend:
    case RequestKind::kRecv:
      if (request.is_stream_message()) return device_side_.start(request);
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
  if (tags_ != nullptr && !failure->happened() && poll_tagged(failure)) moved = true;
  if (!failure->happened() && service_ != nullptr && poll_one_sided(failure)) moved = true;
  return moved || failure->happened();
}

// What concerns no operation yet is reported by the next one.
void Operations::tend(OperationFailure* failure) {
  const DeviceContext::Scope scope(messages_.device_context());
  const engine::Context& context = state_.context;
  if (!context.mapped()) (void)context.transport->progress(context.instance);
  if (tags_ != nullptr) poll_tagged(failure);
}

bool Operations::poll_one_sided(OperationFailure* failure) {
  OneSidedService::Failure it;
  const bool moved = service_->poll(&it);
  for (uint32_t ended = service_->take_ended(); ended > 0; --ended) service_requests_->end_watch();
  if (it.result != WEIR_OK) {
    report_service(it, kOneSidedMessages, state_.transport_error, failure);
  }
  return moved;
}

Status Operations::start_tagged(Request& request, OperationFailure* failure) {
  const engine::Context& context = state_.context;
  if (tags_ == nullptr) {
    const weir_transport_functions_t& transport = *context.transport;
    if ((transport.caps.bits & WEIR_CAP_SEND_RECV) == 0 || !engine::has_tag_lane(transport.caps)) {
      return Status(Code::kUnsupported,
                    fmt::format("transport '{}' has no lane for messages with tags; use weir_send "
                                "and weir_recv, or another transport",
                                transport.name));
    }
    tags_ = std::make_unique<TagService>(
        state_.context, engine::tag_lane(transport.caps),
        [this](Request& done, const Status& status) { requests_.complete(done, status); });
  }
  request.record = 0;
  if (state_.recorder.on()) {
    request.record =
        state_.recorder.message_begun(record_kind(request.kind), request.peer, request.bytes);
  }
  ServiceFailure it;
  Status status = tags_->start(request, &it);
  if (it.result != WEIR_OK) report_service(it, kTaggedMessages, state_.transport_error, failure);
  return status;
}

void Operations::send_rest() {
  constexpr uint64_t kRestNs = 200'000'000;
  const uint64_t end_ns = now_ns() + kRestNs;
  while (tags_ != nullptr && tags_->has_unsent() && !state_.failure.is_set() && now_ns() < end_ns) {
    OperationFailure failure;
    if (!poll_tagged(&failure)) sched_yield();
    if (failure.happened()) return;
  }
}

bool Operations::poll_tagged(OperationFailure* failure) {
  ServiceFailure it;
  const bool moved = tags_->poll(&it);
  if (it.result != WEIR_OK) report_service(it, kTaggedMessages, state_.transport_error, failure);
  return moved;
}

void Operations::fail_all(const Status& status) {
  // A caller that learns of the failure may free its buffers.
  const bool one_sided = service_ != nullptr && !service_->is_idle();
  const bool tagged = tags_ != nullptr && !tags_->is_idle();
  if (state_.failure.is_set() || !queue_.is_empty() || !messages_.posted().empty() || one_sided ||
      tagged) {
    state_.context.quiesce();
  }
  queue_.fail_all(status);
  messages_.fail_all(status);
  if (tags_ != nullptr) tags_->fail_all(status);
  if (service_ != nullptr) service_->fail_all(status);
  device_side_.fail_all(status);
}

// ---- What is waited for -------------------------------------------------------------------------

bool Operations::any() const {
  return !queue_.is_empty() || !messages_.is_empty() || !device_side_.is_empty() ||
         !device_side_.messages().is_empty() || (tags_ != nullptr && !tags_->is_idle()) ||
         (service_ != nullptr && !service_->is_idle());
}

void Operations::collect_may_send(std::vector<Rank>* ranks) const {
  for (Rank p = 0; p < state_.rank_count(); ++p) {
    if (p != state_.rank() && !reports_.is_gone(p)) ranks->push_back(p);
  }
}

void Operations::collect_awaited(const Request& request, std::vector<Rank>* ranks) const {
  ranks->clear();
  switch (request.kind) {
    case RequestKind::kSend:
    case RequestKind::kRecv:
      if (!waits_for_stream(request)) ranks->push_back(request.peer);
      return;
    case RequestKind::kOneSided:
      if (request.one_sided == nullptr) {
        ranks->push_back(request.peer);
      } else if (request.one_sided->kind != OneSidedKind::kWaitSignal) {
        service_->collect_awaited(request, ranks);
      } else {
        collect_may_send(ranks);  // signals
      }
      break;
    case RequestKind::kTagSend:
    case RequestKind::kTagRecv: {
      const std::optional<Rank> awaited = TagService::awaited(request);
      if (!awaited) {
        collect_may_send(ranks);
      } else if (*awaited != state_.rank()) {
        ranks->push_back(*awaited);
      }
      return;
    }
    case RequestKind::kDevice:
      if (DeviceSide::waits_for_stream(request)) break;
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

std::string Operations::other_end_of(const Request& request) const {
  if (request.kind == RequestKind::kTagRecv && tags_ != nullptr) return tags_->others_for(request);
  const bool sends = request.kind == RequestKind::kSend;
  if ((!sends && request.kind != RequestKind::kRecv) || request.is_of_device_side() ||
      !device_side_.messages().waits_on_device(request.peer, sends)) {
    return "";
  }
  return fmt::format(
      "; rank {} {} on a device, and this one lies in memory of the host: both ends of a message "
      "must lie in the same kind of memory",
      request.peer, sends ? "receives a message" : "has sent a message");
}

std::string Operations::calls_on_devices() const {
  std::string why_not;
  const StreamMemory* memory = device_side_.stream_memory(&why_not);
  return memory == nullptr ? "" : memory->calls_ahead();
}

void Operations::collect_awaited_by_all(std::vector<Rank>* ranks) const {
  ranks->clear();
  if (!queue_.is_empty()) collect_awaited(*queue_.first(), ranks);
  if (!device_side_.is_empty()) collect_awaited(*device_side_.first(), ranks);
  std::vector<Rank> some;
  const auto add_all = [&](const std::vector<Request*>& requests) {
    for (const Request* request : requests) {
      collect_awaited(*request, &some);
      ranks->insert(ranks->end(), some.begin(), some.end());
      sort_unique(ranks);
    }
  };
  if (service_ != nullptr) add_all(service_->requests());
  if (tags_ != nullptr) add_all(tags_->requests());
  device_side_.messages().collect_peers(&some);
  ranks->insert(ranks->end(), some.begin(), some.end());
  sort_unique(ranks);
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
  wait.kind = record_kind(request.kind);
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
