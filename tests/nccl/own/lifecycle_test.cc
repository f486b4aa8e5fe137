// SPDX-License-Identifier: Apache-2.0
// Communicators of libnccl.so.2 from their making to their end.
#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "nccl/support.h"

namespace weir::nccl::test {
namespace {

TEST(NcclLifecycle, EveryThreadMayHaveSeveralCommunicators) {
  const ncclUniqueId second_id = make_id();
  run_threads(3, [&](int rank, ncclComm_t comm) {
    ncclComm_t second = nullptr;
    ASSERT_NCCL(ncclCommInitRank(&second, 3, second_id, 2 - rank));
    int sum = 0;
    EXPECT_NCCL(sum_of_ranks(second, rank, &sum));
    EXPECT_EQ(sum, 6);
    EXPECT_NCCL(sum_of_ranks(comm, rank, &sum));
    EXPECT_EQ(sum, 6);
    EXPECT_NCCL(ncclCommDestroy(second));
  });
}

TEST(NcclLifecycle, InitAllGivesTheDevicesThatWereAskedFor) {
  ncclComm_t comms[3] = {};
  const int devices[3] = {4, 4, 1};
  ASSERT_NCCL(ncclCommInitAll(comms, 3, devices));
  for (int rank = 0; rank < 3; ++rank) {
    int device = -1;
    EXPECT_NCCL(ncclCommCuDevice(comms[rank], &device));
    EXPECT_EQ(device, devices[rank]);
    EXPECT_NCCL(ncclCommDestroy(comms[rank]));
  }
}

TEST(NcclLifecycle, SeveralUniqueIdsMakeOneCommunicator) {
  std::vector<ncclUniqueId> ids = {make_id(), make_id()};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      ncclComm_t comm = nullptr;
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.commName = "scalable";
      ASSERT_NCCL(ncclCommInitRankScalable(&comm, 3, rank, 2, ids.data(), &config));
      int sum = 0;
      EXPECT_NCCL(sum_of_ranks(comm, rank, &sum));
      EXPECT_EQ(sum, 6);
      EXPECT_NCCL(ncclCommDestroy(comm));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(NcclLifecycle, RanksThatWereGivenOtherUniqueIdsAreNamed) {
  const std::vector<ncclUniqueId> right = {make_id(), make_id(), make_id()};
  const std::vector<ncclUniqueId> wrong = {right[0], right[2], right[1]};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      std::vector<ncclUniqueId> ids = rank == 2 ? wrong : right;
      ncclComm_t comm = nullptr;
      EXPECT_EQ(ncclCommInitRankScalable(&comm, 3, rank, 3, ids.data(), nullptr),
                ncclInvalidArgument);
      EXPECT_EQ(comm, nullptr);
      expect_error_with({"ncclCommInitRankScalable", rank == 2 ? "rank 0" : "rank 2", "commIds"});
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(NcclLifecycle, EveryUniqueIdIsLookedAt) {
  std::vector<ncclUniqueId> ids = {make_id(), make_id()};
  ncclComm_t comm = nullptr;
  ids[1].internal[0] ^= 1;
  EXPECT_EQ(ncclCommInitRankScalable(&comm, 2, 0, 2, ids.data(), nullptr), ncclInvalidArgument);
  expect_error_with({"commIds[1]", "damaged"});
  ids[1] = ids[0];
  EXPECT_EQ(ncclCommInitRankScalable(&comm, 2, 0, 2, ids.data(), nullptr), ncclInvalidArgument);
  expect_error_with({"commIds[0] and commIds[1] are the same"});
  EXPECT_EQ(ncclCommInitRank(&comm, 1, ncclUniqueId{}, 0), ncclInvalidArgument);
  expect_error_with({"commId was not made by ncclGetUniqueId"});
}

TEST(NcclLifecycle, SplitsOfOneParentInOneGroupKeepTheirOrder) {
  const AllRanks ranks(4);
  ncclComm_t halves[4] = {};
  ncclComm_t reversed[4] = {};
  ASSERT_NCCL(ncclGroupStart());
  for (int r = 0; r < 4; ++r) {
    EXPECT_NCCL(ncclCommSplit(ranks[r], r / 2, r, &halves[r], nullptr));
    EXPECT_NCCL(ncclCommSplit(ranks[r], 0, -r, &reversed[r], nullptr));
  }
  ASSERT_NCCL(ncclGroupEnd());
  for (int r = 0; r < 4; ++r) {
    int count = 0;
    int rank = -1;
    EXPECT_NCCL(ncclCommCount(halves[r], &count));
    EXPECT_NCCL(ncclCommUserRank(halves[r], &rank));
    EXPECT_EQ(count, 2);
    EXPECT_EQ(rank, r % 2);
    EXPECT_NCCL(ncclCommCount(reversed[r], &count));
    EXPECT_NCCL(ncclCommUserRank(reversed[r], &rank));
    EXPECT_EQ(count, 4);
    EXPECT_EQ(rank, 3 - r);
    EXPECT_NCCL(ncclCommDestroy(halves[r]));
    EXPECT_NCCL(ncclCommDestroy(reversed[r]));
  }
}

TEST(NcclLifecycle, ShrinkLeavesRanksOutAndTheParentGoesOn) {
  const AllRanks ranks(4);
  ncclComm_t rest[4] = {};
  int excluded[] = {1};
  ASSERT_NCCL(ncclGroupStart());
  for (int r : {0, 2, 3}) {
    EXPECT_NCCL(ncclCommShrink(ranks[r], excluded, 1, &rest[r], nullptr, NCCL_SHRINK_DEFAULT));
  }
  ASSERT_NCCL(ncclGroupEnd());
  for (int r : {0, 2, 3}) {
    int count = 0;
    int rank = -1;
    EXPECT_NCCL(ncclCommCount(rest[r], &count));
    EXPECT_NCCL(ncclCommUserRank(rest[r], &rank));
    EXPECT_EQ(count, 3);
    EXPECT_EQ(rank, r == 0 ? 0 : r - 1);
    EXPECT_NCCL(ncclCommDestroy(rest[r]));
  }
  EXPECT_TRUE(sums_up(ranks));
}

TEST(NcclLifecycle, WhoWasLeftOutOfOneShrinkTakesPartInAnother) {
  const AllRanks ranks(3);
  for (int out : {2, 0, 2}) {
    ncclComm_t rest[3] = {};
    ASSERT_NCCL(ncclGroupStart());
    for (int r = 0; r < 3; ++r) {
      if (r == out) continue;
      EXPECT_NCCL(ncclCommShrink(ranks[r], &out, 1, &rest[r], nullptr, NCCL_SHRINK_DEFAULT));
    }
    ASSERT_NCCL(ncclGroupEnd());
    for (int r = 0; r < 3; ++r) {
      if (r == out) continue;
      int count = 0;
      EXPECT_NCCL(ncclCommCount(rest[r], &count));
      EXPECT_EQ(count, 2);
      EXPECT_NCCL(ncclCommDestroy(rest[r]));
    }
  }
}

TEST(NcclLifecycle, GrowTakesInNewRanks) {
  const ncclUniqueId id = make_id();
  std::atomic<bool> has_grow_id{false};
  ncclUniqueId grow_id{};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      ncclComm_t old = nullptr;
      ncclComm_t grown = nullptr;
      if (rank < 2) {
        ASSERT_NCCL(ncclCommInitRank(&old, 2, id, rank));
      }
      if (rank == 1) {
        ASSERT_NCCL(ncclCommGetUniqueId(old, &grow_id));
        has_grow_id = true;
      }
      while (rank == 2 && !has_grow_id) std::this_thread::yield();
      ASSERT_NCCL(
          ncclCommGrow(old, 3, rank == 0 ? nullptr : &grow_id, rank < 2 ? -1 : 2, &grown, nullptr));
      int new_rank = -1;
      int sum = 0;
      EXPECT_NCCL(ncclCommUserRank(grown, &new_rank));
      EXPECT_EQ(new_rank, rank);
      EXPECT_NCCL(sum_of_ranks(grown, rank, &sum));
      EXPECT_EQ(sum, 6);
      EXPECT_NCCL(ncclCommDestroy(grown));
      EXPECT_NCCL(ncclCommDestroy(old));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(NcclLifecycle, AFinalizedCommunicatorTakesNoMoreCalls) {
  AllRanks ranks(1);
  int value = 1;
  EXPECT_NCCL(ncclCommFinalize(ranks[0]));
  EXPECT_EQ(ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, ranks[0], nullptr),
            ncclInvalidUsage);
  expect_error_with({"ncclAllReduce", "finalized"});
  EXPECT_EQ(ncclCommFinalize(ranks[0]), ncclInvalidArgument);
}

TEST(NcclLifecycle, ASuspendedCommunicatorTakesCallsAfterResume) {
  const AllRanks ranks(1);
  int value = 1;
  uint64_t suspended = 7;
  EXPECT_EQ(ncclCommResume(ranks[0]), ncclInvalidUsage);
  EXPECT_NCCL(ncclCommSuspend(ranks[0], NCCL_SUSPEND_MEM));
  EXPECT_NCCL(ncclCommMemStats(ranks[0], ncclStatGpuMemSuspended, &suspended));
  EXPECT_EQ(suspended, 1u);
  EXPECT_EQ(ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, ranks[0], nullptr),
            ncclInvalidUsage);
  EXPECT_NCCL(ncclCommResume(ranks[0]));
  EXPECT_TRUE(sums_up(ranks));
}

TEST(NcclLifecycle, AHandleIsUnknownAfterDestroyAndAfterAbort) {
  ncclComm_t comms[2] = {};
  int count = 0;
  ASSERT_NCCL(ncclCommInitAll(comms, 2, nullptr));
  EXPECT_NCCL(ncclCommDestroy(comms[0]));
  EXPECT_NCCL(ncclCommAbort(comms[1]));
  for (ncclComm_t comm : comms) {
    EXPECT_EQ(ncclCommCount(comm, &count), ncclInvalidArgument);
    EXPECT_EQ(ncclAllReduce(&count, &count, 1, ncclInt, ncclSum, comm, nullptr),
              ncclInvalidArgument);
    EXPECT_EQ(ncclCommDestroy(comm), ncclInvalidArgument);
    EXPECT_EQ(ncclCommAbort(comm), ncclInvalidArgument);
    expect_error_with({"ncclCommAbort", "destroyed"});
  }
  EXPECT_NCCL(ncclCommDestroy(nullptr));
  EXPECT_NCCL(ncclCommAbort(nullptr));
}

TEST(NcclLifecycle, AbortFromAnotherThreadEndsACallWhosePeerNeverComes) {
  ncclComm_t comms[2] = {};
  ASSERT_NCCL(ncclCommInitAll(comms, 2, nullptr));
  std::atomic<bool> calls{false};
  std::thread stuck([&] {
    int value = 1;
    calls = true;
    EXPECT_NE(ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, comms[0], nullptr), ncclSuccess);
  });
  while (!calls) std::this_thread::yield();
  EXPECT_NCCL(ncclCommAbort(comms[0]));
  stuck.join();
  EXPECT_NCCL(ncclCommAbort(comms[1]));
}

// What has come of its group shows that the call has begun.
TEST(NcclLifecycle, AbortFromAnotherThreadEndsACallThatIsUnderWay) {
  ncclComm_t comms[2] = {};
  ASSERT_NCCL(ncclCommInitAll(comms, 2, nullptr));
  std::thread stuck([&] {
    int sent = 7;
    int value = 1;
    EXPECT_NCCL(ncclGroupStart());
    EXPECT_NCCL(ncclSend(&sent, 1, ncclInt, 1, comms[0], nullptr));
    EXPECT_NCCL(ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, comms[0], nullptr));
    EXPECT_NE(ncclGroupEnd(), ncclSuccess);
  });
  int received = 0;
  EXPECT_NCCL(ncclRecv(&received, 1, ncclInt, 0, comms[1], nullptr));
  EXPECT_EQ(received, 7);
  EXPECT_NCCL(ncclCommAbort(comms[0]));
  stuck.join();
  EXPECT_NCCL(ncclCommAbort(comms[1]));
}

TEST(NcclLifecycle, RevokeEndsACallAndLeavesACommunicatorThatCanBeSplit) {
  ncclComm_t comms[2] = {};
  ASSERT_NCCL(ncclCommInitAll(comms, 2, nullptr));
  std::atomic<bool> calls{false};
  std::thread stuck([&] {
    int value = 1;
    calls = true;
    EXPECT_NE(ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, comms[0], nullptr), ncclSuccess);
  });
  while (!calls) std::this_thread::yield();
  EXPECT_EQ(ncclCommRevoke(comms[0], 1), ncclInvalidArgument);
  for (ncclComm_t comm : comms) EXPECT_NCCL(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT));
  stuck.join();
  int value = 1;
  EXPECT_EQ(ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, comms[0], nullptr),
            ncclInvalidUsage);
  EXPECT_EQ(ncclCommFinalize(comms[0]), ncclInvalidArgument);
  ncclComm_t again[2] = {};
  ASSERT_NCCL(ncclGroupStart());
  for (int r = 0; r < 2; ++r) EXPECT_NCCL(ncclCommSplit(comms[r], 0, r, &again[r], nullptr));
  ASSERT_NCCL(ncclGroupEnd());
  for (int r = 0; r < 2; ++r) {
    ncclResult_t error = ncclInternalError;
    EXPECT_NCCL(ncclCommGetAsyncError(again[r], &error));
    EXPECT_EQ(error, ncclSuccess);
    EXPECT_NCCL(ncclCommDestroy(again[r]));
    EXPECT_NCCL(ncclCommDestroy(comms[r]));
  }
}

}  // namespace
}  // namespace weir::nccl::test
