// SPDX-License-Identifier: Apache-2.0
#include "nccl/strict_cuda/world.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace strict_cuda {

int contexts[kContextCount];
thread_local Context t_context = nullptr;
thread_local int t_mode = 0;

namespace {

constexpr int kThreadLocal = 1;

std::mutex& lock_of(Context context) {
  static auto* const locks = new std::mutex[kContextCount];
  return locks[index_of(context)];
}

void read_settings(World& it) {
  const char* const queues = std::getenv("STRICT_CUDA_QUEUES");
  const char* const count = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  if (queues != nullptr && std::strcmp(queues, "endless") == 0) {
    it.connections = 0;
  } else if (count != nullptr) {
    it.connections = static_cast<size_t>(std::clamp(std::atoi(count), 1, 32));
  }
  it.priorities_share = std::getenv("STRICT_CUDA_PRIORITIES") != nullptr;
}

// Whether its work stands first in its queue, or has left it.
bool is_first(const StreamState& stream) {
  return stream.shared == nullptr || stream.runs_kernel || stream.shared->front() == &stream;
}

// Carries out what is first in the stream. False: it is to be asked again.
bool carry_out(StreamState& stream) {
  const bool is_kernel = std::strcmp(stream.names.front(), "cuLaunchKernel") == 0;
  if (stream.shared != nullptr && is_kernel && !stream.runs_kernel) {
    stream.shared->pop_front();
    stream.runs_kernel = true;
  }
  if (!stream.queue.front()()) return false;
  stream.queue.pop_front();
  stream.names.pop_front();
  if (stream.shared != nullptr && !stream.runs_kernel) stream.shared->pop_front();
  stream.runs_kernel = false;
  return true;
}

// What stands in the streams, for who looks for the reason of a hang.
void tell(const World& it) {
  for (const StreamState* stream : it.streams) {
    if (stream->queue.empty()) continue;
    std::fprintf(stderr, "stream %p, device %zu, priority %d, queue %zu%s:",
                 static_cast<const void*>(stream), index_of(stream->context), stream->priority,
                 stream->queue_number, is_first(*stream) ? ", first in it" : "");
    size_t said = 0;
    for (const char* name : stream->names) {
      if (said++ == 8) break;
      std::fprintf(stderr, " %s", name);
    }
    std::fprintf(stderr, ", %zu in all\n", stream->queue.size());
  }
}

void serve(World& it) {
  const char* const tells = std::getenv("STRICT_CUDA_TELLS");
  auto moved_at = std::chrono::steady_clock::now();
  bool told = tells == nullptr;
  std::unique_lock lock(it.lock);
  for (;;) {
    bool any = false;
    bool moved = false;
    std::vector<StreamState*> gone;
    for (StreamState* stream : it.streams) {
      while (!stream->queue.empty() && error_of(it, stream->context) == kSuccess) {
        any = true;
        if (!is_first(*stream) || !carry_out(*stream)) break;
        ++stream->done;
        moved = true;
      }
      if (stream->destroyed && stream->queue.empty()) gone.push_back(stream);
    }
    for (StreamState* stream : gone) {
      it.streams.erase(stream);
      it.ended.emplace_back(stream);
    }
    while (!it.doomed.empty()) {
      Object* object = it.doomed.front();
      it.doomed.pop_front();
      lock.unlock();
      object->destroy(object->argument);
      delete object;
      lock.lock();
      --it.objects;
      moved = true;
    }
    if (moved) moved_at = std::chrono::steady_clock::now();
    if (!told && any && std::chrono::steady_clock::now() - moved_at > std::chrono::seconds(3)) {
      told = true;
      tell(it);
    }
    if (moved) {
      // Look again: more may have come while the lock was free.
      it.moved.notify_all();
    } else if (any) {
      it.work.wait_for(lock, std::chrono::microseconds(20));
    } else {
      it.work.wait(lock);
    }
  }
}

}  // namespace

World& world() {
  static World* it = [] {
    auto* made = new World();
    read_settings(*made);
    join_hardware_queue(*made, &made->legacy);
    made->streams.insert(&made->legacy);
    std::thread([made] { serve(*made); }).detach();
    return made;
  }();
  return *it;
}

Submission::Submission(World& it) : world_(it), context_(lock_of(t_context)), lock_(it.lock) {}

void Submission::wait_for_room(const StreamState& stream) {
  world_.moved.wait(lock_, [&] {
    const size_t held = stream.shared != nullptr ? stream.shared->size() : stream.queue.size();
    return held < world_.queue_max;
  });
}

void Submission::wait_for_device() {
  world_.moved.wait(lock_, [&] {
    for (const StreamState* stream : world_.streams) {
      if (index_of(stream->context) == index_of(t_context) && !stream->queue.empty()) return false;
    }
    return true;
  });
}

bool fault(World& it, const char* function) {
  const auto found = it.faults.find(function);
  if (found == it.faults.end() || found->second-- > 0) return false;
  it.faults.erase(found);
  return true;
}

bool is_like_a_driver(const World& it) { return it.connections != 0; }

size_t index_of(Context context) {
  return context == nullptr ? 0 : static_cast<size_t>(static_cast<int*>(context) - contexts);
}

void join_hardware_queue(World& it, StreamState* stream) {
  if (!is_like_a_driver(it)) return;
  const int priority = it.priorities_share ? kPriorityLeast : stream->priority;
  HardwareQueues& queues = it.hardware[index_of(stream->context)][priority];
  queues.all.resize(it.connections);
  stream->queue_number = queues.streams_made++ % it.connections;
  stream->shared = &queues.all[stream->queue_number];
}

StreamState* find_stream(World& it, Stream handle) {
  if (handle == nullptr) return t_context == nullptr ? nullptr : &it.legacy;
  auto* stream = static_cast<StreamState*>(handle);
  return it.streams.count(stream) != 0 && !stream->destroyed ? stream : nullptr;
}

void push(World& it, StreamState* stream, const char* function, Work work) {
  stream->queue.push_back(std::move(work));
  stream->names.push_back(function);
  if (stream->shared != nullptr) stream->shared->push_back(stream);
  ++stream->enqueued;
  it.work.notify_all();
}

Result issue(const char* function, Stream handle, std::function<Work()> make) {
  World& it = world();
  Submission submission(it);
  if (fault(it, function)) return kErrorInjected;
  if (t_context == nullptr) return kErrorInvalidContext;
  StreamState* stream = find_stream(it, handle);
  if (stream == nullptr) return kErrorInvalidHandle;
  if (const Result error = error_of(it, t_context); error != kSuccess) return error;
  if (stream->capture != nullptr) {
    if (stream->capture->spoiled) return kErrorCaptureInvalidated;
    stream->capture->nodes.push_back({std::move(make), stream->last});
    stream->last = {stream->capture->nodes.size() - 1};
    return kSuccess;
  }
  submission.wait_for_room(*stream);
  push(it, stream, function, make());
  return kSuccess;
}

Result error_of(const World& it, Context context) {
  const auto found = it.lost.find(context);
  return found == it.lost.end() ? kSuccess : found->second;
}

Result forbidden(World& it, const char* function) {
  if (fault(it, function)) return kErrorInjected;
  if (t_mode == kCaptureModeRelaxed) return kSuccess;
  bool any = false;
  for (Recorded* capture : it.captures) {
    const bool mine = capture->owner == std::this_thread::get_id();
    if (capture->mode == kCaptureModeRelaxed || (capture->mode == kThreadLocal && !mine)) continue;
    capture->spoiled = any = true;
  }
  return any ? kErrorCaptureUnsupported : kSuccess;
}

const Memory* find_device(World& it, uintptr_t address, uintptr_t* base) {
  auto at = it.device.upper_bound(address);
  if (at == it.device.begin()) return nullptr;
  --at;
  if (address >= at->first + at->second.bytes) return nullptr;
  *base = at->first;
  return &at->second;
}

bool may_touch(const World& it, Context context, const Memory& memory) {
  if (memory.physical != nullptr) return memory.given.count(context) != 0;
  return memory.context == context || it.access.count({context, memory.context}) != 0;
}

char* reach(World& it, DevicePointer pointer, size_t bytes) {
  auto address = static_cast<uintptr_t>(pointer);
  uintptr_t base = 0;
  const Memory* memory = find_device(it, address, &base);
  if (memory == nullptr) return reinterpret_cast<char*>(address);
  char* const first = memory->real + (address - base);
  for (const char* at = first;;) {
    if (memory->physical != nullptr && memory->given.empty()) return nullptr;
    const size_t here = base + memory->bytes - address;
    if (bytes <= here) return first;
    bytes -= here;
    address += here;
    at += here;
    const bool was_mapped = memory->physical != nullptr;
    memory = find_device(it, address, &base);
    if (!was_mapped || memory == nullptr || memory->real != at) return nullptr;
  }
}

}  // namespace strict_cuda
