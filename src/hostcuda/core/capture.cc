// SPDX-License-Identifier: Apache-2.0
#include "hostcuda/core/capture.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "hostcuda/core/graph.h"
#include "hostcuda/core/per_thread.h"

namespace weir::hostcuda {

class Capture {
 public:
  uint64_t id = 0;
  CaptureMode mode = CaptureMode::kGlobal;
  std::thread::id thread;
  StreamRef origin;
  GraphRef graph;
  void* handle = nullptr;  // of the graph, which a program may ask for before the end
  bool given = false;      // the program's own graph
  bool spoiled = false;
  std::unordered_map<Stream*, std::vector<Node*>> heads;  // predecessors of the next node
  std::unordered_map<Stream*, StreamRef> members;
  std::unordered_set<const Node*> made;     // by this capture
  std::unordered_set<const Node*> excused;  // dropped by update_capture: need not be joined
};

namespace {

// Guarded by graph_lock().
std::vector<std::unique_ptr<Capture>>& captures() {
  static auto* const all = new std::vector<std::unique_ptr<Capture>>;
  return *all;
}

std::atomic<size_t> capture_count{0};  // lets calls skip the lock while nothing is captured
std::atomic<uint64_t> next_id{1};
thread_local CaptureMode thread_mode = CaptureMode::kGlobal;
// What a thread was shown last.
struct Shown {
  std::vector<Node*> heads;
};

void end(Capture* capture) {
  for (auto& [stream, reference] : capture->members) stream->capture.store(nullptr);
  auto& all = captures();
  all.erase(std::find_if(all.begin(), all.end(),
                         [&](const auto& other) { return other.get() == capture; }));
  capture_count.store(all.size());
}

void join(Capture* capture, const StreamRef& stream, std::vector<Node*> heads) {
  capture->members.emplace(stream.get(), stream);
  capture->heads[stream.get()] = std::move(heads);
  stream->capture.store(capture);
}

void add_heads(std::vector<Node*>* heads, const std::vector<Node*>& more) {
  for (Node* node : more) {
    if (std::find(heads->begin(), heads->end(), node) == heads->end()) heads->push_back(node);
  }
}

Capture* find_capture(uint64_t id) {
  for (const auto& capture : captures()) {
    if (capture->id == id) return capture.get();
  }
  return nullptr;
}

Error add(Capture* capture, const StreamRef& stream, Operation operation) {
  if (capture == nullptr) return Error::kIllegalState;
  if (capture->spoiled) return Error::kCaptureInvalidated;
  auto& heads = capture->heads[stream.get()];
  Node* const node = capture->graph->add(std::move(operation), heads);
  capture->made.insert(node);
  heads.assign(1, node);
  return Error::kSuccess;
}

bool joined(const Capture& capture) {
  const auto& heads = capture.heads.at(capture.origin.get());
  std::unordered_set<const Node*> followed;
  for (const auto& node : capture.graph->nodes) {
    followed.insert(node->after.begin(), node->after.end());
  }
  for (const Node* node : capture.made) {
    if (followed.contains(node) || capture.excused.contains(node)) continue;
    if (std::find(heads.begin(), heads.end(), node) == heads.end()) return false;
  }
  return true;
}

}  // namespace

Error begin_capture(const void* handle, CaptureMode mode, void* graph_handle,
                    const void* const* after, size_t count) {
  const StreamRef stream = find_stream(handle);
  if (stream == nullptr) return Error::kInvalidHandle;
  if (in_host_function()) return Error::kNotPermitted;
  if (static_cast<int>(mode) < 0 || mode > CaptureMode::kRelaxed) return Error::kInvalidValue;
  if (stream->kind() == StreamKind::kLegacy) return Error::kCaptureUnsupported;
  const std::lock_guard lock(graph_lock());
  if (stream->capture.load() != nullptr) return Error::kIllegalState;
  auto made = std::make_unique<Capture>();
  std::vector<Node*> heads;
  if (graph_handle != nullptr) {
    made->graph = find_graph(graph_handle);
    made->handle = graph_handle;
    made->given = true;
    if (made->graph == nullptr || (count > 0 && after == nullptr)) return Error::kInvalidValue;
    for (size_t i = 0; i < count; ++i) {
      auto* const node = const_cast<Node*>(static_cast<const Node*>(after[i]));
      if (!made->graph->owns(node)) return Error::kInvalidValue;
      heads.push_back(node);
    }
  } else {
    made->graph = std::make_shared<Graph>();
    made->handle = publish_graph(made->graph);
  }
  made->id = next_id.fetch_add(1);
  made->mode = mode;
  made->thread = std::this_thread::get_id();
  made->origin = stream;
  join(made.get(), stream, std::move(heads));
  captures().push_back(std::move(made));
  capture_count.store(captures().size());
  return Error::kSuccess;
}

Error end_capture(const void* handle, void** graph) {
  *graph = nullptr;
  const StreamRef stream = find_stream(handle);
  if (stream == nullptr) return Error::kInvalidHandle;
  if (in_host_function()) return Error::kNotPermitted;
  void* unwanted = nullptr;
  Error error = Error::kSuccess;
  {
    const std::lock_guard lock(graph_lock());
    Capture* const capture = stream->capture.load();
    if (capture == nullptr) return Error::kIllegalState;
    if (capture->origin != stream) {
      capture->spoiled = true;
      return Error::kCaptureUnmatched;
    }
    if (capture->mode != CaptureMode::kRelaxed && capture->thread != std::this_thread::get_id()) {
      return Error::kCaptureWrongThread;
    }
    if (capture->spoiled) {
      error = Error::kCaptureInvalidated;
    } else if (!joined(*capture)) {
      error = Error::kCaptureUnjoined;
    }
    if (error == Error::kSuccess) {
      *graph = capture->handle;
    } else if (!capture->given) {
      unwanted = capture->handle;
    }
    end(capture);
  }
  if (unwanted != nullptr) (void)destroy_graph(unwanted);
  return error;
}

Error capture_info(const void* handle, CaptureInfo* info) {
  const StreamRef stream = find_stream(handle);
  if (stream == nullptr) return Error::kInvalidHandle;
  *info = CaptureInfo{};
  const std::lock_guard lock(graph_lock());
  if (stream->kind() == StreamKind::kLegacy) {
    // CUDA refuses the legacy stream while a stream that it would wait for captures.
    for (const auto& capture : captures()) {
      for (const auto& [member, reference] : capture->members) {
        if (member->blocking() && &member->device() == &stream->device()) {
          return Error::kCaptureImplicit;
        }
      }
    }
    return Error::kSuccess;
  }
  Capture* const capture = stream->capture.load();
  if (capture == nullptr) return Error::kSuccess;
  info->status = capture->spoiled ? CaptureStatus::kInvalidated : CaptureStatus::kActive;
  info->id = capture->id;
  if (capture->spoiled) return Error::kSuccess;
  std::vector<Node*>& shown = PerThread<Shown>::get().heads;
  shown = capture->heads[stream.get()];
  info->graph = capture->handle;
  info->after = reinterpret_cast<void* const*>(shown.data());
  info->after_count = shown.size();
  return Error::kSuccess;
}

Error update_capture(const void* handle, const void* const* nodes, size_t count, bool replace) {
  const StreamRef stream = find_stream(handle);
  if (stream == nullptr) return Error::kInvalidHandle;
  if (count > 0 && nodes == nullptr) return Error::kInvalidValue;
  const std::lock_guard lock(graph_lock());
  Capture* const capture = stream->capture.load();
  if (capture == nullptr) return Error::kIllegalState;
  if (capture->spoiled) return Error::kCaptureInvalidated;
  std::vector<Node*> given;
  for (size_t i = 0; i < count; ++i) {
    auto* const node = const_cast<Node*>(static_cast<const Node*>(nodes[i]));
    if (!capture->graph->owns(node)) return Error::kInvalidValue;
    given.push_back(node);
  }
  auto& heads = capture->heads[stream.get()];
  if (replace) {
    capture->excused.insert(heads.begin(), heads.end());
    heads = std::move(given);
  } else {
    add_heads(&heads, given);
  }
  return Error::kSuccess;
}

CaptureMode exchange_thread_mode(CaptureMode mode) { return std::exchange(thread_mode, mode); }

Error capture_operation(const StreamRef& stream, Operation operation) {
  const std::lock_guard lock(graph_lock());
  return add(stream->capture.load(), stream, std::move(operation));
}

Error capture_executable(const StreamRef& stream, const Executable& executable) {
  const std::lock_guard lock(graph_lock());
  auto child = std::make_shared<Graph>();
  const Steps& steps = *executable.steps;
  std::vector<std::vector<size_t>> before(steps.size());
  std::vector<Node*> twins;
  for (size_t i = 0; i < steps.size(); ++i) {
    for (const size_t next : steps[i].next) before[next].push_back(i);
    twins.push_back(child->add(steps[i].operation, {}));
    twins.back()->enabled = steps[i].enabled;
  }
  for (size_t i = 0; i < steps.size(); ++i) {
    for (const size_t other : before[i]) twins[i]->after.push_back(twins[other]);
  }
  for (const UserObjectRef& object : *executable.objects) ++child->objects[object];
  return add(stream->capture.load(), stream, ChildOperation{std::move(child)});
}

Error capture_record(const StreamRef& stream, Event& event) {
  const std::lock_guard lock(graph_lock());
  Capture* const capture = stream->capture.load();
  if (capture == nullptr) return Error::kIllegalState;
  if (capture->spoiled) return Error::kCaptureInvalidated;
  const std::lock_guard guard(event.mutex);
  event.capture_id = capture->id;
  event.captured = capture->heads[stream.get()];
  return Error::kSuccess;
}

Error capture_wait(const StreamRef& stream, const EventRef& event, bool external, bool* handled) {
  *handled = true;
  const std::lock_guard lock(graph_lock());
  Capture* const here = stream->capture.load();
  uint64_t id = 0;
  std::vector<Node*> captured;
  bool recorded = false;
  {
    const std::lock_guard guard(event->mutex);
    id = event->capture_id;
    captured = event->captured;
    recorded = event->last != nullptr;
  }
  if (here != nullptr && here->spoiled) return Error::kCaptureInvalidated;
  if (here != nullptr && external) return add(here, stream, AwaitOperation{event});
  if (id != 0) {
    Capture* const there = find_capture(id);
    if (there == nullptr) return Error::kCapturedEvent;  // of a capture that has ended
    if (there->spoiled) return Error::kCaptureInvalidated;
    if (stream->kind() == StreamKind::kLegacy) {
      there->spoiled = true;
      return Error::kCaptureImplicit;
    }
    if (here == nullptr) {
      join(there, stream, std::move(captured));
      return Error::kSuccess;
    }
    if (here != there) {
      here->spoiled = true;
      there->spoiled = true;
      return Error::kCaptureMerge;
    }
    add_heads(&here->heads[stream.get()], captured);
    return Error::kSuccess;
  }
  if (here != nullptr && recorded) {
    here->spoiled = true;
    return Error::kCaptureIsolation;
  }
  // An event that was never recorded delays nothing.
  *handled = here != nullptr;
  return Error::kSuccess;
}

Error check_unsafe() {
  if (capture_count.load() == 0 || thread_mode == CaptureMode::kRelaxed) return Error::kSuccess;
  const std::lock_guard lock(graph_lock());
  Error error = Error::kSuccess;
  for (const auto& capture : captures()) {
    const bool own =
        capture->thread == std::this_thread::get_id() && capture->mode != CaptureMode::kRelaxed;
    const bool global =
        thread_mode == CaptureMode::kGlobal && capture->mode == CaptureMode::kGlobal;
    if (!own && !global) continue;
    capture->spoiled = true;
    error = Error::kCaptureUnsupported;
  }
  return error;
}

Error check_implicit(const StreamRef& stream) {
  if (capture_count.load() == 0 || stream->kind() != StreamKind::kLegacy) return Error::kSuccess;
  const std::lock_guard lock(graph_lock());
  Error error = Error::kSuccess;
  for (const auto& capture : captures()) {
    for (const auto& [member, reference] : capture->members) {
      if (!member->blocking() || &member->device() != &stream->device()) continue;
      capture->spoiled = true;
      error = Error::kCaptureImplicit;
      break;
    }
  }
  return error;
}

Error refuse_capture(const StreamRef& stream) {
  if (capture_count.load() == 0) return Error::kSuccess;
  const std::lock_guard lock(graph_lock());
  Capture* const capture = stream->capture.load();
  if (capture == nullptr) return Error::kSuccess;
  capture->spoiled = true;
  return Error::kCaptureUnsupported;
}

Error check_wait(const StreamRef& stream) {
  if (capture_count.load() == 0) return Error::kSuccess;
  if (const Error error = check_implicit(stream); error != Error::kSuccess) return error;
  if (const Error error = refuse_capture(stream); error != Error::kSuccess) return error;
  return check_unsafe();
}

Error check_device_wait(const Device& device) {
  if (capture_count.load() == 0) return Error::kSuccess;
  {
    const std::lock_guard lock(graph_lock());
    Error error = Error::kSuccess;
    for (const auto& capture : captures()) {
      for (const auto& [member, reference] : capture->members) {
        if (&member->device() != &device) continue;
        capture->spoiled = true;
        error = Error::kCaptureUnsupported;
        break;
      }
    }
    if (error != Error::kSuccess) return error;
  }
  return check_unsafe();
}

void abandon_capture(const StreamRef& stream) {
  if (capture_count.load() == 0) return;
  void* unwanted = nullptr;
  {
    const std::lock_guard lock(graph_lock());
    Capture* const capture = stream->capture.load();
    if (capture == nullptr) return;
    if (capture->origin == stream) {
      if (!capture->given) unwanted = capture->handle;
      end(capture);
    } else {
      capture->spoiled = true;
      stream->capture.store(nullptr);
      capture->members.erase(stream.get());
      capture->heads.erase(stream.get());
    }
  }
  if (unwanted != nullptr) (void)destroy_graph(unwanted);
}

}  // namespace weir::hostcuda
