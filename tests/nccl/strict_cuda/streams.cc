// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>

#include "nccl/strict_cuda/world.h"

using namespace strict_cuda;  // NOLINT: this is a part of it

namespace {

std::atomic_ref<uint32_t> flag(DevicePointer address) {
  return std::atomic_ref(*reinterpret_cast<uint32_t*>(static_cast<uintptr_t>(address)));
}

std::function<Work()> make_write(DevicePointer address, uint32_t value) {
  return [=]() -> Work {
    return [=] {
      flag(address).store(value);
      return true;
    };
  };
}

std::function<Work()> make_wait(DevicePointer address, uint32_t value, unsigned flags) {
  return [=]() -> Work {
    return [=] {
      const uint32_t now = flag(address).load();
      return flags == kWaitEqual ? now == value : static_cast<int32_t>(now - value) >= 0;
    };
  };
}

}  // namespace

STRICT_CUDA_API cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  if (t_context == nullptr) return kErrorInvalidContext;
  if (least != nullptr) *least = kPriorityLeast;
  if (greatest != nullptr) *greatest = kPriorityGreatest;
  return kSuccess;
}

STRICT_CUDA_API cuStreamCreate(Stream* stream, unsigned flags) {
  return cuStreamCreateWithPriority(stream, flags, kPriorityLeast);
}

STRICT_CUDA_API cuStreamCreateWithPriority(Stream* stream, unsigned, int priority) {
  World& it = world();
  const Submission submission(it);
  if (const Result error = error_of(it, t_context); error != kSuccess) return error;
  auto* made = new StreamState();
  made->context = t_context;
  made->priority = std::clamp(priority, kPriorityGreatest, kPriorityLeast);
  join_hardware_queue(it, made);
  it.streams.insert(made);
  *stream = made;
  return kSuccess;
}

STRICT_CUDA_API cuStreamDestroy_v2(Stream handle) {
  World& it = world();
  std::lock_guard lock(it.lock);
  StreamState* stream = find_stream(it, handle);
  if (stream == nullptr || stream == &it.legacy) return kErrorInvalidHandle;
  stream->destroyed = true;
  it.work.notify_all();
  return kSuccess;
}

STRICT_CUDA_API cuStreamGetCtx(Stream handle, Context* context) {
  World& it = world();
  std::lock_guard lock(it.lock);
  const StreamState* stream = find_stream(it, handle);
  const bool has_one = stream != nullptr && stream->context != nullptr;
  *context = has_one ? stream->context : t_context != nullptr ? t_context : &contexts[0];
  return kSuccess;
}

STRICT_CUDA_API cuStreamGetPriority(Stream handle, int* priority) {
  World& it = world();
  std::lock_guard lock(it.lock);
  const StreamState* stream = find_stream(it, handle);
  if (stream == nullptr) return kErrorInvalidHandle;
  *priority = stream->priority;
  return kSuccess;
}

STRICT_CUDA_API cuStreamSynchronize(Stream handle) {
  World& it = world();
  std::unique_lock lock(it.lock);
  StreamState* stream = find_stream(it, handle);
  if (stream == nullptr) return kErrorInvalidHandle;
  if (stream->capture != nullptr) {
    stream->capture->spoiled = true;
    return kErrorCaptureUnsupported;
  }
  const uint64_t point = stream->enqueued;
  it.moved.wait(lock, [&] { return stream->done >= point; });
  return kSuccess;
}

STRICT_CUDA_API cuStreamQuery(Stream handle) {
  World& it = world();
  std::lock_guard lock(it.lock);
  if (t_context == nullptr) return kErrorInvalidContext;
  StreamState* stream = find_stream(it, handle);
  if (stream == nullptr) return kErrorInvalidHandle;
  if (const Result error = error_of(it, stream->context); error != kSuccess) return error;
  return stream->queue.empty() ? kSuccess : 600;
}

STRICT_CUDA_API cuStreamWriteValue32_v2(Stream stream, DevicePointer address, uint32_t value,
                                        unsigned) {
  return issue("cuStreamWriteValue32", stream, make_write(address, value));
}

STRICT_CUDA_API cuStreamWaitValue32_v2(Stream stream, DevicePointer address, uint32_t value,
                                       unsigned flags) {
  return issue("cuStreamWaitValue32", stream, make_wait(address, value, flags));
}

STRICT_CUDA_API cuLaunchHostFunc(Stream stream, HostFunction function, void* argument) {
  return issue("cuLaunchHostFunc", stream, [=]() -> Work {
    return [=] {
      function(argument);
      return true;
    };
  });
}

STRICT_CUDA_API cuStreamBatchMemOp_v2(Stream stream, unsigned count, BatchEntry* entries,
                                      unsigned) {
  if (count > kBatchMax) return kErrorInvalidValue;
  std::vector<BatchEntry> all(entries, entries + count);
  return issue("cuStreamBatchMemOp", stream, [all]() -> Work {
    auto next = std::make_shared<size_t>(0);
    return [all, next] {
      for (; *next < all.size(); ++*next) {
        const BatchEntry& it = all[*next];
        const auto value = static_cast<uint32_t>(it.value);
        const auto make = it.operation == kWaitValue32 ? make_wait(it.address, value, it.flags)
                                                       : make_write(it.address, value);
        if (!make()()) return false;
      }
      return true;
    };
  });
}

STRICT_CUDA_API cuEventCreate(Event* event, unsigned) {
  World& it = world();
  std::lock_guard lock(it.lock);
  if (fault(it, "cuEventCreate")) return kErrorInjected;
  auto* made = new EventState();
  it.events.insert(made);
  *event = made;
  return kSuccess;
}

STRICT_CUDA_API cuEventDestroy_v2(Event handle) {
  World& it = world();
  std::lock_guard lock(it.lock);
  if (t_context == nullptr) return kErrorInvalidContext;
  auto* event = static_cast<EventState*>(handle);
  if (it.events.erase(event) == 0) return kErrorInvalidHandle;
  delete event;
  return kSuccess;
}

STRICT_CUDA_API cuEventRecord(Event handle, Stream stream_handle) {
  World& it = world();
  std::lock_guard lock(it.lock);
  if (fault(it, "cuEventRecord")) return kErrorInjected;
  auto* event = static_cast<EventState*>(handle);
  StreamState* stream = find_stream(it, stream_handle);
  if (it.events.count(event) == 0 || stream == nullptr) return kErrorInvalidHandle;
  event->stream = stream;
  event->point = stream->enqueued;
  event->capture = stream->capture;
  event->nodes = stream->last;
  event->launched = nullptr;
  return kSuccess;
}

namespace {

[[noreturn]] void gone(const char* what) {
  std::fprintf(stderr, "strict libcuda: a graph %s an event that was destroyed\n", what);
  std::abort();
}

}  // namespace

// Each launch is a record, from the moment of the launch on.
STRICT_CUDA_API cuEventRecordWithFlags(Event handle, Stream stream_handle, unsigned flags) {
  if (flags == 0) return cuEventRecord(handle, stream_handle);
  {
    World& it = world();
    std::lock_guard lock(it.lock);
    const StreamState* stream = find_stream(it, stream_handle);
    if (stream == nullptr) return kErrorInvalidHandle;
    if (flags != kEventRecordExternal || stream->capture == nullptr) return kErrorInvalidValue;
  }
  return issue("cuEventRecordWithFlags", stream_handle, [handle]() -> Work {
    auto* event = static_cast<EventState*>(handle);
    if (world().events.count(event) == 0) gone("records");
    auto done = std::make_shared<bool>(false);
    event->stream = nullptr;
    event->capture = nullptr;
    event->launched = done;
    return [done] {
      *done = true;
      return true;
    };
  });
}

namespace {

// What the latest record of the event by now stands for.
Work make_wait_for(const EventState& event) {
  if (event.launched != nullptr) return [done = event.launched] { return *done; };
  if (event.stream == nullptr) return [] { return true; };
  return [target = event.stream, point = event.point] { return target->done >= point; };
}

// Each launch waits for the latest record at that time.
Result wait_at_launch(Stream stream, Event handle) {
  return issue("cuStreamWaitEvent", stream, [handle]() -> Work {
    auto* event = static_cast<EventState*>(handle);
    if (world().events.count(event) == 0) gone("waits for");
    return make_wait_for(*event);
  });
}

}  // namespace

STRICT_CUDA_API cuStreamWaitEvent(Stream stream_handle, Event handle, unsigned flags) {
  World& it = world();
  if (flags == kEventWaitExternal) {
    const std::unique_lock lock(it.lock);
    const StreamState* stream = find_stream(it, stream_handle);
    if (it.events.count(static_cast<EventState*>(handle)) == 0 || stream == nullptr) {
      return kErrorInvalidHandle;
    }
    if (stream->capture == nullptr) return kErrorInvalidValue;
  }
  if (flags == kEventWaitExternal) return wait_at_launch(stream_handle, handle);
  Submission submission(it);
  if (fault(it, "cuStreamWaitEvent")) return kErrorInjected;
  auto* event = static_cast<EventState*>(handle);
  StreamState* stream = find_stream(it, stream_handle);
  if (it.events.count(event) == 0 || stream == nullptr) return kErrorInvalidHandle;
  if (event->capture != nullptr && it.captures.count(event->capture) != 0) {
    if (stream->capture == nullptr) {
      stream->capture = event->capture;
      stream->capture->streams.insert(stream);
      stream->last.clear();
    }
    if (stream->capture != event->capture) return kErrorCaptureIsolation;
    stream->last.insert(stream->last.end(), event->nodes.begin(), event->nodes.end());
    return kSuccess;
  }
  if (stream->capture != nullptr) {
    stream->capture->spoiled = true;
    return kErrorCaptureIsolation;
  }
  if (event->stream == nullptr && event->launched == nullptr) return kSuccess;
  submission.wait_for_room(*stream);
  push(it, stream, "cuStreamWaitEvent", make_wait_for(*event));
  return kSuccess;
}
