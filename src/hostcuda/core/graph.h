// SPDX-License-Identifier: Apache-2.0
// Graphs: operations and their dependencies, made call by call or by capturing a stream, and the
// executables made of them. One lock guards all graphs and captures: building is rare.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "hostcuda/core/error.h"
#include "hostcuda/core/operation.h"

namespace weir::hostcuda {

// Held by every function of capture.h and graph.h that reads or changes a graph.
std::mutex& graph_lock();

struct Node {
  Graph* graph = nullptr;
  Operation operation;
  std::vector<Node*> after;
  bool enabled = true;
  const Node* origin = nullptr;  // in a clone: the node it was made from; only compared
};

// An object of the program that lives as long as a graph or an executable refers to it.
class UserObject {
 public:
  UserObject(void* object, void (*destroy)(void*)) : object_(object), destroy_(destroy) {}
  ~UserObject();
  UserObject(const UserObject&) = delete;
  UserObject& operator=(const UserObject&) = delete;

 private:
  void* const object_;
  void (*const destroy_)(void*);
};
using UserObjectRef = std::shared_ptr<UserObject>;
using UserObjects = std::vector<UserObjectRef>;

// Memory of an allocation node: it has its address from the creation of the node, and is freed with
// the last graph that refers to it, unless the program took it over (cudaFreeAsync outside of the
// graph).
class GraphMemory {
 public:
  explicit GraphMemory(void* address);
  ~GraphMemory();
  GraphMemory(const GraphMemory&) = delete;
  GraphMemory& operator=(const GraphMemory&) = delete;

 private:
  void* const address_;
  uint64_t allocation_ = 0;
};

class Graph {
 public:
  Graph() = default;
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  Node* add(Operation operation, std::vector<Node*> after);  // nodes of this graph
  bool owns(const Node* node) const;
  void remove(Node* node);
  std::shared_ptr<Graph> clone() const;
  // The nodes in an order in which each comes after all that it depends on; empty when there is no
  // such order.
  std::vector<const Node*> ordered() const;

  std::vector<std::unique_ptr<Node>> nodes;
  // How many references the graph has. Those of a child graph are the child's own (CUDA, "CUDA User
  // Objects").
  std::map<UserObjectRef, uint64_t> objects;
};
using GraphRef = std::shared_ptr<Graph>;

// One node of an executable; a child graph becomes its steps between two empty ones.
struct Step {
  Operation operation;
  std::vector<size_t> next;
  size_t waits_for = 0;
  bool enabled = true;
  const Node* node = nullptr;  // where it came from; only compared
};
using Steps = std::vector<Step>;

struct Executable {
  // Both are replaced as a whole: launches keep their steps, and what these need.
  std::shared_ptr<const Steps> steps;
  std::shared_ptr<const UserObjects> objects;  // of the graph and of all its child graphs
  std::mutex launching;                        // of `last`
  Position last;                               // two launches do not run at once
  uint64_t flags = 0;
};
using ExecutableRef = std::shared_ptr<Executable>;

Error create_graph(void** handle);
Error destroy_graph(void* handle);
void* publish_graph(GraphRef graph);
GraphRef find_graph(const void* handle);
ExecutableRef find_executable(const void* handle);
// The graph that a node belongs to; nullptr for an invalid handle. Under graph_lock().
Graph* graph_of(const void* node);

Error add_node(const void* graph, Operation operation, const void* const* after, size_t count,
               void** node);
Error instantiate(const void* graph, uint64_t flags, void** executable);
Error destroy_executable(void* handle);
Error launch(const void* executable, const void* stream);

// Numbers as CUDA's cudaGraphExecUpdateResult.
enum class UpdateResult : int {
  kSuccess = 0,
  kError = 1,
  kTopologyChanged = 2,
  kNodeTypeChanged = 3,
  kParametersChanged = 5,
};
// `node` is the node of `graph` that did not fit, or nullptr.
Error update_executable(const void* executable, const void* graph, UpdateResult* result,
                        const void** node);
Error set_step(const void* executable, const void* node, Operation operation);
Error set_step_enabled(const void* executable, const void* node, bool enabled);
Error step_enabled(const void* executable, const void* node, bool* enabled);

// Runs the steps to their end; branches run in parallel. `marks` has one entry per step: the record
// of an event that the step makes or waits for, or nullptr.
using Marks = std::vector<std::shared_ptr<Completion>>;
// The marks as they are now; every event that a step records gets a new one.
Marks marks_of(const Steps& steps);
void run_steps(std::shared_ptr<const Steps> steps, Marks marks, Device& device,
               const Cancel& cancel);

}  // namespace weir::hostcuda
