// SPDX-License-Identifier: Apache-2.0
// The nodes of graphs and their dependencies.
#include <algorithm>
#include <utility>
#include <vector>

#include "hostcuda/core/graph.h"
#include "hostcuda/runtime/boxes.h"
#include "hostcuda/runtime/call.h"

using namespace weir::hostcuda;           // NOLINT: this file is their C interface
using namespace weir::hostcuda::runtime;  // NOLINT

namespace {

Error add(cudaGraphNode_t* out, cudaGraph_t graph, const cudaGraphNode_t* after, size_t count,
          Operation operation) {
  if (out == nullptr) return Error::kInvalidValue;
  void* node = nullptr;
  std::vector<const void*> before;
  if (count > 0 && after == nullptr) return Error::kInvalidValue;
  before.assign(after, after + count);
  const Error error = add_node(graph, std::move(operation), before.data(), count, &node);
  *out = static_cast<cudaGraphNode_t>(node);
  return error;
}

cudaGraphNode_t handle_of(const Node* node) {
  return reinterpret_cast<cudaGraphNode_t>(const_cast<Node*>(node));
}

// The node behind a handle; under graph_lock().
Node* find_node(const void* handle) {
  return graph_of(handle) == nullptr ? nullptr : static_cast<Node*>(const_cast<void*>(handle));
}

// As CUDA's lists: without an array the number of elements, with one as many as fit.
Error give(const std::vector<const Node*>& found, cudaGraphNode_t* nodes, size_t* count) {
  if (count == nullptr) return Error::kInvalidValue;
  if (nodes != nullptr) {
    for (size_t i = 0; i < *count; ++i) nodes[i] = i < found.size() ? handle_of(found[i]) : nullptr;
  }
  *count = nodes == nullptr ? found.size() : std::min(*count, found.size());
  return Error::kSuccess;
}

void give_edges(cudaGraphEdgeData* edges, size_t count) {
  if (edges != nullptr) std::fill(edges, edges + count, cudaGraphEdgeData{});
}

constexpr int kBatchMemOp = 12;  // the driver's number: the runtime has no name for it

int type_of(const Operation& operation) {
  struct Visitor {
    int operator()(const EmptyOperation&) { return cudaGraphNodeTypeEmpty; }
    int operator()(const CopyOperation&) { return cudaGraphNodeTypeMemcpy; }
    int operator()(const FillOperation&) { return cudaGraphNodeTypeMemset; }
    int operator()(const HostOperation&) { return cudaGraphNodeTypeHost; }
    int operator()(const ValueBatch&) { return kBatchMemOp; }
    int operator()(const KernelOperation&) { return cudaGraphNodeTypeKernel; }
    int operator()(const RecordOperation&) { return cudaGraphNodeTypeEventRecord; }
    int operator()(const AwaitOperation&) { return cudaGraphNodeTypeWaitEvent; }
    int operator()(const AllocateOperation&) { return cudaGraphNodeTypeMemAlloc; }
    int operator()(const FreeOperation&) { return cudaGraphNodeTypeMemFree; }
    int operator()(const ChildOperation&) { return cudaGraphNodeTypeGraph; }
  };
  return std::visit(Visitor{}, operation);
}

// Both ends are nodes of the graph.
Error check_edges(const Graph& graph, const cudaGraphNode_t* from, const cudaGraphNode_t* to,
                  size_t count) {
  if (count > 0 && (from == nullptr || to == nullptr)) return Error::kInvalidValue;
  for (size_t i = 0; i < count; ++i) {
    const Node* const a = find_node(from[i]);
    const Node* const b = find_node(to[i]);
    if (a == nullptr || b == nullptr || a == b || !graph.owns(a) || !graph.owns(b)) {
      return Error::kInvalidValue;
    }
  }
  return Error::kSuccess;
}

}  // namespace

WEIR_CUDART cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                              const cudaGraphNode_t* after, size_t count) {
  return plain_call([&] { return add(node, graph, after, count, EmptyOperation{}); });
}

WEIR_CUDART cudaError_t cudaGraphAddHostNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                             const cudaGraphNode_t* after, size_t count,
                                             const struct cudaHostNodeParams* host) {
  return plain_call([&] {
    if (host == nullptr || host->fn == nullptr) return Error::kInvalidValue;
    return add(node, graph, after, count, HostOperation{host->fn, host->userData});
  });
}

WEIR_CUDART cudaError_t cudaGraphAddMemcpyNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                               const cudaGraphNode_t* after, size_t count,
                                               const struct cudaMemcpy3DParms* box) {
  return plain_call([&] {
    CopyOperation operation;
    const Error error = to_operation(box, &operation);
    return error == Error::kSuccess ? add(node, graph, after, count, std::move(operation)) : error;
  });
}

WEIR_CUDART cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t* node, cudaGraph_t graph,
                                                 const cudaGraphNode_t* after, size_t count,
                                                 void* to, const void* from, size_t bytes,
                                                 enum cudaMemcpyKind kind) {
  return plain_call([&] {
    if (to == nullptr || from == nullptr) return Error::kInvalidValue;
    return add(node, graph, after, count, flat_copy(to, from, bytes, kind));
  });
}

WEIR_CUDART cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                               const cudaGraphNode_t* after, size_t count,
                                               const struct cudaMemsetParams* fill) {
  return plain_call([&] {
    FillOperation operation;
    const Error error = to_operation(fill, &operation);
    return error == Error::kSuccess ? add(node, graph, after, count, operation) : error;
  });
}

WEIR_CUDART cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                               const cudaGraphNode_t* after, size_t count,
                                               const struct cudaKernelNodeParams* kernel) {
  return plain_call([&] {
    KernelOperation operation;
    const Error error = to_operation(kernel, &operation);
    return error == Error::kSuccess ? add(node, graph, after, count, std::move(operation)) : error;
  });
}

WEIR_CUDART cudaError_t cudaGraphAddEventRecordNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                                    const cudaGraphNode_t* after, size_t count,
                                                    cudaEvent_t event) {
  return plain_call([&] {
    EventRef found = find_event(event);
    if (found == nullptr) return Error::kInvalidHandle;
    return add(node, graph, after, count, RecordOperation{std::move(found)});
  });
}

WEIR_CUDART cudaError_t cudaGraphAddEventWaitNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                                  const cudaGraphNode_t* after, size_t count,
                                                  cudaEvent_t event) {
  return plain_call([&] {
    EventRef found = find_event(event);
    if (found == nullptr) return Error::kInvalidHandle;
    return add(node, graph, after, count, AwaitOperation{std::move(found)});
  });
}

WEIR_CUDART cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                                   const cudaGraphNode_t* after, size_t count,
                                                   cudaGraph_t child) {
  return plain_call([&] {
    GraphRef copy;
    {
      const std::lock_guard lock(graph_lock());
      const GraphRef found = find_graph(child);
      if (found == nullptr || child == graph) return Error::kInvalidValue;
      copy = found->clone();
    }
    return add(node, graph, after, count, ChildOperation{std::move(copy)});
  });
}

WEIR_CUDART cudaError_t cudaGraphHostNodeGetParams(cudaGraphNode_t handle,
                                                   struct cudaHostNodeParams* host) {
  return plain_call([&] {
    const std::lock_guard lock(graph_lock());
    const Node* const node = find_node(handle);
    const auto* const operation =
        node == nullptr ? nullptr : std::get_if<HostOperation>(&node->operation);
    if (operation == nullptr || host == nullptr) return Error::kInvalidValue;
    *host = {operation->function, operation->data};
    return Error::kSuccess;
  });
}

WEIR_CUDART cudaError_t cudaGraphHostNodeSetParams(cudaGraphNode_t handle,
                                                   const struct cudaHostNodeParams* host) {
  return plain_call([&] {
    const std::lock_guard lock(graph_lock());
    Node* const node = find_node(handle);
    auto* const operation =
        node == nullptr ? nullptr : std::get_if<HostOperation>(&node->operation);
    if (operation == nullptr || host == nullptr || host->fn == nullptr) {
      return Error::kInvalidValue;
    }
    *operation = {host->fn, host->userData};
    return Error::kSuccess;
  });
}

WEIR_CUDART cudaError_t cudaGraphNodeGetType(cudaGraphNode_t handle, enum cudaGraphNodeType* type) {
  return plain_call([&] {
    const std::lock_guard lock(graph_lock());
    const Node* const node = find_node(handle);
    if (node == nullptr || type == nullptr) return Error::kInvalidValue;
    *type = static_cast<enum cudaGraphNodeType>(type_of(node->operation));
    return Error::kSuccess;
  });
}

WEIR_CUDART cudaError_t cudaGraphNodeFindInClone(cudaGraphNode_t* out, cudaGraphNode_t original,
                                                 cudaGraph_t clone) {
  return plain_call([&] {
    const std::lock_guard lock(graph_lock());
    const GraphRef graph = find_graph(clone);
    if (out == nullptr || graph == nullptr) return Error::kInvalidValue;
    for (const auto& node : graph->nodes) {
      if (handle_of(node->origin) != original || original == nullptr) continue;
      *out = handle_of(node.get());
      return Error::kSuccess;
    }
    return Error::kInvalidValue;
  });
}

WEIR_CUDART cudaError_t cudaGraphDestroyNode(cudaGraphNode_t handle) {
  return plain_call([&] {
    Operation gone;  // may own memory: destroyed after the lock is released
    const std::lock_guard lock(graph_lock());
    Node* const node = find_node(handle);
    if (node == nullptr) return Error::kInvalidValue;
    std::swap(gone, node->operation);
    node->graph->remove(node);
    return Error::kSuccess;
  });
}

WEIR_CUDART cudaError_t cudaGraphGetNodes(cudaGraph_t handle, cudaGraphNode_t* nodes,
                                          size_t* count) {
  return plain_call([&] {
    const std::lock_guard lock(graph_lock());
    const GraphRef graph = find_graph(handle);
    if (graph == nullptr) return Error::kInvalidValue;
    std::vector<const Node*> found;
    for (const auto& node : graph->nodes) found.push_back(node.get());
    return give(found, nodes, count);
  });
}

WEIR_CUDART cudaError_t cudaGraphGetRootNodes(cudaGraph_t handle, cudaGraphNode_t* nodes,
                                              size_t* count) {
  return plain_call([&] {
    const std::lock_guard lock(graph_lock());
    const GraphRef graph = find_graph(handle);
    if (graph == nullptr) return Error::kInvalidValue;
    std::vector<const Node*> found;
    for (const auto& node : graph->nodes) {
      if (node->after.empty()) found.push_back(node.get());
    }
    return give(found, nodes, count);
  });
}

WEIR_CUDART cudaError_t cudaGraphGetEdges(cudaGraph_t handle, cudaGraphNode_t* from,
                                          cudaGraphNode_t* to, cudaGraphEdgeData* edges,
                                          size_t* count) {
  return plain_call([&] {
    const std::lock_guard lock(graph_lock());
    const GraphRef graph = find_graph(handle);
    if (graph == nullptr || count == nullptr || (from == nullptr) != (to == nullptr)) {
      return Error::kInvalidValue;
    }
    std::vector<const Node*> begins;
    std::vector<const Node*> ends;
    for (const auto& node : graph->nodes) {
      for (const Node* before : node->after) {
        begins.push_back(before);
        ends.push_back(node.get());
      }
    }
    size_t room = *count;
    if (from != nullptr) (void)give(begins, from, &room);
    const Error error = give(ends, to, count);
    if (to != nullptr) give_edges(edges, *count);
    return error;
  });
}

WEIR_CUDART cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t handle, cudaGraphNode_t* nodes,
                                                     cudaGraphEdgeData* edges, size_t* count) {
  return plain_call([&] {
    const std::lock_guard lock(graph_lock());
    const Node* const node = find_node(handle);
    if (node == nullptr) return Error::kInvalidValue;
    const Error error = give({node->after.begin(), node->after.end()}, nodes, count);
    if (error == Error::kSuccess && nodes != nullptr) give_edges(edges, *count);
    return error;
  });
}

WEIR_CUDART cudaError_t cudaGraphNodeGetDependentNodes(cudaGraphNode_t handle,
                                                       cudaGraphNode_t* nodes,
                                                       cudaGraphEdgeData* edges, size_t* count) {
  return plain_call([&] {
    const std::lock_guard lock(graph_lock());
    const Node* const node = find_node(handle);
    if (node == nullptr) return Error::kInvalidValue;
    std::vector<const Node*> found;
    for (const auto& other : node->graph->nodes) {
      if (std::find(other->after.begin(), other->after.end(), node) != other->after.end()) {
        found.push_back(other.get());
      }
    }
    const Error error = give(found, nodes, count);
    if (error == Error::kSuccess && nodes != nullptr) give_edges(edges, *count);
    return error;
  });
}

WEIR_CUDART cudaError_t cudaGraphAddDependencies(cudaGraph_t handle, const cudaGraphNode_t* from,
                                                 const cudaGraphNode_t* to,
                                                 const cudaGraphEdgeData*, size_t count) {
  return plain_call([&] {
    const std::lock_guard lock(graph_lock());
    const GraphRef graph = find_graph(handle);
    if (graph == nullptr) return Error::kInvalidValue;
    const Error error = check_edges(*graph, from, to, count);
    if (error != Error::kSuccess) return error;
    for (size_t i = 0; i < count; ++i) {
      auto& after = find_node(to[i])->after;
      Node* const before = find_node(from[i]);
      if (std::find(after.begin(), after.end(), before) != after.end()) return Error::kInvalidValue;
      after.push_back(before);
    }
    return Error::kSuccess;
  });
}

WEIR_CUDART cudaError_t cudaGraphRemoveDependencies(cudaGraph_t handle, const cudaGraphNode_t* from,
                                                    const cudaGraphNode_t* to,
                                                    const cudaGraphEdgeData*, size_t count) {
  return plain_call([&] {
    const std::lock_guard lock(graph_lock());
    const GraphRef graph = find_graph(handle);
    if (graph == nullptr) return Error::kInvalidValue;
    const Error error = check_edges(*graph, from, to, count);
    if (error != Error::kSuccess) return error;
    for (size_t i = 0; i < count; ++i) {
      auto& after = find_node(to[i])->after;
      const auto at = std::find(after.begin(), after.end(), find_node(from[i]));
      if (at == after.end()) return Error::kInvalidValue;
      after.erase(at);
    }
    return Error::kSuccess;
  });
}
