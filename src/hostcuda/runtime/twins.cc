// SPDX-License-Identifier: Apache-2.0
// The same functions for programs that were compiled with a default stream per thread: for them the
// stream NULL is the thread's own.
#include <utility>

#include "hostcuda/core/operation.h"
#include "hostcuda/runtime/boxes.h"
#include "hostcuda/runtime/call.h"

using namespace weir::hostcuda;           // NOLINT: this file is their C interface
using namespace weir::hostcuda::runtime;  // NOLINT

namespace {

cudaStream_t own(cudaStream_t stream) {
  return stream == nullptr ? reinterpret_cast<cudaStream_t>(kPerThreadHandle) : stream;
}

}  // namespace

WEIR_CUDART cudaError_t cudaMemcpy_ptds(void* to, const void* from, size_t bytes,
                                        enum cudaMemcpyKind kind) {
  return device_call([&] { return copy(flat_copy(to, from, bytes, kind), own(nullptr), true); });
}

WEIR_CUDART cudaError_t cudaMemcpy2D_ptds(void* to, size_t to_pitch, const void* from,
                                          size_t from_pitch, size_t width, size_t height,
                                          enum cudaMemcpyKind kind) {
  return device_call([&] {
    return copy(row_copy(to, to_pitch, from, from_pitch, width, height, kind), own(nullptr), true);
  });
}

WEIR_CUDART cudaError_t cudaMemcpy3D_ptds(const struct cudaMemcpy3DParms* box) {
  return device_call([&] {
    CopyOperation operation;
    const Error error = to_operation(box, &operation);
    return error == Error::kSuccess ? copy(std::move(operation), own(nullptr), true) : error;
  });
}

WEIR_CUDART cudaError_t cudaMemcpy3DPeer_ptds(const struct cudaMemcpy3DPeerParms* box) {
  return device_call([&] {
    CopyOperation operation;
    const Error error = to_operation(box, &operation);
    return error == Error::kSuccess ? copy(std::move(operation), own(nullptr), true) : error;
  });
}

WEIR_CUDART cudaError_t cudaMemset3D_ptds(struct cudaPitchedPtr pitched, int value,
                                          struct cudaExtent extent) {
  return device_call([&] { return fill(box_fill(pitched, value, extent), own(nullptr), true); });
}

WEIR_CUDART cudaError_t cudaMemset_ptds(void* address, int value, size_t bytes) {
  return device_call(
      [&] { return fill(row_fill(address, 0, value, bytes, 1), own(nullptr), true); });
}

WEIR_CUDART cudaError_t cudaMemset2D_ptds(void* address, size_t pitch, int value, size_t width,
                                          size_t height) {
  return device_call(
      [&] { return fill(row_fill(address, pitch, value, width, height), own(nullptr), true); });
}

WEIR_CUDART cudaError_t cudaEventRecordWithFlags_ptsz(cudaEvent_t event, cudaStream_t stream,
                                                      unsigned int flags) {
  return cudaEventRecordWithFlags(event, own(stream), flags);
}

WEIR_CUDART cudaError_t cudaEventRecord_ptsz(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecord(event, own(stream));
}

WEIR_CUDART cudaError_t cudaFreeAsync_ptsz(void* address, cudaStream_t stream) {
  return cudaFreeAsync(address, own(stream));
}

WEIR_CUDART cudaError_t cudaGetDriverEntryPointByVersion_ptsz(
    const char* symbol, void** function, unsigned int version, unsigned long long flags,
    enum cudaDriverEntryPointQueryResult* result) {
  return cudaGetDriverEntryPointByVersion(symbol, function, version, flags, result);
}

WEIR_CUDART cudaError_t cudaGraphInstantiateWithParams_ptsz(
    cudaGraphExec_t* executable, cudaGraph_t graph, cudaGraphInstantiateParams* parameters) {
  return cudaGraphInstantiateWithParams(executable, graph, parameters);
}

WEIR_CUDART cudaError_t cudaGraphLaunch_ptsz(cudaGraphExec_t executable, cudaStream_t stream) {
  return cudaGraphLaunch(executable, own(stream));
}

WEIR_CUDART cudaError_t cudaGraphUpload_ptsz(cudaGraphExec_t executable, cudaStream_t stream) {
  return cudaGraphUpload(executable, own(stream));
}

WEIR_CUDART cudaError_t cudaLaunchHostFunc_ptsz(cudaStream_t stream, cudaHostFn_t function,
                                                void* data) {
  return cudaLaunchHostFunc(own(stream), function, data);
}

WEIR_CUDART cudaError_t cudaMallocAsync_ptsz(void** address, size_t bytes, cudaStream_t stream) {
  return cudaMallocAsync(address, bytes, own(stream));
}

WEIR_CUDART cudaError_t cudaMallocFromPoolAsync_ptsz(void** address, size_t bytes,
                                                     cudaMemPool_t pool, cudaStream_t stream) {
  return cudaMallocFromPoolAsync(address, bytes, pool, own(stream));
}

WEIR_CUDART cudaError_t cudaMemPrefetchAsync_ptsz(const void* address, size_t bytes,
                                                  struct cudaMemLocation location,
                                                  unsigned int flags, cudaStream_t stream) {
  return cudaMemPrefetchAsync(address, bytes, location, flags, own(stream));
}

WEIR_CUDART cudaError_t cudaMemcpy2DAsync_ptsz(void* to, size_t to_pitch, const void* from,
                                               size_t from_pitch, size_t width, size_t height,
                                               enum cudaMemcpyKind kind, cudaStream_t stream) {
  return cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, height, kind, own(stream));
}

WEIR_CUDART cudaError_t cudaMemcpy3DAsync_ptsz(const struct cudaMemcpy3DParms* box,
                                               cudaStream_t stream) {
  return cudaMemcpy3DAsync(box, own(stream));
}

WEIR_CUDART cudaError_t cudaMemcpy3DPeerAsync_ptsz(const struct cudaMemcpy3DPeerParms* box,
                                                   cudaStream_t stream) {
  return cudaMemcpy3DPeerAsync(box, own(stream));
}

WEIR_CUDART cudaError_t cudaMemset3DAsync_ptsz(struct cudaPitchedPtr pitched, int value,
                                               struct cudaExtent extent, cudaStream_t stream) {
  return cudaMemset3DAsync(pitched, value, extent, own(stream));
}

WEIR_CUDART cudaError_t cudaMemcpyAsync_ptsz(void* to, const void* from, size_t bytes,
                                             enum cudaMemcpyKind kind, cudaStream_t stream) {
  return cudaMemcpyAsync(to, from, bytes, kind, own(stream));
}

WEIR_CUDART cudaError_t cudaMemset2DAsync_ptsz(void* address, size_t pitch, int value, size_t width,
                                               size_t height, cudaStream_t stream) {
  return cudaMemset2DAsync(address, pitch, value, width, height, own(stream));
}

WEIR_CUDART cudaError_t cudaMemsetAsync_ptsz(void* address, int value, size_t bytes,
                                             cudaStream_t stream) {
  return cudaMemsetAsync(address, value, bytes, own(stream));
}

WEIR_CUDART cudaError_t cudaStreamAddCallback_ptsz(cudaStream_t stream,
                                                   cudaStreamCallback_t callback, void* data,
                                                   unsigned int flags) {
  return cudaStreamAddCallback(own(stream), callback, data, flags);
}

WEIR_CUDART cudaError_t cudaStreamAttachMemAsync_ptsz(cudaStream_t stream, void* address,
                                                      size_t bytes, unsigned int flags) {
  return cudaStreamAttachMemAsync(own(stream), address, bytes, flags);
}

WEIR_CUDART cudaError_t cudaStreamBeginCaptureToGraph_ptsz(cudaStream_t stream, cudaGraph_t graph,
                                                           const cudaGraphNode_t* nodes,
                                                           const cudaGraphEdgeData* edges,
                                                           size_t count,
                                                           enum cudaStreamCaptureMode mode) {
  return cudaStreamBeginCaptureToGraph(own(stream), graph, nodes, edges, count, mode);
}

WEIR_CUDART cudaError_t cudaStreamBeginCapture_ptsz(cudaStream_t stream,
                                                    enum cudaStreamCaptureMode mode) {
  return cudaStreamBeginCapture(own(stream), mode);
}

WEIR_CUDART cudaError_t cudaStreamEndCapture_ptsz(cudaStream_t stream, cudaGraph_t* graph) {
  return cudaStreamEndCapture(own(stream), graph);
}

WEIR_CUDART cudaError_t cudaStreamGetCaptureInfo_ptsz(cudaStream_t stream,
                                                      enum cudaStreamCaptureStatus* status,
                                                      unsigned long long* id, cudaGraph_t* graph,
                                                      const cudaGraphNode_t** nodes,
                                                      const cudaGraphEdgeData** edges,
                                                      size_t* count) {
  return cudaStreamGetCaptureInfo(own(stream), status, id, graph, nodes, edges, count);
}

WEIR_CUDART cudaError_t cudaStreamGetDevice_ptsz(cudaStream_t stream, int* device) {
  return cudaStreamGetDevice(own(stream), device);
}

WEIR_CUDART cudaError_t cudaStreamGetFlags_ptsz(cudaStream_t stream, unsigned int* flags) {
  return cudaStreamGetFlags(own(stream), flags);
}

WEIR_CUDART cudaError_t cudaStreamGetId_ptsz(cudaStream_t stream, unsigned long long* id) {
  return cudaStreamGetId(own(stream), id);
}

WEIR_CUDART cudaError_t cudaStreamGetAttribute_ptsz(cudaStream_t stream,
                                                    cudaLaunchAttributeID attribute,
                                                    cudaLaunchAttributeValue* value) {
  return cudaStreamGetAttribute(own(stream), attribute, value);
}

WEIR_CUDART cudaError_t cudaStreamSetAttribute_ptsz(cudaStream_t stream,
                                                    cudaLaunchAttributeID attribute,
                                                    const cudaLaunchAttributeValue* value) {
  return cudaStreamSetAttribute(own(stream), attribute, value);
}

WEIR_CUDART cudaError_t cudaStreamCopyAttributes_ptsz(cudaStream_t to, cudaStream_t from) {
  return cudaStreamCopyAttributes(own(to), own(from));
}

WEIR_CUDART cudaError_t cudaStreamGetPriority_ptsz(cudaStream_t stream, int* priority) {
  return cudaStreamGetPriority(own(stream), priority);
}

WEIR_CUDART cudaError_t cudaStreamIsCapturing_ptsz(cudaStream_t stream,
                                                   enum cudaStreamCaptureStatus* status) {
  return cudaStreamIsCapturing(own(stream), status);
}

WEIR_CUDART cudaError_t cudaStreamQuery_ptsz(cudaStream_t stream) {
  return cudaStreamQuery(own(stream));
}

WEIR_CUDART cudaError_t cudaStreamSynchronize_ptsz(cudaStream_t stream) {
  return cudaStreamSynchronize(own(stream));
}

WEIR_CUDART cudaError_t cudaStreamUpdateCaptureDependencies_ptsz(cudaStream_t stream,
                                                                 cudaGraphNode_t* nodes,
                                                                 const cudaGraphEdgeData* edges,
                                                                 size_t count, unsigned int flags) {
  return cudaStreamUpdateCaptureDependencies(own(stream), nodes, edges, count, flags);
}

WEIR_CUDART cudaError_t cudaStreamWaitEvent_ptsz(cudaStream_t stream, cudaEvent_t event,
                                                 unsigned int flags) {
  return cudaStreamWaitEvent(own(stream), event, flags);
}

WEIR_CUDART cudaError_t cudaGetDriverEntryPoint_ptsz(const char* symbol, void** function,
                                                     unsigned long long flags,
                                                     enum cudaDriverEntryPointQueryResult* result) {
  return cudaGetDriverEntryPointByVersion(symbol, function, 13000, flags, result);
}
