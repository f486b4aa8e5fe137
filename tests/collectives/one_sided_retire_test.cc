// SPDX-License-Identifier: Apache-2.0
// weir_window_retire: what the others get, when it returns, and whom it needs.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "collectives/one_sided_support.h"
#include "support/shared_counter.h"

namespace weir::test {
namespace {

// A part that is retired, in every kind of operation of others.
TEST(Retire, OfOneRankIsNamedToTheOthersWhoGoOn) {
  both_ways(3, [](int rank, weir_comm_t comm) {
    Memory other(comm, 64, false), memory(comm, kRoom, false);
    std::memset(memory.bytes(), 3, kRoom);
    weir_window_t first = nullptr, window = nullptr;
    OK(weir_window_create(comm, other.bytes(), 64, &first));
    OK(weir_window_create(comm, memory.bytes(), kRoom, &window));
    if (rank == 1) {
      OK(weir_window_retire(window));
    }
    OK(weir_barrier(comm, nullptr));
    if (rank != 1) {
      const auto refused = [](weir_result_t result) {
        EXPECT_EQ(result, WEIR_ERROR_INVALID_USAGE);
        const std::string text = weir_last_error(nullptr);
        EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
        EXPECT_NE(text.find("window 2"), std::string::npos) << text;
      };
      std::vector<unsigned char> data(kRoom, 9);
      uint64_t old = 0;
      weir_request_t request = nullptr;
      refused(weir_put(window, 1, 0, data.data(), kRoom, nullptr));
      refused(weir_put(window, 1, 0, data.data(), 1, &request));
      EXPECT_EQ(request, nullptr);
      refused(weir_get(window, 1, 0, data.data(), 100, nullptr));
      refused(weir_signal(window, 1, 0, 1, nullptr));
      refused(weir_fetch_add(window, 1, 0, 1, &old, nullptr));
      refused(weir_compare_swap(window, 1, 0, 0, 1, &old, nullptr));
      refused(weir_put_signal(first, 1, 0, &old, 8, window, 0, 1, nullptr));
      OK(weir_put(window, 2 - rank, 8, data.data(), 1000, nullptr));
      OK(weir_flush(comm, WEIR_ALL_RANKS, nullptr));
    }
    // The other window is as before.
    OK(weir_signal(first, (rank + 1) % 3, 0, 1, nullptr));
    OK(weir_wait_signal(first, 0, 1, nullptr));
    OK(weir_barrier(comm, nullptr));
    EXPECT_EQ(memory.bytes()[8], rank == 1 ? 3 : 9);
    if (rank != 1) {
      OK(weir_window_retire(window));
    }
    OK(weir_window_destroy(first));
  });
}

// The memory is the rank's own again, whatever the others had under way.
TEST(Retire, ReturnsWhenNobodyTouchesTheMemory) {
  both_ways(3, [](int rank, weir_comm_t comm) {
    for (int round = 0; round < 10; ++round) {
      auto memory = std::make_unique<std::vector<unsigned char>>(kRoom);
      weir_window_t window = nullptr;
      OK(weir_window_create(comm, memory->data(), kRoom, &window));
      std::vector<unsigned char> data(kRoom), got(kRoom);
      std::vector<uint64_t> old(40);
      std::vector<weir_request_t> requests;
      const auto started = [&](weir_result_t result, weir_request_t request) {
        if (result == WEIR_OK) requests.push_back(request);
        return result == WEIR_OK || result == WEIR_ERROR_INVALID_USAGE;
      };
      for (int i = 0; i < 40; ++i) {
        const int target = (rank + 1 + i % 2) % 3;
        weir_request_t request = nullptr;
        weir_result_t result = weir_put(window, target, 64, data.data(), kRoom / 40, &request);
        ASSERT_TRUE(started(result, request)) << weir_last_error(comm);
        result = weir_get(window, target, kRoom / 2, got.data(), kRoom / 40, &request);
        ASSERT_TRUE(started(result, request)) << weir_last_error(comm);
        result = weir_fetch_add(window, target, 8, 1, &old[static_cast<size_t>(i)], &request);
        ASSERT_TRUE(started(result, request)) << weir_last_error(comm);
      }
      OK(weir_window_retire(window));
      std::memset(memory->data(), 0x6b, kRoom);
      for (weir_request_t request : requests) {
        const weir_result_t result = weir_wait(&request);
        EXPECT_TRUE(result == WEIR_OK || result == WEIR_ERROR_INVALID_USAGE)
            << weir_last_error(comm);
      }
      for (const unsigned char byte : *memory) ASSERT_EQ(byte, 0x6b);
      memory.reset();
    }
    OK(weir_barrier(comm, nullptr));
  });
}

TEST(Retire, OfManyWindowsInOrdersOfTheirOwn) {
  both_ways(3, [](int rank, weir_comm_t comm) {
    constexpr size_t kWindows = 12;
    Memory plain(comm, 64 * kWindows, false), symmetric(comm, 64 * kWindows, true);
    std::memset(plain.bytes(), 0, 64 * kWindows);
    for (int round = 0; round < 5; ++round) {
      std::vector<weir_window_t> windows(kWindows);
      for (size_t i = 0; i < kWindows; ++i) {
        Memory& of = i % 3 == 0 ? symmetric : plain;
        OK(weir_window_create(comm, of.bytes() + 64 * i, 64, &windows[i]));
      }
      for (size_t i = 0; i < kWindows; ++i) {
        const uint64_t value = i;
        OK(weir_put(windows[i], (rank + 1) % 3, 0, &value, 8, nullptr));
        OK(weir_fence(comm, WEIR_ALL_RANKS));
      }
      OK(weir_barrier(comm, nullptr));
      for (size_t i = 0; i < kWindows; ++i) {
        const size_t step = rank == 0 ? 1 : rank == 1 ? 5 : 7;
        OK(weir_window_retire(windows[(i * step + static_cast<size_t>(round)) % kWindows]));
      }
      // What a window that all map needs does not depend on those that have gone.
      OK(weir_window_create(comm, symmetric.bytes(), 64, &windows[0]));
      OK(weir_fence(comm, WEIR_ALL_RANKS));
      OK(weir_signal(windows[0], (rank + 1) % 3, 56, 1, nullptr));
      OK(weir_wait_signal(windows[0], 56, static_cast<uint64_t>(round) + 1, nullptr));
      OK(weir_window_destroy(windows[0]));
    }
  });
}

TEST(Retire, NeedsNoCallOfTheOthers) {
  const SharedCounter done;
  done.get() = 0;
  as_processes(2, [&](int rank, weir_comm_t comm) {
    Memory memory(comm, 64, false);
    weir_window_t window = nullptr;
    OK(weir_window_create(comm, memory.bytes(), 64, &window));
    if (rank == 0) {
      OK(weir_window_retire(window));
      ++done.get();
    } else {
      for (int i = 0; i < 20'000 && done.get() == 0; ++i) usleep(1000);
      EXPECT_EQ(done.get(), 1) << "it was not answered while this rank slept";
      OK(weir_window_retire(window));
    }
  });
}

TEST(Retire, IsNotHeldUpByRanksThatHaveLeft) {
  both_ways(3, [](int rank, weir_comm_t comm) {
    weir_comm_t child = nullptr;
    OK(weir_comm_split(comm, 0, rank, nullptr, &child));
    Memory memory(comm, kRoom, false);
    weir_window_t window = nullptr;
    OK(weir_window_create(child, memory.bytes(), kRoom, &window));
    if (rank == 2) {
      OK(weir_comm_destroy(child));
    }
    OK(weir_barrier(comm, nullptr));
    if (rank != 2) {
      OK(weir_window_retire(window));
      OK(weir_barrier(comm, nullptr));
      OK(weir_comm_destroy(child));
    } else {
      OK(weir_barrier(comm, nullptr));
    }
  });
}

TEST(Retire, IsNotHeldUpByARankThatDied) {
  const SharedCounter here;
  const std::vector<int> statuses = processes_status(
      3,
      [&](int rank, weir_comm_t comm) {
        Memory* memory = new Memory(comm, 64, false);
        weir_window_t window = nullptr;
        OK(weir_window_create(comm, memory->bytes(), 64, &window));
        here.meet(3);
        if (rank == 1) raise(SIGKILL);
        const auto start = Clock::now();
        OK(weir_window_retire(window));
        EXPECT_LT(seconds_since(start), 15);
      },
      with_timeout(20'000));
  EXPECT_EQ(statuses, (std::vector<int>{0, 128 + SIGKILL, 0}));
}

}  // namespace
}  // namespace weir::test
