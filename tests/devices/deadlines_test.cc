// SPDX-License-Identifier: Apache-2.0
// What is said at the deadline of calls on memory of devices: which rank is at fault, and which
// ranks have called operations on memory of the other kind.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "devices/streams_support.h"

namespace weir::test {
namespace {

EnvironmentOf over(bool is_mapped) {
  return [is_mapped](int) {
    return is_mapped ? Environment() : Environment{{"WEIR_TRANSPORT", "tcp"}};
  };
}

TEST(DeviceDeadlines, ARankInACollectiveOnMemoryOfTheHostIsToldSo) {
  for (const bool is_mapped : {true, false}) {
    run_processes_on_device(
        3,
        [](weir_comm_t comm, int n, int rank) {
          expect_sum(comm, n, rank);
          EXPECT_WEIR(comm, weir_comm_set_timeout(comm, rank == 1 ? 20'000 : 1000));
          const DeviceArray<int> data(std::vector<int>(1000, 1));
          std::vector<int> of_host(1000, 1);
          int* const buffer = rank == 1 ? of_host.data() : data.data();
          EXPECT_NE(weir_all_reduce(comm, buffer, buffer, 1000, WEIR_INT32, WEIR_SUM, nullptr),
                    WEIR_OK);
          const std::string text = weir_last_error(comm);
          for (const char* word : {"rank 1 made no such call", "; rank 1 called all_reduce(int32",
                                   "on memory of the host"}) {
            EXPECT_NE(text.find(word), text.npos) << word << " on rank " << rank << ": " << text;
          }
        },
        over(is_mapped));
  }
}

// Rank 0 waits for a message of rank 1, in memory of the host, and rank 1 leaves it out.
void expect_the_missing_message_told(bool is_mapped, int hasty, const std::string& wanted) {
  run_processes_on_device(
      2,
      [&](weir_comm_t comm, int n, int rank) {
        expect_sum(comm, n, rank);
        EXPECT_WEIR(comm, weir_comm_set_timeout(comm, rank == hasty ? 1000 : 20'000));
        const DeviceArray<int> data(std::vector<int>(1000, 1));
        std::vector<int> of_host(1000, 1);
        EXPECT_NE(rank == 0 ? weir_recv(comm, of_host.data(), 1000, WEIR_INT32, 1, nullptr)
                            : weir_all_reduce(comm, data.data(), data.data(), 1000, WEIR_INT32,
                                              WEIR_SUM, nullptr),
                  WEIR_OK);
        const std::string text = weir_last_error(comm);
        EXPECT_NE(text.find(wanted), text.npos) << rank << ": " << text;
      },
      over(is_mapped));
}

TEST(DeviceDeadlines, AMessageOfTheHostThatIsMissingIsToldAtTheDeadlineOfACollective) {
  for (const bool is_mapped : {true, false}) {
    expect_the_missing_message_told(is_mapped, 1,
                                    "rank 0 made no such call on memory of a device; rank 0 waits "
                                    "for rank 1 in another operation, such as a message");
  }
}

TEST(DeviceDeadlines, ACollectiveOnADeviceIsToldAtTheDeadlineOfAMessageOfTheHost) {
  for (const bool is_mapped : {true, false}) {
    expect_the_missing_message_told(is_mapped, 0,
                                    "; rank 1 called all_reduce(int32, sum, count 1000) on memory "
                                    "of a device");
  }
}

TEST(DeviceDeadlines, ZeroElementsOnADeviceAreToldAtTheDeadlineOfMoreOnTheHost) {
  for (const bool is_mapped : {true, false}) {
    const SharedCounter here;
    run_processes_on_device(
        3,
        [&](weir_comm_t comm, int n, int rank) {
          expect_sum(comm, n, rank);
          EXPECT_WEIR(comm, weir_comm_set_timeout(comm, 1000));
          std::vector<int> of_host(1000, 1);
          const weir_result_t result =
              weir_all_reduce(comm, of_host.data(), of_host.data(), rank == 1 ? 0 : 1000,
                              WEIR_INT32, WEIR_SUM, nullptr);
          EXPECT_EQ(result, rank == 1 ? WEIR_OK : WEIR_ERROR_TIMEOUT);
          const std::string text = weir_last_error(comm);
          EXPECT_TRUE(rank == 1 ||
                      text.find("; rank 1 called all_reduce(int32, sum, count 0) on memory of a "
                                "device") != text.npos)
              << rank << ": " << text;
          here.meet(n);
        },
        over(is_mapped));
  }
}

// ---- The rank at fault --------------------------------------------------------------------------

constexpr size_t kLarge = 100'000;

void add(weir_comm_t comm, int* data) {
  EXPECT_WEIR(comm, weir_all_reduce(comm, data, data, kLarge, WEIR_INT32, WEIR_SUM, nullptr));
}

// All other ranks name it, have it in their list of lost ranks, and go on without it.
void expect_named_and_left_out(weir_comm_t comm, int n, int rank, int culprit,
                               const SharedCounter& failed) {
  const std::string text = expect_deadline(comm);
  const size_t from = std::min(text.find("the deadline; "), text.size());
  const std::string named = "rank " + std::to_string(culprit);
  EXPECT_NE(text.substr(from, text.find(" (reported") - from).find(named), text.npos) << text;
  failed.meet(n - 1);
  int lost[8] = {};
  int count = 0;
  EXPECT_WEIR(comm, weir_comm_lost_ranks(comm, lost, 8, &count));
  ASSERT_EQ(count, 1) << rank << ": " << text;
  EXPECT_EQ(lost[0], culprit) << text;
  weir_comm_t rest = nullptr;
  ASSERT_WEIR(comm, weir_comm_shrink(comm, lost, count, nullptr, &rest));
  expect_sum(rest, n - 1, rank < culprit ? rank : rank - 1);
  EXPECT_WEIR(rest, weir_comm_destroy(rest));
}

// Rank 2 of 4 leaves out what the others enqueue.
void expect_the_absent_named(
    bool is_mapped,
    const std::function<void(weir_comm_t comm, int rank, int* data, const Stream& stream)>& call) {
  const SharedCounter failed;
  const SharedCounter done;
  run_processes_on_device(
      4,
      [&](weir_comm_t comm, int n, int rank) {
        expect_sum(comm, n, rank);
        EXPECT_WEIR(comm, weir_comm_set_timeout(comm, 2000));
        const Stream stream;
        EXPECT_WEIR(comm, weir_comm_set_stream(comm, stream.get()));
        const DeviceArray<int> data(std::vector<int>(kLarge, 1));
        call(comm, rank, data.data(), stream);
        if (rank != 2) expect_named_and_left_out(comm, n, rank, 2, failed);
        stream.synchronize();
        done.meet(n);
      },
      over(is_mapped));
}

TEST(DeviceDeadlines, ARankThatDoesNotLaunchItsGraphIsNamedAndLost) {
  for (const bool is_mapped : {true, false}) {
    expect_the_absent_named(is_mapped,
                            [](weir_comm_t comm, int rank, int* data, const Stream& stream) {
                              const Graph graph(stream, [&] { add(comm, data); });
                              if (rank == 2) return;
                              graph.launch(stream);
                              stream.synchronize();
                            });
  }
}

// Each of the others waits for the next one, and the last of them for rank 2.
TEST(DeviceDeadlines, TheChainOfWaitsIsFollowedThroughMessages) {
  for (const bool is_mapped : {true, false}) {
    expect_the_absent_named(is_mapped, [](weir_comm_t comm, int rank, int* data, const Stream&) {
      constexpr int kSources[] = {1, 3, -1, 2};
      if (rank == 2) return;
      EXPECT_WEIR(comm, weir_recv(comm, data, 100, WEIR_INT32, kSources[rank], nullptr));
    });
  }
}

// With its device, in the middle of a call.
void expect_the_stopped_named(bool is_mapped, bool in_graph) {
  const SharedCounter begun;
  const SharedCounter failed;
  const SharedCounter done;
  const SharedCounter process;  // of rank 2
  const std::vector<int> statuses = run_processes_on_device_status(
      4,
      [&](weir_comm_t comm, int n, int rank) {
        expect_sum(comm, n, rank);
        EXPECT_WEIR(comm, weir_comm_set_timeout(comm, 2000));
        const Stream stream;
        EXPECT_WEIR(comm, weir_comm_set_stream(comm, stream.get()));
        const DeviceArray<int> data(std::vector<int>(kLarge, 0));
        std::optional<Graph> graph;
        if (in_graph) graph.emplace(stream, [&] { add(comm, data.data()); });
        if (rank == 2) process.get().store(getpid());
        begun.meet(n);
        std::thread stopper([&] {
          if (rank != 0) return;
          std::this_thread::sleep_for(std::chrono::milliseconds(30));
          EXPECT_EQ(kill(process.get().load(), SIGSTOP), 0);
        });
        for (weir_result_t result = WEIR_OK; result == WEIR_OK;) {
          if (in_graph) {
            graph->launch(stream);
            stream.synchronize();
            EXPECT_WEIR(comm, weir_comm_async_error(comm, &result));
          } else {
            result = weir_all_reduce(comm, data.data(), data.data(), kLarge, WEIR_INT32, WEIR_SUM,
                                     nullptr);
          }
        }
        stopper.join();
        expect_named_and_left_out(comm, n, rank, 2, failed);
        done.meet(n - 1);
        if (rank == 0) {
          EXPECT_EQ(kill(process.get().load(), SIGKILL), 0);
        }
      },
      over(is_mapped));
  EXPECT_EQ(statuses, (std::vector<int>{0, 0, 128 + SIGKILL, 0}));
}

TEST(DeviceDeadlines, ARankThatIsStoppedInACallIsNamedAndLost) {
  for (const bool is_mapped : {true, false}) {
    for (const bool in_graph : {false, true}) expect_the_stopped_named(is_mapped, in_graph);
  }
}

}  // namespace
}  // namespace weir::test
