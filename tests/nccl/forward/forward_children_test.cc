// SPDX-License-Identifier: Apache-2.0
// Communicators that are made from one of the real NCCL, which a library of the tests plays: they
// are real too, or, when the real library fails on a rank, all their ranks go on with Weir.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "nccl/forward/forward_support.h"
#include "nccl/processes.h"

namespace weir::nccl::test {
namespace {

size_t times_said(const std::string& text, const std::string& words) {
  size_t times = 0;
  for (size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1)) {
    ++times;
  }
  return times;
}

constexpr char kFall[] = "uses Weir's transports instead";

// The ranks of `comm` add up 1, 2, …: by Weir, or as the library that plays NCCL does.
void expect_sum(ncclComm_t comm, int rank, bool real, int sum) {
  ASSERT_EQ(is_real(comm), real);
  EXPECT_EQ(sum_on(comm, rank), real ? NCCL_DOUBLE_SUM + rank : sum);
}

class NcclForwardedChildren : public testing::Test {
 protected:
  // What is left of starts that hang stays in threads of their own.
  void TearDown() override { nccl_double.fail_making(-1, ncclSuccess, false); }
  const NcclDouble nccl_double;
};

TEST_F(NcclForwardedChildren, ASplitWithoutAFailureIsRealAndSoIsItsSplit) {
  const int alive = nccl_double.alive();
  run_on_devices({0, 1, 2, 3}, [&](int rank, ncclComm_t comm) {
    ncclComm_t half = nullptr, again = nullptr, none = nullptr;
    ASSERT_NCCL(ncclCommSplit(comm, rank / 2, rank, &half, nullptr));
    ASSERT_TRUE(is_real(half));
    EXPECT_EQ(nccl_double.device_of(half), rank);
    ASSERT_NCCL(ncclCommSplit(half, 0, -rank, &again, nullptr));
    EXPECT_TRUE(is_real(again));
    ASSERT_NCCL(ncclCommSplit(comm, rank == 0 ? 3 : NCCL_SPLIT_NOCOLOR, 0, &none, nullptr));
    EXPECT_EQ(none != nullptr, rank == 0);
    for (ncclComm_t made : {again, half, none, comm}) {
      EXPECT_NCCL(ncclCommDestroy(made)) << "NULL is no error";
    }
  });
  EXPECT_EQ(nccl_double.alive(), alive);
}

TEST_F(NcclForwardedChildren, WhenASplitHangsOnSomeRanksEachNewCommunicatorFallsAndSaysSoOnce) {
  nccl_double.fail_making(1, ncclInvalidUsage, true);
  testing::internal::CaptureStderr();
  run_on_devices({0, 1, 2, 3, 4}, [&](int rank, ncclComm_t comm) {
    ncclComm_t half = nullptr;
    const int color = rank == 4 ? NCCL_SPLIT_NOCOLOR : rank % 2;
    ASSERT_NCCL(ncclCommSplit(comm, color, rank, &half, nullptr));
    if (rank == 4) {
      EXPECT_EQ(half, nullptr);
    } else {
      expect_sum(half, rank / 2, false, 3);
      int number = -1;
      EXPECT_NCCL(ncclCommUserRank(half, &number));
      EXPECT_EQ(number, rank / 2);
      EXPECT_NCCL(ncclCommDestroy(half));
    }
    EXPECT_EQ(sum_on(comm, rank), NCCL_DOUBLE_SUM + rank) << "the parent goes on";
  });
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(times_said(said, kFall), 2u) << said;
  EXPECT_EQ(times_said(said, "failed on rank 1: "), 2u) << said;
  EXPECT_NE(said.find("Duplicate GPU"), std::string::npos) << said;
}

TEST_F(NcclForwardedChildren, RanksOfOneColorAgreeThoughAnotherColorFails) {
  nccl_double.fail_making(3, ncclUnhandledCudaError, false);
  std::vector<int> real(4);
  run_on_devices({0, 1, 2, 3}, [&](int rank, ncclComm_t comm) {
    ncclComm_t half = nullptr;
    ASSERT_NCCL(ncclCommSplit(comm, rank / 2, rank, &half, nullptr));
    real[static_cast<size_t>(rank)] = is_real(half) ? 1 : 0;
    expect_sum(half, rank % 2, is_real(half), 3);
    EXPECT_NCCL(ncclCommDestroy(half));
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
  EXPECT_EQ(real[0], real[1]);
  EXPECT_EQ(real[2] + real[3], 0);
}

TEST_F(NcclForwardedChildren, SplitsOfAGroupKeepTheirOrderWhereAllFall) {
  nccl_double.fail_making(0, ncclSystemError, false);
  run_on_devices({0, 1, 2}, [&](int rank, ncclComm_t comm) {
    ncclComm_t all = nullptr, pair = nullptr;
    ASSERT_NCCL(ncclGroupStart());
    EXPECT_NCCL(ncclCommSplit(comm, 0, rank, &all, nullptr));
    EXPECT_NCCL(ncclCommSplit(comm, rank == 1 ? NCCL_SPLIT_NOCOLOR : 7, -rank, &pair, nullptr));
    ASSERT_NCCL(ncclGroupEnd());
    expect_sum(all, rank, false, 6);
    EXPECT_NCCL(ncclCommDestroy(all));
    ASSERT_EQ(pair == nullptr, rank == 1);
    if (pair == nullptr) return;
    expect_sum(pair, rank == 0 ? 1 : 0, false, 3);
    EXPECT_NCCL(ncclCommDestroy(pair));
  });
}

TEST_F(NcclForwardedChildren, AShrinkIsRealOrFallsAndTheParentGoesOn) {
  for (const bool fails : {false, true}) {
    if (fails) nccl_double.fail_making(2, ncclInvalidUsage, true);
    testing::internal::CaptureStderr();
    run_on_devices({0, 1, 2, 3}, [&](int rank, ncclComm_t comm) {
      int excluded[] = {3, 0};
      if (rank == 1 || rank == 2) {
        for (int time = 0; time < 2; ++time) {
          ncclComm_t rest = nullptr;
          ASSERT_NCCL(ncclCommShrink(comm, excluded, 2, &rest, nullptr, NCCL_SHRINK_DEFAULT));
          ASSERT_EQ(is_real(rest), !fails);
          if (fails) expect_sum(rest, rank - 1, false, 3);
          int count = 0;
          EXPECT_NCCL(ncclCommCount(rest, &count));
          EXPECT_EQ(count, 2);
          EXPECT_NCCL(ncclCommDestroy(rest));
        }
      }
      EXPECT_EQ(sum_on(comm, rank), NCCL_DOUBLE_SUM + rank);
      EXPECT_NCCL(ncclCommDestroy(comm));
    });
    EXPECT_EQ(times_said(testing::internal::GetCapturedStderr(), kFall), fails ? 2u : 0u);
  }
}

// Two ranks of a real communicator and a new one on `device`.
void grow(int device, const std::function<void(int rank, ncclComm_t grown)>& body) {
  const ncclUniqueId first = make_id();
  ncclUniqueId id{};
  std::atomic<bool> has_id{false};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      choose_device(rank == 2 ? device : rank);
      ncclComm_t comm = nullptr, grown = nullptr;
      if (rank < 2) {
        ASSERT_NCCL(ncclCommInitRank(&comm, 2, first, rank));
      }
      if (rank == 1) {
        ASSERT_NCCL(ncclCommGetUniqueId(comm, &id));
        has_id = true;
      }
      while (!has_id) std::this_thread::yield();
      ASSERT_NCCL(
          ncclCommGrow(comm, 3, rank == 2 ? &id : nullptr, rank == 2 ? 2 : -1, &grown, nullptr));
      body(rank, grown);
      EXPECT_NCCL(ncclCommDestroy(grown));
      EXPECT_NCCL(ncclCommDestroy(comm));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(NcclForwardedChildren, AGrownOneIsRealWhereTheNewRankHasADeviceOfItsOwn) {
  const int alive = nccl_double.alive();
  grow(2, [](int rank, ncclComm_t grown) { expect_sum(grown, rank, true, 6); });
  EXPECT_EQ(nccl_double.alive(), alive);
}

TEST_F(NcclForwardedChildren, AGrownOneIsWeirsWhereTheNewRankSharesADevice) {
  grow(1, [](int rank, ncclComm_t grown) { expect_sum(grown, rank, false, 6); });
}

TEST_F(NcclForwardedChildren, AGrownOneFallsWhereTheNewRankFails) {
  nccl_double.fail_making(2, ncclUnhandledCudaError, true);
  grow(2, [](int rank, ncclComm_t grown) { expect_sum(grown, rank, false, 6); });
}

TEST_F(NcclForwardedChildren, WhatTheCallerDidWrongIsAnErrorAndNoFall) {
  nccl_double.fail_making(1, ncclInvalidArgument, false);
  run_on_devices({0, 1}, [&](int rank, ncclComm_t comm) {
    ncclComm_t made = nullptr;
    EXPECT_EQ(ncclCommSplit(comm, 0, rank, &made, nullptr), ncclInvalidArgument);
    EXPECT_EQ(made, nullptr);
    expect_error_with({"ncclCommSplit", "rank 1"});
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

TEST_F(NcclForwardedChildren, ANonblockingParentIsInProgressUntilItsChildHasFallen) {
  nccl_double.fail_making(0, ncclSystemError, false);
  const ncclUniqueId id = make_id();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      choose_device(rank);
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      ncclComm_t comm = nullptr, child = nullptr;
      ASSERT_EQ(ncclCommInitRankConfig(&comm, 2, id, rank, &config), ncclInProgress);
      ASSERT_EQ(settle(comm), ncclSuccess);
      EXPECT_EQ(sum_on(comm, rank), NCCL_DOUBLE_SUM + rank);
      ASSERT_EQ(ncclCommSplit(comm, 0, rank, &child, nullptr), ncclInProgress);
      ASSERT_EQ(settle(comm), ncclSuccess);
      ASSERT_EQ(settle(child), ncclSuccess) << ncclGetLastError(child);
      int sum = rank + 1;
      EXPECT_EQ(ncclAllReduce(&sum, &sum, 1, ncclInt, ncclSum, child, nullptr), ncclInProgress);
      EXPECT_EQ(settle(child), ncclSuccess);
      EXPECT_EQ(sum, 3);
      EXPECT_NCCL(ncclCommDestroy(child));
      EXPECT_NCCL(ncclCommDestroy(comm));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(NcclForwardedChildren, AnAbortOfTheParentFreesARankThatWaitsForASplit) {
  nccl_double.fail_making(9, ncclSystemError, true);  // nobody fails, and all wait for ever
  choose_device(0);
  ncclComm_t comm = nullptr, child = nullptr;
  ASSERT_NCCL(ncclCommInitRank(&comm, 1, make_id(), 0));
  ASSERT_TRUE(is_real(comm));
  const int calls = nccl_double.calls("ncclCommSplit");
  ncclResult_t result = ncclSuccess;
  std::thread stuck([&] { result = ncclCommSplit(comm, 0, 0, &child, nullptr); });
  while (nccl_double.calls("ncclCommSplit") == calls) std::this_thread::yield();
  EXPECT_NCCL(ncclCommAbort(comm));
  stuck.join();
  EXPECT_NE(result, ncclSuccess);
  EXPECT_EQ(child, nullptr);
}

// Runs with WEIR_BACKEND=nccl.
TEST(NcclForcedChildren, AFailureIsAnErrorOfEveryRank) {
  const NcclDouble nccl_double;
  nccl_double.fail_making(0, ncclUnhandledCudaError, true);
  run_on_devices({0, 1}, [&](int rank, ncclComm_t comm) {
    ncclComm_t made = nullptr;
    EXPECT_EQ(ncclCommSplit(comm, 0, rank, &made, nullptr), ncclUnhandledCudaError);
    expect_error_with({"rank 0", "Duplicate GPU", "WEIR_BACKEND=nccl"});
    EXPECT_EQ(made, nullptr);
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

// In this process nobody has called anything, so that it may fork.
TEST(NcclForwardedChildrenProcesses, RanksOfSeveralProcessesFallTogether) {
  const std::vector<int> statuses = run_processes(
      3,
      [](int rank, ncclComm_t comm) {
        const NcclDouble nccl_double;
        ASSERT_TRUE(is_real(comm));
        nccl_double.fail_making(1, ncclInvalidUsage, true);
        ncclComm_t child = nullptr;
        ASSERT_NCCL(ncclCommSplit(comm, 0, rank, &child, nullptr));
        expect_sum(child, rank, false, 6);
        EXPECT_NCCL(ncclCommDestroy(child));
      },
      choose_device);
  EXPECT_EQ(statuses, std::vector<int>(3, 0));
}

}  // namespace
}  // namespace weir::nccl::test
