// SPDX-License-Identifier: Apache-2.0
// The same between processes that share a device; where it cannot be; and when a rank dies, stays
// away, aborts or calls another collective.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <iterator>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "devices/streams_cases.h"

namespace weir::test {
namespace {

TEST(DeviceStreamsProcesses, EveryCollectiveHoldsTheHostsResult) {
  for (const int n : {2, 3}) run_processes_on_device(n, every_collective);
}

TEST(DeviceStreamsProcesses, ACapturedGraphIsLaunchedAgainAndAgain) {
  run_processes_on_device(2, replay);
}

// Ranks that are threads of one process, with WEIR_DIRECT=1.
void threads_on_one_device(int n, const DeviceBody& body) {
  const std::vector<int> statuses = run_processes_each(
      1, [&](int, weir_comm_t) { run_threads_on_one_device(n, body); },
      [](int) {
        return Environment{{"WEIR_DIRECT", "1"}};
      });
  EXPECT_EQ(statuses, std::vector<int>{0});
}

TEST(DeviceStreamsProcesses, ThreadsThatShareADeviceAndTooFewQueuesAreToldSo) {
  WEIR_NEEDS_HARDWARE_QUEUES();
  if (queue_count() >= 3) GTEST_SKIP() << "there are enough";
  threads_on_one_device(3, [](weir_comm_t comm, int n, int rank) {
    refused(comm, n, rank, {"CUDA_DEVICE_MAX_CONNECTIONS", "3 ranks"});
  });
}

TEST(DeviceStreamsProcesses, ThreadsThatShareADeviceAndEnoughQueues) {
  // Each rank has three streams.
  if (queue_count() < 8) GTEST_SKIP() << "there are too few";
  threads_on_one_device(2, every_collective);
}

// Why there is no NCCL.
std::string without_nccl() {
  return cuda::is_strict() ? "rank 0: libcuda.so.1 lacks" : "rank 0: WEIR_NCCL_LIBRARY names";
}

TEST(DeviceStreamsProcesses, TurnedOffOnOneRankItIsNcclsAndBothReasonsAreTold) {
  run_processes_on_device(
      3,
      [](weir_comm_t comm, int n, int rank) {
        refused(comm, n, rank, {"rank 1: WEIR_DIRECT=0", without_nccl(), "continues to work"});
      },
      [](int rank) {
        return rank == 1 ? Environment{{"WEIR_DIRECT", "0"}} : Environment{};
      });
}

TEST(DeviceStreamsProcesses, RanksOnSeveralHostsAreToldSo) {
  run_processes_on_device(
      2,
      [](weir_comm_t comm, int n, int rank) {
        refused(comm, n, rank, {"the ranks are on several hosts", without_nccl()});
      },
      [](int rank) {
        return Environment{{"WEIR_HOST_ID", rank == 0 ? "a" : "b"}};
      });
}

TEST(DeviceStreamsProcesses, ADeathReleasesTheStreamsAndGraphsOfTheOthers) {
  const SharedCounter here;
  const std::vector<int> statuses =
      run_processes_on_device_status(3, [&](weir_comm_t comm, int n, int rank) {
        expect_sum(comm, n, rank);
        const Stream stream;
        const DeviceArray<int> data(std::vector<int>(40000, rank));
        EXPECT_WEIR(comm, weir_comm_set_stream(comm, stream.get()));
        const Graph graph(stream, [&] {
          EXPECT_WEIR(comm, weir_all_reduce(comm, data.data(), data.data(), 40000, WEIR_INT32,
                                            WEIR_SUM, nullptr));
        });
        graph.launch(stream);
        stream.synchronize();
        here.meet(3);
        if (rank == 2) raise(SIGKILL);
        if (rank == 0) {
          graph.launch(stream);
        } else {
          const weir_result_t called =
              weir_all_reduce(comm, data.data(), data.data(), 40000, WEIR_INT32, WEIR_SUM, nullptr);
          EXPECT_TRUE(called == WEIR_OK || called == WEIR_ERROR_PEER_LOST) << weir_last_error(comm);
        }
        stream.synchronize();
        weir_result_t error = WEIR_OK;
        EXPECT_WEIR(comm, weir_comm_async_error(comm, &error));
        EXPECT_NE(error, WEIR_OK);
        const std::string text = weir_last_error(comm);
        EXPECT_NE(text.find("rank 2 died"), std::string::npos) << text;
        // Later launches pass, too.
        graph.launch(stream);
        stream.synchronize();
        EXPECT_NE(weir_all_reduce(comm, data.data(), data.data(), 1, WEIR_INT32, WEIR_SUM, nullptr),
                  WEIR_OK);
      });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0, 128 + SIGKILL}));
}

TEST(DeviceStreamsProcesses, ARankThatDestroysTheCommunicatorIsToldSo) {
  run_processes_on_device(3, [](weir_comm_t comm, int n, int rank) {
    weir_comm_t made = nullptr;
    ASSERT_WEIR(comm, weir_comm_split(comm, 0, rank, nullptr, &made));
    expect_sum(made, n, rank);
    if (rank != 2) {
      const Stream stream;
      const DeviceArray<int> data(std::vector<int>(1000, 1));
      EXPECT_WEIR(made, weir_comm_set_stream(made, stream.get()));
      const weir_result_t called =
          weir_all_reduce(made, data.data(), data.data(), 1000, WEIR_INT32, WEIR_SUM, nullptr);
      EXPECT_TRUE(called == WEIR_OK || called == WEIR_ERROR_PEER_LOST) << weir_last_error(made);
      stream.synchronize();
      weir_result_t error = WEIR_OK;
      EXPECT_WEIR(made, weir_comm_async_error(made, &error));
      EXPECT_EQ(error, WEIR_ERROR_PEER_LOST);
      const std::string text = weir_last_error(made);
      EXPECT_NE(text.find("rank 2 destroyed the communicator"), text.npos) << text;
    }
    EXPECT_WEIR(made, weir_comm_destroy(made));
    expect_sum(comm, n, rank);
  });
}

// 0 if each call of a child on what its parent made says so, and destroying it says nothing.
int use_in_child(weir_comm_t comm, void* data, weir_request_t request) {
  const auto told = [&](weir_result_t result) {
    const std::string text = weir_last_error(nullptr);
    return result == WEIR_ERROR_INVALID_USAGE && text.find("was made by process") != text.npos;
  };
  int done = 0;
  if (!told(weir_all_reduce(comm, data, data, 9, WEIR_INT32, WEIR_SUM, nullptr))) return 1;
  if (!told(weir_send(comm, data, 9, WEIR_INT32, 0, nullptr))) return 2;
  if (!told(weir_comm_set_stream(comm, WEIR_NO_STREAM))) return 3;
  if (!told(weir_test(&request, &done))) return 4;
  if (!told(weir_comm_abort(comm))) return 5;
  return weir_comm_destroy(comm) == WEIR_OK ? 0 : 6;
}

TEST(DeviceStreamsProcesses, AChildIsToldSoAndHarmsNobody) {
  const SharedCounter here;
  run_processes_on_device(2, [&](weir_comm_t comm, int n, int rank) {
    expect_sum(comm, n, rank);
    const Stream stream;
    const DeviceArray<int> data(std::vector<int>(40000, rank + 1));
    EXPECT_WEIR(comm, weir_comm_set_stream(comm, stream.get()));
    // On the streams of both ranks while they fork.
    Gate gate(stream);
    weir_request_t request = nullptr;
    EXPECT_WEIR(comm, weir_all_reduce(comm, data.data(), data.data(), 40000, WEIR_INT32, WEIR_SUM,
                                      &request));
    const pid_t child = fork();
    if (child == 0) _exit(use_in_child(comm, data.data(), request));
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
    here.meet(2);
    gate.open();
    EXPECT_WEIR(comm, weir_wait(&request));
    EXPECT_EQ(data.get(), std::vector<int>(40000, 3));
    EXPECT_WEIR(comm, weir_comm_set_stream(comm, WEIR_NO_STREAM));
    expect_sum(comm, n, rank);
  });
}

void meets_the_deadline(weir_comm_t comm, int n, int rank, const SharedCounter& here) {
  expect_sum(comm, n, rank);
  here.meet(n);
  const DeviceArray<int> data(std::vector<int>(1000, 1));
  if (rank != 1) {
    EXPECT_WEIR(comm, weir_comm_set_timeout(comm, 400));
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(weir_all_reduce(comm, data.data(), data.data(), 1000, WEIR_INT32, WEIR_SUM, nullptr),
              WEIR_ERROR_TIMEOUT);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
    const std::string text = weir_last_error(comm);
    EXPECT_NE(text.find("rank 1 made no such call"), std::string::npos) << text;
  }
  here.meet(2 * n);
}

TEST(DeviceStreamsProcesses, ARankThatStaysAwayIsNamedAtTheDeadline) {
  const SharedCounter here;
  run_processes_on_device(
      2, [&](weir_comm_t comm, int n, int rank) { meets_the_deadline(comm, n, rank, here); });
}

TEST(DeviceStreamsProcesses, AStreamThatNobodyWaitsForPassesAtTheDeadline) {
  const SharedCounter here;
  run_processes_on_device(2, [&](weir_comm_t comm, int n, int rank) {
    expect_sum(comm, n, rank);
    here.meet(2);
    if (rank == 0) {
      EXPECT_WEIR(comm, weir_comm_set_timeout(comm, 300));
      const Stream stream;
      const DeviceArray<int> data(std::vector<int>(1000, 1));
      EXPECT_WEIR(comm, weir_comm_set_stream(comm, stream.get()));
      EXPECT_WEIR(comm, weir_all_reduce(comm, data.data(), data.data(), 1000, WEIR_INT32, WEIR_SUM,
                                        nullptr));
      stream.synchronize();
      weir_result_t error = WEIR_OK;
      EXPECT_WEIR(comm, weir_comm_async_error(comm, &error));
      EXPECT_EQ(error, WEIR_ERROR_TIMEOUT);
    }
    here.meet(4);
  });
}

TEST(DeviceStreamsProcesses, ALateStreamDoesNotCountForACallThatNobodyWaitsFor) {
  const SharedCounter here;
  run_processes_on_device(2, [&](weir_comm_t comm, int n, int rank) {
    expect_sum(comm, n, rank);
    EXPECT_WEIR(comm, weir_comm_set_timeout(comm, 1000));
    const Stream stream;
    const DeviceArray<int> data(std::vector<int>(1000, rank + 1));
    EXPECT_WEIR(comm, weir_comm_set_stream(comm, stream.get()));
    Gate gate(stream);
    EXPECT_WEIR(
        comm, weir_all_reduce(comm, data.data(), data.data(), 1000, WEIR_INT32, WEIR_SUM, nullptr));
    std::this_thread::sleep_for(std::chrono::milliseconds(2500));
    here.meet(2);
    gate.open();
    stream.synchronize();
    weir_result_t error = WEIR_OK;
    EXPECT_WEIR(comm, weir_comm_async_error(comm, &error));
    EXPECT_EQ(error, WEIR_OK) << weir_last_error(comm);
    EXPECT_EQ(data.get(), std::vector<int>(1000, 3));
  });
}

// Rank 1 makes the call, and its stream does not come to it.
void expect_the_late_stream_named(weir_comm_t comm, int n, int rank, const SharedCounter& here,
                                  bool in_graph, const std::string& wanted,
                                  const std::function<void(int* data)>& call) {
  expect_sum(comm, n, rank);
  EXPECT_WEIR(comm, weir_comm_set_timeout(comm, 1000));
  const Stream stream;
  const DeviceArray<int> data(std::vector<int>(1000, 1));
  EXPECT_WEIR(comm, weir_comm_set_stream(comm, stream.get()));
  std::optional<Graph> graph;
  if (in_graph) graph.emplace(stream, [&] { call(data.data()); });
  here.meet(n);
  std::optional<Gate> gate;
  if (rank == 1) gate.emplace(stream);
  in_graph ? graph->launch(stream) : call(data.data());
  if (rank != 1) {
    stream.synchronize();
    const std::string text = expect_deadline(comm);
    EXPECT_NE(text.find(wanted), text.npos) << text;
  }
  here.meet(2 * n);
  if (rank == 1) gate->open();
  stream.synchronize();
}

TEST(DeviceStreamsProcesses, ARankWhoseStreamIsLateIsNamedAtTheDeadline) {
  for (const bool in_graph : {false, true}) {
    const SharedCounter here;
    run_processes_on_device(3, [&](weir_comm_t comm, int n, int rank) {
      const char* const wanted =
          in_graph ? "; it waits for rank 1" : "; rank 1 has not come to it in its stream";
      expect_the_late_stream_named(comm, n, rank, here, in_graph, wanted, [&](int* data) {
        EXPECT_WEIR(comm, weir_all_reduce(comm, data, data, 1000, WEIR_INT32, WEIR_SUM, nullptr));
      });
    });
  }
}

// Rank 2 has done its part of the reduction and goes on: only rank 1 is late.
TEST(DeviceStreamsProcesses, ARankThatHasPassedACallIsNotNamedAtTheDeadlineOfAnother) {
  const SharedCounter here;
  run_processes_on_device(3, [&](weir_comm_t comm, int n, int rank) {
    const char* const wanted = "; rank 1 has not come to it in its stream";
    expect_the_late_stream_named(comm, n, rank, here, false, wanted, [&](int* data) {
      EXPECT_WEIR(comm, weir_reduce(comm, data, data, 1000, WEIR_INT32, WEIR_SUM, 0, nullptr));
    });
  });
}

TEST(DeviceStreamsProcesses, DifferentCallsAreTold) {
  run_processes_on_device(2, [](weir_comm_t comm, int n, int rank) {
    expect_sum(comm, n, rank);
    const DeviceArray<int> data(std::vector<int>(1000, 1));
    const size_t count = rank == 0 ? 1000 : 999;
    const weir_result_t result =
        weir_all_reduce(comm, data.data(), data.data(), count, WEIR_INT32, WEIR_SUM, nullptr);
    EXPECT_NE(result, WEIR_OK);
    const std::string text = weir_last_error(comm);
    EXPECT_NE(text.find("the ranks made different calls"), std::string::npos) << text;
    EXPECT_NE(text.find("count 999"), std::string::npos) << text;
  });
}

TEST(DeviceStreamsProcesses, CallsOfZeroElementsWaitForNobody) {
  const SharedCounter here;
  run_processes_on_device(2, [&](weir_comm_t comm, int n, int rank) {
    expect_sum(comm, n, rank);
    const Stream stream;
    const DeviceArray<int> data(std::vector<int>(10, 1));
    EXPECT_WEIR(comm, weir_comm_set_timeout(comm, 20'000));
    EXPECT_WEIR(comm, weir_comm_set_stream(comm, stream.get()));
    // Where the buffers lie does not matter.
    int on_host[2] = {};
    void* const memory = rank == 0 ? static_cast<void*>(data.data()) : on_host;
    const auto call_all = [&] {
      for (const Case& it : kCases) {
        EXPECT_WEIR(comm, call(it, comm, memory, memory, 0, WEIR_INT32, WEIR_SUM, 1, nullptr));
        EXPECT_WEIR(comm, call(it, comm, nullptr, nullptr, 0, WEIR_INT32, WEIR_SUM, 0, nullptr));
      }
    };
    if (rank == 1) here.meet(n);
    call_all();
    // Ranks may choose differently.
    if (rank == 1) {
      EXPECT_WEIR(comm, weir_comm_set_stream(comm, WEIR_NO_STREAM));
    }
    call_all();
    EXPECT_WEIR(comm, weir_comm_set_stream(comm, stream.get()));
    weir_request_t request = nullptr;
    EXPECT_WEIR(comm, weir_all_reduce(comm, nullptr, nullptr, 0, WEIR_INT32, WEIR_SUM, &request));
    EXPECT_WEIR(comm, weir_wait(&request));
    stream.synchronize();
    if (rank == 0) here.meet(n);
    const Graph graph(stream, [&] {
      call_all();
      EXPECT_WEIR(
          comm, weir_all_reduce(comm, data.data(), data.data(), 10, WEIR_INT32, WEIR_SUM, nullptr));
    });
    for (int i = 0; i < 3; ++i) graph.launch(stream);
    stream.synchronize();
    EXPECT_EQ(data.get(), std::vector<int>(10, n * n * n));
    EXPECT_WEIR(comm, weir_group_start());
    call_all();
    EXPECT_WEIR(comm, weir_group_end());
    EXPECT_WEIR(comm, weir_comm_set_stream(comm, WEIR_NO_STREAM));
    expect_sum(comm, n, rank);
  });
}

TEST(DeviceStreamsProcesses, ARankThatPassesZeroElementsWhereOthersPassMoreIsTold) {
  run_processes_on_device(3, [](weir_comm_t comm, int n, int rank) {
    expect_sum(comm, n, rank);
    const Stream stream;
    const DeviceArray<int> data(std::vector<int>(1000, 1));
    EXPECT_WEIR(comm, weir_comm_set_stream(comm, stream.get()));
    const size_t count = rank == 1 ? 0 : 1000;
    EXPECT_WEIR(comm, weir_all_reduce(comm, data.data(), data.data(), count, WEIR_INT32, WEIR_SUM,
                                      nullptr));
    stream.synchronize();
    weir_result_t error = WEIR_OK;
    for (int i = 0; i < 1000 && error == WEIR_OK; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      EXPECT_WEIR(comm, weir_comm_async_error(comm, &error));
    }
    EXPECT_EQ(error, WEIR_ERROR_MISMATCH);
    EXPECT_NE(weir_all_reduce(comm, data.data(), data.data(), 1, WEIR_INT32, WEIR_SUM, nullptr),
              WEIR_OK);
    const std::string text = weir_last_error(comm);
    for (const char* word :
         {"the ranks made different calls", "rank 1 called", "count 0", "1000"}) {
      EXPECT_NE(text.find(word), std::string::npos) << word << ": " << text;
    }
  });
}

// Calls with a root of which the first one differs on rank 1, and ends on all ranks.
struct RootedCalls {
  std::function<weir_result_t(weir_comm_t, bool differs, const int* from, int* to)> call;
  std::function<int(int n, int k)> expected;
  bool to_root;                    // rank 0
  std::vector<const char*> words;  // of the text
};

constexpr size_t kRootedCount = 100;

std::vector<RootedCalls> rooted_calls() {
  const auto of_rank_0 = [](int, int k) { return 10 * k; };
  const auto broadcast = [](weir_comm_t comm, int root, const int* from, int* to) {
    return weir_broadcast(comm, from, to, kRootedCount, WEIR_INT32, root, nullptr);
  };
  const auto reduce = [](weir_comm_t comm, const int* from, int* to) {
    return weir_reduce(comm, from, to, kRootedCount, WEIR_INT32, WEIR_SUM, 0, nullptr);
  };
  return {
      {[=](weir_comm_t comm, bool differs, const int* from, int* to) {
         return broadcast(comm, differs ? 1 : 0, from, to);
       },
       of_rank_0,
       false,
       {"root 0", "root 1"}},
      {[](weir_comm_t comm, bool differs, const int* from, int* to) {
         return weir_scatter(comm, from, to, kRootedCount, WEIR_INT32, differs ? 1 : 0, nullptr);
       },
       of_rank_0,
       false,
       {"root 0", "root 1"}},
      // What rank 1 leaves for the root is no part of the next sum.
      {[=, first = true](weir_comm_t comm, bool differs, const int* from, int* to) mutable {
         const bool broadcasts = std::exchange(first, false) && !differs;
         return broadcasts ? broadcast(comm, 0, from, to) : reduce(comm, from, to);
       },
       [](int n, int k) { return n * 10 * k + n * (n - 1) / 2; },
       true,
       {"broadcast(", "reduce("}},
  };
}

void expect_no_earlier_data(weir_comm_t comm, int n, int rank, const RootedCalls& calls) {
  const DeviceArray<int> sent(std::vector<int>(kRootedCount * static_cast<size_t>(n), 0));
  const DeviceArray<int> received(std::vector<int>(kRootedCount, 0));
  weir_result_t result = WEIR_OK;
  for (int k = 0; k < 4 && result == WEIR_OK; ++k) {
    sent.set(std::vector<int>(sent.get().size(), 10 * k + rank));
    result = calls.call(comm, k == 0 && rank == 1, sent.data(), received.data());
    if (result == WEIR_OK && k > 0 && (rank == 0 || !calls.to_root)) {
      EXPECT_EQ(received.get(), std::vector<int>(kRootedCount, calls.expected(n, k)))
          << k << " on " << rank;
    }
  }
  weir_result_t error = WEIR_OK;
  for (int i = 0; i < 1000 && error == WEIR_OK; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_WEIR(comm, weir_comm_async_error(comm, &error));
  }
  EXPECT_EQ(error, WEIR_ERROR_MISMATCH) << weir_last_error(comm);
  const std::string text = weir_last_error(comm);
  EXPECT_NE(text.find("the ranks made different calls as collective 1"), text.npos) << text;
  for (const char* word : calls.words) EXPECT_NE(text.find(word), text.npos) << text;
}

TEST(DeviceStreamsProcesses, NoCallIsGivenTheDataOfAnEarlierOneThatDiffered) {
  for (const RootedCalls& calls : rooted_calls()) {
    const SharedCounter here;
    run_processes_on_device(3, [&](weir_comm_t comm, int n, int rank) {
      weir_comm_t made = nullptr;
      ASSERT_WEIR(comm, weir_comm_split(comm, 0, rank, nullptr, &made));
      expect_no_earlier_data(made, n, rank, calls);
      here.meet(n);
      EXPECT_WEIR(made, weir_comm_destroy(made));
    });
  }
}

// Those without a root may be in a graph on some ranks only.
TEST(DeviceStreamsProcesses, AGraphMeetsCallsWithoutARootAmongThoseWithOne) {
  run_processes_on_device(3, [](weir_comm_t comm, int n, int rank) {
    const Stream stream;
    const DeviceArray<int> data(std::vector<int>(1000, 0));
    EXPECT_WEIR(comm, weir_comm_set_stream(comm, stream.get()));
    const auto sum = [&] {
      EXPECT_WEIR(comm, weir_all_reduce(comm, data.data(), data.data(), 1000, WEIR_INT32, WEIR_SUM,
                                        nullptr));
    };
    std::optional<Graph> graph;
    if (rank != 1) graph.emplace(stream, sum);
    for (int k = 0; k < 5; ++k) {
      data.set(std::vector<int>(1000, rank + k));
      // Longer than a call stands before it is looked into.
      if (rank == k % n) std::this_thread::sleep_for(std::chrono::milliseconds(100));
      rank != 1 ? graph->launch(stream) : sum();
      EXPECT_WEIR(comm,
                  weir_broadcast(comm, data.data(), data.data(), 1000, WEIR_INT32, k % n, nullptr));
      stream.synchronize();
      EXPECT_EQ(data.get(), std::vector<int>(1000, n * k + n * (n - 1) / 2));
    }
  });
}

// `launch`: with rank 0 waiting, whose text has `wanted`.
void expect_the_awaited_named(
    const std::string& wanted,
    const std::function<void(weir_comm_t, int rank, int* data, const Stream& stream)>& launch) {
  const SharedCounter here;
  run_processes_on_device(2, [&](weir_comm_t comm, int n, int rank) {
    expect_sum(comm, n, rank);
    EXPECT_WEIR(comm, weir_comm_set_timeout(comm, rank == 0 ? 500 : 60'000));
    const Stream stream;
    const DeviceArray<int> data(std::vector<int>(1000, 1));
    EXPECT_WEIR(comm, weir_comm_set_stream(comm, stream.get()));
    launch(comm, rank, data.data(), stream);
    stream.synchronize();
    here.meet(n);
    weir_result_t error = WEIR_OK;
    for (int i = 0; i < 1000 && error == WEIR_OK; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      EXPECT_WEIR(comm, weir_comm_async_error(comm, &error));
    }
    EXPECT_EQ(error, WEIR_ERROR_TIMEOUT);
    if (rank == 0) {
      const std::string text = weir_last_error(comm);
      EXPECT_NE(text.find(wanted), std::string::npos) << text;
    }
    here.meet(2 * n);
  });
}

TEST(DeviceStreamsProcesses, ARankThatLaunchesAnotherGraphIsNamedAtTheDeadline) {
  expect_the_awaited_named(
      "; rank 1 has come to another call instead",
      [](weir_comm_t comm, int rank, int* data, const Stream& stream) {
        const auto reduce = [&](weir_redop_t op) {
          EXPECT_WEIR(comm, weir_all_reduce(comm, data, data, 1000, WEIR_INT32, op, nullptr));
        };
        const Graph sum(stream, [&] { reduce(WEIR_SUM); });
        const Graph max(stream, [&] { reduce(WEIR_MAX); });
        (rank == 0 ? sum : max).launch(stream);
        stream.synchronize();
      });
}

TEST(DeviceStreamsProcesses, ARankThatDoesNotTakeTheDataOfAGraphIsNamedAtTheDeadline) {
  expect_the_awaited_named(
      "; it waits until rank 1 has taken what this rank has sent",
      [](weir_comm_t comm, int rank, int* data, const Stream& stream) {
        const Graph graph(stream, [&] {
          EXPECT_WEIR(comm, weir_broadcast(comm, data, data, 1000, WEIR_INT32, 0, nullptr));
        });
        for (int i = 0; i < 3 && rank == 0; ++i) graph.launch(stream);
        stream.synchronize();
      });
}

// On another driver the calls only have to work.
int events() { return strict_cuda_events == nullptr ? 0 : strict_cuda_events(); }

// The thread that sees the end of a graph has no context, and leaves its events to the next call,
// such as one of `alone`, which has no other rank.
void expect_few_events(weir_comm_t alone, int most) {
  for (int i = 0; i < 500 && events() > most; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    expect_sum(alone, 1, 0);
  }
  EXPECT_LE(events(), most);
}

TEST(DeviceStreamsProcesses, GraphsThatAreGoneLeaveNoEvents) {
  run_processes_on_device(2, [](weir_comm_t comm, int n, int rank) {
    weir_comm_t alone = nullptr;
    ASSERT_WEIR(comm, weir_comm_split(comm, rank, 0, nullptr, &alone));
    expect_sum(alone, 1, 0);
    const Stream stream;
    const DeviceArray<int> data(std::vector<int>(100, 1));
    const auto call = [&](weir_comm_t to) {
      EXPECT_WEIR(
          to, weir_all_reduce(to, data.data(), data.data(), 100, WEIR_INT32, WEIR_MAX, nullptr));
      EXPECT_WEIR(to, weir_group_start());
      EXPECT_WEIR(to, weir_send(to, data.data(), 50, WEIR_INT32, 1 - rank, nullptr));
      EXPECT_WEIR(to, weir_recv(to, data.data() + 50, 50, WEIR_INT32, 1 - rank, nullptr));
      EXPECT_WEIR(to, weir_group_end());
    };
    const auto capture = [&](int count) {
      for (int i = 0; i < count; ++i) {
        const Graph graph(stream, [&] { call(comm); });
        if (i % 2 == 0) graph.launch(stream);
        stream.synchronize();
      }
    };
    expect_sum(comm, n, rank);
    EXPECT_WEIR(comm, weir_comm_set_stream(comm, stream.get()));
    // The first one makes those that order graphs and calls.
    capture(1);
    const int most = events() + 5;
    capture(100);
    expect_few_events(alone, most);
    // Nor those that outlive their communicator.
    for (int i = 0; i < 10; ++i) {
      weir_comm_t other = nullptr;
      ASSERT_WEIR(comm, weir_comm_split(comm, 0, rank, nullptr, &other));
      EXPECT_WEIR(other, weir_comm_set_stream(other, stream.get()));
      const Graph graph(stream, [&] { call(other); });
      EXPECT_WEIR(other, weir_comm_destroy(other));
    }
    expect_few_events(alone, most);
    EXPECT_WEIR(alone, weir_comm_destroy(alone));
  });
}

TEST(DeviceStreamsProcesses, AnAbortReleasesTheStreamsEverywhere) {
  const SharedCounter here;
  run_processes_on_device(2, [&](weir_comm_t comm, int n, int rank) {
    expect_sum(comm, n, rank);
    here.meet(2);
    const DeviceArray<int> data(std::vector<int>(1000, 1));
    if (rank == 0) {
      weir_request_t request = nullptr;
      EXPECT_WEIR(comm, weir_all_reduce(comm, data.data(), data.data(), 1000, WEIR_INT32, WEIR_SUM,
                                        &request));
      std::thread aborting([&] { EXPECT_WEIR(comm, weir_comm_abort(comm)); });
      EXPECT_EQ(weir_wait(&request), WEIR_ERROR_ABORTED);
      aborting.join();
    } else {
      const weir_result_t result =
          weir_broadcast(comm, data.data(), data.data(), 1000, WEIR_INT32, 0, nullptr);
      EXPECT_NE(result, WEIR_OK);
    }
    here.meet(4);
  });
}

TEST(DeviceStreamsProcesses, AStreamThatDoesNotExistIsRefusedAndTheCommunicatorGoesOn) {
  run_processes_on_device(2, [](weir_comm_t comm, int n, int rank) {
    const DeviceArray<int> data(std::vector<int>(1000, 1));
    const Stream stream;
    cuda::Stream gone = nullptr;
    EXPECT_CUDA(cuStreamCreate(&gone, cuda::kStreamNonBlocking));
    EXPECT_CUDA(cuStreamDestroy_v2(gone));
    const auto reduce = [&](weir_request_t* request) {
      return weir_all_reduce(comm, data.data(), data.data(), 1000, WEIR_INT32, WEIR_SUM, request);
    };
    const auto expect_refused = [&](weir_result_t result) {
      EXPECT_EQ(result, WEIR_ERROR_INVALID_ARGUMENT);
      const std::string text = weir_last_error(comm);
      EXPECT_NE(text.find("never was a stream"), std::string::npos) << text;
      EXPECT_NE(text.find("weir_comm_set_stream"), std::string::npos) << text;
    };
    // Also as the first call of the communicator.
    if (rank == 1) {
      EXPECT_WEIR(comm, weir_comm_set_stream(comm, gone));
      expect_refused(reduce(nullptr));
      weir_request_t request = nullptr;
      ASSERT_WEIR(comm, reduce(&request));
      expect_refused(weir_wait(&request));
      expect_refused(weir_send(comm, data.data(), 1000, WEIR_INT32, 0, nullptr));
    }
    EXPECT_WEIR(comm, weir_comm_set_stream(comm, stream.get()));
    EXPECT_WEIR(comm, reduce(nullptr));
    EXPECT_WEIR(comm, rank == 1 ? weir_send(comm, data.data(), 1000, WEIR_INT32, 0, nullptr)
                                : weir_recv(comm, data.data(), 1000, WEIR_INT32, 1, nullptr));
    stream.synchronize();
    EXPECT_EQ(data.get(), std::vector<int>(1000, n));
    EXPECT_WEIR(comm, weir_comm_set_stream(comm, WEIR_NO_STREAM));
    expect_sum(comm, n, rank);
  });
}

TEST(DeviceStreamsProcesses, FreedMemoryIsRefusedAndThatOfTheHostIsNot) {
  run_processes_on_device(2, [](weir_comm_t comm, int n, int rank) {
    expect_sum(comm, n, rank);
    constexpr size_t kBytes = 4096;
    const DeviceArray<int> data(std::vector<int>(100, 1));
    cuda::DevicePointer freed = 0;
    EXPECT_CUDA(cuMemAlloc_v2(&freed, kBytes));
    EXPECT_CUDA(cuMemFree_v2(freed));
    void* const gone = reinterpret_cast<void*>(static_cast<uintptr_t>(freed));
    // As other drivers keep their addresses; else a thread may map something there.
    if (cuda::is_strict()) {
      ASSERT_EQ(
          mmap(gone, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0),
          gone);
    }
    const int other = 1 - rank;
    for (const weir_result_t result :
         {weir_all_reduce(comm, gone, gone, 100, WEIR_INT32, WEIR_SUM, nullptr),
          weir_all_reduce(comm, data.data(), gone, 100, WEIR_INT32, WEIR_SUM, nullptr),
          weir_send(comm, gone, 100, WEIR_INT32, other, nullptr),
          weir_recv(comm, gone, 100, WEIR_INT32, other, nullptr)}) {
      EXPECT_EQ(result, WEIR_ERROR_INVALID_ARGUMENT);
      const std::string text = weir_last_error(comm);
      EXPECT_NE(text.find("it was freed, or nothing is mapped there"), std::string::npos) << text;
    }
    expect_sum(comm, n, rank);
    std::vector<int> on_host(100, rank + 1);
    EXPECT_WEIR(comm, weir_all_reduce(comm, on_host.data(), on_host.data(), 100, WEIR_INT32,
                                      WEIR_SUM, nullptr));
    EXPECT_EQ(on_host, std::vector<int>(100, n * (n + 1) / 2));
    if (cuda::is_strict()) munmap(gone, kBytes);
  });
}

// It is not found by the stream, after the call has returned.
TEST(DeviceStreamsProcesses, TheFirstCallOnAStreamAfterAnAbortElsewhereIsRefused) {
  for (const char* transport : {"shm", "tcp"}) {
    const SharedCounter here;
    run_processes_on_device(
        3,
        [&](weir_comm_t comm, int n, int rank) {
          expect_sum(comm, n, rank);
          const Stream stream;
          const DeviceArray<int> data(std::vector<int>(1000, 1));
          // An abort ends the sums of others that have not heard the last of them yet.
          here.meet(n);
          if (rank == 0) {
            EXPECT_WEIR(comm, weir_comm_abort(comm));
            std::this_thread::sleep_for(std::chrono::milliseconds(200));
          }
          here.meet(2 * n);
          if (rank != 0) {
            EXPECT_WEIR(comm, weir_comm_set_stream(comm, stream.get()));
            EXPECT_EQ(rank == 1 ? weir_all_reduce(comm, data.data(), data.data(), 1000, WEIR_INT32,
                                                  WEIR_SUM, nullptr)
                                : weir_recv(comm, data.data(), 1000, WEIR_INT32, 0, nullptr),
                      WEIR_ERROR_ABORTED)
                << transport;
            EXPECT_NE(std::string(weir_last_error(comm)).find("rank 0 aborted"), std::string::npos)
                << weir_last_error(comm);
          }
          here.meet(3 * n);
        },
        [&](int) {
          return Environment{{"WEIR_TRANSPORT", transport}};
        });
  }
}

TEST(DeviceStreamsProcesses, DestroyGivesUpWhatIsUnderWay) {
  const SharedCounter here;
  run_processes_on_device(2, [&](weir_comm_t comm, int n, int rank) {
    weir_comm_t other = nullptr;
    ASSERT_WEIR(comm, weir_comm_split(comm, 0, rank, nullptr, &other));
    expect_sum(other, n, rank);
    here.meet(2);
    const DeviceArray<int> data(std::vector<int>(10, 1));
    weir_request_t request = nullptr;
    if (rank == 0) {
      ASSERT_WEIR(other, weir_all_reduce(other, data.data(), data.data(), 10, WEIR_INT32, WEIR_SUM,
                                         &request));
    }
    EXPECT_WEIR(other, weir_comm_destroy(other));
    here.meet(4);
    expect_sum(comm, n, rank);
  });
}

int count_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<int>(std::distance(begin(all), end(all)));
}

TEST(DeviceStreamsProcesses, DestroyRightBehindACallKeepsNothing) {
  run_processes_on_device(2, [](weir_comm_t comm, int, int rank) {
    const DeviceArray<int> data(std::vector<int>(1000, 1));
    const auto use_others = [&](int count) {
      for (int i = 0; i < count; ++i) {
        weir_comm_t made = nullptr;
        ASSERT_WEIR(comm, weir_comm_split(comm, 0, rank, nullptr, &made));
        ASSERT_WEIR(made, weir_all_reduce(made, data.data(), data.data(), 1000, WEIR_INT32,
                                          WEIR_MAX, nullptr));
        EXPECT_WEIR(made, weir_comm_destroy(made));
      }
    };
    use_others(10);
    const int before = count_descriptors();
    use_others(60);
    EXPECT_LE(count_descriptors(), before + 12);
  });
}

TEST(DeviceStreamsProcesses, TheVariantsWithCountsAreToldNotToGoDirectly) {
  run_processes_on_device(2, [](weir_comm_t comm, int n, int rank) {
    expect_sum(comm, n, rank);
    const DeviceArray<int> data(std::vector<int>(10, 0));
    const DeviceArray<int> all(std::vector<int>(20, 0));
    const size_t counts[] = {10, 10};
    EXPECT_EQ(
        weir_all_gather_v(comm, data.data(), all.data(), counts, nullptr, WEIR_INT32, nullptr),
        WEIR_ERROR_UNSUPPORTED);
    const std::string text = weir_last_error(comm);
    for (const char* word :
         {"calls with a count for each rank do not go that way", "are not possible: rank 0: "}) {
      EXPECT_NE(text.find(word), std::string::npos) << word << ": " << text;
    }
    expect_sum(comm, n, rank);
  });
}

}  // namespace
}  // namespace weir::test
