// SPDX-License-Identifier: Apache-2.0
#include "nccl/strict_cuda/strict_cuda.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "nccl/kernels/reduce_host.h"

namespace {

using namespace weir::cuda;  // NOLINT: this file is that library

// ---- What streams hold --------------------------------------------------------------------------

// Returns true when it is done; false to be asked again.
using Work = std::function<bool()>;

struct Node {
  // Makes the work of one launch.
  std::function<Work()> make;
  std::vector<size_t> after;
};

struct Object {
  HostFunction destroy = nullptr;
  void* argument = nullptr;
  int references = 0;
};

struct Recorded {
  uint64_t id = 0;
  std::vector<Node> nodes;
  std::vector<Object*> objects;
  bool spoiled = false;
  int mode = 0;
  std::thread::id owner;
  std::set<void*> streams;
};

struct StreamState {
  std::deque<Work> queue;
  uint64_t enqueued = 0;
  uint64_t done = 0;
  bool destroyed = false;
  Recorded* capture = nullptr;
  bool origin = false;
  std::vector<size_t> last;  // nodes on which the next one depends
};

struct EventState {
  StreamState* stream = nullptr;
  uint64_t point = 0;
  Recorded* capture = nullptr;
  std::vector<size_t> nodes;
};

struct Memory {
  size_t bytes = 0;
  char* real = nullptr;  // where this library reaches it
  Context context = nullptr;
};

struct World {
  std::mutex lock;
  std::condition_variable work;
  std::condition_variable moved;
  std::set<StreamState*> streams;
  std::vector<std::unique_ptr<StreamState>> ended;  // events may still name them
  std::set<EventState*> events;
  std::map<uintptr_t, Memory> device;
  std::map<uintptr_t, size_t> pinned;
  std::set<Recorded*> captures;
  std::deque<Object*> doomed;
  std::map<std::string, int> faults;
  std::set<std::pair<Context, Context>>
      access;  // the first one's kernels, to the second one's memory
  int objects = 0;
  int host_copies = 0;
  int kernels = 0;
  uint64_t next_capture = 1;
  StreamState legacy;
};

void serve(World& it);

// Threads use it until the process ends: never destroyed.
World& world() {
  static World* it = [] {
    auto* made = new World();
    made->streams.insert(&made->legacy);
    std::thread([made] { serve(*made); }).detach();
    return made;
  }();
  return *it;
}

constexpr int kThreadLocal = 1;
thread_local int t_mode = 0;
thread_local Context t_context = nullptr;
int contexts[16];

bool fault(World& it, const char* function) {
  const auto found = it.faults.find(function);
  if (found == it.faults.end() || found->second-- > 0) return false;
  it.faults.erase(found);
  return true;
}

void serve(World& it) {
  std::unique_lock lock(it.lock);
  for (;;) {
    bool any = false;
    bool moved = false;
    std::vector<StreamState*> gone;
    for (StreamState* stream : it.streams) {
      while (!stream->queue.empty()) {
        any = true;
        if (!stream->queue.front()()) break;
        stream->queue.pop_front();
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
    if (moved) it.moved.notify_all();
    if (!any && it.doomed.empty()) {
      it.work.wait(lock);
    } else if (!moved) {
      it.work.wait_for(lock, std::chrono::microseconds(20));
    }
  }
}

StreamState* find_stream(World& it, Stream handle) {
  if (handle == nullptr) return t_context == nullptr ? nullptr : &it.legacy;
  auto* stream = static_cast<StreamState*>(handle);
  return it.streams.count(stream) != 0 && !stream->destroyed ? stream : nullptr;
}

void push(World& it, StreamState* stream, Work work) {
  stream->queue.push_back(std::move(work));
  ++stream->enqueued;
  it.work.notify_all();
}

// Enqueues, or records.
Result issue(const char* function, Stream handle, std::function<Work()> make) {
  World& it = world();
  std::lock_guard lock(it.lock);
  if (fault(it, function)) return kErrorInjected;
  StreamState* stream = find_stream(it, handle);
  if (stream == nullptr) return kErrorInvalidHandle;
  if (stream->capture != nullptr) {
    if (stream->capture->spoiled) return kErrorCaptureInvalidated;
    stream->capture->nodes.push_back({std::move(make), stream->last});
    stream->last = {stream->capture->nodes.size() - 1};
    return kSuccess;
  }
  push(it, stream, make());
  return kSuccess;
}

// A call that no capture allows, but in a relaxed thread.
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

// Where this library reaches the bytes; nullptr when they leave an allocation of the device.
char* reach(World& it, DevicePointer pointer, size_t bytes) {
  const auto address = static_cast<uintptr_t>(pointer);
  uintptr_t base = 0;
  const Memory* memory = find_device(it, address, &base);
  if (memory == nullptr) return reinterpret_cast<char*>(address);
  if (address - base + bytes > memory->bytes) return nullptr;
  return memory->real + (address - base);
}

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

void drop(World& it, Object* object) {
  if (--object->references == 0) {
    it.doomed.push_back(object);
    it.work.notify_all();
  }
}

// All nodes of a graph, each as soon as those before it are done.
Work make_launch(const Recorded* graph) {
  struct State {
    std::vector<Work> work;
    std::vector<char> done;
    size_t left = 0;
  };
  auto state = std::make_shared<State>();
  for (const Node& node : graph->nodes) state->work.push_back(node.make());
  state->done.resize(graph->nodes.size());
  state->left = graph->nodes.size();
  std::vector<std::vector<size_t>> after;
  for (const Node& node : graph->nodes) after.push_back(node.after);
  return [state, after] {
    for (size_t i = 0; i < after.size(); ++i) {
      if (state->done[i] != 0) continue;
      bool ready = true;
      for (const size_t before : after[i]) ready = ready && state->done[before] != 0;
      if (!ready || !state->work[i]()) continue;
      state->done[i] = 1;
      --state->left;
    }
    return state->left == 0;
  };
}

void release_graph(World& it, Recorded* graph) {
  for (Object* object : graph->objects) drop(it, object);
  delete graph;
}

}  // namespace

// ---- Errors, contexts ---------------------------------------------------------------------------

STRICT_CUDA_API cuInit(unsigned) { return kSuccess; }

STRICT_CUDA_API cuGetErrorName(Result error, const char** name) {
  static const std::map<Result, const char*> names = {
      {kErrorInvalidValue, "CUDA_ERROR_INVALID_VALUE"},
      {kErrorInvalidContext, "CUDA_ERROR_INVALID_CONTEXT"},
      {kErrorInvalidHandle, "CUDA_ERROR_INVALID_HANDLE"},
      {kErrorCaptureUnsupported, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
      {kErrorCaptureInvalidated, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"},
      {kErrorCaptureIsolation, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION"},
      {kErrorNotFound, "CUDA_ERROR_NOT_FOUND"},
      {kErrorInjected, "CUDA_ERROR_UNKNOWN"}};
  const auto found = names.find(error);
  *name = found == names.end() ? nullptr : found->second;
  return found == names.end() ? kErrorInvalidValue : kSuccess;
}
STRICT_CUDA_API cuGetErrorString(Result error, const char** text) {
  return cuGetErrorName(error, text);
}

STRICT_CUDA_API cuDevicePrimaryCtxRetain(Context* context, Device device) {
  if (device < 0 || device >= 16) return kErrorInvalidValue;
  *context = &contexts[device];
  return kSuccess;
}
STRICT_CUDA_API cuCtxSetCurrent(Context context) {
  t_context = context;
  return kSuccess;
}
STRICT_CUDA_API cuCtxGetCurrent(Context* context) {
  *context = t_context;
  return kSuccess;
}
STRICT_CUDA_API cuCtxGetDevice(Device* device) {
  if (t_context == nullptr) return kErrorInvalidContext;
  *device = static_cast<Device>(static_cast<int*>(t_context) - contexts);
  return kSuccess;
}
STRICT_CUDA_API cuCtxPushCurrent_v2(Context context) {
  if (t_context != nullptr) return kErrorInvalidValue;  // one level is enough here
  t_context = context;
  return kSuccess;
}
STRICT_CUDA_API cuCtxPopCurrent_v2(Context* context) {
  *context = t_context;
  t_context = nullptr;
  return kSuccess;
}

// ---- Memory -------------------------------------------------------------------------------------

STRICT_CUDA_API cuMemAlloc_v2(DevicePointer* memory, size_t bytes) {
  World& it = world();
  std::lock_guard lock(it.lock);
  if (const Result result = forbidden(it, "cuMemAlloc"); result != kSuccess) return result;
  const int file = memfd_create("device", MFD_CLOEXEC);
  const size_t mapped = (bytes + 4095) / 4096 * 4096;
  if (file < 0 || ftruncate(file, static_cast<off_t>(mapped)) != 0) return kErrorInvalidValue;
  void* real = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  void* shown =
      mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  close(file);
  if (real == MAP_FAILED || shown == MAP_FAILED) return kErrorInvalidValue;
  std::memset(real, 0xa5, mapped);
  const auto address = reinterpret_cast<uintptr_t>(shown);
  it.device[address] = {bytes, static_cast<char*>(real),
                        t_context != nullptr ? t_context : &contexts[0]};
  *memory = address;
  return kSuccess;
}

STRICT_CUDA_API cuMemFree_v2(DevicePointer memory) {
  World& it = world();
  std::lock_guard lock(it.lock);
  const auto found = it.device.find(static_cast<uintptr_t>(memory));
  if (found == it.device.end()) return kErrorInvalidValue;
  const size_t mapped = (found->second.bytes + 4095) / 4096 * 4096;
  munmap(found->second.real, mapped);
  munmap(reinterpret_cast<void*>(found->first), mapped);
  it.device.erase(found);
  return kSuccess;
}

STRICT_CUDA_API cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
  World& it = world();
  std::lock_guard lock(it.lock);
  if (const Result result = forbidden(it, "cuMemHostAlloc"); result != kSuccess) return result;
  if (t_context == nullptr) return kErrorInvalidContext;
  *memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  it.pinned[reinterpret_cast<uintptr_t>(*memory)] = bytes;
  return kSuccess;
}

STRICT_CUDA_API cuMemFreeHost(void* memory) {
  World& it = world();
  std::lock_guard lock(it.lock);
  if (it.pinned.erase(reinterpret_cast<uintptr_t>(memory)) == 0) return kErrorInvalidValue;
  std::free(memory);
  return kSuccess;
}

STRICT_CUDA_API cuPointerGetAttributes(unsigned count, int* attributes, void** data,
                                       DevicePointer pointer) {
  World& it = world();
  std::lock_guard lock(it.lock);
  uintptr_t base = 0;
  const Memory* memory = find_device(it, static_cast<uintptr_t>(pointer), &base);
  const bool device = memory != nullptr;
  for (unsigned i = 0; i < count; ++i) {
    if (attributes[i] == kAttributeMemoryType) {
      *static_cast<unsigned*>(data[i]) = device ? kMemoryDevice : 0;
    } else if (attributes[i] == kAttributeIsManaged) {
      *static_cast<int*>(data[i]) = 0;
    } else if (attributes[i] == kAttributeContext && device) {
      *static_cast<Context*>(data[i]) = memory->context;
    } else if (attributes[i] == kAttributeDeviceOrdinal && device) {
      *static_cast<int*>(data[i]) = static_cast<int>(static_cast<int*>(memory->context) - contexts);
    } else if (attributes[i] == kAttributeIsIpcCapable) {
      *static_cast<bool*>(data[i]) = device;
    } else {
      return kErrorInvalidValue;
    }
  }
  return kSuccess;
}

STRICT_CUDA_API cuMemcpyAsync(DevicePointer to, DevicePointer from, size_t bytes, Stream stream) {
  return issue("cuMemcpyAsync", stream, [=]() -> Work {
    return [=] {
      char* target = reach(world(), to, bytes);
      const char* source = reach(world(), from, bytes);
      if (target == nullptr || source == nullptr) {
        std::fprintf(stderr, "strict libcuda: a copy of %zu bytes leaves its allocation\n", bytes);
        std::abort();
      }
      const auto on_device = [](DevicePointer pointer) {
        uintptr_t base = 0;
        return find_device(world(), static_cast<uintptr_t>(pointer), &base) != nullptr;
      };
      if (on_device(to) != on_device(from)) ++world().host_copies;
      std::memcpy(target, source, bytes);
      return true;
    };
  });
}

// ---- Kernels ------------------------------------------------------------------------------------

namespace {

constexpr size_t kElementBytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
int module_of_all = 0;
int functions[weir::kernels::kReduceCount];  // only their addresses count

// What a kernel of the context may touch, as this library reaches it; all else ends the process.
char* reach_from(Context context, const void* pointer, size_t bytes) {
  World& it = world();
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  uintptr_t base = 0;
  const Memory* memory = find_device(it, address, &base);
  const bool allowed = memory != nullptr && (memory->context == context ||
                                             it.access.count({context, memory->context}) != 0);
  char* reached = allowed ? reach(it, address, bytes) : nullptr;
  if (reached != nullptr) return reached;
  std::fprintf(stderr, "strict libcuda: a kernel touches %zu bytes that are not for it\n", bytes);
  std::abort();
}

}  // namespace

STRICT_CUDA_API cuCtxEnablePeerAccess(Context peer, unsigned) {
  World& it = world();
  std::lock_guard lock(it.lock);
  if (const Result result = forbidden(it, "cuCtxEnablePeerAccess"); result != kSuccess) {
    return result;
  }
  if (t_context == nullptr || peer == t_context) return kErrorInvalidContext;
  return it.access.insert({t_context, peer}).second ? kSuccess : kErrorPeerAlreadyEnabled;
}

STRICT_CUDA_API cuModuleLoadData(Module* module, const void* image) {
  World& it = world();
  std::lock_guard lock(it.lock);
  if (const Result result = forbidden(it, "cuModuleLoadData"); result != kSuccess) return result;
  if (t_context == nullptr) return kErrorInvalidContext;
  if (image == nullptr) return kErrorInvalidValue;
  *module = &module_of_all;
  return kSuccess;
}

STRICT_CUDA_API cuModuleGetFunction(Function* function, Module, const char* name) {
  for (uint32_t i = 0; i < weir::kernels::kReduceCount; ++i) {
    if (std::strcmp(name, weir::kernels::kReduceNames[i]) == 0) {
      *function = &functions[i];
      return kSuccess;
    }
  }
  return kErrorNotFound;
}

STRICT_CUDA_API cuLaunchKernel(Function function, unsigned grid_x, unsigned, unsigned,
                               unsigned block_x, unsigned, unsigned, unsigned, Stream stream,
                               void** arguments, void**) {
  const auto type = static_cast<uint32_t>(static_cast<int*>(function) - functions);
  auto given = *static_cast<const weir::kernels::ReduceArguments*>(arguments[0]);
  const Context context = t_context;
  return issue("cuLaunchKernel", stream, [=]() -> Work {
    return [=] {
      auto all = given;
      const size_t bytes = all.count * kElementBytes[type];
      for (uint32_t i = 0; i < all.source_count; ++i) {
        all.sources[i] = reach_from(context, all.sources[i], bytes);
      }
      for (uint32_t i = 0; i < all.destination_count; ++i) {
        all.destinations[i] = reach_from(context, all.destinations[i], bytes);
      }
      weir::kernels::reduce_on_host(type, all, uint64_t{grid_x} * block_x);
      ++world().kernels;
      return true;
    };
  });
}

// ---- Streams, events ----------------------------------------------------------------------------

STRICT_CUDA_API cuStreamCreate(Stream* stream, unsigned) {
  World& it = world();
  std::lock_guard lock(it.lock);
  auto* made = new StreamState();
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

STRICT_CUDA_API cuStreamGetCtx(Stream, Context* context) {
  *context = t_context != nullptr ? t_context : &contexts[0];
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
  StreamState* stream = find_stream(it, handle);
  if (stream == nullptr) return kErrorInvalidHandle;
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
  return kSuccess;
}

STRICT_CUDA_API cuStreamWaitEvent(Stream stream_handle, Event handle, unsigned) {
  World& it = world();
  std::lock_guard lock(it.lock);
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
  if (event->stream == nullptr) return kSuccess;
  push(it, stream,
       [target = event->stream, point = event->point] { return target->done >= point; });
  return kSuccess;
}

// ---- Capture, graphs ----------------------------------------------------------------------------

STRICT_CUDA_API cuThreadExchangeStreamCaptureMode(int* mode) {
  std::swap(t_mode, *mode);
  return kSuccess;
}

STRICT_CUDA_API cuStreamBeginCapture_v2(Stream handle, int mode) {
  World& it = world();
  std::lock_guard lock(it.lock);
  StreamState* stream = find_stream(it, handle);
  if (stream == nullptr || stream == &it.legacy) return kErrorInvalidHandle;
  auto* made = new Recorded();
  made->id = it.next_capture++;
  made->mode = mode;
  made->owner = std::this_thread::get_id();
  made->streams.insert(stream);
  it.captures.insert(made);
  stream->capture = made;
  stream->origin = true;
  stream->last.clear();
  return kSuccess;
}

STRICT_CUDA_API cuStreamEndCapture(Stream handle, Graph* graph) {
  World& it = world();
  std::lock_guard lock(it.lock);
  StreamState* stream = find_stream(it, handle);
  if (stream == nullptr || stream->capture == nullptr || !stream->origin) return kErrorInvalidValue;
  Recorded* capture = stream->capture;
  it.captures.erase(capture);
  for (void* member : capture->streams) {
    static_cast<StreamState*>(member)->capture = nullptr;
    static_cast<StreamState*>(member)->origin = false;
  }
  *graph = nullptr;
  if (capture->spoiled) {
    release_graph(it, capture);
    return kErrorCaptureInvalidated;
  }
  *graph = capture;
  return kSuccess;
}

STRICT_CUDA_API cuStreamIsCapturing(Stream handle, int* status) {
  World& it = world();
  std::lock_guard lock(it.lock);
  if (fault(it, "cuStreamIsCapturing")) return kErrorInjected;
  StreamState* stream = find_stream(it, handle);
  if (stream == nullptr) return kErrorInvalidHandle;
  *status = stream->capture == nullptr ? kCaptureNone
            : stream->capture->spoiled ? kCaptureInvalidated
                                       : kCaptureActive;
  return kSuccess;
}

STRICT_CUDA_API cuStreamGetCaptureInfo_v3(Stream handle, int* status, uint64_t* id, Graph* graph,
                                          const void**, const void**, size_t*) {
  const Result result = cuStreamIsCapturing(handle, status);
  if (result != kSuccess || *status != kCaptureActive) return result;
  World& it = world();
  std::lock_guard lock(it.lock);
  Recorded* capture = find_stream(it, handle)->capture;
  *id = capture->id;
  *graph = capture;
  return kSuccess;
}

STRICT_CUDA_API cuUserObjectCreate(UserObject* object, void* argument, HostFunction destroy,
                                   unsigned references, unsigned) {
  World& it = world();
  std::lock_guard lock(it.lock);
  if (fault(it, "cuUserObjectCreate")) return kErrorInjected;
  *object = new Object{destroy, argument, static_cast<int>(references)};
  ++it.objects;
  return kSuccess;
}

STRICT_CUDA_API cuUserObjectRelease(UserObject object, unsigned count) {
  World& it = world();
  std::lock_guard lock(it.lock);
  for (unsigned i = 0; i < count; ++i) drop(it, static_cast<Object*>(object));
  return kSuccess;
}

STRICT_CUDA_API cuGraphRetainUserObject(Graph graph, UserObject object, unsigned count, unsigned) {
  World& it = world();
  std::lock_guard lock(it.lock);
  if (fault(it, "cuGraphRetainUserObject")) return kErrorInjected;
  for (unsigned i = 0; i < count; ++i) {
    static_cast<Recorded*>(graph)->objects.push_back(static_cast<Object*>(object));
  }
  return kSuccess;
}

STRICT_CUDA_API cuGraphInstantiateWithFlags(GraphExec* exec, Graph graph, unsigned long long) {
  World& it = world();
  std::lock_guard lock(it.lock);
  auto* made = new Recorded(*static_cast<Recorded*>(graph));
  for (Object* object : made->objects) ++object->references;
  *exec = made;
  return kSuccess;
}

STRICT_CUDA_API cuGraphLaunch(GraphExec exec, Stream handle) {
  World& it = world();
  std::lock_guard lock(it.lock);
  StreamState* stream = find_stream(it, handle);
  if (stream == nullptr) return kErrorInvalidHandle;
  push(it, stream, make_launch(static_cast<Recorded*>(exec)));
  return kSuccess;
}

STRICT_CUDA_API cuGraphDestroy(Graph graph) {
  World& it = world();
  std::lock_guard lock(it.lock);
  release_graph(it, static_cast<Recorded*>(graph));
  return kSuccess;
}
STRICT_CUDA_API cuGraphExecDestroy(GraphExec exec) { return cuGraphDestroy(exec); }

// ---- For tests ----------------------------------------------------------------------------------

extern "C" void strict_cuda_fail(const char* function, int calls) {
  World& it = world();
  std::lock_guard lock(it.lock);
  it.faults[function] = calls;
}

extern "C" int strict_cuda_user_objects() {
  World& it = world();
  std::lock_guard lock(it.lock);
  return it.objects;
}

extern "C" int strict_cuda_host_copies() {
  World& it = world();
  std::lock_guard lock(it.lock);
  return it.host_copies;
}

extern "C" int strict_cuda_kernels() {
  World& it = world();
  std::lock_guard lock(it.lock);
  return it.kernels;
}
