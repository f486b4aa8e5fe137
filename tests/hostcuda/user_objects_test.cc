// SPDX-License-Identifier: Apache-2.0
// Objects of the program that live as long as graphs and executables refer to them.
// WEIR_TEST_SEED: only this program of the random test. WEIR_TEST_COUNT: how many.
#include <atomic>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "hostcuda/support.h"

namespace weir::test {
namespace {

constexpr unsigned kMove = 1;

void set_flag(void* data) { static_cast<std::atomic<bool>*>(data)->store(true); }
void do_nothing(void*) {}

cudaUserObject_t make_object(std::atomic<bool>* gone, unsigned count = 1) {
  cudaUserObject_t object = nullptr;
  EXPECT_CUDA(cudaUserObjectCreate(&object, gone, set_flag, count, 1));
  return object;
}

cudaGraphNode_t add_host_node(cudaGraph_t graph) {
  cudaHostNodeParams host{};
  host.fn = do_nothing;
  cudaGraphNode_t node = nullptr;
  EXPECT_CUDA(cudaGraphAddHostNode(&node, graph, nullptr, 0, &host));
  return node;
}

// A graph of one node that alone refers to a new object.
cudaGraph_t make_graph(std::atomic<bool>* gone) {
  cudaGraph_t graph = nullptr;
  EXPECT_CUDA(cudaGraphCreate(&graph, 0));
  add_host_node(graph);
  EXPECT_CUDA(cudaGraphRetainUserObject(graph, make_object(gone), 1, kMove));
  return graph;
}

cudaGraphExec_t instantiate(cudaGraph_t graph) {
  cudaGraphExec_t executable = nullptr;
  EXPECT_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  return executable;
}

TEST(HostCudaUserObjects, AnUpdateReplacesTheObjectsOfAnExecutable) {
  std::atomic<bool> first{false};
  std::atomic<bool> second{false};
  std::atomic<bool> third{false};
  const cudaGraph_t graph = make_graph(&first);
  const cudaGraphExec_t executable = instantiate(graph);
  EXPECT_CUDA(cudaGraphDestroy(graph));
  EXPECT_FALSE(first);
  const cudaGraph_t other = make_graph(&second);
  cudaGraphExecUpdateResultInfo result{};
  ASSERT_CUDA(cudaGraphExecUpdate(executable, other, &result));
  EXPECT_TRUE(first);
  EXPECT_CUDA(cudaGraphDestroy(other));
  EXPECT_FALSE(second);
  // An update that fails changes nothing.
  const cudaGraph_t larger = make_graph(&third);
  add_host_node(larger);
  EXPECT_CUDA_ERROR(910, cudaGraphExecUpdate(executable, larger, &result));
  EXPECT_FALSE(second);
  EXPECT_CUDA(cudaGraphDestroy(larger));
  EXPECT_TRUE(third);
  EXPECT_CUDA(cudaGraphExecDestroy(executable));
  EXPECT_TRUE(second);
}

TEST(HostCudaUserObjects, ALaunchKeepsTheObjectsThatAnUpdateReplaces) {
  const cudaStream_t stream = make_stream(kNonBlocking);
  std::atomic<bool> first{false};
  std::atomic<bool> second{false};
  const cudaGraph_t graph = make_graph(&first);
  const cudaGraph_t other = make_graph(&second);
  const cudaGraphExec_t executable = instantiate(graph);
  EXPECT_CUDA(cudaGraphDestroy(graph));
  Gate gate;
  gate.close(stream);
  ASSERT_CUDA(cudaGraphLaunch(executable, stream));
  cudaGraphExecUpdateResultInfo result{};
  ASSERT_CUDA(cudaGraphExecUpdate(executable, other, &result));
  EXPECT_CUDA(cudaGraphDestroy(other));
  ASSERT_CUDA(cudaGraphLaunch(executable, stream));
  EXPECT_CUDA(cudaGraphExecDestroy(executable));
  EXPECT_FALSE(first);
  EXPECT_FALSE(second);
  gate.open();
  EXPECT_CUDA(cudaStreamSynchronize(stream));
  EXPECT_TRUE(first);
  EXPECT_TRUE(second);
  EXPECT_CUDA(cudaStreamDestroy(stream));
}

TEST(HostCudaUserObjects, AnExecutableHoldsTheObjectsOfChildGraphs) {
  std::atomic<bool> gone{false};
  const cudaGraph_t graph = make_graph(&gone);
  cudaGraph_t clone = nullptr;
  EXPECT_CUDA(cudaGraphClone(&clone, graph));
  EXPECT_CUDA(cudaGraphDestroy(graph));
  EXPECT_FALSE(gone);
  cudaGraph_t middle = nullptr;
  cudaGraph_t outer = nullptr;
  cudaGraphNode_t node = nullptr;
  ASSERT_CUDA(cudaGraphCreate(&middle, 0));
  ASSERT_CUDA(cudaGraphCreate(&outer, 0));
  ASSERT_CUDA(cudaGraphAddChildGraphNode(&node, middle, nullptr, 0, clone));
  EXPECT_CUDA(cudaGraphDestroy(clone));
  ASSERT_CUDA(cudaGraphAddChildGraphNode(&node, outer, nullptr, 0, middle));
  EXPECT_CUDA(cudaGraphDestroy(middle));
  EXPECT_FALSE(gone);
  const cudaGraphExec_t executable = instantiate(outer);
  EXPECT_CUDA(cudaGraphDestroyNode(node));
  EXPECT_CUDA(cudaGraphDestroy(outer));
  EXPECT_FALSE(gone);
  EXPECT_CUDA(cudaGraphExecDestroy(executable));
  EXPECT_TRUE(gone);
}

TEST(HostCudaUserObjects, AGraphGivesUpOnlyReferencesThatItHas) {
  std::atomic<bool> gone{false};
  const cudaUserObject_t object = make_object(&gone, 3);
  cudaGraph_t graph = nullptr;
  ASSERT_CUDA(cudaGraphCreate(&graph, 0));
  EXPECT_CUDA_ERROR(1, cudaGraphReleaseUserObject(graph, object, 1));
  EXPECT_CUDA(cudaGraphRetainUserObject(graph, object, 0x7ffffffe, 0));  // a count, not a list
  EXPECT_CUDA(cudaGraphReleaseUserObject(graph, object, 0x7ffffffc));
  EXPECT_CUDA_ERROR(1, cudaGraphReleaseUserObject(graph, object, 3));
  EXPECT_CUDA(cudaUserObjectRelease(object, 3));
  EXPECT_FALSE(gone);
  EXPECT_CUDA(cudaGraphReleaseUserObject(graph, object, 1));
  EXPECT_FALSE(gone);
  EXPECT_CUDA(cudaGraphReleaseUserObject(graph, object, 1));
  EXPECT_TRUE(gone);
  EXPECT_CUDA_ERROR(1, cudaGraphReleaseUserObject(graph, object, 1));
  EXPECT_CUDA_ERROR(1, cudaUserObjectRetain(object, 1));
  EXPECT_CUDA(cudaGraphDestroy(graph));
}

// ---- Random programs against a model -----------------------------------------------------------

struct Object {
  cudaUserObject_t handle = nullptr;
  std::atomic<bool> gone{false};
  size_t own = 0;  // references of the program
};

// What a graph is: references, and nodes in the order in which they were added; a child graph is a
// copy of its own.
struct Model {
  std::map<Object*, size_t> references;
  std::vector<std::shared_ptr<Model>> nodes;  // nullptr: a host node

  std::shared_ptr<Model> copy() const {
    auto twin = std::make_shared<Model>(*this);
    for (auto& node : twin->nodes) {
      if (node != nullptr) node = node->copy();
    }
    return twin;
  }
  std::string shape() const {
    std::string text;
    for (const auto& node : nodes) text += node == nullptr ? "." : "(" + node->shape() + ")";
    return text;
  }
  void collect(std::set<Object*>* all) const {
    for (const auto& [object, count] : references) all->insert(object);
    for (const auto& node : nodes) {
      if (node != nullptr) node->collect(all);
    }
  }
  size_t size() const {
    size_t total = 1;
    for (const auto& node : nodes) total += node == nullptr ? 1 : node->size();
    return total;
  }
};

struct GraphPair {
  cudaGraph_t handle = nullptr;
  std::shared_ptr<Model> model;
  std::vector<cudaGraphNode_t> nodes;  // as those of the model
};
struct ExecutablePair {
  cudaGraphExec_t handle = nullptr;
  std::string shape = "?";  // "?": not known
  std::set<Object*> objects;
};

class Program {
 public:
  explicit Program(uint64_t seed) : random_(seed), stream_(make_stream(kNonBlocking)) {}

  void run() {
    for (int i = 0; i < 150 && !::testing::Test::HasFailure(); ++i) {
      step();
      check();
    }
    drain();
    check();
    for (const GraphPair& graph : graphs_) EXPECT_CUDA(cudaGraphDestroy(graph.handle));
    graphs_.clear();
    check();
    for (const auto& executable : executables_) {
      EXPECT_CUDA(cudaGraphExecDestroy(executable.handle));
    }
    executables_.clear();
    check();
    for (const auto& object : objects_) {
      if (object->own == 0) continue;
      EXPECT_CUDA(cudaUserObjectRelease(object->handle, static_cast<unsigned>(object->own)));
      object->own = 0;
    }
    check();
    EXPECT_CUDA(cudaStreamDestroy(stream_));
  }

 private:
  size_t below(size_t bound) { return random_() % bound; }

  Object* any_living() {
    const std::set<Object*> held = referenced();
    std::vector<Object*> living;  // in the order of their creation, not of their addresses
    for (const auto& object : objects_) {
      if (held.count(object.get()) != 0) living.push_back(object.get());
    }
    return living.empty() ? nullptr : living[below(living.size())];
  }

  std::set<Object*> referenced() const {
    std::set<Object*> all;
    for (const auto& object : objects_) {
      if (object->own > 0) all.insert(object.get());
    }
    for (const GraphPair& graph : graphs_) graph.model->collect(&all);
    for (const auto& executable : executables_) {
      all.insert(executable.objects.begin(), executable.objects.end());
    }
    for (const auto& launch : launches_) all.insert(launch.begin(), launch.end());
    return all;
  }

  void check() const {
    const std::set<Object*> held = referenced();
    for (const auto& object : objects_) {
      EXPECT_EQ(object->gone.load(), held.count(object.get()) == 0)
          << "object " << object->handle << " after " << last_;
    }
  }

  void drain() {
    gate_.reset();
    EXPECT_CUDA(cudaStreamSynchronize(stream_));
    launches_.clear();
  }

  void step();
  void step_of_object();
  void step_of_graph();
  void step_of_executable();

  std::mt19937_64 random_;
  const cudaStream_t stream_;
  std::vector<std::unique_ptr<Object>> objects_;
  std::vector<GraphPair> graphs_;
  std::vector<ExecutablePair> executables_;
  std::vector<std::set<Object*>> launches_;  // behind the gate
  std::unique_ptr<Gate> gate_;
  const char* last_ = "";
};

void Program::step() {
  switch (below(4)) {
    case 0:
      step_of_object();
      break;
    case 1:
      step_of_executable();
      break;
    default:
      step_of_graph();
  }
}

void Program::step_of_object() {
  if (below(2) == 0) {
    last_ = "create";
    auto object = std::make_unique<Object>();
    object->own = 1 + below(3);
    object->handle = make_object(&object->gone, static_cast<unsigned>(object->own));
    objects_.push_back(std::move(object));
    return;
  }
  Object* const object = any_living();
  if (object == nullptr) return;
  const size_t count = 1 + below(3);
  const auto number = static_cast<unsigned>(count);
  if (below(3) == 0) {
    last_ = "retain";
    EXPECT_CUDA(cudaUserObjectRetain(object->handle, number));
    object->own += count;
  } else {
    last_ = "release";
    const bool fits = count <= object->own;
    EXPECT_CUDA_ERROR(fits ? 0 : 1, cudaUserObjectRelease(object->handle, number));
    if (fits) object->own -= count;
  }
}

void Program::step_of_graph() {
  if (graphs_.empty() || below(8) == 0) {
    last_ = "new graph";
    GraphPair made;
    ASSERT_CUDA(cudaGraphCreate(&made.handle, 0));
    made.model = std::make_shared<Model>();
    graphs_.push_back(std::move(made));
    return;
  }
  const size_t at = below(graphs_.size());
  GraphPair& graph = graphs_[at];
  Object* const object = any_living();
  const size_t count = 1 + below(2);
  const auto number = static_cast<unsigned>(count);
  switch (below(8)) {
    case 0:
    case 1: {
      if (object == nullptr) return;
      last_ = "give to graph";
      const bool moves = below(2) == 0;
      const bool fits = !moves || count <= object->own;
      EXPECT_CUDA_ERROR(fits ? 0 : 1, cudaGraphRetainUserObject(graph.handle, object->handle,
                                                                number, moves ? kMove : 0));
      if (!fits) return;
      graph.model->references[object] += count;
      if (moves) object->own -= count;
      return;
    }
    case 2: {
      if (object == nullptr) return;
      last_ = "take from graph";
      auto& references = graph.model->references;
      const auto found = references.find(object);
      const bool fits = found != references.end() && found->second >= count;
      EXPECT_CUDA_ERROR(fits ? 0 : 1,
                        cudaGraphReleaseUserObject(graph.handle, object->handle, number));
      if (fits && (found->second -= count) == 0) references.erase(found);
      return;
    }
    case 3:
      if (graph.model->size() > 30) return;
      last_ = "host node";
      graph.nodes.push_back(add_host_node(graph.handle));
      graph.model->nodes.push_back(nullptr);
      return;
    case 4: {
      const GraphPair& child = graphs_[below(graphs_.size())];
      if (child.handle == graph.handle || graph.model->size() + child.model->size() > 30) return;
      last_ = "child node";
      cudaGraphNode_t node = nullptr;
      ASSERT_CUDA(cudaGraphAddChildGraphNode(&node, graph.handle, nullptr, 0, child.handle));
      graph.nodes.push_back(node);
      graph.model->nodes.push_back(child.model->copy());
      return;
    }
    case 5: {
      if (graph.nodes.empty()) return;
      last_ = "destroy node";
      const auto index = static_cast<std::ptrdiff_t>(below(graph.nodes.size()));
      EXPECT_CUDA(cudaGraphDestroyNode(*(graph.nodes.begin() + index)));
      graph.nodes.erase(graph.nodes.begin() + index);
      graph.model->nodes.erase(graph.model->nodes.begin() + index);
      return;
    }
    case 6: {
      last_ = "clone";
      GraphPair twin;
      ASSERT_CUDA(cudaGraphClone(&twin.handle, graph.handle));
      twin.model = graph.model->copy();
      for (const cudaGraphNode_t node : graph.nodes) {
        cudaGraphNode_t its = nullptr;
        EXPECT_CUDA(cudaGraphNodeFindInClone(&its, node, twin.handle));
        twin.nodes.push_back(its);
      }
      graphs_.push_back(std::move(twin));
      return;
    }
    default:
      last_ = "destroy graph";
      EXPECT_CUDA(cudaGraphDestroy(graph.handle));
      graphs_.erase(graphs_.begin() + static_cast<std::ptrdiff_t>(at));
  }
}

void Program::step_of_executable() {
  if (!graphs_.empty() && (executables_.empty() || below(5) == 0)) {
    last_ = "instantiate";
    const GraphPair& graph = graphs_[below(graphs_.size())];
    ExecutablePair made;
    made.handle = instantiate(graph.handle);
    made.shape = graph.model->shape();
    graph.model->collect(&made.objects);
    executables_.push_back(std::move(made));
    return;
  }
  if (executables_.empty()) return;
  const size_t at = below(executables_.size());
  ExecutablePair& executable = executables_[at];
  switch (below(6)) {
    case 0:
      last_ = "destroy executable";
      EXPECT_CUDA(cudaGraphExecDestroy(executable.handle));
      executables_.erase(executables_.begin() + static_cast<std::ptrdiff_t>(at));
      return;
    case 1:
      last_ = "launch";
      if (gate_ == nullptr) {
        gate_ = std::make_unique<Gate>();
        gate_->close(stream_);
      }
      EXPECT_CUDA(cudaGraphLaunch(executable.handle, stream_));
      launches_.push_back(executable.objects);
      return;
    case 2:
      last_ = "drain";
      return drain();
    case 3: {
      last_ = "captured launch";
      const cudaStream_t stream = make_stream(kNonBlocking);
      GraphPair made;
      ASSERT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
      EXPECT_CUDA(cudaGraphLaunch(executable.handle, stream));
      ASSERT_CUDA(cudaStreamEndCapture(stream, &made.handle));
      EXPECT_CUDA(cudaStreamDestroy(stream));
      // Its child has the steps of the executable; those of children in an order of their own.
      ExecutablePair twin;
      twin.handle = instantiate(made.handle);
      if (executable.shape.find_first_of("(?") == std::string::npos) {
        twin.shape = "(" + executable.shape + ")";
      }
      twin.objects = executable.objects;
      EXPECT_CUDA(cudaGraphDestroy(made.handle));
      executables_.push_back(std::move(twin));
      return;
    }
    default: {
      if (graphs_.empty() || executable.shape == "?") return;
      last_ = "update";
      const GraphPair& graph = graphs_[below(graphs_.size())];
      const bool fits = graph.model->shape() == executable.shape;
      cudaGraphExecUpdateResultInfo result{};
      EXPECT_CUDA_ERROR(fits ? 0 : 910,
                        cudaGraphExecUpdate(executable.handle, graph.handle, &result));
      if (!fits) return;
      executable.objects.clear();
      graph.model->collect(&executable.objects);
    }
  }
}

uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

TEST(HostCudaUserObjects, RandomProgramsDestroyEachObjectWithItsLastReference) {
  const uint64_t count = from_environment("WEIR_TEST_COUNT", 300);
  const bool one = std::getenv("WEIR_TEST_SEED") != nullptr;
  const uint64_t first = from_environment("WEIR_TEST_SEED", 1);
  for (uint64_t seed = first; seed < (one ? first + 1 : first + count); ++seed) {
    SCOPED_TRACE("WEIR_TEST_SEED=" + std::to_string(seed));
    Program(seed).run();
    if (HasFailure()) break;
  }
}

}  // namespace
}  // namespace weir::test
