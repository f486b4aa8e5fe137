// SPDX-License-Identifier: Apache-2.0
// Streams, the operations on them that use no memory, and their capture.
#include "hostcuda/core/capture.h"
#include "hostcuda/core/memory.h"
#include "hostcuda/core/operation.h"
#include "hostcuda/runtime/call.h"

using namespace weir::hostcuda;           // NOLINT: this file is their C interface
using namespace weir::hostcuda::runtime;  // NOLINT

namespace {

template <class Read>
cudaError_t ask(cudaStream_t handle, const void* out, Read read) {
  return device_call([&] {
    if (out == nullptr) return Error::kInvalidValue;
    const StreamRef stream = find_stream(handle);
    if (stream == nullptr) return Error::kInvalidHandle;
    read(*stream);
    return Error::kSuccess;
  });
}

}  // namespace

WEIR_CUDART cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithPriority(stream, 0, kPriorityLow);
}

WEIR_CUDART cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
  return cudaStreamCreateWithPriority(stream, flags, kPriorityLow);
}

WEIR_CUDART cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int flags,
                                                     int priority) {
  return device_call([&] {
    if (stream == nullptr || flags > 1) return Error::kInvalidValue;
    if (in_host_function()) return Error::kNotPermitted;
    void* handle = nullptr;
    const Error error = create_stream(flags == 0, priority, &handle);
    *stream = static_cast<cudaStream_t>(handle);
    return error;
  });
}

WEIR_CUDART cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return device_call(
      [&] { return in_host_function() ? Error::kNotPermitted : destroy_stream(stream); });
}

WEIR_CUDART cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  return ask(stream, priority, [&](const Stream& found) { *priority = found.priority(); });
}

WEIR_CUDART cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned int* flags) {
  return ask(stream, flags, [&](const Stream& found) { *flags = found.blocking() ? 0 : 1; });
}

WEIR_CUDART cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* id) {
  return ask(stream, id, [&](const Stream& found) { *id = found.id(); });
}

WEIR_CUDART cudaError_t cudaStreamGetAttribute(cudaStream_t stream, cudaLaunchAttributeID attribute,
                                               cudaLaunchAttributeValue* value) {
  return device_call([&] {
    if (value == nullptr) return Error::kInvalidValue;
    return get_stream_attribute(stream, static_cast<int>(attribute), value);
  });
}

WEIR_CUDART cudaError_t cudaStreamSetAttribute(cudaStream_t stream, cudaLaunchAttributeID attribute,
                                               const cudaLaunchAttributeValue* value) {
  return device_call([&] {
    if (value == nullptr) return Error::kInvalidValue;
    return set_stream_attribute(stream, static_cast<int>(attribute), value);
  });
}

WEIR_CUDART cudaError_t cudaStreamCopyAttributes(cudaStream_t to, cudaStream_t from) {
  return device_call([&] { return copy_stream_attributes(to, from); });
}

WEIR_CUDART cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* device) {
  return ask(stream, device, [&](const Stream& found) { *device = found.device().index; });
}

WEIR_CUDART cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return device_call([&] { return query_stream(stream); });
}

WEIR_CUDART cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return device_call([&] { return synchronize_stream(stream); });
}

WEIR_CUDART cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                            unsigned int flags) {
  return device_call(
      [&] { return flags > 1 ? Error::kInvalidValue : wait_event(stream, event, flags == 1); });
}

WEIR_CUDART cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return device_call([&] { return host_function(stream, {function, data}); });
}

WEIR_CUDART cudaError_t cudaStreamAddCallback(cudaStream_t handle, cudaStreamCallback_t callback,
                                              void* data, unsigned int flags) {
  return device_call([&] {
    if (callback == nullptr || flags != 0) return Error::kInvalidValue;
    if (in_host_function()) return Error::kNotPermitted;
    const StreamRef stream = find_stream(handle);
    if (stream == nullptr) return Error::kInvalidHandle;
    // CUDA cannot capture callbacks, only host functions.
    if (const Error error = refuse_capture(stream); error != Error::kSuccess) return error;
    if (const Error error = check_implicit(stream); error != Error::kSuccess) return error;
    Device* const device = &stream->device();
    return enqueue(stream, [=](const Cancel& cancel) {
      if (cancel.load()) return;
      const HostFunctionScope scope(*device);
      callback(handle, cudaSuccess, data);
    });
  });
}

WEIR_CUDART cudaError_t cudaStreamAttachMemAsync(cudaStream_t stream, void* address, size_t,
                                                 unsigned int flags) {
  return device_call([&] {
    const auto found = find_allocation(address);
    if (!found.has_value() || found->kind != MemoryKind::kManaged ||
        (flags != 1 && flags != 2 && flags != 4)) {
      return Error::kInvalidValue;
    }
    return issue(stream, EmptyOperation{});
  });
}

WEIR_CUDART cudaError_t cudaStreamBeginCapture(cudaStream_t stream,
                                               enum cudaStreamCaptureMode mode) {
  return device_call(
      [&] { return begin_capture(stream, static_cast<CaptureMode>(mode), nullptr, nullptr, 0); });
}

WEIR_CUDART cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph,
                                                      const cudaGraphNode_t* nodes,
                                                      const cudaGraphEdgeData*, size_t count,
                                                      enum cudaStreamCaptureMode mode) {
  return device_call([&] {
    if (graph == nullptr) return Error::kInvalidValue;
    return begin_capture(stream, static_cast<CaptureMode>(mode), graph,
                         reinterpret_cast<const void* const*>(nodes), count);
  });
}

WEIR_CUDART cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return device_call([&] {
    if (graph == nullptr) return Error::kInvalidValue;
    void* handle = nullptr;
    const Error error = end_capture(stream, &handle);
    *graph = static_cast<cudaGraph_t>(handle);
    return error;
  });
}

WEIR_CUDART cudaError_t cudaStreamIsCapturing(cudaStream_t stream,
                                              enum cudaStreamCaptureStatus* status) {
  return device_call([&] {
    if (status == nullptr) return Error::kInvalidValue;
    CaptureInfo info;
    const Error error = capture_info(stream, &info);
    *status = static_cast<enum cudaStreamCaptureStatus>(info.status);
    return error;
  });
}

WEIR_CUDART cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream,
                                                 enum cudaStreamCaptureStatus* status,
                                                 unsigned long long* id, cudaGraph_t* graph,
                                                 const cudaGraphNode_t** nodes,
                                                 const cudaGraphEdgeData** edges, size_t* count) {
  return device_call([&] {
    if (status == nullptr) return Error::kInvalidValue;
    CaptureInfo info;
    const Error error = capture_info(stream, &info);
    if (error != Error::kSuccess) return error;
    *status = static_cast<enum cudaStreamCaptureStatus>(info.status);
    if (id != nullptr) *id = info.id;
    if (graph != nullptr) *graph = static_cast<cudaGraph_t>(info.graph);
    if (nodes != nullptr) *nodes = reinterpret_cast<const cudaGraphNode_t*>(info.after);
    if (edges != nullptr) *edges = nullptr;  // all edges are plain ones
    if (count != nullptr) *count = info.after_count;
    return Error::kSuccess;
  });
}

WEIR_CUDART cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t stream,
                                                            cudaGraphNode_t* nodes,
                                                            const cudaGraphEdgeData*, size_t count,
                                                            unsigned int flags) {
  return device_call([&] {
    if (flags > 1) return Error::kInvalidValue;
    return update_capture(stream, reinterpret_cast<const void* const*>(nodes), count, flags == 1);
  });
}

WEIR_CUDART cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode* mode) {
  return plain_call([&] {
    if (mode == nullptr || static_cast<unsigned>(*mode) > 2) return Error::kInvalidValue;
    *mode = static_cast<enum cudaStreamCaptureMode>(
        exchange_thread_mode(static_cast<CaptureMode>(*mode)));
    return Error::kSuccess;
  });
}
