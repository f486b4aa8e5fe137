// SPDX-License-Identifier: Apache-2.0
#include "hostcuda/core/graph.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "hostcuda/core/capture.h"
#include "hostcuda/core/handles.h"
#include "hostcuda/core/memory.h"

namespace weir::hostcuda {

namespace {

HandleTable<Graph>& graphs() {
  static auto* const table = new HandleTable<Graph>;
  return *table;
}

HandleTable<Executable>& executables() {
  static auto* const table = new HandleTable<Executable>;
  return *table;
}

// Every node that exists, so that a handle can be checked.
struct NodeTable {
  std::mutex mutex;
  std::unordered_map<const void*, Graph*> graphs;

  void add(const Node* node, Graph* graph) {
    const std::lock_guard lock(mutex);
    graphs.emplace(node, graph);
  }
  void remove(const Node* node) {
    const std::lock_guard lock(mutex);
    graphs.erase(node);
  }
  Graph* find(const void* node) {
    const std::lock_guard lock(mutex);
    const auto at = graphs.find(node);
    return at == graphs.end() ? nullptr : at->second;
  }
};

NodeTable& known_nodes() {
  static auto* const table = new NodeTable;
  return *table;
}

// Lays out a graph as steps, and adds its user objects; fails on a cycle.
bool append_steps(const Graph& graph, Steps* steps, UserObjects* objects) {
  const std::vector<const Node*> ordered = graph.ordered();
  if (ordered.size() != graph.nodes.size()) return false;
  for (const auto& [object, count] : graph.objects) objects->push_back(object);
  std::unordered_map<const Node*, size_t> first;
  std::unordered_map<const Node*, size_t> last;
  for (const Node* node : ordered) {
    const size_t entry = steps->size();
    steps->emplace_back();
    (*steps)[entry].node = node;
    (*steps)[entry].enabled = node->enabled;
    size_t exit = entry;
    if (const auto* child = std::get_if<ChildOperation>(&node->operation)) {
      const size_t begin = steps->size();
      if (!append_steps(*child->graph, steps, objects)) return false;
      exit = steps->size();
      steps->emplace_back();
      for (size_t i = begin; i < exit; ++i) {
        if ((*steps)[i].waits_for == 0) {
          (*steps)[entry].next.push_back(i);
          (*steps)[i].waits_for = 1;
        }
        if ((*steps)[i].next.empty()) {
          (*steps)[i].next.push_back(exit);
          ++(*steps)[exit].waits_for;
        }
      }
      if (begin == exit) {
        (*steps)[entry].next.push_back(exit);
        (*steps)[exit].waits_for = 1;
      }
    } else {
      (*steps)[entry].operation = node->operation;
    }
    first[node] = entry;
    last[node] = exit;
    for (const Node* before : node->after) {
      (*steps)[last[before]].next.push_back(entry);
      ++(*steps)[entry].waits_for;
    }
  }
  return true;
}

}  // namespace

std::mutex& graph_lock() {
  static auto* const lock = new std::mutex;
  return *lock;
}

GraphMemory::GraphMemory(void* address) : address_(address) {
  if (const auto found = find_allocation(address)) allocation_ = found->id;
}

GraphMemory::~GraphMemory() {
  const auto found = find_allocation(address_);
  if (found.has_value() && found->id == allocation_) (void)release_device(address_);
}

Node* Graph::add(Operation operation, std::vector<Node*> after) {
  auto node = std::make_unique<Node>();
  node->graph = this;
  node->operation = std::move(operation);
  std::sort(after.begin(), after.end());
  after.erase(std::unique(after.begin(), after.end()), after.end());
  node->after = std::move(after);
  known_nodes().add(node.get(), this);
  nodes.push_back(std::move(node));
  return nodes.back().get();
}

bool Graph::owns(const Node* node) const { return known_nodes().find(node) == this; }

void Graph::remove(Node* node) {
  for (const auto& other : nodes) {
    auto& after = other->after;
    after.erase(std::remove(after.begin(), after.end(), node), after.end());
  }
  known_nodes().remove(node);
  nodes.erase(std::find_if(nodes.begin(), nodes.end(),
                           [&](const auto& other) { return other.get() == node; }));
}

std::vector<const Node*> Graph::ordered() const {
  std::unordered_map<const Node*, size_t> missing;
  std::unordered_map<const Node*, std::vector<const Node*>> next;
  std::vector<const Node*> order;
  for (const auto& node : nodes) {
    missing[node.get()] = node->after.size();
    for (const Node* before : node->after) next[before].push_back(node.get());
    if (node->after.empty()) order.push_back(node.get());
  }
  for (size_t i = 0; i < order.size(); ++i) {
    for (const Node* node : next[order[i]]) {
      if (--missing[node] == 0) order.push_back(node);
    }
  }
  if (order.size() != nodes.size()) order.clear();
  return order;
}

GraphRef Graph::clone() const {
  auto copy = std::make_shared<Graph>();
  std::unordered_map<const Node*, Node*> twins;
  for (const auto& node : nodes) {
    Operation operation = node->operation;
    if (auto* child = std::get_if<ChildOperation>(&operation)) child->graph = child->graph->clone();
    Node* const twin = copy->add(std::move(operation), {});
    twin->enabled = node->enabled;
    twin->origin = node.get();
    twins[node.get()] = twin;
  }
  for (const auto& node : nodes) {
    for (const Node* before : node->after) twins[node.get()]->after.push_back(twins[before]);
  }
  copy->objects = objects;
  return copy;
}

Graph::~Graph() {
  for (const auto& node : nodes) known_nodes().remove(node.get());
}

Graph* graph_of(const void* node) { return known_nodes().find(node); }

void* publish_graph(GraphRef graph) { return graphs().add(std::move(graph)); }

Error create_graph(void** handle) {
  *handle = publish_graph(std::make_shared<Graph>());
  return Error::kSuccess;
}

Error destroy_graph(void* handle) {
  std::map<UserObjectRef, uint64_t> objects;  // the program's destructors: not under the lock
  std::vector<Operation> operations;          // and these may free memory
  const std::lock_guard lock(graph_lock());
  GraphRef graph = graphs().take(handle);
  if (graph == nullptr) return Error::kInvalidValue;
  objects = graph->objects;
  for (const auto& node : graph->nodes) operations.push_back(node->operation);
  graph.reset();
  return Error::kSuccess;
}

GraphRef find_graph(const void* handle) { return graphs().find(handle); }
ExecutableRef find_executable(const void* handle) { return executables().find(handle); }

Error add_node(const void* handle, Operation operation, const void* const* after, size_t count,
               void** node) {
  const std::lock_guard lock(graph_lock());
  const GraphRef graph = find_graph(handle);
  if (graph == nullptr || node == nullptr || (count > 0 && after == nullptr)) {
    return Error::kInvalidValue;
  }
  std::vector<Node*> before;
  for (size_t i = 0; i < count; ++i) {
    auto* const other = const_cast<Node*>(static_cast<const Node*>(after[i]));
    if (!graph->owns(other)) return Error::kInvalidValue;
    if (std::find(before.begin(), before.end(), other) != before.end()) return Error::kInvalidValue;
    before.push_back(other);
  }
  *node = graph->add(std::move(operation), std::move(before));
  return Error::kSuccess;
}

Error instantiate(const void* handle, uint64_t flags, void** executable) {
  *executable = nullptr;
  const std::lock_guard lock(graph_lock());
  const GraphRef graph = find_graph(handle);
  if (graph == nullptr) return Error::kInvalidValue;
  auto steps = std::make_shared<Steps>();
  auto objects = std::make_shared<UserObjects>();
  if (!append_steps(*graph, steps.get(), objects.get())) return Error::kInvalidValue;
  auto made = std::make_shared<Executable>();
  made->steps = std::move(steps);
  made->objects = std::move(objects);
  made->flags = flags;
  *executable = executables().add(std::move(made));
  return Error::kSuccess;
}

Error destroy_executable(void* handle) {
  return executables().take(handle) == nullptr ? Error::kInvalidValue : Error::kSuccess;
}

Error launch(const void* handle, const void* stream_handle) {
  const ExecutableRef executable = find_executable(handle);
  const StreamRef stream = find_stream(stream_handle);
  if (executable == nullptr) return Error::kInvalidValue;
  if (stream == nullptr) return Error::kInvalidHandle;
  if (in_host_function()) return Error::kNotPermitted;
  if (stream->capture.load() != nullptr) return capture_executable(stream, *executable);
  if (const Error error = check_implicit(stream); error != Error::kSuccess) return error;
  Device* const device = &stream->device();
  // Launches of one executable run in the order in which they arrive here.
  const std::lock_guard lock(executable->launching);
  std::shared_ptr<const Steps> steps;
  std::shared_ptr<const UserObjects> objects;
  {
    const std::lock_guard guard(graph_lock());
    steps = executable->steps;
    objects = executable->objects;
  }
  Marks marks = marks_of(*steps);
  // What the launch needs lives until it is done, whatever the program destroys or updates.
  return enqueue(
      stream,
      [steps = std::move(steps), objects = std::move(objects), marks = std::move(marks), device,
       before = executable->last](const Cancel& cancel) {
        if (before.stream != nullptr) before.stream->wait(before.index, cancel);
        run_steps(steps, marks, *device, cancel);
      },
      &executable->last);
}

Error update_executable(const void* handle, const void* graph_handle, UpdateResult* result,
                        const void** node) {
  *result = UpdateResult::kError;
  *node = nullptr;
  auto steps = std::make_shared<Steps>();
  auto objects = std::make_shared<UserObjects>();
  // What is replaced may run destructors of the program: after the lock is released.
  std::shared_ptr<const Steps> steps_before;
  std::shared_ptr<const UserObjects> objects_before;
  const ExecutableRef executable = find_executable(handle);
  const GraphRef graph = find_graph(graph_handle);
  const std::lock_guard lock(graph_lock());
  if (executable == nullptr || graph == nullptr) return Error::kInvalidValue;
  if (!append_steps(*graph, steps.get(), objects.get())) return Error::kInvalidValue;
  const Steps& old = *executable->steps;
  if (old.size() != steps->size()) {
    *result = UpdateResult::kTopologyChanged;
    return Error::kGraphUpdateFailed;
  }
  for (size_t i = 0; i < old.size(); ++i) {
    Step& step = (*steps)[i];
    const Step& before = old[i];
    *node = step.node;
    if (step.next != before.next || step.waits_for != before.waits_for) {
      *result = UpdateResult::kTopologyChanged;
      return Error::kGraphUpdateFailed;
    }
    if (step.operation.index() != before.operation.index()) {
      *result = UpdateResult::kNodeTypeChanged;
      return Error::kGraphUpdateFailed;
    }
    step.node = before.node;  // the nodes by which the program knows the executable
    step.enabled = before.enabled;
  }
  *node = nullptr;
  *result = UpdateResult::kSuccess;
  steps_before = std::exchange(executable->steps, std::move(steps));
  objects_before = std::exchange(executable->objects, std::move(objects));
  return Error::kSuccess;
}

namespace {

// Changes the step of a node in a copy of the steps; the launches that are enqueued keep theirs.
template <class Change>
Error change_step(const void* handle, const void* node, Change change) {
  const ExecutableRef executable = find_executable(handle);  // destroyed after the lock is released
  const std::lock_guard lock(graph_lock());
  if (executable == nullptr || node == nullptr) return Error::kInvalidValue;
  auto steps = std::make_shared<Steps>(*executable->steps);
  for (Step& step : *steps) {
    if (step.node != node) continue;
    const Error error = change(step);
    if (error == Error::kSuccess) executable->steps = std::move(steps);
    return error;
  }
  return Error::kInvalidValue;
}

}  // namespace

Error set_step(const void* executable, const void* node, Operation operation) {
  return change_step(executable, node, [&](Step& step) {
    if (step.operation.index() != operation.index()) return Error::kInvalidValue;
    step.operation = std::move(operation);
    return Error::kSuccess;
  });
}

Error set_step_enabled(const void* executable, const void* node, bool enabled) {
  return change_step(executable, node, [&](Step& step) {
    step.enabled = enabled;
    return Error::kSuccess;
  });
}

Error step_enabled(const void* handle, const void* node, bool* enabled) {
  const ExecutableRef executable = find_executable(handle);
  const std::lock_guard lock(graph_lock());
  if (executable == nullptr || node == nullptr) return Error::kInvalidValue;
  for (const Step& step : *executable->steps) {
    if (step.node != node) continue;
    *enabled = step.enabled;
    return Error::kSuccess;
  }
  return Error::kInvalidValue;
}

}  // namespace weir::hostcuda
