// SPDX-License-Identifier: Apache-2.0
#include "hostcuda/core/event.h"

#include <chrono>

#include "hostcuda/core/capture.h"
#include "hostcuda/core/device.h"
#include "hostcuda/core/handles.h"
#include "hostcuda/core/operation.h"
#include "hostcuda/core/pool.h"

namespace weir::hostcuda {

namespace {

constexpr auto kCancelCheck = std::chrono::milliseconds(20);

HandleTable<Event>& events() {
  static auto* const table = new HandleTable<Event>;
  return *table;
}

}  // namespace

void Completion::finish() {
  if (shared_ != nullptr) return shared_->finish(number_);
  const int64_t now = std::chrono::duration_cast<std::chrono::nanoseconds>(
                          std::chrono::steady_clock::now().time_since_epoch())
                          .count();
  const std::lock_guard lock(mutex_);
  done_ = true;
  time_ns_ = now;
  finished_.notify_all();
}

bool Completion::done() const {
  if (shared_ != nullptr) return shared_->done(number_);
  const std::lock_guard lock(mutex_);
  return done_;
}

void Completion::wait() const {
  if (shared_ != nullptr) return shared_->wait(number_, nullptr);
  std::unique_lock lock(mutex_);
  finished_.wait(lock, [&] { return done_; });
}

void Completion::wait(const Cancel& cancel) const {
  if (shared_ != nullptr) return shared_->wait(number_, &cancel);
  std::unique_lock lock(mutex_);
  while (!done_ && !cancel.load()) finished_.wait_for(lock, kCancelCheck);
}

int64_t Completion::time_ns() const {
  const std::lock_guard lock(mutex_);
  return time_ns_;
}

std::shared_ptr<Completion> Event::renew() {
  auto completion = shared == nullptr ? std::make_shared<Completion>()
                                      : std::make_shared<Completion>(shared, shared->begin());
  const std::lock_guard lock(mutex);
  last = completion;
  capture_id = 0;
  captured.clear();
  return completion;
}

std::shared_ptr<Completion> Event::current() {
  if (shared != nullptr) return std::make_shared<Completion>(shared, shared->latest());
  const std::lock_guard lock(mutex);
  return last;
}

Error create_event(unsigned flags, void** handle) {
  Device* const device = current_device();
  if (device == nullptr) return Error::kNoDevice;
  if ((flags & ~7u) != 0) return Error::kInvalidValue;
  auto event = std::make_shared<Event>();
  if ((flags & kEventInterprocess) != 0) {
    if ((flags & kEventDisableTiming) == 0) return Error::kInvalidValue;
    const Error error = SharedMark::create(&event->shared);
    if (error != Error::kSuccess) return error;
  }
  event->flags = flags;
  event->device = device->index;
  *handle = events().add(std::move(event));
  return Error::kSuccess;
}

Error destroy_event(void* handle) {
  return events().take(handle) == nullptr ? Error::kInvalidHandle : Error::kSuccess;
}

Error export_event(const void* handle, IpcHandle* out) {
  const EventRef event = find_event(handle);
  if (event == nullptr || event->shared == nullptr) return Error::kInvalidHandle;
  return event->shared->give(out) == Error::kSuccess ? Error::kSuccess : Error::kInvalidHandle;
}

Error open_event(const IpcHandle& handle, void** out) {
  *out = nullptr;
  Device* const device = current_device();
  if (device == nullptr) return Error::kNoDevice;
  auto event = std::make_shared<Event>();
  event->flags = kEventDisableTiming | kEventInterprocess;
  event->device = device->index;
  const Error error = SharedMark::open(handle, &event->shared);
  if (error == Error::kSuccess) *out = events().add(std::move(event));
  return error;
}

EventRef find_event(const void* handle) { return events().find(handle); }

Error record_event(void* event_handle, void* stream_handle, bool external) {
  const EventRef event = find_event(event_handle);
  const StreamRef stream = find_stream(stream_handle);
  if (event == nullptr || stream == nullptr) return Error::kInvalidHandle;
  if (in_host_function()) return Error::kNotPermitted;
  if (event->device != stream->device().index) return Error::kInvalidHandle;
  if (stream->capture.load() != nullptr) {
    return external ? capture_operation(stream, RecordOperation{event})
                    : capture_record(stream, *event);
  }
  if (external) return Error::kInvalidValue;
  if (const Error error = check_implicit(stream); error != Error::kSuccess) return error;
  return enqueue(stream, [completion = event->renew()](const Cancel&) { completion->finish(); });
}

Error wait_event(void* stream_handle, void* event_handle, bool external) {
  const EventRef event = find_event(event_handle);
  const StreamRef stream = find_stream(stream_handle);
  if (event == nullptr || stream == nullptr) return Error::kInvalidHandle;
  if (in_host_function()) return Error::kNotPermitted;
  bool handled = false;
  const Error captured = capture_wait(stream, event, external, &handled);
  if (handled || captured != Error::kSuccess) return captured;
  if (external) return Error::kInvalidValue;
  if (const Error error = check_implicit(stream); error != Error::kSuccess) return error;
  auto completion = event->current();
  if (completion == nullptr || completion->done()) {
    // Nothing is left to wait for. In the legacy stream even that is an action, which joins the
    // blocking streams (CUDA, "Stream synchronization behavior").
    if (stream->kind() != StreamKind::kLegacy) return Error::kSuccess;
    return enqueue(stream, [](const Cancel&) {});
  }
  return enqueue(stream, [completion = std::move(completion)](const Cancel& cancel) {
    completion->wait(cancel);
  });
}

namespace {

// An event whose last record was captured has no state to query.
Error check_event(const EventRef& event) {
  if (event == nullptr) return Error::kInvalidHandle;
  if (in_host_function()) return Error::kNotPermitted;
  if (const Error error = check_unsafe(); error != Error::kSuccess) return error;
  const std::lock_guard lock(event->mutex);
  return event->capture_id != 0 ? Error::kCapturedEvent : Error::kSuccess;
}

}  // namespace

Error query_event(void* handle) {
  const EventRef event = find_event(handle);
  if (const Error error = check_event(event); error != Error::kSuccess) return error;
  const auto completion = event->current();
  if (completion != nullptr && !completion->done()) return Error::kNotReady;
  return device_at(event->device)->failure();
}

Error synchronize_event(void* handle) {
  const EventRef event = find_event(handle);
  if (const Error error = check_event(event); error != Error::kSuccess) return error;
  const auto completion = event->current();
  if (completion != nullptr) completion->wait();
  trim_pools_to_thresholds();
  return device_at(event->device)->failure();
}

Error elapsed_ms(void* start_handle, void* end_handle, float* out) {
  const EventRef start = find_event(start_handle);
  const EventRef end = find_event(end_handle);
  for (const EventRef& event : {start, end}) {
    if (const Error error = check_event(event); error != Error::kSuccess) return error;
    if ((event->flags & kEventDisableTiming) != 0) return Error::kInvalidHandle;
  }
  const auto begun = start->current();
  const auto ended = end->current();
  if (begun == nullptr || ended == nullptr) return Error::kInvalidHandle;
  if (!begun->done() || !ended->done()) return Error::kNotReady;
  *out = static_cast<float>(static_cast<double>(ended->time_ns() - begun->time_ns()) * 1e-6);
  return Error::kSuccess;
}

void forget_events(int device) {
  events().invalidate_if([&](Event& event) {
    if (event.device != device) return false;
    event.shared.reset();
    return true;
  });
}

}  // namespace weir::hostcuda
