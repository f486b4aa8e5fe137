// SPDX-License-Identifier: Apache-2.0
#include "core/comm/messages/messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "core/comm/device/device_memory.h"
#include "core/comm/requests/request_text.h"
#include "core/engine/transport_lanes.h"

namespace weir::comm {

namespace {

constexpr uint32_t kLane = engine::kMessageLane;

bool share_an_order(const Request& a, const Request& b) {
  return a.kind == b.kind && a.peer == b.peer;
}

}  // namespace

// ---- Memory of devices --------------------------------------------------------------------------

bool Messages::takes_device(Rank peer, int device) {
  const engine::Context& context = state_.context;
  if ((context.transport->caps.bits & WEIR_CAP_DEVICE_MEMORY) == 0) return false;
  char reason[512] = "";
  std::lock_guard lock(state_.lock);
  const bool other_device = device_ != nullptr && device_->device() != device;
  return !other_device && context.transport->device_viable(context.instance, peer, device, reason,
                                                           sizeof reason) == WEIR_OK;
}

int Messages::device_of(Rank peer, const void* buffer) {
  if ((state_.context.transport->caps.bits & WEIR_CAP_DEVICE_MEMORY) == 0 || !look_for_driver()) {
    return -1;
  }
  const int device = device_of_memory(buffer);
  return device >= 0 && takes_device(peer, device) ? device : -1;
}

Status Messages::take_device_buffer(Request& request, int device, const std::string& not_direct) {
  std::lock_guard lock(state_.lock);
  const engine::Context& context = state_.context;
  const weir_transport_functions_t& transport = *context.transport;
  const auto lies = [&] {
    return fmt::format("the buffer of a {} lies on device {}", describe(request, state_), device);
  };
  if ((transport.caps.bits & WEIR_CAP_DEVICE_MEMORY) == 0) {
    return Status(Code::kUnsupported,
                  fmt::format("{}: transport '{}' sends messages from host memory only; copy the "
                              "data to host memory, or use a collective such as all_to_all_v{}{}",
                              lies(), transport.name,
                              not_direct.empty() ? ""
                                                 : "; directly between the devices it is not "
                                                   "possible: ",
                              not_direct));
  }
  char reason[512] = "";
  const weir_result_t result =
      transport.device_viable(context.instance, request.peer, device, reason, sizeof reason);
  if (result != WEIR_OK) {
    const std::string text = result == WEIR_ERROR_UNSUPPORTED
                                 ? std::string(reason, strnlen(reason, sizeof reason))
                                 : state_.transport_error;
    return Status(static_cast<Code>(result),
                  fmt::format("{}: {}; copy the data to host memory", lies(), text));
  }
  if (device_ == nullptr) {
    auto opened = DeviceContext::open(device);
    if (!opened.ok()) return opened.status().with_context(lies());
    device_ = opened.take();
  }
  if (device_->device() != device) {
    return invalid_argument(
        fmt::format("{}: rank {} of '{}' uses device {}, on which its first message on device "
                    "memory was; create another communicator for another device",
                    lies(), context.rank, state_.name, device_->device()));
  }
  auto call = std::make_unique<DeviceCall>();
  call->device = device;
  if (devices_.on_stream()) {
    auto mark = device_->mark(devices_.stream());
    if (!mark.ok()) return mark.status().with_context(lies());
    call->mark = mark.take();
  }
  request.device = std::move(call);
  return Status();
}

// ---- From the start to the end ------------------------------------------------------------------

void Messages::record(Request& request, bool is_done) {
  if (!state_.recorder.on() || request.record != 0) return;
  const RecordKind kind =
      request.kind == RequestKind::kSend ? RecordKind::kSend : RecordKind::kRecv;
  if (is_done) return state_.recorder.message_done(kind, request.peer, request.bytes);
  request.record = state_.recorder.message_begun(kind, request.peer, request.bytes);
}

void Messages::start(Request& request, OperationFailure* failure) {
  request.started = true;
  if (waiting_.empty() && (request.device == nullptr || request.device->mark == nullptr)) {
    post(request, failure);
  } else {
    record(request, false);
    waiting_.push_back(&request);
  }
}

void Messages::post(Request& request, OperationFailure* failure) {
  const DeviceContext::Scope scope(device_.get());
  const engine::Context& context = state_.context;
  const weir_transport_functions_t& transport = *context.transport;
  const bool sends = request.kind == RequestKind::kSend;
  const engine::Call& call = request.call;
  weir_result_t result = WEIR_OK;
  if (request.device == nullptr) {
    result = sends ? transport.send(context.instance, request.peer, kLane, call.input,
                                    request.bytes, &request.op)
                   : transport.recv(context.instance, request.peer, kLane, call.output,
                                    request.bytes, &request.op);
  } else {
    const int device = request.device->device;
    result = sends ? transport.device_send(context.instance, request.peer, kLane, call.input,
                                           request.bytes, device, &request.op)
                   : transport.device_recv(context.instance, request.peer, kLane, call.output,
                                           request.bytes, device, &request.op);
  }
  // Only now: of a message that is done a single record is written.
  record(request, result == WEIR_OK);
  if (result == WEIR_OK) return requests_.complete(request, Status());
  if (result == WEIR_IN_PROGRESS) {
    posted_.push_back(&request);
    return;
  }
  const Status status(static_cast<Code>(result),
                      fmt::format("{} rank {}: {}", sends ? "send to" : "receive from",
                                  request.peer, state_.transport_error));
  // Nothing has been posted.
  if (request.device != nullptr && result == WEIR_ERROR_UNSUPPORTED) {
    return requests_.complete(request, status);
  }
  posted_.push_back(&request);  // ends with all others
  failure->status = status;
  failure->request = &request;
}

bool Messages::post_waiting(OperationFailure* failure) {
  bool moved = false;
  for (size_t i = 0; i < waiting_.size();) {
    Request& request = *waiting_[i];
    const auto here = waiting_.begin() + static_cast<std::ptrdiff_t>(i);
    bool held = std::any_of(waiting_.begin(), here, [&](const Request* earlier) {
      return share_an_order(*earlier, request);
    });
    if (!held && request.device != nullptr && request.device->mark != nullptr) {
      const Result<bool> reached = device_->reached(request.device->mark);
      if (!reached.ok()) {
        failure->status = reached.status().with_context(describe(request, state_));
        failure->request = &request;
        return true;
      }
      held = !reached.value();
      if (!held) request.device->mark.reset();
    }
    if (held) {
      ++i;
      continue;
    }
    waiting_.erase(here);
    moved = true;
    post(request, failure);
    if (failure->happened()) return true;
  }
  return moved;
}

bool Messages::poll(OperationFailure* failure) {
  bool moved = !waiting_.empty() && post_waiting(failure);
  if (failure->happened() || posted_.empty()) return moved;
  const engine::Context& context = state_.context;
  context.transport->progress(context.instance);
  for (size_t i = 0; i < posted_.size();) {
    Request& request = *posted_[i];
    const weir_result_t result = context.transport->test(context.instance, &request.op);
    if (result == WEIR_IN_PROGRESS) {
      ++i;
      continue;
    }
    if (result != WEIR_OK) {
      failure->status =
          Status(static_cast<Code>(result),
                 fmt::format("message with rank {}: {}", request.peer, state_.transport_error));
      failure->request = &request;
      return true;
    }
    requests_.complete(request, Status());
    moved = true;
    posted_[i] = posted_.back();
    posted_.pop_back();
  }
  return moved;
}

void Messages::fail_all(const Status& status) {
  for (Request* request : posted_) requests_.complete(*request, status);
  posted_.clear();
  for (Request* request : waiting_) requests_.complete(*request, status);
  waiting_.clear();
}

bool Messages::waits_for_stream(const Request& request) const {
  return std::find(waiting_.begin(), waiting_.end(), &request) != waiting_.end();
}

}  // namespace weir::comm
