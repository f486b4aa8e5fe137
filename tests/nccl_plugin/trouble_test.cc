// SPDX-License-Identifier: Apache-2.0
// What is missing for device memory, what may not be called, and ranks that die, stay away or abort
// in a collective on it.
#include <csignal>
#include <cstdlib>
#include <string>
#include <vector>

#include "nccl_plugin/support.h"

namespace weir::test {
namespace {

// All ranks get the same refusal, as often as they ask, and go on with memory of the host.
void refused(
    int n, const Environment& environment, const std::vector<std::string>& words,
    const std::function<int(int)>& device_of = [](int rank) { return rank; }) {
  run_processes(
      n,
      [&](int rank, weir_comm_t comm) {
        ASSERT_EQ(cudaSetDevice(device_of(rank)), cudaSuccess);
        OnDevice<int> data(std::vector<int>{rank});
        for (int i = 0; i < 2; ++i) {
          EXPECT_EQ(
              weir_all_reduce(comm, data.data(), data.data(), 1, WEIR_INT32, WEIR_SUM, nullptr),
              WEIR_ERROR_UNSUPPORTED);
          for (const std::string& word : words) expect_text(weir_last_error(comm), word);
          expect_sum_on_host(comm, rank, n);
        }
        weir_request_t request = nullptr;
        const weir_result_t called =
            weir_broadcast(comm, data.data(), data.data(), 1, WEIR_INT32, 0, &request);
        EXPECT_EQ(called, WEIR_ERROR_UNSUPPORTED);
        EXPECT_EQ(data.read()[0], rank);
      },
      environment);
}

TEST(DeviceRefusals, WithoutALibraryItIsNamedWhichAndWhere) {
  refused(2, with_double("/nowhere/libnccl.so.2"),
          {"rank 0", "WEIR_NCCL_LIBRARY names /nowhere/libnccl.so.2",
           "continues to work on host memory"});
}

TEST(DeviceRefusals, WeirsOwnLibraryIsNotTheRealOne) {
  refused(2, with_double(WEIR_TEST_OWN_NCCL), {"is Weir's own"});
}

TEST(DeviceRefusals, TheStandInHasNoRealNcclUnlessOneIsNamed) {
  refused(2, with_double(""), {"stand-in"});
}

TEST(DeviceRefusals, OneRankWithoutALibraryIsEnoughAndIsNamed) {
  const Environment good = with_double();
  const std::vector<int> statuses = run_processes_each(
      3,
      [&](int rank, weir_comm_t comm) {
        ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
        OnDevice<int> data(std::vector<int>{rank});
        EXPECT_EQ(weir_all_reduce(comm, data.data(), data.data(), 1, WEIR_INT32, WEIR_SUM, nullptr),
                  WEIR_ERROR_UNSUPPORTED);
        expect_text(weir_last_error(comm), "rank 1: WEIR_NCCL_LIBRARY names /nowhere");
        expect_sum_on_host(comm, rank, 3);
      },
      [&](int rank) { return rank == 1 ? with_double("/nowhere/libnccl.so.2") : good; });
  EXPECT_EQ(statuses, std::vector<int>(3, 0));
}

TEST(DeviceRefusals, DifferentVersionsAreTold) {
  const std::vector<int> statuses = run_processes_each(
      2,
      [&](int rank, weir_comm_t comm) {
        ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
        OnDevice<int> data(std::vector<int>{rank});
        EXPECT_EQ(weir_all_reduce(comm, data.data(), data.data(), 1, WEIR_INT32, WEIR_SUM, nullptr),
                  WEIR_ERROR_UNSUPPORTED);
        expect_text(weir_last_error(comm), "rank 0 has NCCL 2.31.2, rank 1 has 2.27.3");
      },
      [&](int rank) { return with_double(rank == 0 ? kDouble : kOlderDouble); });
  EXPECT_EQ(statuses, std::vector<int>(2, 0));
}

TEST(DeviceRefusals, RanksThatShareADeviceAreNamed) {
  refused(3, with_double(), {"ranks 0 and 2 share device 0"}, [](int rank) { return rank % 2; });
}

TEST(DeviceRefusals, WhenNcclFailsToStartOnOneRankTheOthersDoNotWait) {
  refused(3, with_double(kDouble, {{"DOUBLE_FAIL_RANK", "1"}}),
          {"rank 1", "Duplicate GPU detected"});
}

TEST(DeviceRefusals, WhatCannotBeCalledLeavesTheCommunicatorAsItWas) {
  run_on_devices(
      2,
      [](int rank, weir_comm_t comm) {
        OnDevice<int> data(std::vector<int>{rank, rank});
        int host[2] = {rank, rank};
        EXPECT_EQ(weir_all_reduce(comm, data.data(), host, 2, WEIR_INT32, WEIR_SUM, nullptr),
                  WEIR_ERROR_INVALID_ARGUMENT);
        expect_text(weir_last_error(comm), "one in host memory");
        const int peer = 1 - rank;
        EXPECT_EQ(weir_send(comm, data.data(), 1, WEIR_INT32, peer, nullptr),
                  WEIR_ERROR_UNSUPPORTED);
        expect_text(weir_last_error(comm), "sends messages from host memory only");
        EXPECT_EQ(weir_recv(comm, data.data(), 1, WEIR_INT32, peer, nullptr),
                  WEIR_ERROR_UNSUPPORTED);
        cudaStream_t stream = nullptr;
        cudaGraph_t graph = nullptr;
        ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
        ASSERT_WEIR(comm, weir_comm_set_stream(comm, stream));
        ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
        EXPECT_EQ(weir_all_to_all(comm, data.data(), data.data(), 1, WEIR_INT32, nullptr),
                  WEIR_ERROR_UNSUPPORTED);
        expect_text(weir_last_error(comm), "in place while the stream is captured");
        EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
        EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
        EXPECT_WEIR(comm, weir_comm_set_stream(comm, WEIR_NO_STREAM));
        EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
        expect_sum_on_device(comm, rank, 2);
        // Another device of the same rank.
        ASSERT_EQ(cudaSetDevice(rank + 4), cudaSuccess);
        OnDevice<int> elsewhere(std::vector<int>{rank});
        EXPECT_EQ(weir_all_reduce(comm, elsewhere.data(), elsewhere.data(), 1, WEIR_INT32, WEIR_SUM,
                                  nullptr),
                  WEIR_ERROR_INVALID_ARGUMENT);
        expect_text(weir_last_error(comm), "create another communicator for another device");
        ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
        expect_sum_on_device(comm, rank, 2);
        expect_sum_on_host(comm, rank, 2);
      },
      with_double());
}

TEST(DeviceRefusals, ADeterministicCommunicatorReducesOnTheHostOnly) {
  run_on_devices(
      2,
      [](int rank, weir_comm_t comm) {
        OnDevice<int> data(std::vector<int>{rank + 5});
        EXPECT_EQ(weir_all_reduce(comm, data.data(), data.data(), 1, WEIR_INT32, WEIR_SUM, nullptr),
                  WEIR_ERROR_UNSUPPORTED);
        expect_text(weir_last_error(comm), "deterministic");
        EXPECT_WEIR(comm,
                    weir_broadcast(comm, data.data(), data.data(), 1, WEIR_INT32, 1, nullptr));
        EXPECT_EQ(data.read()[0], 6);
      },
      with_double(kDouble, {{"WEIR_DETERMINISTIC", "1"}}));
}

TEST(DeviceRefusals, ACommunicatorOfHostMemoryDoesNotAsk) {
  weir_comm_config_t config = WEIR_COMM_CONFIG_INIT;
  config.flags = WEIR_COMM_HOST_MEMORY;
  run_processes(
      2,
      [](int rank, weir_comm_t comm) {
        // Memory of the stand-in is the host's too.
        OnDevice<int> data(std::vector<int>{rank + 1});
        EXPECT_WEIR(comm, weir_all_reduce(comm, data.data(), data.data(), 1, WEIR_INT32, WEIR_SUM,
                                          nullptr));
        EXPECT_EQ(data.read()[0], 3);
        EXPECT_EQ(weir_comm_set_stream(comm, nullptr), WEIR_ERROR_INVALID_ARGUMENT);
      },
      with_double("/nowhere/libnccl.so.2"), config);
}

TEST(DeviceTrouble, ACallOnTheHostAgainstOneOnADeviceIsAMismatch) {
  run_on_devices(
      2,
      [](int rank, weir_comm_t comm) {
        OnDevice<int> data(std::vector<int>(1000, rank));
        std::vector<int> host(1000, rank);
        int* buffer = rank == 0 ? data.data() : host.data();
        EXPECT_EQ(weir_all_reduce(comm, buffer, buffer, 1000, WEIR_INT32, WEIR_SUM, nullptr),
                  WEIR_ERROR_MISMATCH);
        expect_text(weir_last_error(comm), "same kind of memory");
      },
      with_double());
}

// Of three ranks number 1 passes memory of the host, and the other two that of their devices: what
// each is told.
void mix(const Environment& environment, bool started_before, weir_result_t expected,
         const std::vector<std::string>& wanted) {
  const SharedCounter here;
  run_on_devices(
      3,
      [&](int rank, weir_comm_t comm) {
        if (started_before) expect_sum_on_device(comm, rank, 3);
        EXPECT_WEIR(comm, weir_comm_set_timeout(comm, 1000));
        here.meet(3);
        OnDevice<int> data(std::vector<int>(1000, rank));
        std::vector<int> host(1000, rank);
        int* buffer = rank == 1 ? host.data() : data.data();
        EXPECT_EQ(weir_all_reduce(comm, buffer, buffer, 1000, WEIR_INT32, WEIR_SUM, nullptr),
                  expected);
        for (const std::string& it : wanted) expect_text(weir_last_error(comm), it);
        here.meet(6);  // nobody leaves before all have been told
      },
      environment);
}

TEST(DeviceTrouble, AFirstCallOnBothKindsOfMemoryIsToldWithTheRanksOfEachKind) {
  const std::vector<std::string> wanted{"rank 1 called all_reduce", "on the same kind of memory",
                                        "the first collective on device memory"};
  mix(with_double(), false, WEIR_ERROR_MISMATCH, wanted);
  mix(with_double("/nowhere/libnccl.so.2"), false, WEIR_ERROR_MISMATCH, wanted);
}

// Later calls on devices are not compared with those of other ranks.
TEST(DeviceTrouble, ALaterCallOnBothKindsOfMemoryEndsAtTheDeadlineAndNamesAwaitedRanks) {
  const bool is_direct = std::getenv("WEIR_TEST_DIRECT") != nullptr;
  mix(with_double(), true, WEIR_ERROR_TIMEOUT,
      is_direct ? std::vector<std::string>{"nothing has moved for 1000 ms", "made no such call"}
                : std::vector<std::string>{"did not finish within 1000 ms", "waiting for rank"});
}

// ---- Ranks that are lost ------------------------------------------------------------------------

// Rank 2 dies while the others are in, or wait for, a collective on device memory; these go on
// without.
void survive_a_death(bool started_before, const Environment& environment) {
  const SharedCounter here;
  const std::vector<int> statuses = run_processes_status(
      3,
      [&](int rank, weir_comm_t comm) {
        ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
        if (started_before) expect_sum_on_device(comm, rank, 3);
        here.meet(3);
        if (rank == 2) raise(SIGKILL);
        OnDevice<int> data(std::vector<int>(10, rank + 1));
        EXPECT_EQ(
            weir_all_reduce(comm, data.data(), data.data(), 10, WEIR_INT32, WEIR_SUM, nullptr),
            WEIR_ERROR_PEER_LOST);
        expect_text(weir_last_error(comm), "rank 2");
        weir_comm_t rest = nullptr;
        const int lost = 2;
        ASSERT_WEIR(comm, weir_comm_shrink(comm, &lost, 1, nullptr, &rest));
        expect_sum_on_device(rest, rank, 2);
        EXPECT_WEIR(rest, weir_comm_destroy(rest));
      },
      environment);
  EXPECT_EQ(statuses, (std::vector<int>{0, 0, 128 + SIGKILL}));
}

TEST(DeviceTrouble, ADeathInADeviceCollectiveEndsItForTheOthers) {
  survive_a_death(true, with_double());
}

TEST(DeviceTrouble, ADeathBeforeTheFirstDeviceCollectiveEndsItsStart) {
  survive_a_death(false, with_double());
}

TEST(DeviceTrouble, ADeathIsSeenOverConnections) {
  survive_a_death(true, with_double(kDouble, {{"WEIR_TRANSPORT", "tcp"}}));
}

TEST(DeviceTrouble, ADeathReleasesAStreamThatNobodyWaitsFor) {
  const SharedCounter here;
  const std::vector<int> statuses = run_processes_status(
      2,
      [&](int rank, weir_comm_t comm) {
        ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
        expect_sum_on_device(comm, rank, 2);
        here.meet(2);
        if (rank == 1) raise(SIGKILL);
        cudaStream_t stream = nullptr;
        ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
        ASSERT_WEIR(comm, weir_comm_set_stream(comm, stream));
        OnDevice<int> data(std::vector<int>(10, rank + 1));
        const weir_result_t called =
            weir_all_reduce(comm, data.data(), data.data(), 10, WEIR_INT32, WEIR_SUM, nullptr);
        // The death may be known before the call is made.
        EXPECT_TRUE(called == WEIR_OK || called == WEIR_ERROR_PEER_LOST) << weir_last_error(comm);
        EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
        weir_result_t error = WEIR_OK;
        EXPECT_WEIR(comm, weir_comm_async_error(comm, &error));
        EXPECT_EQ(error, WEIR_ERROR_PEER_LOST);
        EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
      },
      with_double());
  EXPECT_EQ(statuses, (std::vector<int>{0, 128 + SIGKILL}));
}

TEST(DeviceTrouble, AnAbortFromAnotherThreadEndsADeviceCollectiveEverywhere) {
  const SharedCounter here;
  run_on_devices(
      2,
      [&](int rank, weir_comm_t comm) {
        expect_sum_on_device(comm, rank, 2);
        here.meet(2);
        if (rank == 1) {
          // Takes no part, and hears of the abort in its next call.
          int value = 0;
          EXPECT_EQ(weir_all_reduce(comm, &value, &value, 1, WEIR_INT32, WEIR_SUM, nullptr),
                    WEIR_ERROR_ABORTED);
          return;
        }
        OnDevice<int> data(std::vector<int>(10, 1));
        weir_request_t request = nullptr;
        ASSERT_WEIR(comm, weir_all_reduce(comm, data.data(), data.data(), 10, WEIR_INT32, WEIR_SUM,
                                          &request));
        int done = 1;
        EXPECT_WEIR(comm, weir_test(&request, &done));
        EXPECT_EQ(done, 0);
        std::thread aborting([&] { EXPECT_WEIR(comm, weir_comm_abort(comm)); });
        EXPECT_EQ(weir_wait(&request), WEIR_ERROR_ABORTED);
        aborting.join();
        // Nothing holds the device any more.
        EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      },
      with_double());
}

TEST(DeviceTrouble, ARankThatStaysAwayMeetsTheDeadline) {
  const SharedCounter here;
  run_on_devices(
      2,
      [&](int rank, weir_comm_t comm) {
        expect_sum_on_device(comm, rank, 2);
        here.meet(2);
        if (rank == 1) {
          // Until the other one has told of its failure.
          int value = 0;
          EXPECT_EQ(weir_recv(comm, &value, 1, WEIR_INT32, 0, nullptr), WEIR_ERROR_TIMEOUT);
          return;
        }
        EXPECT_WEIR(comm, weir_comm_set_timeout(comm, 300));
        OnDevice<int> data(std::vector<int>(10, 1));
        EXPECT_EQ(
            weir_all_reduce(comm, data.data(), data.data(), 10, WEIR_INT32, WEIR_SUM, nullptr),
            WEIR_ERROR_TIMEOUT);
        expect_text(weir_last_error(comm), "on memory of device 0");
        EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      },
      with_double());
}

TEST(DeviceTrouble, AnErrorOfNcclsIsToldOnEveryRank) {
  const SharedCounter here;
  run_on_devices(
      2,
      [&](int rank, weir_comm_t comm) {
        expect_sum_on_device(comm, rank, 2);
        here.meet(2);
        OnDevice<int> data(std::vector<int>(10, 1));
        EXPECT_EQ(
            weir_all_reduce(comm, data.data(), data.data(), 10, WEIR_INT32, WEIR_SUM, nullptr),
            WEIR_ERROR_PEER_LOST);
        expect_text(weir_last_error(comm), "remote error");
        EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      },
      with_double(kDouble, {{"DOUBLE_ERROR_RANK", "1"}, {"DOUBLE_ERROR_AT", "2"}}));
}

TEST(DeviceTrouble, DestroyGivesUpWhatIsUnderWay) {
  const SharedCounter here;
  run_on_devices(
      2,
      [&](int rank, weir_comm_t comm) {
        weir_comm_t other = nullptr;
        ASSERT_WEIR(comm, weir_comm_split(comm, 0, rank, nullptr, &other));
        expect_sum_on_device(other, rank, 2);
        here.meet(2);
        OnDevice<int> data(std::vector<int>(10, 1));
        weir_request_t request = nullptr;
        if (rank == 0) {
          ASSERT_WEIR(other, weir_all_reduce(other, data.data(), data.data(), 10, WEIR_INT32,
                                             WEIR_SUM, &request));
        }
        EXPECT_WEIR(other, weir_comm_destroy(other));
        EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        expect_sum_on_host(comm, rank, 2);
      },
      with_double());
}

}  // namespace
}  // namespace weir::test
