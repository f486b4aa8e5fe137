// SPDX-License-Identifier: Apache-2.0
// For tests of operations under stream capture, on the strict libcuda: a graph, and launches of it
// on new numbers.
#pragma once

#include <functional>
#include <utility>

#include "nccl/stream/stream_support.h"

namespace weir::nccl::test {

// A graph of what `body` enqueues on the stream.
class Graph {
 public:
  Graph(const Stream& stream, const std::function<void()>& body) {
    EXPECT_CUDA(cuStreamBeginCapture_v2(stream.get(), 1));
    body();
    cuda::Graph graph = nullptr;
    result_ = cuStreamEndCapture(stream.get(), &graph);
    if (result_ != cuda::kSuccess) return;
    EXPECT_CUDA(cuGraphInstantiateWithFlags(&exec_, graph, 0));
    EXPECT_CUDA(cuGraphDestroy(graph));
  }
  ~Graph() {
    if (exec_ == nullptr) return;
    EXPECT_CUDA(cuGraphExecDestroy(exec_));
  }
  Graph(Graph&& other) noexcept
      : exec_(std::exchange(other.exec_, nullptr)), result_(other.result_) {}
  Graph& operator=(Graph&&) = delete;

  void launch(const Stream& stream) const { EXPECT_CUDA(cuGraphLaunch(exec_, stream.get())); }
  cuda::Result result() const { return result_; }

 private:
  cuda::GraphExec exec_ = nullptr;
  cuda::Result result_ = cuda::kSuccess;
};

// Captures `body` and launches it four times: before each launch `in` gets the numbers of the rank
// and the round, after it `check` sees what came of them.
inline void launch_again_and_again(const Stream& stream, const Array& in, int rank,
                                   const std::function<void()>& body,
                                   const std::function<void(int round)>& check) {
  const Graph graph(stream, body);
  ASSERT_EQ(graph.result(), cuda::kSuccess);
  for (int round = 0; round < 4; ++round) {
    in.set(numbers(in.size(), rank, round));
    graph.launch(stream);
    stream.synchronize();
    check(round);
  }
}

}  // namespace weir::nccl::test
