// SPDX-License-Identifier: Apache-2.0
// Messages on memory of devices: whether the transport takes them, and how they wait for the stream that they go
// by. A message is posted when its stream has come to the call, and behind all earlier ones with the same
// peer in the same direction, since the k-th of them meets the peer's k-th.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "core/comm/communicator.h"
#include "core/comm/device_memory.h"

namespace weir::comm {

namespace {

bool share_an_order(const Request& a, const Request& b) {
  const bool whole = a.kind == RequestKind::kAllToAllV || b.kind == RequestKind::kAllToAllV;
  return whole || (a.kind == b.kind && a.peer == b.peer);
}

}  // namespace

bool Communicator::takes_device_messages(Rank peer, int device) {
  if ((context_.transport->caps.bits & WEIR_CAP_DEVICE_MEMORY) == 0) return false;
  char reason[512] = "";
  std::lock_guard lock(lock_);
  const bool other_device = message_device_ != nullptr && message_device_->device() != device;
  return !other_device && context_.transport->device_viable(context_.instance, peer, device, reason,
                                                            sizeof reason) == WEIR_OK;
}

int Communicator::passes_on_device(Rank peer, const void* buffer) {
  if ((context_.transport->caps.bits & WEIR_CAP_DEVICE_MEMORY) == 0 || !look_for_driver()) {
    return -1;
  }
  const int device = device_of_memory(buffer);
  return device >= 0 && takes_device_messages(peer, device) ? device : -1;
}

Status Communicator::route_message(Request& request, int device) {
  std::lock_guard lock(lock_);
  const weir_transport_functions_t& transport = *context_.transport;
  const auto lies = [&] {
    return fmt::format("the buffer of a {} lies on device {}", describe(request), device);
  };
  if ((transport.caps.bits & WEIR_CAP_DEVICE_MEMORY) == 0) {
    return Status(Code::kUnsupported,
                  fmt::format("{}: messages take memory of the host over transport '{}'; a "
                              "collective such as all_to_all_v takes that of devices",
                              lies(), transport.name));
  }
  char reason[512] = "";
  const weir_result_t result =
      transport.device_viable(context_.instance, request.peer, device, reason, sizeof reason);
  if (result != WEIR_OK) {
    const std::string text = result == WEIR_ERROR_UNSUPPORTED
                                 ? std::string(reason, strnlen(reason, sizeof reason))
                                 : transport_error_;
    return Status(static_cast<Code>(result),
                  fmt::format("{}: {}; copy to memory of the host", lies(), text));
  }
  if (message_device_ == nullptr) {
    auto opened = DeviceContext::open(device);
    if (!opened.ok()) return opened.status().with_context(lies());
    message_device_ = opened.take();
  }
  if (message_device_->device() != device) {
    return invalid_argument(
        fmt::format("{}: rank {} of '{}' works on device {}, where its first message on device "
                    "memory was; another device needs another communicator",
                    lies(), context_.rank, name_, message_device_->device()));
  }
  auto call = std::make_unique<DeviceCall>();
  call->device = device;
  if (on_stream_) {
    const auto mark = message_device_->mark(stream_);
    if (!mark.ok()) return mark.status().with_context(lies());
    call->mark = mark.value();
  }
  request.device = std::move(call);
  return Status();
}

bool Communicator::post_waiting() {
  bool moved = false;
  for (size_t i = 0; i < waiting_.size();) {
    Request& request = *waiting_[i];
    const auto here = waiting_.begin() + static_cast<std::ptrdiff_t>(i);
    bool held = std::any_of(waiting_.begin(), here, [&](const Request* earlier) {
      return share_an_order(*earlier, request);
    });
    if (!held && request.device != nullptr && request.device->mark != nullptr) {
      const Result<bool> reached = message_device_->reached(request.device->mark);
      if (!reached.ok()) {
        fail(reached.status().with_context(describe(request)));
        return true;
      }
      held = !reached.value();
      if (!held) drop_mark(request);
    }
    if (held) {
      ++i;
      continue;
    }
    waiting_.erase(here);
    moved = true;
    post(request);
    // Then none waits any more.
    if (failed_code_.load(std::memory_order_relaxed) != 0) return true;
  }
  return moved;
}

bool Communicator::is_waiting(const Request& request) const {
  return std::find(waiting_.begin(), waiting_.end(), &request) != waiting_.end();
}

void Communicator::drop_mark(Request& request) {
  if (request.device == nullptr || request.device->mark == nullptr) return;
  message_device_->remove(request.device->mark);
  request.device->mark = nullptr;
}

}  // namespace weir::comm
