// SPDX-License-Identifier: Apache-2.0
// One-sided operations whose target or origin dies, stops or leaves, over whatever transport the
// environment names: who needs it learns of it, and the others go on.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "collectives/one_sided_support.h"
#include "support/shared_counter.h"

namespace weir::test {
namespace {

TEST(LostRank, AsATargetIsNamedByWhoNeedsIt) {
  const SharedCounter here;
  // Symmetric memory outlives its rank; ordinary memory does not.
  const std::vector<int> statuses = processes_status(
      3,
      [&](int rank, weir_comm_t comm) {
        Memory* memory = new Memory(comm, kRoom, false);
        weir_window_t window = nullptr;
        OK(weir_window_create(comm, memory->bytes(), kRoom, &window));
        here.meet(3);
        if (rank == 1) raise(SIGKILL);
        const auto start = Clock::now();
        weir_result_t result = WEIR_OK;
        std::vector<unsigned char> data(kRoom);
        uint64_t old = 0;
        while (result == WEIR_OK && seconds_since(start) < 15) {
          result = rank == 0 ? weir_fetch_add(window, 1, 0, 1, &old, nullptr)
                             : weir_put(window, 1, 0, data.data(), kRoom, nullptr);
          if (result == WEIR_OK) result = weir_flush(comm, 1, nullptr);
        }
        EXPECT_EQ(result, WEIR_ERROR_PEER_LOST) << weir_last_error(comm);
        EXPECT_LT(seconds_since(start), 15);
        const std::string text = weir_last_error(comm);
        EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
        // The rest goes on without it.
        weir_result_t error = WEIR_OK;
        EXPECT_EQ(weir_comm_async_error(comm, &error), WEIR_OK);
        EXPECT_EQ(error, WEIR_ERROR_PEER_LOST);
        int lost[3] = {}, count = 0;
        OK(weir_comm_lost_ranks(comm, lost, 3, &count));
        ASSERT_EQ(count, 1);
        EXPECT_EQ(lost[0], 1);
        weir_comm_t rest = nullptr;
        OK(weir_comm_shrink(comm, lost, 1, nullptr, &rest));
        uint64_t word = 0;
        weir_window_t next = nullptr;
        OK(weir_window_create(rest, &word, 8, &next));
        OK(weir_signal(next, rank == 0 ? 1 : 0, 0, 1, nullptr));
        OK(weir_wait_signal(next, 0, 1, nullptr));
        OK(weir_window_destroy(next));
        OK(weir_comm_destroy(rest));
      },
      with_timeout(20'000));
  EXPECT_EQ(statuses, (std::vector<int>{0, 128 + SIGKILL, 0}));
}

TEST(LostRank, ThatLeavesWithPutsUnderWayHindersNoOthers) {
  const SharedCounter here, done;
  run_processes(
      3,
      [&](int rank, weir_comm_t comm) {
        constexpr size_t kBytes = 500'000;
        std::vector<uint64_t> memory(kBytes / 8 + 1);
        const std::vector<unsigned char> data(kBytes, 1);
        weir_window_t window = nullptr;
        OK(weir_window_create(comm, memory.data(), memory.size() * 8, &window));
        here.meet(3);
        if (rank == 1) {
          weir_request_t puts[10];
          for (weir_request_t& put : puts) OK(weir_put(window, 2, 0, data.data(), kBytes, &put));
          OK(weir_comm_destroy(comm));
          for (weir_request_t& put : puts) EXPECT_NE(weir_wait(&put), WEIR_ERROR_INTERNAL);
          done.wait_for(2);
          _exit(testing::Test::HasFailure() ? 1 : 0);
        }
        const auto start = Clock::now();
        while (seconds_since(start) < 0.5) {
          uint64_t old = 0;
          OK(weir_fetch_add(window, 2 - rank, kBytes, 1, &old, nullptr));
        }
        done.meet(2);
      },
      {}, with_timeout(20'000));
}

TEST(StoppedRank, IsNamedByWhoWaitsInACollectiveAndByWhoWaitsInAGet) {
  if (getenv("WEIR_TEST_HOSTS") != nullptr) GTEST_SKIP() << "the same with ranks of one host";
  const SharedCounter ready;
  const SharedCounter asked;
  const SharedCounter stopped;
  const std::vector<int> statuses = processes_status(
      3,
      [&](int rank, weir_comm_t comm) {
        std::vector<unsigned char> memory(4 << 20);
        std::vector<unsigned char> got(memory.size());
        weir_window_t window = nullptr;
        OK(weir_window_create(comm, memory.data(), memory.size(), &window));
        OK(weir_barrier(comm, nullptr));
        ready.meet(3);
        if (rank == 1) {
          stopped.get().store(getpid());
          raise(SIGSTOP);
        }
        while (stopped.get().load() == 0) usleep(1000);
        usleep(100'000);
        OK(weir_comm_set_timeout(comm, 3000));
        const weir_result_t result = rank == 0
                                         ? weir_barrier(comm, nullptr)
                                         : weir_get(window, 1, 0, got.data(), got.size(), nullptr);
        EXPECT_EQ(result, WEIR_ERROR_TIMEOUT);
        const std::string text = weir_last_error(comm);
        EXPECT_NE(text.find("waiting for rank 1"), std::string::npos) << text;
        asked.meet(2);
        int lost[3] = {-1, -1, -1};
        int lost_count = 0;
        OK(weir_comm_lost_ranks(comm, lost, 3, &lost_count));
        EXPECT_EQ(lost_count, 1);
        EXPECT_EQ(lost[0], 1);
        asked.get() += 10;
        asked.wait_for(22);
        if (rank == 0) kill(stopped.get().load(), SIGKILL);
      },
      with_timeout(60'000));
  EXPECT_EQ(statuses, (std::vector<int>{0, 128 + SIGKILL, 0}));
}

TEST(LostRank, ThatHasLeftIsNamedByTheNextOperationAtIt) {
  for (const bool reads : {true, false}) {
    const SharedCounter here, done;
    run_processes(
        3,
        [&](int rank, weir_comm_t comm) {
          std::vector<uint64_t> memory(64);
          weir_window_t window = nullptr;
          OK(weir_window_create(comm, memory.data(), memory.size() * 8, &window));
          uint64_t old = 0;
          for (int i = 0; i < 50; ++i) OK(weir_fetch_add(window, i % 3, 0, 1, &old, nullptr));
          here.meet(3);
          if (rank == 2) {
            OK(weir_comm_destroy(comm));
            done.wait_for(2);
            _exit(testing::Test::HasFailure() ? 1 : 0);
          }
          const auto start = Clock::now();
          weir_result_t result = WEIR_OK;
          while (result == WEIR_OK && seconds_since(start) < 15) {
            result = reads ? weir_get(window, 2, 8, &old, 8, nullptr)
                           : weir_fetch_add(window, 2, 0, 1, &old, nullptr);
          }
          EXPECT_EQ(result, WEIR_ERROR_PEER_LOST) << weir_last_error(comm);
          EXPECT_LT(seconds_since(start), 10);
          const std::string text = weir_last_error(comm);
          EXPECT_NE(text.find("rank 2 destroyed the communicator"), std::string::npos) << text;
          done.meet(2);
        },
        {}, with_timeout(60'000));
    if (HasFailure()) return;
  }
}

TEST(LostRank, EndsAWaitForASignal) {
  const SharedCounter here;
  const std::vector<int> statuses = processes_status(
      3,
      [&](int rank, weir_comm_t comm) {
        Memory* memory = new Memory(comm, 64, false);
        std::memset(memory->bytes(), 0, 64);
        weir_window_t window = nullptr;
        OK(weir_window_create(comm, memory->bytes(), 64, &window));
        here.meet(3);
        if (rank == 2) {
          usleep(100'000);
          raise(SIGKILL);
        }
        const auto start = Clock::now();
        EXPECT_EQ(weir_wait_signal(window, 0, 1, nullptr), WEIR_ERROR_PEER_LOST)
            << weir_last_error(comm);
        EXPECT_LT(seconds_since(start), 15);
        const std::string text = weir_last_error(comm);
        EXPECT_NE(text.find("rank 2"), std::string::npos) << text;
        EXPECT_EQ(weir_barrier(comm, nullptr), WEIR_ERROR_PEER_LOST) << weir_last_error(comm);
      },
      with_timeout(20'000));
  EXPECT_EQ(statuses, (std::vector<int>{0, 0, 128 + SIGKILL}));
}

}  // namespace
}  // namespace weir::test
