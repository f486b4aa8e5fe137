// SPDX-License-Identifier: Apache-2.0
// Windows, puts, signals and waits of ranks that are threads, or all in one thread.
#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <thread>
#include <vector>

#include "nccl/support.h"

namespace weir::nccl::test {
namespace {

constexpr size_t kCount = 1000;

// A window of `count` integers in memory of ncclMemAlloc, with what it needs.
class IntWindow {
 public:
  IntWindow(ncclComm_t comm, size_t count) : comm_(comm) {
    void* memory = nullptr;
    EXPECT_NCCL(ncclMemAlloc(&memory, count * sizeof(int)));
    data_ = static_cast<int*>(memory);
    EXPECT_NCCL(ncclCommWindowRegister(comm, memory, count * sizeof(int), &window_,
                                       NCCL_WIN_COLL_SYMMETRIC));
  }
  ~IntWindow() {
    EXPECT_NCCL(ncclCommWindowDeregister(comm_, window_));
    EXPECT_NCCL(ncclMemFree(data_));
  }
  IntWindow(const IntWindow&) = delete;
  IntWindow& operator=(const IntWindow&) = delete;

  ncclWindow_t handle() const { return window_; }
  int& operator[](size_t i) const { return data_[i]; }

 private:
  ncclComm_t comm_;
  int* data_ = nullptr;
  ncclWindow_t window_ = nullptr;
};

ncclResult_t wait_for(ncclComm_t comm, int peer, int count, int signal = 0, int context = 0) {
  ncclWaitSignalDesc_t one{count, peer, signal, context};
  return ncclWaitSignal(1, &one, comm, nullptr);
}

ncclResult_t put(const void* data, size_t count, int peer, ncclWindow_t window, size_t offset,
                 ncclComm_t comm, int signal = 0, int context = 0) {
  return ncclPutSignal(data, count, ncclInt, peer, window, offset, signal, context, 0, comm,
                       nullptr);
}

// A barrier: nobody's window goes while it is written to.
void meet(ncclComm_t comm) {
  int one = 1;
  EXPECT_NCCL(ncclAllReduce(&one, &one, 1, ncclInt, ncclSum, comm, nullptr));
}

TEST(NcclOneSided, APutIsInThePeersWindowOnceItsSignalIsWaitedFor) {
  run_threads(3, [](int rank, ncclComm_t comm) {
    const IntWindow window(comm, 3 * kCount);
    std::vector<int> mine(kCount);
    const int next = (rank + 1) % 3;
    const int previous = (rank + 2) % 3;
    for (int round = 0; round < 20; ++round) {
      std::iota(mine.begin(), mine.end(), 1000 * round + rank);
      const size_t at = static_cast<size_t>(rank) * kCount * sizeof(int);
      EXPECT_NCCL(put(mine.data(), kCount, next, window.handle(), at, comm));
      EXPECT_NCCL(wait_for(comm, previous, 1));
      for (size_t i = 0; i < kCount; ++i) {
        ASSERT_EQ(window[static_cast<size_t>(previous) * kCount + i],
                  1000 * round + previous + static_cast<int>(i));
      }
      meet(comm);
    }
  });
}

TEST(NcclOneSided, TheOffsetIsInBytesAndNothingElseIsWritten) {
  run_threads(2, [](int rank, ncclComm_t comm) {
    const IntWindow window(comm, 4);
    if (rank == 0) {
      const unsigned char bytes[] = {1, 2, 3};
      EXPECT_NCCL(
          ncclPutSignal(bytes, 3, ncclUint8, 1, window.handle(), 5, 0, 0, 0, comm, nullptr));
    } else {
      EXPECT_NCCL(wait_for(comm, 0, 1));
      const auto* seen = reinterpret_cast<const unsigned char*>(&window[0]);
      const std::vector<unsigned char> expected = {0, 0, 0, 0, 0, 1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0};
      EXPECT_EQ(std::vector<unsigned char>(seen, seen + 16), expected);
    }
    meet(comm);
  });
}

TEST(NcclOneSided, AWaitTakesAsManySignalsAsItSaysAndLeavesTheRest) {
  run_threads(2, [](int rank, ncclComm_t comm) {
    const IntWindow window(comm, 1);
    if (rank == 0) {
      for (int i = 0; i < 7; ++i) EXPECT_NCCL(ncclSignal(1, 0, 0, 0, comm, nullptr));
    } else {
      EXPECT_NCCL(wait_for(comm, 0, 3));
      EXPECT_NCCL(wait_for(comm, 0, 0));
      // Two entries for one signal add up.
      ncclWaitSignalDesc_t twice[] = {{2, 0, 0, 0}, {2, 0, 0, 0}};
      EXPECT_NCCL(ncclWaitSignal(2, twice, comm, nullptr));
      EXPECT_NCCL(ncclWaitSignal(0, nullptr, comm, nullptr));
    }
    meet(comm);
  });
}

TEST(NcclOneSided, SignalIndicesAndContextsAreCountedApart) {
  const ncclUniqueId id = make_id();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.numRmaCtx = 2;
      config.numRmaSig = 3;
      config.rmaEagerInit = 1;
      ncclComm_t comm = nullptr;
      ASSERT_NCCL(ncclCommInitRankConfig(&comm, 2, id, rank, &config));
      // Opened with the communicator: there is no window.
      const int peer = 1 - rank;
      for (int context = 0; context < 2; ++context) {
        for (int signal = 0; signal < 3; ++signal) {
          for (int i = 0; i <= signal + 3 * context; ++i) {
            EXPECT_NCCL(ncclSignal(peer, signal, context, 0, comm, nullptr));
          }
        }
      }
      std::vector<ncclWaitSignalDesc_t> all;
      for (int context = 1; context >= 0; --context) {
        for (int signal = 2; signal >= 0; --signal) {
          all.push_back({signal + 3 * context + 1, peer, signal, context});
        }
      }
      EXPECT_NCCL(ncclWaitSignal(6, all.data(), comm, nullptr));
      EXPECT_EQ(ncclSignal(peer, 3, 0, 0, comm, nullptr), ncclInvalidArgument);
      expect_error_with({"ncclSignal", "sigIdx is 3", "0 to 2", "numRmaSig"});
      EXPECT_EQ(ncclSignal(peer, 0, 2, 0, comm, nullptr), ncclInvalidArgument);
      expect_error_with({"ncclSignal", "ctx is 2", "0 to 1", "numRmaCtx"});
      meet(comm);
      EXPECT_NCCL(ncclCommDestroy(comm));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(NcclOneSided, ARankPutsToItselfAndAPutOfNothingIsASignal) {
  run_threads(1, [](int, ncclComm_t comm) {
    const IntWindow window(comm, 2);
    const int value = 42;
    EXPECT_NCCL(put(&value, 1, 0, window.handle(), sizeof(int), comm));
    EXPECT_NCCL(put(nullptr, 0, 0, window.handle(), 2 * sizeof(int), comm));
    EXPECT_NCCL(wait_for(comm, 0, 2));
    EXPECT_EQ(window[1], 42);
  });
}

// One thread holds all ranks: every rank's puts, its wait and a collective, in an order of its own.
TEST(NcclOneSided, AGroupMixesPutsWaitsAndCollectives) {
  constexpr int kRanks = 4;
  const AllRanks ranks(kRanks);
  std::vector<ncclWindow_t> windows(kRanks);
  std::vector<std::vector<int>> memory(kRanks, std::vector<int>(kRanks, -1));
  EXPECT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto r = static_cast<size_t>(rank);
    EXPECT_NCCL(ncclCommWindowRegister(ranks[rank], memory[r].data(), kRanks * sizeof(int),
                                       &windows[r], NCCL_WIN_DEFAULT));
  }
  EXPECT_NCCL(ncclGroupEnd());
  for (int round = 0; round < 5; ++round) {
    std::vector<int> values(kRanks), sums(kRanks);
    EXPECT_NCCL(ncclGroupStart());
    for (int rank = 0; rank < kRanks; ++rank) {
      const auto r = static_cast<size_t>(rank);
      values[r] = 10 * round + rank;
      const auto reduce = [&] {
        EXPECT_NCCL(ncclAllReduce(&values[r], &sums[r], 1, ncclInt, ncclSum, ranks[rank], nullptr));
      };
      const auto wait = [&] {
        std::vector<ncclWaitSignalDesc_t> from;
        for (int peer = 0; peer < kRanks; ++peer) from.push_back({1, peer, 0, 0});
        EXPECT_NCCL(ncclWaitSignal(kRanks, from.data(), ranks[rank], nullptr));
      };
      if (rank % 2 == 0) wait();
      if (rank < 2) reduce();
      for (int peer = 0; peer < kRanks; ++peer) {
        EXPECT_NCCL(put(&values[r], 1, peer, windows[r], r * sizeof(int), ranks[rank]));
      }
      if (rank % 2 == 1) wait();
      if (rank >= 2) reduce();
    }
    EXPECT_NCCL(ncclGroupEnd());
    for (int rank = 0; rank < kRanks; ++rank) {
      EXPECT_EQ(memory[static_cast<size_t>(rank)], values);
      EXPECT_EQ(sums[static_cast<size_t>(rank)], kRanks * 10 * round + 6);
    }
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_NCCL(ncclCommWindowDeregister(ranks[rank], windows[static_cast<size_t>(rank)]));
  }
}

TEST(NcclOneSided, NonblockingCommunicatorsPutAndWait) {
  const ncclUniqueId id = make_id();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      ncclComm_t comm = nullptr;
      const ncclResult_t made = ncclCommInitRankConfig(&comm, 2, id, rank, &config);
      ASSERT_TRUE(made == ncclInProgress || made == ncclSuccess);
      ASSERT_EQ(settle(comm), ncclSuccess);
      int memory = 0;
      ncclWindow_t window = nullptr;
      EXPECT_EQ(ncclCommWindowRegister(comm, &memory, sizeof memory, &window, 0), ncclInProgress);
      ASSERT_EQ(settle(comm), ncclSuccess);
      ASSERT_NE(window, nullptr);
      const int value = 7 + rank;
      EXPECT_EQ(put(&value, 1, 1 - rank, window, 0, comm), ncclInProgress);
      ASSERT_EQ(settle(comm), ncclSuccess);
      EXPECT_EQ(wait_for(comm, 1 - rank, 1), ncclInProgress);
      ASSERT_EQ(settle(comm), ncclSuccess);
      EXPECT_EQ(memory, 8 - rank);
      EXPECT_EQ(ncclAllReduce(&memory, &memory, 1, ncclInt, ncclSum, comm, nullptr),
                ncclInProgress);
      ASSERT_EQ(settle(comm), ncclSuccess);
      EXPECT_NCCL(ncclCommDestroy(comm));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(NcclOneSided, MemoryThatIsFreedStaysUntilItsWindowGoes) {
  run_threads(2, [](int rank, ncclComm_t comm) {
    void* memory = nullptr;
    ASSERT_NCCL(ncclMemAlloc(&memory, sizeof(int)));
    ncclWindow_t window = nullptr;
    ASSERT_NCCL(ncclCommWindowRegister(comm, memory, sizeof(int), &window, 0));
    EXPECT_NCCL(ncclMemFree(memory));
    const int value = 5;
    EXPECT_NCCL(put(&value, 1, 1 - rank, window, 0, comm));
    EXPECT_NCCL(wait_for(comm, 1 - rank, 1));
    EXPECT_EQ(*static_cast<int*>(memory), 5);
    meet(comm);
    EXPECT_NCCL(ncclCommWindowDeregister(comm, window));
  });
}

TEST(NcclOneSided, AWindowKnowsItsMemoryAndBelongsToOneCommunicator) {
  run_threads(2, [](int rank, ncclComm_t comm) {
    int memory = 0;
    ncclWindow_t window = nullptr;
    ASSERT_NCCL(ncclCommWindowRegister(comm, &memory, sizeof memory, &window, 0));
    void* found = nullptr;
    EXPECT_NCCL(ncclWinGetUserPtr(comm, window, &found));
    EXPECT_EQ(found, &memory);
    ncclComm_t other = nullptr;
    ASSERT_NCCL(ncclCommSplit(comm, 0, rank, &other, nullptr));
    EXPECT_EQ(ncclWinGetUserPtr(other, window, &found), ncclInvalidArgument);
    EXPECT_EQ(ncclCommWindowDeregister(other, window), ncclInvalidArgument);
    meet(comm);
    EXPECT_NCCL(ncclCommWindowDeregister(comm, window));
    EXPECT_EQ(ncclCommWindowDeregister(comm, window), ncclInvalidArgument);
    EXPECT_NCCL(ncclCommWindowDeregister(comm, nullptr));
    EXPECT_NCCL(ncclCommDestroy(other));
  });
}

TEST(NcclOneSided, WrongArgumentsAreNamed) {
  run_threads(2, [](int rank, ncclComm_t comm) {
    EXPECT_EQ(ncclSignal(0, 0, 0, 0, comm, nullptr), ncclInvalidUsage);
    expect_error_with({"ncclSignal", "ncclCommWindowRegister", "rmaEagerInit"});
    // Windows may differ in size: what counts is the peer's.
    std::vector<int> memory(rank == 0 ? 4 : 8);
    ncclWindow_t window = nullptr;
    ASSERT_NCCL(
        ncclCommWindowRegister(comm, memory.data(), memory.size() * sizeof(int), &window, 0));
    const std::vector<int> data(8);
    const auto refused = [&](ncclResult_t result, const std::vector<std::string>& words) {
      EXPECT_EQ(result, ncclInvalidArgument);
      expect_error_with(words);
    };
    refused(put(data.data(), 4, 0, window, 4, comm),
            {"ncclPutSignal", "count 4", "peerWinOffset 4", "rank 0", "16 bytes"});
    refused(put(data.data(), 9, 1, window, 0, comm), {"count 9", "rank 1", "32 bytes"});
    refused(put(data.data(), SIZE_MAX / 2, 1, window, 0, comm), {"count"});
    refused(put(data.data(), 1, 1, window, SIZE_MAX, comm), {"peerWinOffset"});
    refused(put(data.data(), 1, 2, window, 0, comm), {"peer is 2", "0 to 1"});
    refused(put(data.data(), 1, -1, window, 0, comm), {"peer is -1"});
    refused(put(data.data(), 1, 1, nullptr, 0, comm), {"peerWin"});
    refused(put(nullptr, 1, 1, window, 0, comm), {"localbuff is NULL"});
    refused(put(data.data(), 1, 1, window, 0, comm, 1), {"sigIdx is 1"});
    refused(put(data.data(), 1, 1, window, 0, comm, 0, 1), {"ctx is 1"});
    refused(ncclPutSignal(data.data(), 1, ncclInt, 1, window, 0, 0, 0, 1, comm, nullptr),
            {"flags"});
    refused(ncclPutSignal(data.data(), 1, ncclNumTypes, 1, window, 0, 0, 0, 0, comm, nullptr),
            {"datatype 12"});
    refused(ncclSignal(2, 0, 0, 0, comm, nullptr), {"ncclSignal", "peer is 2"});
    refused(ncclSignal(1, 0, 0, 4, comm, nullptr), {"flags is 0x4"});
    refused(ncclWaitSignal(-1, nullptr, comm, nullptr), {"nDesc is -1"});
    refused(ncclWaitSignal(1, nullptr, comm, nullptr), {"signalDescs is NULL"});
    refused(wait_for(comm, 1, -1), {"signalDescs[0].opCnt is -1"});
    ncclWaitSignalDesc_t second[] = {{0, 0, 0, 0}, {1, 5, 0, 0}};
    refused(ncclWaitSignal(2, second, comm, nullptr), {"peer is 5", "signalDescs[1]"});
    refused(ncclSignal(0, 0, 0, 0, nullptr, nullptr), {"ncclSignal"});
    meet(comm);
    EXPECT_NCCL(ncclCommWindowDeregister(comm, window));
    refused(put(data.data(), 1, 1, window, 0, comm), {"peerWin", "was deregistered"});
  });
}

TEST(NcclOneSided, RanksThatWantDifferentNumbersOfSignalsAreNamed) {
  const ncclUniqueId id = make_id();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.numRmaSig = 1 + rank;
      ncclComm_t comm = nullptr;
      ASSERT_NCCL(ncclCommInitRankConfig(&comm, 2, id, rank, &config));
      int memory = 0;
      ncclWindow_t window = nullptr;
      EXPECT_EQ(ncclCommWindowRegister(comm, &memory, sizeof memory, &window, 0),
                ncclInvalidArgument);
      expect_error_with({"ncclCommWindowRegister", "numRmaSig", "the same on all ranks"});
      EXPECT_EQ(window, nullptr);
      EXPECT_NCCL(ncclCommDestroy(comm));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(NcclOneSided, AbortFromAnotherThreadEndsAWait) {
  run_threads(2, [](int rank, ncclComm_t comm) {
    int memory = 0;
    ncclWindow_t window = nullptr;
    ASSERT_NCCL(ncclCommWindowRegister(comm, &memory, sizeof memory, &window, 0));
    meet(comm);
    if (rank == 1) return;
    std::atomic<bool> waits{false};
    std::thread stuck([&] {
      waits = true;
      EXPECT_EQ(wait_for(comm, 0, 1), ncclInternalError);
      expect_error_with({"ncclWaitSignal", "aborted"});
    });
    while (!waits) std::this_thread::yield();
    EXPECT_NCCL(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT));
    stuck.join();
  });
}

}  // namespace
}  // namespace weir::nccl::test
