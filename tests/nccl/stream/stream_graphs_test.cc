// SPDX-License-Identifier: Apache-2.0
// Operations of libnccl.so.2 under stream capture, and graphs that are launched again and again.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "nccl/stream/graph_support.h"

namespace weir::nccl::test {
namespace {

class NcclGraphs : public testing::Test {
 protected:
  void SetUp() override { use_device(0); }
};

// Which graphs hold; another driver does not tell.
int recordings() { return cuda::is_strict() ? strict_cuda_user_objects() : 0; }
void expect_no_recordings() {
  while (recordings() > 0) std::this_thread::yield();
}

// Captures an all-reduce in place, of `count` numbers.
Graph capture_sum(ncclComm_t comm, const Stream& stream, const Array& data) {
  return Graph(stream, [&] {
    EXPECT_NCCL(ncclAllReduce(data.data(), data.data(), data.size(), ncclInt, ncclSum, comm,
                              stream.nccl()));
  });
}

TEST_F(NcclGraphs, EveryLaunchRunsTheOperationsAgain) {
  WEIR_NEEDS_QUEUES(8);
  for (const size_t count : {size_t{10}, size_t{5000}}) {
    run_device_threads(3, [&](int rank, ncclComm_t comm) {
      const Stream stream;
      const Array in(MemoryKind::kDevice, count);
      const Array out(MemoryKind::kDevice, count);
      const Array all(MemoryKind::kDevice, 3 * count);
      const Graph graph(stream, [&] {
        EXPECT_NCCL(
            ncclAllReduce(in.data(), out.data(), count, ncclInt, ncclSum, comm, stream.nccl()));
        EXPECT_NCCL(ncclAllGather(out.data(), all.data(), count, ncclInt, comm, stream.nccl()));
        EXPECT_NCCL(
            ncclBroadcast(all.data() + count, in.data(), count, ncclInt, 1, comm, stream.nccl()));
      });
      for (int round = 0; round < 4; ++round) {
        const auto mine = numbers(count, rank, round);
        std::vector<int> sum(count);
        for (int r = 0; r < 3; ++r) {
          const auto theirs = numbers(count, r, round);
          for (size_t i = 0; i < count; ++i) sum[i] += theirs[i];
        }
        in.write(mine, stream);
        graph.launch(stream);
        stream.synchronize();
        ASSERT_EQ(out.get(stream), sum) << "round " << round;
        ASSERT_EQ(in.get(stream), sum) << "round " << round;
      }
    });
  }
  expect_no_recordings();
}

TEST_F(NcclGraphs, NothingRunsWhileItIsCaptured) {
  const StreamRanks ranks(1);
  const Array data(MemoryKind::kDevice, 100);
  data.set(numbers(100, 0, 0));
  const Array out(MemoryKind::kDevice, 100);
  out.set(std::vector<int>(100, kUntouched));
  const Graph graph(ranks.stream(0), [&] {
    EXPECT_NCCL(ncclAllReduce(data.data(), out.data(), 100, ncclInt, ncclSum, ranks.comm(0),
                              ranks.stream(0).nccl()));
  });
  ranks.stream(0).synchronize();
  EXPECT_EQ(out.get()[0], kUntouched);
  graph.launch(ranks.stream(0));
  ranks.stream(0).synchronize();
  EXPECT_EQ(out.get(), numbers(100, 0, 0));
}

// The event joins another stream to the capture, as an event of the capture does.
TEST_F(NcclGraphs, ALaunchEventOfACapturedCallOrdersWithinTheGraph) {
  const StreamRanks ranks(1);
  const Stream other;
  const LaunchEvent launched;
  const LaunchEvent joined;
  const Array data(MemoryKind::kDevice, 3000);
  const Array copy(MemoryKind::kDevice, 3000);
  const Graph graph(ranks.stream(0), [&] {
    copy.copy_of(data, ranks.stream(0));
    EXPECT_NCCL(launched.sum(data, ranks.comm(0), ranks.stream(0)));
    EXPECT_CUDA(cuStreamWaitEvent(other.get(), launched.get(), 0));
    data.copy_of(copy, other);
    EXPECT_CUDA(cuEventRecord(joined.get(), other.get()));
    EXPECT_CUDA(cuStreamWaitEvent(ranks.stream(0).get(), joined.get(), 0));
  });
  ASSERT_EQ(graph.result(), cuda::kSuccess);
  for (int round = 0; round < 3; ++round) {
    data.set(numbers(3000, 0, round));
    copy.set(std::vector<int>(3000, kUntouched));
    graph.launch(ranks.stream(0));
    ranks.stream(0).synchronize();
    ASSERT_EQ(copy.get(), numbers(3000, 0, round));
    ASSERT_EQ(data.get(), numbers(3000, 0, round));
  }
}

TEST_F(NcclGraphs, LaunchesAndOrdinaryCallsFollowEachOther) {
  WEIR_NEEDS_QUEUES(8);
  const StreamRanks ranks(2);
  std::vector<Array> data;
  std::vector<Graph> graphs;
  for (int r = 0; r < 2; ++r) {
    data.emplace_back(MemoryKind::kDevice, 3000);
    data.back().set(std::vector<int>(3000, r + 1));
  }
  for (int r = 0; r < 2; ++r) {
    graphs.push_back(capture_sum(ranks.comm(r), ranks.stream(r), data[static_cast<size_t>(r)]));
  }
  for (int round = 0; round < 5; ++round) {
    for (int r = 0; r < 2; ++r) {
      int* at = data[static_cast<size_t>(r)].data();
      graphs[static_cast<size_t>(r)].launch(ranks.stream(r));
      EXPECT_NCCL(
          ncclAllReduce(at, at, 3000, ncclInt, ncclMax, ranks.comm(r), ranks.stream(r).nccl()));
      graphs[static_cast<size_t>(r)].launch(ranks.stream(r));
    }
  }
  ranks.synchronize();
  // 3, then doubled nine times.
  for (const Array& it : data) EXPECT_EQ(it.get(), std::vector<int>(3000, 3 << 9));
}

// The first call is held up on one rank: if the second one did not wait there, it would meet the
// first one of the other rank.
void run_on_two_streams(const std::function<void(const StreamRanks&, int rank, const Stream& stream,
                                                 const Array& data)>& call,
                        const std::function<int(int value)>& expected) {
  const StreamRanks ranks(2);
  const std::vector<Stream> others = streams_of_ranks(2);
  const auto stream_of = [&](int rank, int i) -> const Stream& {
    return i == 0 ? ranks.stream(rank) : others[static_cast<size_t>(rank)];
  };
  std::vector<Array> data;  // two of each rank
  std::vector<Graph> graphs;
  for (int i = 0; i < 4; ++i) data.emplace_back(MemoryKind::kDevice, 3000);
  const auto enqueue = [&](int rank, int i) {
    const int which = 2 * rank + i;
    call(ranks, rank, stream_of(rank, i), data[static_cast<size_t>(which)]);
  };
  for (int i = 0; i < 4; ++i) {
    graphs.emplace_back(stream_of(i / 2, i % 2), [&] { enqueue(i / 2, i % 2); });
  }
  for (int round = 0; round < 8; ++round) {
    for (int i = 0; i < 4; ++i) {
      data[static_cast<size_t>(i)].set(std::vector<int>(3000, i / 2 + 10 * (round + i % 2)));
    }
    Gate gate(ranks.stream(round % 2));
    for (int i = 0; i < 4; ++i) {
      const bool in_graph = i % 2 == 0 ? round % 4 < 2 : round % 2 == 0;
      if (in_graph) {
        graphs[static_cast<size_t>(i)].launch(stream_of(i / 2, i % 2));
      } else {
        enqueue(i / 2, i % 2);
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    gate.open();
    ranks.synchronize();
    for (const Stream& it : others) it.synchronize();
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(data[static_cast<size_t>(i)].get(),
                std::vector<int>(3000, expected(10 * (round + i % 2))))
          << "round " << round << ", rank " << i / 2 << ", call " << i % 2;
    }
  }
}

TEST_F(NcclGraphs, CollectivesOnSeveralStreamsRunInTheOrderOfLaunchesAndCalls) {
  WEIR_NEEDS_QUEUES(8);
  run_on_two_streams(
      [](const StreamRanks& ranks, int rank, const Stream& stream, const Array& data) {
        EXPECT_NCCL(ncclAllReduce(data.data(), data.data(), 3000, ncclInt, ncclSum,
                                  ranks.comm(rank), stream.nccl()));
      },
      [](int value) { return 1 + 2 * value; });
}

TEST_F(NcclGraphs, MessagesOnSeveralStreamsRunInTheOrderOfLaunchesAndCalls) {
  WEIR_NEEDS_QUEUES(8);
  run_on_two_streams(
      [](const StreamRanks& ranks, int rank, const Stream& stream, const Array& data) {
        EXPECT_NCCL(rank == 0
                        ? ncclSend(data.data(), 3000, ncclInt, 1, ranks.comm(0), stream.nccl())
                        : ncclRecv(data.data(), 3000, ncclInt, 0, ranks.comm(1), stream.nccl()));
      },
      [](int value) { return value; });
}

TEST_F(NcclGraphs, OneGraphMayHoldSeveralRanksAndStreams) {
  const StreamRanks ranks(2);
  std::vector<Array> sums;
  std::vector<Array> own;
  std::vector<Array> swapped;
  for (int r = 0; r < 2; ++r) {
    own.emplace_back(MemoryKind::kDevice, 5000);
    sums.emplace_back(MemoryKind::kDevice, 5000);
    swapped.emplace_back(MemoryKind::kDevice, 5000);
  }
  const Stream others[2];
  cuda::Event events[4] = {};
  for (cuda::Event& it : events) EXPECT_CUDA(cuEventCreate(&it, 0));
  const Graph graph(ranks.stream(0), [&] {
    EXPECT_CUDA(cuEventRecord(events[0], ranks.stream(0).get()));
    for (const Stream* it : {&ranks.stream(1), &others[0], &others[1]}) {
      EXPECT_CUDA(cuStreamWaitEvent(it->get(), events[0], 0));
    }
    EXPECT_NCCL(ncclGroupStart());
    for (int r = 0; r < 2; ++r) {
      const auto i = static_cast<size_t>(r);
      // The two operations of a rank on different streams.
      EXPECT_NCCL(ncclAllReduce(sums[i].data(), sums[i].data(), 5000, ncclInt, ncclSum,
                                ranks.comm(r), ranks.stream(r).nccl()));
      EXPECT_NCCL(ncclSend(own[i].data(), 5000, ncclInt, 1 - r, ranks.comm(r), others[r].nccl()));
      EXPECT_NCCL(
          ncclRecv(swapped[i].data(), 5000, ncclInt, 1 - r, ranks.comm(r), others[r].nccl()));
    }
    EXPECT_NCCL(ncclGroupEnd());
    int next = 1;
    for (const Stream* it : {&ranks.stream(1), &others[0], &others[1]}) {
      EXPECT_CUDA(cuEventRecord(events[next], it->get()));
      EXPECT_CUDA(cuStreamWaitEvent(ranks.stream(0).get(), events[next++], 0));
    }
  });
  ASSERT_EQ(graph.result(), cuda::kSuccess);
  for (int round = 1; round < 5; ++round) {
    for (int r = 0; r < 2; ++r) {
      sums[static_cast<size_t>(r)].set(std::vector<int>(5000, round * (r + 1)));
      own[static_cast<size_t>(r)].set(numbers(5000, r, round));
    }
    graph.launch(ranks.stream(0));
    ranks.stream(0).synchronize();
    for (const Array& it : sums) EXPECT_EQ(it.get(), std::vector<int>(5000, 3 * round));
    for (size_t r = 0; r < 2; ++r) {
      EXPECT_EQ(swapped[r].get(), numbers(5000, static_cast<int>(1 - r), round));
    }
  }
  for (cuda::Event it : events) EXPECT_CUDA(cuEventDestroy_v2(it));
}

TEST_F(NcclGraphs, WhatAGraphNeedsLivesUntilTheGraphIsDestroyed) {
  WEIR_NEEDS_QUEUES(8);
  const StreamRanks ranks(2);
  std::vector<Array> data;
  for (int r = 0; r < 2; ++r) data.emplace_back(MemoryKind::kDevice, 3000);
  for (int round = 0; round < 6; ++round) {
    std::vector<Graph> graphs;
    for (int r = 0; r < 2; ++r) {
      data[static_cast<size_t>(r)].set(std::vector<int>(3000, r + 1));
      graphs.push_back(capture_sum(ranks.comm(r), ranks.stream(r), data[static_cast<size_t>(r)]));
    }
    EXPECT_EQ(recordings(), cuda::is_strict() ? 2 : 0);
    for (int r = 0; r < 2; ++r) graphs[static_cast<size_t>(r)].launch(ranks.stream(r));
    ranks.synchronize();
    for (const Array& it : data) EXPECT_EQ(it.get(), std::vector<int>(3000, 3));
    graphs.clear();
    expect_no_recordings();
  }
}

// On another driver the calls only have to work.
int events() { return cuda::is_strict() ? strict_cuda_events() : 0; }

// The thread that sees the end of a graph has no context, and leaves its events to the next call.
TEST_F(NcclGraphs, GraphsThatAreGoneLeaveNoEvents) {
  const StreamRanks ranks(1);
  const Array data(MemoryKind::kDevice, 3000);
  data.set(std::vector<int>(3000, 1));
  const auto call = [&] {
    EXPECT_NCCL(ncclAllReduce(data.data(), data.data(), 3000, ncclInt, ncclSum, ranks.comm(0),
                              ranks.stream(0).nccl()));
    ranks.synchronize();
  };
  const auto capture = [&](ncclComm_t comm) {
    const Graph graph = capture_sum(comm, ranks.stream(0), data);
    graph.launch(ranks.stream(0));
    ranks.synchronize();
  };
  const auto expect_few = [&](int most) {
    for (int i = 0; i < 500 && events() > most; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      call();
    }
    EXPECT_LE(events(), most);
  };
  call();
  const int most = events() + 5;
  for (int i = 0; i < 100; ++i) capture(ranks.comm(0));
  expect_few(most);
  // Nor do communicators.
  for (int i = 0; i < 20; ++i) {
    ncclComm_t other = nullptr;
    ASSERT_NCCL(ncclCommSplit(ranks.comm(0), 0, 0, &other, nullptr));
    capture(other);
    EXPECT_NCCL(ncclCommDestroy(other));
  }
  expect_few(most);
}

// Streams of the library's own that were forked from a captured one stay in the capture until this
// ends.
TEST_F(NcclGraphs, AGroupBesideACaptureIsNotPartOfIt) {
  WEIR_NEEDS_QUEUES(16);
  run_device_threads(2, [](int rank, ncclComm_t comm) {
    const Stream captured;
    const Stream plain;
    ncclComm_t comms[2] = {comm, nullptr};
    ASSERT_NCCL(ncclCommSplit(comm, 0, rank, &comms[1], nullptr));
    const Array from(MemoryKind::kDevice, 3000);
    const Array in_graph(MemoryKind::kDevice, 6000);
    const Array beside(MemoryKind::kDevice, 6000);
    from.set(std::vector<int>(3000, rank + 1));
    in_graph.set(std::vector<int>(6000, kUntouched));
    const auto call = [&](const Stream& stream, const Array& to) {
      EXPECT_NCCL(ncclGroupStart());
      for (size_t i = 0; i < 2; ++i) {
        EXPECT_NCCL(ncclAllReduce(from.data(), to.data() + 3000 * i, 3000, ncclInt, ncclSum,
                                  comms[i], stream.nccl()));
      }
      EXPECT_NCCL(ncclGroupEnd());
    };
    {
      const Graph graph(captured, [&] {
        call(captured, in_graph);
        call(plain, beside);
        call(captured, in_graph);
      });
      ASSERT_EQ(graph.result(), cuda::kSuccess);
      plain.synchronize();
      EXPECT_EQ(beside.get(), std::vector<int>(6000, 3));
      EXPECT_EQ(in_graph.get()[0], kUntouched);
      graph.launch(captured);
      captured.synchronize();
      EXPECT_EQ(in_graph.get(), std::vector<int>(6000, 3));
    }
    EXPECT_NCCL(ncclCommDestroy(comms[1]));
  });
}

TEST_F(NcclGraphs, AGroupOfCapturedAndOtherStreamsIsRefused) {
  const StreamRanks ranks(1);
  const Stream other;
  const Array data(MemoryKind::kDevice, 10);
  data.set(std::vector<int>(10, 1));
  const Graph graph(ranks.stream(0), [&] {
    EXPECT_NCCL(ncclGroupStart());
    for (const Stream* stream : {&ranks.stream(0), &other}) {
      EXPECT_NCCL(ncclAllReduce(data.data(), data.data(), 10, ncclInt, ncclSum, ranks.comm(0),
                                stream->nccl()));
    }
    EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
    expect_error_with({"captured", "2 streams"});
  });
  // The communicator goes on.
  EXPECT_NCCL(ncclAllReduce(data.data(), data.data(), 10, ncclInt, ncclSum, ranks.comm(0),
                            ranks.stream(0).nccl()));
  ranks.stream(0).synchronize();
  EXPECT_EQ(async_error(ranks.comm(0)), ncclSuccess);
}

TEST_F(NcclGraphs, ACaptureThatFailsLeavesTheCommunicatorAsItWas) {
  WEIR_NEEDS_STRICT_CUDA();
  for (const char* function :
       {"cuUserObjectCreate", "cuGraphRetainUserObject", "cuMemcpyAsync", "cuEventCreate"}) {
    const StreamRanks ranks(1);
    const Array data(MemoryKind::kDevice, 3000);
    data.set(std::vector<int>(3000, 4));
    {
      const Graph graph(ranks.stream(0), [&] {
        strict_cuda_fail(function, 0);
        EXPECT_EQ(ncclAllReduce(data.data(), data.data(), 3000, ncclInt, ncclSum, ranks.comm(0),
                                ranks.stream(0).nccl()),
                  ncclUnhandledCudaError);
      });
    }
    expect_no_recordings();
    const Graph graph = capture_sum(ranks.comm(0), ranks.stream(0), data);
    graph.launch(ranks.stream(0));
    ranks.stream(0).synchronize();
    EXPECT_EQ(data.get(), std::vector<int>(3000, 4));
    EXPECT_EQ(async_error(ranks.comm(0)), ncclSuccess) << function;
  }
}

TEST_F(NcclGraphs, ALaunchAfterAnAbortEnds) {
  StreamRanks ranks(1);
  const Array data(MemoryKind::kDevice, 5000);
  data.set(std::vector<int>(5000, 4));
  const ncclUniqueId id = make_id();
  ncclComm_t comm = nullptr;
  ASSERT_NCCL(ncclCommInitRank(&comm, 1, id, 0));
  const Graph graph = capture_sum(comm, ranks.stream(0), data);
  graph.launch(ranks.stream(0));
  ranks.stream(0).synchronize();
  EXPECT_NCCL(ncclCommAbort(comm));
  for (int i = 0; i < 3; ++i) graph.launch(ranks.stream(0));
  ranks.stream(0).synchronize();
}

}  // namespace
}  // namespace weir::nccl::test
