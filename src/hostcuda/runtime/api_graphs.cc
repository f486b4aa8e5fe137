// SPDX-License-Identifier: Apache-2.0
// Whole graphs: creation, instantiation, launch, update, and the objects that live with them.
#include "hostcuda/core/graph.h"
#include "hostcuda/core/kernels.h"
#include "hostcuda/core/user_object.h"
#include "hostcuda/runtime/boxes.h"
#include "hostcuda/runtime/call.h"

using namespace weir::hostcuda;           // NOLINT: this file is their C interface
using namespace weir::hostcuda::runtime;  // NOLINT

namespace {

Error make_executable(cudaGraphExec_t* out, cudaGraph_t graph, unsigned long long flags) {
  if (out == nullptr || (flags & ~0xfULL) != 0) return Error::kInvalidValue;
  if ((flags & 4) != 0) return Error::kNotSupported;  // to be launched by device code
  void* made = nullptr;
  const Error error = instantiate(graph, flags, &made);
  *out = static_cast<cudaGraphExec_t>(made);
  return error;
}

}  // namespace

WEIR_CUDART cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned int flags) {
  return plain_call([&] {
    if (graph == nullptr || flags != 0) return Error::kInvalidValue;
    void* made = nullptr;
    const Error error = create_graph(&made);
    *graph = static_cast<cudaGraph_t>(made);
    return error;
  });
}

WEIR_CUDART cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return plain_call([&] { return destroy_graph(graph); });
}

WEIR_CUDART cudaError_t cudaGraphClone(cudaGraph_t* clone, cudaGraph_t graph) {
  return plain_call([&] {
    if (clone == nullptr) return Error::kInvalidValue;
    const std::lock_guard lock(graph_lock());
    const GraphRef found = find_graph(graph);
    if (found == nullptr) return Error::kInvalidValue;
    *clone = static_cast<cudaGraph_t>(publish_graph(found->clone()));
    return Error::kSuccess;
  });
}

WEIR_CUDART cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                             unsigned long long flags) {
  return device_call([&] { return make_executable(executable, graph, flags); });
}

WEIR_CUDART cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable,
                                                      cudaGraph_t graph, unsigned long long flags) {
  return cudaGraphInstantiate(executable, graph, flags);
}

WEIR_CUDART cudaError_t cudaGraphInstantiateWithParams(cudaGraphExec_t* executable,
                                                       cudaGraph_t graph,
                                                       cudaGraphInstantiateParams* parameters) {
  return device_call([&] {
    if (parameters == nullptr) return Error::kInvalidValue;
    const Error error = make_executable(executable, graph, parameters->flags);
    parameters->errNode_out = nullptr;
    parameters->result_out =
        error == Error::kSuccess ? cudaGraphInstantiateSuccess : cudaGraphInstantiateError;
    return error;
  });
}

WEIR_CUDART cudaError_t cudaGraphExecGetFlags(cudaGraphExec_t executable,
                                              unsigned long long* flags) {
  return plain_call([&] {
    const ExecutableRef found = find_executable(executable);
    if (flags == nullptr || found == nullptr) return Error::kInvalidValue;
    *flags = found->flags;
    return Error::kSuccess;
  });
}

WEIR_CUDART cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  return plain_call([&] { return destroy_executable(executable); });
}

WEIR_CUDART cudaError_t cudaGraphUpload(cudaGraphExec_t executable, cudaStream_t stream) {
  return device_call([&] {
    return find_executable(executable) == nullptr ? Error::kInvalidValue
                                                  : issue(stream, EmptyOperation{});
  });
}

WEIR_CUDART cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  return device_call([&] { return launch(executable, stream); });
}

WEIR_CUDART cudaError_t cudaGraphExecUpdate(cudaGraphExec_t executable, cudaGraph_t graph,
                                            cudaGraphExecUpdateResultInfo* result) {
  return plain_call([&] {
    if (result == nullptr) return Error::kInvalidValue;
    UpdateResult outcome{};
    const void* node = nullptr;
    const Error error = update_executable(executable, graph, &outcome, &node);
    result->result = static_cast<enum cudaGraphExecUpdateResult>(outcome);
    result->errorNode = static_cast<cudaGraphNode_t>(const_cast<void*>(node));
    result->errorFromNode = nullptr;
    return error;
  });
}

WEIR_CUDART cudaError_t cudaGraphExecHostNodeSetParams(cudaGraphExec_t executable,
                                                       cudaGraphNode_t node,
                                                       const struct cudaHostNodeParams* host) {
  return plain_call([&] {
    if (host == nullptr || host->fn == nullptr) return Error::kInvalidValue;
    return set_step(executable, node, HostOperation{host->fn, host->userData});
  });
}

WEIR_CUDART cudaError_t cudaGraphExecMemcpyNodeSetParams(cudaGraphExec_t executable,
                                                         cudaGraphNode_t node,
                                                         const struct cudaMemcpy3DParms* box) {
  return plain_call([&] {
    CopyOperation operation;
    const Error error = to_operation(box, &operation);
    return error == Error::kSuccess ? set_step(executable, node, std::move(operation)) : error;
  });
}

WEIR_CUDART cudaError_t cudaGraphExecMemcpyNodeSetParams1D(cudaGraphExec_t executable,
                                                           cudaGraphNode_t node, void* to,
                                                           const void* from, size_t bytes,
                                                           enum cudaMemcpyKind kind) {
  return plain_call([&] {
    if (to == nullptr || from == nullptr) return Error::kInvalidValue;
    return set_step(executable, node, flat_copy(to, from, bytes, kind));
  });
}

WEIR_CUDART cudaError_t cudaGraphExecMemsetNodeSetParams(cudaGraphExec_t executable,
                                                         cudaGraphNode_t node,
                                                         const struct cudaMemsetParams* fill) {
  return plain_call([&] {
    FillOperation operation;
    const Error error = to_operation(fill, &operation);
    return error == Error::kSuccess ? set_step(executable, node, operation) : error;
  });
}

WEIR_CUDART cudaError_t cudaGraphExecKernelNodeSetParams(
    cudaGraphExec_t executable, cudaGraphNode_t node, const struct cudaKernelNodeParams* kernel) {
  return plain_call([&] {
    KernelOperation operation;
    const Error error = to_operation(kernel, &operation);
    return error == Error::kSuccess ? set_step(executable, node, std::move(operation)) : error;
  });
}

WEIR_CUDART cudaError_t cudaGraphExecEventRecordNodeSetEvent(cudaGraphExec_t executable,
                                                             cudaGraphNode_t node,
                                                             cudaEvent_t event) {
  return plain_call([&] {
    EventRef found = find_event(event);
    return found == nullptr ? Error::kInvalidHandle
                            : set_step(executable, node, RecordOperation{std::move(found)});
  });
}

WEIR_CUDART cudaError_t cudaGraphExecEventWaitNodeSetEvent(cudaGraphExec_t executable,
                                                           cudaGraphNode_t node,
                                                           cudaEvent_t event) {
  return plain_call([&] {
    EventRef found = find_event(event);
    return found == nullptr ? Error::kInvalidHandle
                            : set_step(executable, node, AwaitOperation{std::move(found)});
  });
}

WEIR_CUDART cudaError_t cudaGraphNodeSetEnabled(cudaGraphExec_t executable, cudaGraphNode_t node,
                                                unsigned int enabled) {
  return plain_call([&] { return set_step_enabled(executable, node, enabled != 0); });
}

WEIR_CUDART cudaError_t cudaGraphNodeGetEnabled(cudaGraphExec_t executable, cudaGraphNode_t node,
                                                unsigned int* enabled) {
  return plain_call([&] {
    if (enabled == nullptr) return Error::kInvalidValue;
    bool value = false;
    const Error error = step_enabled(executable, node, &value);
    *enabled = value ? 1 : 0;
    return error;
  });
}

WEIR_CUDART cudaError_t cudaUserObjectCreate(cudaUserObject_t* object, void* data,
                                             cudaHostFn_t destroy, unsigned int count,
                                             unsigned int flags) {
  return plain_call([&] {
    return create_user_object(reinterpret_cast<void**>(object), data, destroy, count, flags);
  });
}

WEIR_CUDART cudaError_t cudaUserObjectRetain(cudaUserObject_t object, unsigned int count) {
  return plain_call([&] { return retain_user_object(object, count); });
}

WEIR_CUDART cudaError_t cudaUserObjectRelease(cudaUserObject_t object, unsigned int count) {
  return plain_call([&] { return release_user_object(object, count); });
}

WEIR_CUDART cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object,
                                                  unsigned int count, unsigned int flags) {
  return plain_call([&] { return give_user_object(graph, object, count, flags); });
}

WEIR_CUDART cudaError_t cudaGraphReleaseUserObject(cudaGraph_t graph, cudaUserObject_t object,
                                                   unsigned int count) {
  return plain_call([&] { return take_user_object(graph, object, count); });
}
