// SPDX-License-Identifier: Apache-2.0
#include "core/comm/group_fork.h"

#include <algorithm>
#include <utility>

#include "core/comm/communicator.h"
#include "core/comm/stream/stream_event.h"

namespace weir::comm {

namespace {

constexpr const char* kFunction = "weir_group_end";

bool is_on_callers_stream(const Request& request) {
  return request.is_of_device_side() && request.device->on_stream;
}

}  // namespace

GroupFork::Branch& GroupFork::branch_of(const Request& request, const StreamParts& parts) {
  const auto found = std::find_if(branches_.begin(), branches_.end(), [&](const Branch& it) {
    return it.comm == request.comm && it.of_caller == request.device->stream;
  });
  if (found != branches_.end()) return *found;
  return branches_.emplace_back(Branch{request.comm, parts, request.device->stream});
}

// Whether one stream may wait for the other: NULL and cudaStreamLegacy are one, and each blocking
// stream waits for it. CUDA knows which streams are such.
bool GroupFork::is_shared(const Branch& branch) const {
  const auto is_legacy = [](cuda::Stream stream) {
    return reinterpret_cast<uintptr_t>(stream) <= 1;
  };
  return std::any_of(branches_.begin(), branches_.end(), [&](const Branch& it) {
    return it.comm != branch.comm && (it.of_caller == branch.of_caller || is_legacy(it.of_caller) ||
                                      is_legacy(branch.of_caller));
  });
}

// Where CUDA refuses it, the call itself tells.
void GroupFork::fork(Branch& branch) {
  const StreamParts& parts = branch.parts;
  const cuda::Driver& driver = parts.memory->driver();
  const bool names_one = !cuda::is_default_stream(branch.of_caller);
  const cuda::ContextScope scope(driver, names_one ? branch.of_caller : nullptr,
                                 parts.memory->context());
  Capture capture;
  StreamLease own;
  if (!capture_of(driver, kFunction, branch.of_caller, &capture).ok() ||
      !parts.memory->fork_stream(kFunction, capture, &own).ok() ||
      !StreamEvent::follow(driver, kFunction, *own, branch.of_caller).ok()) {
    return;
  }
  branch.own = std::move(own);
}

void GroupFork::begin(const std::vector<Request*>& requests) {
  for (const Request* it : requests) {
    if (!is_on_callers_stream(*it)) continue;
    const StreamParts parts = it->comm->stream_parts();
    if (parts.memory != nullptr) branch_of(*it, parts);
  }
  for (Branch& it : branches_) {
    if (is_shared(it)) fork(it);
  }
  std::erase_if(branches_, [](const Branch& it) { return it.own == nullptr; });
  for (const Request* it : requests) {
    if (!is_on_callers_stream(*it)) continue;
    for (const Branch& branch : branches_) {
      if (branch.comm != it->comm || branch.of_caller != it->device->stream) continue;
      it->device->stream = *branch.own;
      break;
    }
  }
}

Status GroupFork::end() {
  Status first;
  for (const Branch& it : branches_) {
    const cuda::Driver& driver = it.parts.memory->driver();
    const cuda::ContextScope scope(driver, *it.own, it.parts.memory->context());
    const Status status =
        it.parts.explain_loss(StreamEvent::follow(driver, kFunction, it.of_caller, *it.own));
    if (status.ok()) continue;
    it.parts.owner->give_up(status, {});
    if (first.ok()) first = status;
  }
  branches_.clear();
  return first;
}

}  // namespace weir::comm
