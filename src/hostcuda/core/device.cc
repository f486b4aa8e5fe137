// SPDX-License-Identifier: Apache-2.0
#include "hostcuda/core/device.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "hostcuda/core/capture.h"
#include "hostcuda/core/event.h"
#include "hostcuda/core/handles.h"
#include "hostcuda/core/memory.h"
#include "hostcuda/core/per_thread.h"
#include "hostcuda/core/pool.h"
#include "hostcuda/core/settings.h"

namespace weir::hostcuda {

namespace {

std::atomic<bool> was_forked{false};
std::atomic<bool> are_made{false};
std::atomic<bool> has_initialized{false};

// Never destroyed: workers may outlive the static objects of the program.
struct Devices {
  std::vector<std::unique_ptr<Device>> all;
  HandleTable<Stream> streams;
};

Devices& devices() {
  static Devices* const instance = [] {
    auto* made = new Devices;
    const DeviceSettings& settings = device_settings();
    for (const int machine_index : settings.visible) {
      const int index = static_cast<int>(made->all.size());
      made->all.push_back(std::make_unique<Device>(index, machine_index, settings.device_bytes));
    }
    are_made.store(true, std::memory_order_release);
    pthread_atfork(nullptr, nullptr, [] { was_forked.store(true); });
    return made;
  }();
  return *instance;
}

thread_local int chosen = -1;
thread_local bool inside_host_function = false;

// The thread's own default streams; when the thread ends, they finish their work and are destroyed.
struct OwnStreams {
  std::vector<std::pair<int, StreamRef>> by_device;
  ~OwnStreams() {
    for (auto& entry : by_device) entry.second->retire();
  }
};
OwnStreams& own_streams() { return PerThread<OwnStreams>::get(); }

StreamRef per_thread_stream(Device& device) {
  for (auto& [index, stream] : own_streams().by_device) {
    if (index != device.index) continue;
    // Another thread may have reset the device.
    if (stream->retired()) stream = device.make_stream(StreamKind::kPerThread, kPriorityLow);
    return stream;
  }
  StreamRef made = device.make_stream(StreamKind::kPerThread, kPriorityLow);
  own_streams().by_device.emplace_back(device.index, made);
  return made;
}

void wait_for(const std::vector<Position>& positions) {
  for (const Position& position : positions) position.stream->wait(position.index);
}

}  // namespace

StreamRef Device::make_stream(StreamKind kind, int priority) {
  auto stream = std::make_shared<Stream>(*this, kind, priority);
  const std::lock_guard lock(order);
  streams_.push_back(stream);
  return stream;
}

void Device::fail() {
  failed_.store(true);
  std::vector<StreamRef> all;
  {
    const std::lock_guard lock(order);
    all = streams_;
  }
  for (const StreamRef& stream : all) stream->cancel();
}

StreamRef Device::legacy() {
  const std::lock_guard lock(order);
  if (legacy_ == nullptr) {
    legacy_ = std::make_shared<Stream>(*this, StreamKind::kLegacy, kPriorityLow);
    streams_.push_back(legacy_);
  }
  return legacy_;
}

void Device::forget(const Stream* stream) {
  StreamRef last;  // destroyed after the lock is released
  const std::lock_guard lock(order);
  const auto at = std::find_if(streams_.begin(), streams_.end(),
                               [&](const StreamRef& other) { return other.get() == stream; });
  if (at != streams_.end()) {
    last = std::move(*at);
    streams_.erase(at);
  }
  if (legacy_.get() == stream) legacy_.reset();
}

int device_count() { return static_cast<int>(devices().all.size()); }

size_t used_bytes(int machine_index) {
  // To ask is no use of CUDA, after which a forked child could not use it.
  if (!are_made.load(std::memory_order_acquire)) return 0;
  for (const auto& device : devices().all) {
    if (device->machine_index != machine_index) continue;
    return device->arena.total_bytes() - device->arena.free_bytes();
  }
  return 0;
}

Device* device_at(int index) {
  auto& all = devices().all;
  if (index < 0 || index >= static_cast<int>(all.size())) return nullptr;
  return all[static_cast<size_t>(index)].get();
}

bool is_initialized() { return has_initialized.load(std::memory_order_acquire); }
void mark_initialized() {
  if (!is_initialized() && device_count() > 0) {
    has_initialized.store(true, std::memory_order_release);
  }
}

int chosen_device() { return chosen; }
void choose_device(int index) { chosen = index; }

Device* current_device() { return device_at(chosen < 0 ? 0 : chosen); }

Error check_process() { return was_forked.load() ? Error::kNotInitialized : Error::kSuccess; }

bool in_host_function() { return inside_host_function; }

HostFunctionScope::HostFunctionScope(Device& device) : lock_(device.host_functions) {
  inside_host_function = true;
}
HostFunctionScope::~HostFunctionScope() { inside_host_function = false; }

StreamRef find_stream(const void* handle) {
  const auto number = reinterpret_cast<uintptr_t>(handle);
  if (number > kPerThreadHandle) return devices().streams.find(handle);
  Device* const device = current_device();
  if (device == nullptr) return nullptr;
  return number == kPerThreadHandle ? per_thread_stream(*device) : device->legacy();
}

Error create_stream(bool blocking, int priority, void** handle) {
  Device* const device = current_device();
  if (device == nullptr) return Error::kNoDevice;
  const int clamped = std::clamp(priority, kPriorityHigh, kPriorityLow);
  *handle = devices().streams.add(
      device->make_stream(blocking ? StreamKind::kBlocking : StreamKind::kNonBlocking, clamped));
  return Error::kSuccess;
}

Error destroy_stream(void* handle) {
  const StreamRef stream = devices().streams.take(handle);
  if (stream == nullptr) return Error::kInvalidHandle;
  abandon_capture(stream);
  stream->retire();
  return Error::kSuccess;
}

Error query_stream(const void* handle) {
  const StreamRef stream = find_stream(handle);
  if (stream == nullptr) return Error::kInvalidHandle;
  if (const Error error = check_wait(stream); error != Error::kSuccess) return error;
  for (const Position& position : pending(stream)) {
    if (!position.stream->reached(position.index)) return Error::kNotReady;
  }
  return stream->device().failure();
}

Error synchronize_stream(const void* handle) {
  const StreamRef stream = find_stream(handle);
  if (stream == nullptr) return Error::kInvalidHandle;
  if (in_host_function()) return Error::kNotPermitted;
  if (const Error error = check_wait(stream); error != Error::kSuccess) return error;
  wait_for(pending(stream));
  trim_pools_to_thresholds();
  return stream->device().failure();
}

Error synchronize_device(Device& device) {
  if (in_host_function()) return Error::kNotPermitted;
  if (const Error error = check_device_wait(device); error != Error::kSuccess) return error;
  wait_for(pending(device));
  trim_pools_to_thresholds();
  return device.failure();
}

void synchronize_all() {
  for (const auto& device : devices().all) wait_for(pending(*device));
}

Error reset_device(Device& device) {
  if (in_host_function()) return Error::kNotPermitted;
  std::vector<StreamRef> streams;
  {
    const std::lock_guard lock(device.order);
    streams = device.streams();
  }
  for (const StreamRef& stream : streams) {
    abandon_capture(stream);
    stream->cancel();
  }
  for (const Position& position : pending(device)) position.stream->wait(position.index);
  devices().streams.invalidate_if([&](Stream& stream) {
    if (&stream.device() != &device) return false;
    stream.retire();
    return true;
  });
  for (const StreamRef& stream : streams) {
    if (stream->kind() == StreamKind::kLegacy || stream->kind() == StreamKind::kPerThread) {
      stream->retire();
      device.forget(stream.get());
    }
  }
  auto& own = own_streams().by_device;
  own.erase(std::remove_if(own.begin(), own.end(),
                           [&](const auto& entry) { return entry.first == device.index; }),
            own.end());
  forget_events(device.index);
  forget_allocations(device.index);
  clear_pools(device);
  const std::lock_guard lock(device.state);
  device.peers = 0;
  device.flags = 0;
  device.active = false;
  device.current_pool.reset();
  device.default_pool.reset();
  return Error::kSuccess;
}

}  // namespace weir::hostcuda
