// SPDX-License-Identifier: Apache-2.0
// Graphs and calls of one communicator on several streams, which nothing of the program's orders:
// they run in the order of the launches and calls.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "devices/streams_support.h"
#include "support/shared_counter.h"

namespace weir::test {
namespace {

constexpr size_t kCount = 1000;

// Whether each of two successive calls is in a graph.
struct Way {
  bool first;
  bool second;
};
constexpr Way kWays[] = {{true, true}, {true, false}, {false, true}, {false, false}};

// The first call is held up on one rank: if the second one did not wait there, it would meet the
// first one of the other rank. `call`: on memory whose values are `rank` and what `value` adds;
// `expected`: what it leaves there.
void run_both_ways(const std::function<void(weir_comm_t comm, int rank, int* data)>& call,
                   const std::function<int(int rank, int value)>& expected) {
  run_processes_on_device(2, [&](weir_comm_t comm, int n, int rank) {
    expect_sum(comm, n, rank);
    EXPECT_WEIR(comm, weir_comm_set_timeout(comm, 20'000));
    const Stream streams[2];
    const DeviceArray<int> data[2] = {DeviceArray<int>(std::vector<int>(kCount, 0)),
                                      DeviceArray<int>(std::vector<int>(kCount, 0))};
    const auto enqueue = [&](int i) {
      EXPECT_WEIR(comm, weir_comm_set_stream(comm, streams[i].get()));
      call(comm, rank, data[i].data());
    };
    // A call from before the first capture is waited for, too.
    std::optional<Graph> graphs[2];
    for (int round = 0; round < 8; ++round) {
      const Way way = kWays[round % 4];
      for (int i = 0; i < 2; ++i) data[i].set(std::vector<int>(kCount, rank + 10 * (round + i)));
      Gate gate(streams[0]);
      if (rank != round % 2) gate.open();
      for (int i = 0; i < 2; ++i) {
        if (i == 0 ? !way.first : !way.second) {
          enqueue(i);
          continue;
        }
        if (!graphs[i]) graphs[i].emplace(streams[i], [&] { enqueue(i); });
        graphs[i]->launch(streams[i]);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      gate.open();
      for (const Stream& it : streams) it.synchronize();
      for (int i = 0; i < 2; ++i) {
        EXPECT_EQ(data[i].get(), std::vector<int>(kCount, expected(rank, 10 * (round + i))))
            << "round " << round << ", call " << i;
      }
    }
  });
}

TEST(GraphOrder, CollectivesOnSeveralStreamsRunInTheOrderOfLaunchesAndCalls) {
  run_both_ways(
      [](weir_comm_t comm, int, int* data) {
        EXPECT_WEIR(comm, weir_all_reduce(comm, data, data, kCount, WEIR_INT32, WEIR_SUM, nullptr));
      },
      [](int, int value) { return 1 + 2 * value; });
}

TEST(GraphOrder, MessagesOnSeveralStreamsRunInTheOrderOfLaunchesAndCalls) {
  run_both_ways(
      [](weir_comm_t comm, int rank, int* data) {
        EXPECT_WEIR(comm, rank == 0 ? weir_send(comm, data, kCount, WEIR_INT32, 1, nullptr)
                                    : weir_recv(comm, data, kCount, WEIR_INT32, 0, nullptr));
      },
      [](int, int value) { return value; });
}

// A message that the host waits for comes after the one of a graph.
TEST(GraphOrder, ABlockingMessageComesAfterALaunchedOne) {
  run_processes_on_device(2, [](weir_comm_t comm, int n, int rank) {
    expect_sum(comm, n, rank);
    EXPECT_WEIR(comm, weir_comm_set_timeout(comm, 20'000));
    const Stream stream;
    const DeviceArray<int> first(std::vector<int>(kCount, rank));
    const DeviceArray<int> second(std::vector<int>(kCount, 0));
    const auto move = [&](const DeviceArray<int>& data) {
      EXPECT_WEIR(comm, rank == 0 ? weir_send(comm, data.data(), kCount, WEIR_INT32, 1, nullptr)
                                  : weir_recv(comm, data.data(), kCount, WEIR_INT32, 0, nullptr));
    };
    EXPECT_WEIR(comm, weir_comm_set_stream(comm, stream.get()));
    const Graph graph(stream, [&] { move(first); });
    EXPECT_WEIR(comm, weir_comm_set_stream(comm, WEIR_NO_STREAM));
    const auto pause = [&](bool is_now) {
      if (is_now) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    };
    for (int round = 0; round < 8; ++round) {
      first.set(std::vector<int>(kCount, rank + round));
      second.set(std::vector<int>(kCount, rank + 10 * round));
      Gate gate(stream);
      graph.launch(stream);
      std::thread opens([&] {
        pause(rank == round % 2);
        gate.open();
      });
      // The graph's message has come, and this one has not begun.
      pause(rank == round / 2 % 2);
      move(second);
      EXPECT_EQ(second.get(), std::vector<int>(kCount, 10 * round)) << "round " << round;
      stream.synchronize();
      opens.join();
      EXPECT_EQ(first.get(), std::vector<int>(kCount, round)) << "round " << round;
    }
  });
}

// Rank 0 calls two messages together; the second one ends after more of the first one's pair.
TEST(GraphOrder, MessagesOfOnePairDoNotWaitForThoseOfOthers) {
  run_processes_on_device(2, [](weir_comm_t comm, int n, int rank) {
    expect_sum(comm, n, rank);
    EXPECT_WEIR(comm, weir_comm_set_timeout(comm, 20'000));
    const Stream stream;
    const DeviceArray<int> there(std::vector<int>(kCount, rank));
    const DeviceArray<int> back(std::vector<int>(kCount, rank));
    const auto move = [&](int from, const DeviceArray<int>& data, weir_request_t* request) {
      return rank == from ? weir_send(comm, data.data(), kCount, WEIR_INT32, 1 - rank, request)
                          : weir_recv(comm, data.data(), kCount, WEIR_INT32, 1 - rank, request);
    };
    EXPECT_WEIR(comm, weir_comm_set_stream(comm, stream.get()));
    const Graph graph(stream, [&] {
      EXPECT_WEIR(comm, move(0, there, nullptr));
      EXPECT_WEIR(comm, move(1, back, nullptr));
    });
    graph.launch(stream);
    stream.synchronize();
    EXPECT_WEIR(comm, weir_comm_set_stream(comm, WEIR_NO_STREAM));
    weir_request_t requests[2] = {};
    if (rank == 0) {
      EXPECT_WEIR(comm, weir_group_start());
      EXPECT_WEIR(comm, move(0, there, &requests[0]));
      EXPECT_WEIR(comm, move(1, back, &requests[1]));
      EXPECT_WEIR(comm, weir_group_end());
    } else {
      EXPECT_WEIR(comm, move(0, there, &requests[0]));
    }
    EXPECT_WEIR(comm, weir_wait(&requests[0]));
    EXPECT_WEIR(comm, move(0, there, nullptr));
    EXPECT_WEIR(comm, rank == 0 ? weir_wait(&requests[1]) : move(1, back, nullptr));
  });
}

}  // namespace
}  // namespace weir::test
