// SPDX-License-Identifier: Apache-2.0
// Graphs that are made call by call, changed, and run.
#include <atomic>
#include <vector>

#include "hostcuda/support.h"

namespace weir::test {
namespace {

struct Trace {
  std::vector<int> order;
};
struct Mark {
  Trace* trace;
  int number;
};
void note(void* data) {
  auto* const mark = static_cast<Mark*>(data);
  mark->trace->order.push_back(mark->number);
}

cudaGraphNode_t add_note(cudaGraph_t graph, Mark* mark, std::vector<cudaGraphNode_t> after) {
  cudaHostNodeParams host{};
  host.fn = note;
  host.userData = mark;
  cudaGraphNode_t node = nullptr;
  EXPECT_CUDA(cudaGraphAddHostNode(&node, graph, after.data(), after.size(), &host));
  return node;
}

std::vector<int> run(cudaGraphExec_t executable, Trace* trace) {
  trace->order.clear();
  EXPECT_CUDA(cudaGraphLaunch(executable, nullptr));
  EXPECT_CUDA(cudaStreamSynchronize(nullptr));
  return trace->order;
}

TEST(HostCudaGraphs, NodesRunInTheOrderOfTheirEdges) {
  Trace trace;
  Mark marks[] = {{&trace, 0}, {&trace, 1}, {&trace, 2}, {&trace, 3}};
  cudaGraph_t graph = nullptr;
  ASSERT_CUDA(cudaGraphCreate(&graph, 0));
  const cudaGraphNode_t last = add_note(graph, &marks[3], {});
  const cudaGraphNode_t first = add_note(graph, &marks[0], {});
  const cudaGraphNode_t left = add_note(graph, &marks[1], {first});
  const cudaGraphNode_t right = add_note(graph, &marks[2], {left});
  ASSERT_CUDA(cudaGraphAddDependencies(graph, &right, &last, nullptr, 1));
  cudaGraphExec_t executable = nullptr;
  ASSERT_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  EXPECT_EQ(run(executable, &trace), (std::vector<int>{0, 1, 2, 3}));

  // A node that is switched off is passed by.
  EXPECT_CUDA(cudaGraphNodeSetEnabled(executable, left, 0));
  unsigned enabled = 1;
  EXPECT_CUDA(cudaGraphNodeGetEnabled(executable, left, &enabled));
  EXPECT_EQ(enabled, 0U);
  EXPECT_EQ(run(executable, &trace), (std::vector<int>{0, 2, 3}));
  EXPECT_CUDA(cudaGraphNodeSetEnabled(executable, left, 1));

  // New parameters are for launches that come later.
  Mark changed{&trace, 9};
  cudaHostNodeParams host{};
  host.fn = note;
  host.userData = &changed;
  EXPECT_CUDA(cudaGraphExecHostNodeSetParams(executable, right, &host));
  EXPECT_EQ(run(executable, &trace), (std::vector<int>{0, 1, 9, 3}));

  // A whole graph of the same form replaces them all.
  cudaGraphExecUpdateResultInfo result{};
  EXPECT_CUDA(cudaGraphExecUpdate(executable, graph, &result));
  EXPECT_EQ(result.result, cudaGraphExecUpdateSuccess);
  EXPECT_EQ(run(executable, &trace), (std::vector<int>{0, 1, 2, 3}));
  ASSERT_CUDA(cudaGraphRemoveDependencies(graph, &right, &last, nullptr, 1));
  EXPECT_CUDA_ERROR(910, cudaGraphExecUpdate(executable, graph, &result));
  EXPECT_EQ(result.result, cudaGraphExecUpdateErrorTopologyChanged);
  EXPECT_EQ(run(executable, &trace), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_CUDA(cudaGraphExecDestroy(executable));
  EXPECT_CUDA(cudaGraphDestroy(graph));
}

TEST(HostCudaGraphs, AGraphTellsItsNodesAndEdges) {
  Trace trace;
  Mark mark{&trace, 0};
  cudaGraph_t graph = nullptr;
  ASSERT_CUDA(cudaGraphCreate(&graph, 0));
  const cudaGraphNode_t first = add_note(graph, &mark, {});
  cudaGraphNode_t second = nullptr;
  ASSERT_CUDA(cudaGraphAddEmptyNode(&second, graph, &first, 1));
  size_t count = 0;
  EXPECT_CUDA(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &count));
  ASSERT_EQ(count, 1U);
  cudaGraphNode_t from = nullptr;
  cudaGraphNode_t to = nullptr;
  cudaGraphEdgeData edge{};
  EXPECT_CUDA(cudaGraphGetEdges(graph, &from, &to, &edge, &count));
  EXPECT_EQ(from, first);
  EXPECT_EQ(to, second);
  count = 5;
  cudaGraphNode_t roots[5];
  EXPECT_CUDA(cudaGraphGetRootNodes(graph, roots, &count));
  EXPECT_EQ(count, 1U);
  EXPECT_EQ(roots[0], first);
  EXPECT_EQ(roots[1], nullptr);
  cudaGraphNodeType type{};
  EXPECT_CUDA(cudaGraphNodeGetType(first, &type));
  EXPECT_EQ(type, cudaGraphNodeTypeHost);
  cudaGraph_t clone = nullptr;
  cudaGraphNode_t twin = nullptr;
  EXPECT_CUDA(cudaGraphClone(&clone, graph));
  EXPECT_CUDA(cudaGraphNodeFindInClone(&twin, second, clone));
  EXPECT_NE(twin, second);
  EXPECT_CUDA(cudaGraphDestroyNode(first));
  EXPECT_CUDA_ERROR(1, cudaGraphNodeGetType(first, &type));
  EXPECT_CUDA(cudaGraphGetNodes(clone, nullptr, &count));
  EXPECT_EQ(count, 2U);
  EXPECT_CUDA(cudaGraphDestroy(clone));
  EXPECT_CUDA(cudaGraphDestroy(graph));
  EXPECT_CUDA_ERROR(1, cudaGraphDestroy(graph));
  EXPECT_CUDA_ERROR(1, cudaGraphNodeGetType(second, &type));
}

TEST(HostCudaGraphs, ACircleCannotBeInstantiated) {
  cudaGraph_t graph = nullptr;
  cudaGraphNode_t first = nullptr;
  cudaGraphNode_t second = nullptr;
  ASSERT_CUDA(cudaGraphCreate(&graph, 0));
  ASSERT_CUDA(cudaGraphAddEmptyNode(&first, graph, nullptr, 0));
  ASSERT_CUDA(cudaGraphAddEmptyNode(&second, graph, &first, 1));
  ASSERT_CUDA(cudaGraphAddDependencies(graph, &second, &first, nullptr, 1));
  cudaGraphExec_t executable = nullptr;
  EXPECT_CUDA_ERROR(1, cudaGraphInstantiate(&executable, graph, 0));
  EXPECT_EQ(executable, nullptr);
  EXPECT_CUDA(cudaGraphDestroy(graph));
}

TEST(HostCudaGraphs, AChildGraphRunsInItsPlace) {
  Trace trace;
  Mark marks[] = {{&trace, 0}, {&trace, 1}, {&trace, 2}, {&trace, 3}};
  cudaGraph_t child = nullptr;
  cudaGraph_t graph = nullptr;
  ASSERT_CUDA(cudaGraphCreate(&child, 0));
  ASSERT_CUDA(cudaGraphCreate(&graph, 0));
  add_note(child, &marks[2], {add_note(child, &marks[1], {})});
  const cudaGraphNode_t first = add_note(graph, &marks[0], {});
  cudaGraphNode_t middle = nullptr;
  ASSERT_CUDA(cudaGraphAddChildGraphNode(&middle, graph, &first, 1, child));
  EXPECT_CUDA(cudaGraphDestroy(child));  // it was copied
  add_note(graph, &marks[3], {middle});
  cudaGraphExec_t executable = nullptr;
  ASSERT_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  EXPECT_EQ(run(executable, &trace), (std::vector<int>{0, 1, 2, 3}));
  // A launch that is captured is a child as well.
  const cudaStream_t stream = make_stream(kNonBlocking);
  cudaGraph_t outer = nullptr;
  cudaGraphExec_t twice = nullptr;
  ASSERT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  EXPECT_CUDA(cudaGraphLaunch(executable, stream));
  EXPECT_CUDA(cudaGraphLaunch(executable, stream));
  ASSERT_CUDA(cudaStreamEndCapture(stream, &outer));
  ASSERT_CUDA(cudaGraphInstantiate(&twice, outer, 0));
  EXPECT_EQ(run(twice, &trace), (std::vector<int>{0, 1, 2, 3, 0, 1, 2, 3}));
  EXPECT_CUDA(cudaGraphExecDestroy(twice));
  EXPECT_CUDA(cudaGraphExecDestroy(executable));
  EXPECT_CUDA(cudaGraphDestroy(outer));
  EXPECT_CUDA(cudaGraphDestroy(graph));
  EXPECT_CUDA(cudaStreamDestroy(stream));
}

TEST(HostCudaGraphs, LaunchesOfOneExecutableDoNotOverlapEvenInTwoStreams) {
  const cudaStream_t first = make_stream(kNonBlocking);
  const cudaStream_t second = make_stream(kNonBlocking);
  Words words(2);
  std::atomic<int> calls{0};
  ASSERT_CUDA(cudaStreamBeginCapture(first, cudaStreamCaptureModeRelaxed));
  EXPECT_CUDA(cudaLaunchHostFunc(
      first, [](void* data) { static_cast<std::atomic<int>*>(data)->fetch_add(1); }, &calls));
  EXPECT_CUDA(cuStreamWaitValue32_v2(first, device_address(words.at()), 1, 1));
  cudaGraph_t graph = nullptr;
  ASSERT_CUDA(cudaStreamEndCapture(first, &graph));
  cudaGraphExec_t executable = nullptr;
  ASSERT_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  ASSERT_CUDA(cudaGraphLaunch(executable, first));
  ASSERT_CUDA(cudaGraphLaunch(executable, second));
  while (calls.load() == 0) std::this_thread::yield();
  // The second stream's own work goes on meanwhile only behind its launch.
  EXPECT_CUDA_ERROR(600, cudaStreamQuery(second));
  EXPECT_EQ(calls.load(), 1);
  words.write(1);
  EXPECT_CUDA(cudaStreamSynchronize(second));
  EXPECT_EQ(calls.load(), 2);
  EXPECT_CUDA(cudaGraphExecDestroy(executable));
  EXPECT_CUDA(cudaGraphDestroy(graph));
  EXPECT_CUDA(cudaStreamDestroy(first));
  EXPECT_CUDA(cudaStreamDestroy(second));
}

TEST(HostCudaGraphs, CopiesAndFillsAreNodes) {
  auto* const device = static_cast<unsigned char*>(allocate(8));
  Words words(2);
  cudaGraph_t graph = nullptr;
  ASSERT_CUDA(cudaGraphCreate(&graph, 0));
  cudaMemsetParams fill{};
  fill.dst = device;
  fill.elementSize = 2;
  fill.value = 0x0102;
  fill.width = 4;
  fill.height = 1;
  cudaGraphNode_t filled = nullptr;
  cudaGraphNode_t copied = nullptr;
  ASSERT_CUDA(cudaGraphAddMemsetNode(&filled, graph, nullptr, 0, &fill));
  ASSERT_CUDA(cudaGraphAddMemcpyNode1D(&copied, graph, &filled, 1, words.at(), device, 8,
                                       cudaMemcpyDeviceToHost));
  cudaGraphExec_t executable = nullptr;
  ASSERT_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  ASSERT_CUDA(cudaGraphLaunch(executable, nullptr));
  ASSERT_CUDA(cudaStreamSynchronize(nullptr));
  EXPECT_EQ(words.read(1), 0x01020102U);
  fill.value = 0x0304;
  EXPECT_CUDA(cudaGraphExecMemsetNodeSetParams(executable, filled, &fill));
  EXPECT_CUDA(cudaGraphExecMemcpyNodeSetParams1D(executable, copied, words.at(1), device, 4,
                                                 cudaMemcpyDeviceToHost));
  ASSERT_CUDA(cudaGraphLaunch(executable, nullptr));
  ASSERT_CUDA(cudaStreamSynchronize(nullptr));
  EXPECT_EQ(words.read(0), 0x01020102U);
  EXPECT_EQ(words.read(1), 0x03040304U);
  EXPECT_CUDA_ERROR(1, cudaGraphExecMemsetNodeSetParams(executable, copied, &fill));
  EXPECT_CUDA(cudaGraphExecDestroy(executable));
  EXPECT_CUDA(cudaGraphDestroy(graph));
  EXPECT_CUDA(cudaFree(device));
}

}  // namespace
}  // namespace weir::test
