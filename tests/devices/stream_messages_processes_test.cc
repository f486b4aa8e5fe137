// SPDX-License-Identifier: Apache-2.0
// Messages of the C API that go directly between devices: between processes that share a device,
// and when a rank dies, stays away, aborts or has a message of another length.
#include <chrono>
#include <csignal>
#include <optional>

#include "devices/stream_messages_cases.h"

namespace weir::test {
namespace {

void expect_text(weir_comm_t comm, const std::string& word) {
  const std::string text = weir_last_error(comm);
  EXPECT_NE(text.find(word), std::string::npos) << text;
}

TEST(StreamMessagesProcesses, GoRoundARingInEveryWay) {
  for (const int n : {2, 3}) messages_between_processes(n, in_a_ring);
}

TEST(StreamMessagesProcesses, WithoutAStreamNoneWaitsForAnother) {
  for (const int n : {1, 3}) messages_between_processes(n, with_all_ranks_at_once);
}

TEST(StreamMessagesProcesses, InAGroupTheyDoNotWaitForItsCollectives) {
  messages_between_processes(2, beside_collectives);
}

TEST(StreamMessagesProcesses, StreamsWaitForThemInTheOrderOfTheCalls) {
  messages_between_processes(2, on_several_streams);
}

TEST(StreamMessagesProcesses, ACapturedGraphIsLaunchedAgainAndAgain) {
  messages_between_processes(2, replayed);
}

TEST(StreamMessagesProcesses, AtRandom) {
  messages_between_processes(
      3, [](weir_comm_t comm, int n, int rank) { at_random(comm, n, rank, seed_of_test()); });
}

TEST(StreamMessagesProcesses, BetweenThreadsThatShareADeviceAndItsQueues) {
  if (queue_count() < 8) GTEST_SKIP() << "there are too few";
  const std::vector<int> statuses = run_processes_each(
      1,
      [](int, weir_comm_t) {
        run_threads_on_one_device(2, [](weir_comm_t comm, int n, int rank) {
          with_device_from_the_start(comm, n, rank, with_all_ranks_at_once);
        });
      },
      [](int) {
        return Environment{{"WEIR_DIRECT", "1"}};
      });
  EXPECT_EQ(statuses, std::vector<int>{0});
}

// With and without a stream, and in a graph: whatever waits goes on.
TEST(StreamMessagesProcesses, ADeathReleasesTheStreamsAndGraphsOfTheOthers) {
  const SharedCounter here;
  const std::vector<int> statuses =
      run_processes_on_device_status(4, [&](weir_comm_t comm, int n, int rank) {
        with_device_from_the_start(comm, n, rank, [&](weir_comm_t made, int count, int me) {
          const Stream stream;
          const DeviceArray<int> data(numbers(400'003, me));
          EXPECT_WEIR(made, weir_comm_set_stream(made, stream.get()));
          std::optional<Graph> graph;
          if (me != 3) {
            graph.emplace(stream, [&] { EXPECT_WEIR(made, recv(made, data, 10, 3)); });
          }
          here.meet(count);
          if (me == 3) raise(SIGKILL);
          if (me == 0) {
            graph->launch(stream);
            stream.synchronize();
          } else if (me == 1) {
            EXPECT_WEIR(made, send(made, data, 400'003, 3));
            stream.synchronize();
          } else {
            EXPECT_WEIR(made, weir_comm_set_stream(made, WEIR_NO_STREAM));
            EXPECT_EQ(recv(made, data, 10, 3), WEIR_ERROR_PEER_LOST);
          }
          weir_result_t error = WEIR_OK;
          EXPECT_WEIR(made, weir_comm_async_error(made, &error));
          EXPECT_NE(error, WEIR_OK);
          expect_text(made, "rank 3");
          graph->launch(stream);
          stream.synchronize();
          EXPECT_NE(send(made, data, 1, (me + 1) % 3), WEIR_OK);
        });
      });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0, 0, 128 + SIGKILL}));
}

TEST(StreamMessagesProcesses, APeerThatStaysAwayIsNamedAtTheDeadline) {
  for (const bool streams : {false, true}) {
    const SharedCounter here;
    messages_between_processes(2, [&](weir_comm_t comm, int n, int rank) {
      const Stream stream;
      const DeviceArray<int> data(numbers(1000, rank));
      if (rank == 0) {
        EXPECT_WEIR(comm, weir_comm_set_timeout(comm, 300));
        if (streams) {
          EXPECT_WEIR(comm, weir_comm_set_stream(comm, stream.get()));
          EXPECT_WEIR(comm, recv(comm, data, 1000, 1));
          stream.synchronize();
          weir_result_t error = WEIR_OK;
          EXPECT_WEIR(comm, weir_comm_async_error(comm, &error));
          EXPECT_EQ(error, WEIR_ERROR_TIMEOUT);
        } else {
          EXPECT_EQ(recv(comm, data, 1000, 1), WEIR_ERROR_TIMEOUT);
        }
        expect_text(comm, "rank 1 did not send what this rank receives");
      }
      here.meet(n);
    });
  }
}

TEST(StreamMessagesProcesses, AnAbortEndsThemEverywhere) {
  const SharedCounter here;
  messages_between_processes(2, [&](weir_comm_t comm, int n, int rank) {
    const Stream stream;
    const DeviceArray<int> data(numbers(1000, rank));
    if (rank == 0) {
      weir_request_t request = nullptr;
      EXPECT_WEIR(comm, recv(comm, data, 1000, 1, &request));
      std::thread aborting([&] { EXPECT_WEIR(comm, weir_comm_abort(comm)); });
      EXPECT_EQ(weir_wait(&request), WEIR_ERROR_ABORTED);
      aborting.join();
    } else {
      EXPECT_WEIR(comm, weir_comm_set_stream(comm, stream.get()));
      const weir_result_t result = recv(comm, data, 1000, 0);
      stream.synchronize();
      weir_result_t error = result;
      if (result == WEIR_OK) {
        EXPECT_WEIR(comm, weir_comm_async_error(comm, &error));
      }
      EXPECT_NE(error, WEIR_OK);
    }
    here.meet(n);
  });
}

TEST(StreamMessagesProcesses, DifferentLengthsAreToldToBoth) {
  for (const bool streams : {false, true}) {
    messages_between_processes(2, [&](weir_comm_t comm, int, int rank) {
      const Stream stream;
      const DeviceArray<int> data(numbers(200'000, rank));
      if (streams) {
        EXPECT_WEIR(comm, weir_comm_set_stream(comm, stream.get()));
      }
      weir_result_t result = rank == 0 ? send(comm, data, 200'000, 1) : recv(comm, data, 1000, 0);
      if (streams) {
        EXPECT_EQ(result, WEIR_OK);
        stream.synchronize();
        EXPECT_WEIR(comm, weir_comm_async_error(comm, &result));
      }
      EXPECT_EQ(result, WEIR_ERROR_MISMATCH);
      expect_text(comm, "rank 0 sends 800000 bytes, rank 1 receives 4000");
    });
  }
}

TEST(StreamMessagesProcesses, ThoseOfZeroElementsAreWorkOfTheStream) {
  const SharedCounter here;
  messages_between_processes(2, [&](weir_comm_t comm, int n, int rank) {
    const Stream stream;
    const DeviceArray<int> data(numbers(10, rank));
    EXPECT_WEIR(comm, weir_comm_set_stream(comm, stream.get()));
    EXPECT_WEIR(comm, weir_comm_set_timeout(comm, 20'000));
    // The caller does not wait for it. Where the buffers lie does not matter.
    if (rank == 0) {
      EXPECT_WEIR(comm, recv(comm, data, 0, 1));
      here.meet(n);
    } else {
      here.meet(n);
      EXPECT_WEIR(comm, weir_send(comm, nullptr, 0, WEIR_INT32, 0, nullptr));
    }
    stream.synchronize();
    // A graph has them at each launch.
    const int other = 1 - rank;
    const Graph graph(stream, [&] {
      EXPECT_WEIR(comm, weir_group_start());
      EXPECT_WEIR(comm, send(comm, data, 0, other));
      EXPECT_WEIR(comm, weir_recv(comm, nullptr, 0, WEIR_INT32, other, nullptr));
      EXPECT_WEIR(comm, weir_group_end());
    });
    for (int i = 0; i < 3; ++i) graph.launch(stream);
    stream.synchronize();
    weir_result_t error = WEIR_OK;
    EXPECT_WEIR(comm, weir_comm_async_error(comm, &error));
    EXPECT_EQ(error, WEIR_OK) << weir_last_error(comm);
  });
}

TEST(StreamMessagesProcesses, DestroyGivesUpWhatIsUnderWay) {
  const SharedCounter here;
  run_processes_on_device(2, [&](weir_comm_t comm, int n, int rank) {
    const Stream stream;
    const DeviceArray<int> data(numbers(400'003, rank));
    with_device_from_the_start(comm, n, rank, [&](weir_comm_t made, int, int me) {
      if (me != 0) return;
      weir_request_t request = nullptr;
      ASSERT_WEIR(made, recv(made, data, 10, 1, &request));
      EXPECT_WEIR(made, weir_comm_set_stream(made, stream.get()));
      ASSERT_WEIR(made, send(made, data, 400'003, 1));
    });
    stream.synchronize();
    here.meet(n);
    with_device_from_the_start(comm, n, rank, in_a_ring);
  });
}

}  // namespace
}  // namespace weir::test
