// SPDX-License-Identifier: Apache-2.0
// Whole graphs: creation, instantiation, update. Their nodes come from captures and from the
// runtime.
#include "hostcuda/core/graph.h"
#include "hostcuda/driver/call.h"

using namespace weir::hostcuda;          // NOLINT: this file is their C interface
using namespace weir::hostcuda::driver;  // NOLINT

namespace {

constexpr uint64_t kFlags = 0xf;
constexpr uint64_t kUpload = 2;
constexpr uint64_t kDeviceLaunch = 4;

Error make_executable(CUgraphExec* out, CUgraph graph, uint64_t flags) {
  if (out == nullptr || (flags & ~kFlags) != 0) return Error::kInvalidValue;
  if ((flags & kDeviceLaunch) != 0) return Error::kNotSupported;
  void* made = nullptr;
  const Error error = instantiate(graph, flags, &made);
  *out = static_cast<CUgraphExec>(made);
  return error;
}

}  // namespace

WEIR_CUDA CUresult cuGraphCreate(CUgraph* graph, unsigned int flags) {
  return plain_call([&] {
    if (graph == nullptr || flags != 0) return Error::kInvalidValue;
    void* made = nullptr;
    const Error error = create_graph(&made);
    *graph = static_cast<CUgraph>(made);
    return error;
  });
}

WEIR_CUDA CUresult cuGraphDestroy(CUgraph graph) {
  return plain_call([&] { return destroy_graph(graph); });
}

WEIR_CUDA CUresult cuGraphClone(CUgraph* clone, CUgraph graph) {
  return plain_call([&] {
    if (clone == nullptr) return Error::kInvalidValue;
    const std::lock_guard lock(graph_lock());
    const GraphRef found = find_graph(graph);
    if (found == nullptr) return Error::kInvalidValue;
    *clone = static_cast<CUgraph>(publish_graph(found->clone()));
    return Error::kSuccess;
  });
}

WEIR_CUDA CUresult cuGraphInstantiateWithFlags(CUgraphExec* executable, CUgraph graph,
                                               unsigned long long flags) {
  return context_call([&] { return make_executable(executable, graph, flags); });
}

WEIR_CUDA CUresult cuGraphInstantiateWithParams(CUgraphExec* executable, CUgraph graph,
                                                CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
  return context_call([&] {
    if (parameters == nullptr) return Error::kInvalidValue;
    Error error = make_executable(executable, graph, parameters->flags);
    if (error == Error::kSuccess && (parameters->flags & kUpload) != 0) {
      error = issue(parameters->hUploadStream, EmptyOperation{});
    }
    parameters->hErrNode_out = nullptr;
    parameters->result_out =
        error == Error::kSuccess ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
    return error;
  });
}

WEIR_CUDA CUresult cuGraphExecGetFlags(CUgraphExec executable, cuuint64_t* flags) {
  return plain_call([&] {
    const ExecutableRef found = find_executable(executable);
    if (flags == nullptr || found == nullptr) return Error::kInvalidValue;
    *flags = found->flags;
    return Error::kSuccess;
  });
}

WEIR_CUDA CUresult cuGraphExecUpdate_v2(CUgraphExec executable, CUgraph graph,
                                        CUgraphExecUpdateResultInfo* result) {
  return plain_call([&] {
    if (result == nullptr) return Error::kInvalidValue;
    UpdateResult outcome{};
    const void* node = nullptr;
    const Error error = update_executable(executable, graph, &outcome, &node);
    result->result = static_cast<CUgraphExecUpdateResult>(outcome);
    result->errorNode = static_cast<CUgraphNode>(const_cast<void*>(node));
    result->errorFromNode = nullptr;
    return error;
  });
}

WEIR_CUDA CUresult cuGraphExecDestroy(CUgraphExec executable) {
  return plain_call([&] { return destroy_executable(executable); });
}

WEIR_CUDA CUresult cuGraphUpload(CUgraphExec executable, CUstream stream) {
  return context_call([&] {
    return find_executable(executable) == nullptr ? Error::kInvalidValue
                                                  : issue(stream, EmptyOperation{});
  });
}
