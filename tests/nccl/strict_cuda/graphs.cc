// SPDX-License-Identifier: Apache-2.0
#include "nccl/strict_cuda/world.h"

using namespace strict_cuda;  // NOLINT: this is a part of it

namespace {

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
                                          const CUgraphNode**, const CUgraphEdgeData**, size_t*) {
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
  Submission submission(it);
  StreamState* stream = find_stream(it, handle);
  if (stream == nullptr) return kErrorInvalidHandle;
  submission.wait_for_room(*stream);
  push(it, stream, "cuGraphLaunch", make_launch(static_cast<Recorded*>(exec)));
  return kSuccess;
}

STRICT_CUDA_API cuGraphDestroy(Graph graph) {
  World& it = world();
  std::lock_guard lock(it.lock);
  release_graph(it, static_cast<Recorded*>(graph));
  return kSuccess;
}
STRICT_CUDA_API cuGraphExecDestroy(GraphExec exec) { return cuGraphDestroy(exec); }
