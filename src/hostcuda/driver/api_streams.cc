// SPDX-License-Identifier: Apache-2.0
// Streams, stream memory operations, capture and events.
#include <cstring>
#include <vector>

#include "hostcuda/core/capture.h"
#include "hostcuda/core/event.h"
#include "hostcuda/core/graph.h"
#include "hostcuda/core/operation.h"
#include "hostcuda/core/user_object.h"
#include "hostcuda/driver/call.h"

using namespace weir::hostcuda;          // NOLINT: this file is their C interface
using namespace weir::hostcuda::driver;  // NOLINT

namespace {

template <class Read>
CUresult ask(CUstream handle, const void* out, Read read) {
  return context_call([&] {
    if (out == nullptr) return Error::kInvalidValue;
    const StreamRef stream = find_stream(handle);
    if (stream == nullptr) return Error::kInvalidHandle;
    read(*stream);
    return Error::kSuccess;
  });
}

CUresult one_value(CUstream stream, ValueOperation::Type type, CUdeviceptr address, uint64_t value,
                   unsigned flags) {
  return context_call([&] {
    return value_batch(stream, {{{type, pointer(address), value, flags}}});
  });
}

}  // namespace

WEIR_CUDA CUresult cuStreamCreate(CUstream* stream, unsigned int flags) {
  return cuStreamCreateWithPriority(stream, flags, kPriorityLow);
}

WEIR_CUDA CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned int flags, int priority) {
  return context_call([&] {
    if (stream == nullptr || flags > 1) return Error::kInvalidValue;
    if (in_host_function()) return Error::kNotPermitted;
    void* handle = nullptr;
    const Error error = create_stream(flags == 0, priority, &handle);
    *stream = static_cast<CUstream>(handle);
    return error;
  });
}

WEIR_CUDA CUresult cuStreamDestroy_v2(CUstream stream) {
  return context_call(
      [&] { return in_host_function() ? Error::kNotPermitted : destroy_stream(stream); });
}

WEIR_CUDA CUresult cuStreamGetPriority(CUstream stream, int* priority) {
  return ask(stream, priority, [&](const Stream& found) { *priority = found.priority(); });
}

WEIR_CUDA CUresult cuStreamGetFlags(CUstream stream, unsigned int* flags) {
  return ask(stream, flags, [&](const Stream& found) { *flags = found.blocking() ? 0 : 1; });
}

WEIR_CUDA CUresult cuStreamGetId(CUstream stream, unsigned long long* id) {
  return ask(stream, id, [&](const Stream& found) { *id = found.id(); });
}

WEIR_CUDA CUresult cuStreamGetAttribute(CUstream stream, CUstreamAttrID attribute,
                                        CUstreamAttrValue* value) {
  return context_call([&] {
    if (value == nullptr) return Error::kInvalidValue;
    return get_stream_attribute(stream, static_cast<int>(attribute), value);
  });
}

WEIR_CUDA CUresult cuStreamSetAttribute(CUstream stream, CUstreamAttrID attribute,
                                        const CUstreamAttrValue* value) {
  return context_call([&] {
    if (value == nullptr) return Error::kInvalidValue;
    return set_stream_attribute(stream, static_cast<int>(attribute), value);
  });
}

WEIR_CUDA CUresult cuStreamCopyAttributes(CUstream to, CUstream from) {
  return context_call([&] { return copy_stream_attributes(to, from); });
}

WEIR_CUDA CUresult cuStreamGetCtx(CUstream stream, CUcontext* context) {
  return ask(stream, context,
             [&](const Stream& found) { *context = reinterpret_cast<CUcontext>(&found.device()); });
}

WEIR_CUDA CUresult cuStreamGetDevice(CUstream stream, CUdevice* device) {
  return ask(stream, device, [&](const Stream& found) { *device = found.device().index; });
}

WEIR_CUDA CUresult cuStreamQuery(CUstream stream) {
  return context_call([&] { return query_stream(stream); });
}

WEIR_CUDA CUresult cuStreamSynchronize(CUstream stream) {
  return context_call([&] { return synchronize_stream(stream); });
}

WEIR_CUDA CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
  return context_call(
      [&] { return flags > 1 ? Error::kInvalidValue : wait_event(stream, event, flags == 1); });
}

WEIR_CUDA CUresult cuStreamAddCallback(CUstream handle, CUstreamCallback callback, void* data,
                                       unsigned int flags) {
  return context_call([&] {
    if (callback == nullptr || flags != 0) return Error::kInvalidValue;
    if (in_host_function()) return Error::kNotPermitted;
    const StreamRef stream = find_stream(handle);
    if (stream == nullptr) return Error::kInvalidHandle;
    if (const Error error = refuse_capture(stream); error != Error::kSuccess) return error;
    if (const Error error = check_implicit(stream); error != Error::kSuccess) return error;
    Device* const device = &stream->device();
    return enqueue(stream, [=](const Cancel& cancel) {
      if (cancel.load()) return;
      const HostFunctionScope scope(*device);
      callback(handle, CUDA_SUCCESS, data);
    });
  });
}

WEIR_CUDA CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
  return context_call([&] { return host_function(stream, {function, data}); });
}

WEIR_CUDA CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  return context_call(
      [&] { return begin_capture(stream, static_cast<CaptureMode>(mode), nullptr, nullptr, 0); });
}

WEIR_CUDA CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  return context_call([&] {
    if (graph == nullptr) return Error::kInvalidValue;
    void* handle = nullptr;
    const Error error = end_capture(stream, &handle);
    *graph = static_cast<CUgraph>(handle);
    return error;
  });
}

WEIR_CUDA CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  return context_call([&] {
    if (status == nullptr) return Error::kInvalidValue;
    CaptureInfo info;
    const Error error = capture_info(stream, &info);
    *status = static_cast<CUstreamCaptureStatus>(info.status);
    return error;
  });
}

WEIR_CUDA CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus* status,
                                             cuuint64_t* id, CUgraph* graph,
                                             const CUgraphNode** nodes,
                                             const CUgraphEdgeData** edges, size_t* count) {
  return context_call([&] {
    if (status == nullptr) return Error::kInvalidValue;
    CaptureInfo info;
    const Error error = capture_info(stream, &info);
    if (error != Error::kSuccess) return error;
    *status = static_cast<CUstreamCaptureStatus>(info.status);
    if (id != nullptr) *id = info.id;
    if (graph != nullptr) *graph = static_cast<CUgraph>(info.graph);
    if (nodes != nullptr) *nodes = reinterpret_cast<const CUgraphNode*>(info.after);
    if (edges != nullptr) *edges = nullptr;
    if (count != nullptr) *count = info.after_count;
    return Error::kSuccess;
  });
}

WEIR_CUDA CUresult cuStreamUpdateCaptureDependencies_v2(CUstream stream, CUgraphNode* nodes,
                                                        const CUgraphEdgeData*, size_t count,
                                                        unsigned int flags) {
  return context_call([&] {
    if (flags > 1) return Error::kInvalidValue;
    return update_capture(stream, reinterpret_cast<const void* const*>(nodes), count, flags == 1);
  });
}

WEIR_CUDA CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  return plain_call([&] {
    if (mode == nullptr || static_cast<unsigned>(*mode) > 2) return Error::kInvalidValue;
    *mode = static_cast<CUstreamCaptureMode>(exchange_thread_mode(static_cast<CaptureMode>(*mode)));
    return Error::kSuccess;
  });
}

WEIR_CUDA CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream) {
  return context_call([&] { return launch(executable, stream); });
}

WEIR_CUDA CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count,
                                           unsigned int flags) {
  return plain_call([&] { return give_user_object(graph, object, count, flags); });
}

WEIR_CUDA CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject object,
                                            unsigned int count) {
  return plain_call([&] { return take_user_object(graph, object, count); });
}

WEIR_CUDA CUresult cuUserObjectCreate(CUuserObject* object, void* data, CUhostFn destroy,
                                      unsigned int count, unsigned int flags) {
  return plain_call([&] {
    return create_user_object(reinterpret_cast<void**>(object), data, destroy, count, flags);
  });
}

WEIR_CUDA CUresult cuUserObjectRetain(CUuserObject object, unsigned int count) {
  return plain_call([&] { return retain_user_object(object, count); });
}

WEIR_CUDA CUresult cuUserObjectRelease(CUuserObject object, unsigned int count) {
  return plain_call([&] { return release_user_object(object, count); });
}

WEIR_CUDA CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value,
                                          unsigned int flags) {
  return one_value(stream, ValueOperation::Type::kWait32, address, value, flags);
}

WEIR_CUDA CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value,
                                          unsigned int flags) {
  return one_value(stream, ValueOperation::Type::kWait64, address, value, flags);
}

WEIR_CUDA CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value,
                                           unsigned int flags) {
  return one_value(stream, ValueOperation::Type::kWrite32, address, value, flags);
}

WEIR_CUDA CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value,
                                           unsigned int flags) {
  return one_value(stream, ValueOperation::Type::kWrite64, address, value, flags);
}

WEIR_CUDA CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned int count,
                                         CUstreamBatchMemOpParams* operations, unsigned int flags) {
  return context_call([&] {
    if (operations == nullptr || flags != 0 || count > kValueBatchMax) return Error::kInvalidValue;
    ValueBatch batch;
    for (unsigned i = 0; i < count; ++i) {
      const CUstreamBatchMemOpParams& given = operations[i];
      ValueOperation operation;
      operation.type = static_cast<ValueOperation::Type>(given.operation);
      switch (given.operation) {
        case CU_STREAM_MEM_OP_WAIT_VALUE_32:
        case CU_STREAM_MEM_OP_WRITE_VALUE_32:
          operation.address = pointer(given.waitValue.address);
          operation.value = given.waitValue.value;
          operation.flags = given.waitValue.flags;
          break;
        case CU_STREAM_MEM_OP_WAIT_VALUE_64:
        case CU_STREAM_MEM_OP_WRITE_VALUE_64:
          operation.address = pointer(given.waitValue.address);
          operation.value = given.waitValue.value64;
          operation.flags = given.waitValue.flags;
          break;
        case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
        case CU_STREAM_MEM_OP_BARRIER:
          operation.flags = given.memoryBarrier.flags;
          break;
        default:
          return Error::kInvalidValue;
      }
      batch.operations.push_back(operation);
    }
    return value_batch(stream, std::move(batch));
  });
}

WEIR_CUDA CUresult cuEventCreate(CUevent* event, unsigned int flags) {
  return context_call([&] {
    if (event == nullptr) return Error::kInvalidValue;
    void* handle = nullptr;
    const Error error = create_event(flags, &handle);
    *event = static_cast<CUevent>(handle);
    return error;
  });
}

WEIR_CUDA CUresult cuEventDestroy_v2(CUevent event) {
  return context_call([&] { return destroy_event(event); });
}

WEIR_CUDA CUresult cuEventRecord(CUevent event, CUstream stream) {
  return context_call([&] { return record_event(event, stream, false); });
}

WEIR_CUDA CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags) {
  return context_call(
      [&] { return flags > 1 ? Error::kInvalidValue : record_event(event, stream, flags == 1); });
}

WEIR_CUDA CUresult cuEventQuery(CUevent event) {
  return context_call([&] { return query_event(event); });
}

WEIR_CUDA CUresult cuEventSynchronize(CUevent event) {
  return context_call([&] { return synchronize_event(event); });
}

WEIR_CUDA CUresult cuEventElapsedTime_v2(float* ms, CUevent start, CUevent end) {
  return context_call(
      [&] { return ms == nullptr ? Error::kInvalidValue : elapsed_ms(start, end, ms); });
}

WEIR_CUDA CUresult cuIpcGetEventHandle(CUipcEventHandle* handle, CUevent event) {
  return context_call([&] {
    if (handle == nullptr) return Error::kInvalidValue;
    IpcHandle made{};
    const Error error = export_event(event, &made);
    if (error == Error::kSuccess) std::memcpy(handle, &made, sizeof made);
    return error;
  });
}

WEIR_CUDA CUresult cuIpcOpenEventHandle(CUevent* event, CUipcEventHandle handle) {
  return context_call([&] {
    if (event == nullptr) return Error::kInvalidValue;
    IpcHandle given{};
    std::memcpy(&given, &handle, sizeof given);
    void* opened = nullptr;
    const Error error = open_event(given, &opened);
    *event = static_cast<CUevent>(opened);
    return error;
  });
}
