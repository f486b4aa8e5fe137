// SPDX-License-Identifier: Apache-2.0
#include "hostcuda/core/stream.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <system_error>
#include <utility>

#include "hostcuda/core/device.h"
#include "hostcuda/core/threads.h"

namespace weir::hostcuda {

namespace {

std::atomic<uint64_t> next_id{1};
constexpr auto kCancelCheck = std::chrono::milliseconds(20);

}  // namespace

Stream::Stream(Device& device, StreamKind kind, int priority)
    : device_(device), kind_(kind), priority_(priority), id_(next_id.fetch_add(1)) {}

Error Stream::submit(std::vector<Position> after, Work work) {
  const std::lock_guard lock(mutex_);
  if (retired_) return Error::kInvalidHandle;
  queue_.push_back({std::move(after), std::move(work)});
  if (!started_) {
    if (!start_thread([self = shared_from_this()] { self->run(); })) {
      queue_.pop_back();
      return Error::kOutOfMemory;
    }
    started_ = true;
  }
  ++submitted_;
  has_work_.notify_one();
  return Error::kSuccess;
}

uint64_t Stream::submitted() const {
  const std::lock_guard lock(mutex_);
  return submitted_;
}

bool Stream::reached(uint64_t index) const {
  const std::lock_guard lock(mutex_);
  return completed_ >= index;
}

void Stream::wait(uint64_t index) const {
  std::unique_lock lock(mutex_);
  progressed_.wait(lock, [&] { return completed_ >= index; });
}

void Stream::wait(uint64_t index, const Cancel& cancel) const {
  std::unique_lock lock(mutex_);
  while (completed_ < index && !cancel.load()) progressed_.wait_for(lock, kCancelCheck);
}

void Stream::retire() {
  bool idle = false;
  {
    const std::lock_guard lock(mutex_);
    retired_ = true;
    has_work_.notify_one();
    idle = !started_;
  }
  if (idle) device_.forget(this);
}

bool Stream::retired() const {
  const std::lock_guard lock(mutex_);
  return retired_;
}

StreamAttributes Stream::attributes() const {
  const std::lock_guard lock(mutex_);
  return attributes_;
}

void Stream::set_attributes(const StreamAttributes& attributes) {
  const std::lock_guard lock(mutex_);
  attributes_ = attributes;
}

void Stream::cancel() { cancelled_.store(true); }

void Stream::run() {
  for (;;) {
    Item item;
    {
      std::unique_lock lock(mutex_);
      has_work_.wait(lock, [&] { return !queue_.empty() || retired_; });
      if (queue_.empty()) break;
      item = std::move(queue_.front());
      queue_.pop_front();
    }
    for (const Position& position : item.after) {
      position.stream->wait(position.index, cancelled_);
    }
    item.work(cancelled_);
    // What the work held must be released before the host sees it done.
    item = Item{};
    const std::lock_guard lock(mutex_);
    ++completed_;
    progressed_.notify_all();
  }
  device_.forget(this);
}

Error enqueue(const StreamRef& stream, Work work, Position* position) {
  Device& device = stream->device();
  if (const Error error = device.failure(); error != Error::kSuccess) return error;
  const std::lock_guard lock(device.order);
  std::vector<Position> after;
  const auto add = [&](const StreamRef& other) {
    const uint64_t index = other->submitted();
    if (!other->reached(index)) after.push_back({other, index});
  };
  if (stream->kind() == StreamKind::kLegacy) {
    for (const StreamRef& other : device.streams()) {
      if (other->blocking() && other != stream) add(other);
    }
  } else if (stream->blocking() && device.legacy_if_any() != nullptr) {
    add(device.legacy_if_any());
  }
  const Error error = stream->submit(std::move(after), std::move(work));
  if (position != nullptr) *position = {stream, stream->submitted()};
  return error;
}

std::vector<Position> pending(const StreamRef& stream) {
  Device& device = stream->device();
  const std::lock_guard lock(device.order);
  std::vector<Position> positions{{stream, stream->submitted()}};
  if (stream->kind() == StreamKind::kLegacy) {
    for (const StreamRef& other : device.streams()) {
      if (other->blocking() && other != stream) positions.push_back({other, other->submitted()});
    }
  } else if (const StreamRef& legacy = device.legacy_if_any();
             stream->blocking() && legacy != nullptr) {
    // Each action in the legacy stream makes all blocking streams wait for it.
    positions.push_back({legacy, legacy->submitted()});
  }
  return positions;
}

std::vector<Position> pending(Device& device) {
  const std::lock_guard lock(device.order);
  std::vector<Position> positions;
  for (const StreamRef& stream : device.streams()) {
    positions.push_back({stream, stream->submitted()});
  }
  return positions;
}

}  // namespace weir::hostcuda
