// SPDX-License-Identifier: Apache-2.0
// Nonblocking communicators of libnccl.so.2: config.blocking = 0.
#include <gtest/gtest.h>

#include <vector>

#include "nccl/support.h"

namespace weir::nccl::test {
namespace {

ncclConfig_t nonblocking() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return config;
}

// A call of a nonblocking communicator is over, or goes on.
void expect_begun(ncclResult_t result) {
  EXPECT_TRUE(result == ncclSuccess || result == ncclInProgress)
      << result << ": " << ncclGetLastError(nullptr);
}

// The missing rank comes after all: what was left waiting for it ends. It may or may not get its
// communicator before it learns that the other is gone.
void come_late(const ncclUniqueId& id) {
  ncclComm_t late = nullptr;
  if (ncclCommInitRank(&late, 2, id, 1) == ncclSuccess) {
    EXPECT_NCCL(ncclCommAbort(late));
  }
}

TEST(NcclNonblocking, ACommunicatorIsInProgressUntilItsLastRankComes) {
  const ncclUniqueId id = make_id();
  ncclComm_t comms[2] = {};
  ncclConfig_t config = nonblocking();
  EXPECT_EQ(ncclCommInitRankConfig(&comms[0], 2, id, 0, &config), ncclInProgress);
  ASSERT_NE(comms[0], nullptr) << "the handle is there at once";
  ncclResult_t state = ncclSuccess;
  EXPECT_NCCL(ncclCommGetAsyncError(comms[0], &state));
  EXPECT_EQ(state, ncclInProgress);
  int value = 1;
  int count = 0;
  EXPECT_EQ(ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, comms[0], nullptr),
            ncclInvalidArgument);
  expect_error_with({"in progress", "ncclCommGetAsyncError"});
  EXPECT_EQ(ncclCommCount(comms[0], &count), ncclInvalidArgument);
  EXPECT_EQ(ncclCommInitRankConfig(&comms[1], 2, id, 1, &config), ncclInProgress);
  for (ncclComm_t comm : comms) {
    EXPECT_EQ(settle(comm), ncclSuccess);
    EXPECT_NCCL(ncclCommCount(comm, &count));
    EXPECT_EQ(count, 2);
    EXPECT_NCCL(ncclCommDestroy(comm));
  }
}

TEST(NcclNonblocking, AnOperationIsInProgressUntilItIsComplete) {
  const ncclUniqueId id = make_id();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      ncclComm_t comm = nullptr;
      ncclConfig_t config = nonblocking();
      expect_begun(ncclCommInitRankConfig(&comm, 3, id, rank, &config));
      ASSERT_EQ(settle(comm), ncclSuccess);
      for (int round = 0; round < 20; ++round) {
        std::vector<int> values(10000, rank + round);
        expect_begun(ncclAllReduce(values.data(), values.data(), values.size(), ncclInt, ncclSum,
                                   comm, nullptr));
        ASSERT_EQ(settle(comm), ncclSuccess);
        EXPECT_EQ(values, std::vector<int>(10000, 3 + 3 * round));
      }
      EXPECT_NCCL(ncclCommFinalize(comm));
      EXPECT_EQ(settle(comm), ncclSuccess);
      EXPECT_NCCL(ncclCommDestroy(comm));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(NcclNonblocking, OneThreadDrivesAllRanksInGroups) {
  constexpr int kRanks = 3;
  const ncclUniqueId id = make_id();
  ncclComm_t comms[kRanks] = {};
  ncclComm_t split[kRanks] = {};
  ncclConfig_t config = nonblocking();
  ASSERT_NCCL(ncclGroupStart());
  for (int r = 0; r < kRanks; ++r) {
    expect_begun(ncclCommInitRankConfig(&comms[r], kRanks, id, r, &config));
  }
  expect_begun(ncclGroupEnd());
  for (ncclComm_t comm : comms) ASSERT_EQ(settle(comm), ncclSuccess);

  int values[kRanks] = {1, 2, 3};
  ASSERT_NCCL(ncclGroupStart());
  for (int r = 0; r < kRanks; ++r) {
    expect_begun(ncclAllReduce(&values[r], &values[r], 1, ncclInt, ncclSum, comms[r], nullptr));
  }
  expect_begun(ncclGroupEnd());
  for (int r = 0; r < kRanks; ++r) {
    ASSERT_EQ(settle(comms[r]), ncclSuccess);
    EXPECT_EQ(values[r], 6);
  }

  // As PyTorch does: poll the parent, then look at the new handle.
  ASSERT_NCCL(ncclGroupStart());
  for (int r = 0; r < kRanks; ++r) {
    expect_begun(ncclCommSplit(comms[r], r == 2 ? NCCL_SPLIT_NOCOLOR : 0, r, &split[r], nullptr));
  }
  expect_begun(ncclGroupEnd());
  for (int r = 0; r < kRanks; ++r) {
    ASSERT_EQ(settle(comms[r]), ncclSuccess);
    if (r == 2) {
      EXPECT_EQ(split[r], nullptr);
      continue;
    }
    ASSERT_NE(split[r], nullptr);
    EXPECT_EQ(settle(split[r]), ncclSuccess);
    int count = 0;
    EXPECT_NCCL(ncclCommCount(split[r], &count));
    EXPECT_EQ(count, 2);
    EXPECT_NCCL(ncclCommDestroy(split[r]));
  }
  for (ncclComm_t comm : comms) EXPECT_NCCL(ncclCommDestroy(comm));
}

TEST(NcclNonblocking, AGroupIsEitherBlockingOrNonblocking) {
  const AllRanks ranks(1);
  const ncclUniqueId id = make_id();
  ncclComm_t comm = nullptr;
  ncclConfig_t config = nonblocking();
  expect_begun(ncclCommInitRankConfig(&comm, 1, id, 0, &config));
  ASSERT_EQ(settle(comm), ncclSuccess);
  int a = 1;
  int b = 1;
  ASSERT_NCCL(ncclGroupStart());
  EXPECT_NCCL(ncclAllReduce(&a, &a, 1, ncclInt, ncclSum, ranks[0], nullptr));
  EXPECT_NCCL(ncclAllReduce(&b, &b, 1, ncclInt, ncclSum, comm, nullptr));
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument);
  expect_error_with({"nonblocking"});
  EXPECT_NCCL(ncclCommDestroy(comm));
}

TEST(NcclNonblocking, ACommunicatorIsAbortedWhileItsPeersAreMissing) {
  const ncclUniqueId id = make_id();
  ncclComm_t comm = nullptr;
  ncclConfig_t config = nonblocking();
  EXPECT_EQ(ncclCommInitRankConfig(&comm, 2, id, 0, &config), ncclInProgress);
  EXPECT_NCCL(ncclCommAbort(comm));
  come_late(id);
}

TEST(NcclNonblocking, AnOperationWhosePeerAbortsEndsWithARemoteError) {
  const ncclUniqueId id = make_id();
  ncclComm_t comms[2] = {};
  ncclConfig_t config = nonblocking();
  ASSERT_NCCL(ncclGroupStart());
  for (int r = 0; r < 2; ++r) {
    expect_begun(ncclCommInitRankConfig(&comms[r], 2, id, r, &config));
  }
  expect_begun(ncclGroupEnd());
  for (ncclComm_t comm : comms) ASSERT_EQ(settle(comm), ncclSuccess);
  int value = 1;
  expect_begun(ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, comms[0], nullptr));
  EXPECT_NCCL(ncclCommAbort(comms[1]));
  EXPECT_EQ(settle(comms[0]), ncclRemoteError);
  EXPECT_STRNE(ncclGetLastError(comms[0]), "");
  EXPECT_NCCL(ncclCommAbort(comms[0]));
}

// The thread that is stuck learns of the handle through the group's owner, as a watchdog would.
TEST(NcclNonblocking, ABlockingMakerIsFreedByAbort) {
  const ncclUniqueId id = make_id();
  ncclComm_t comm = nullptr;
  ASSERT_NCCL(ncclGroupStart());
  EXPECT_NCCL(ncclCommInitRank(&comm, 2, id, 0));
  std::thread watchdog([stuck = comm] { EXPECT_NCCL(ncclCommAbort(stuck)); });
  EXPECT_EQ(ncclGroupEnd(), ncclInternalError);
  expect_error_with({"ncclCommInitRank", "aborted"});
  watchdog.join();
  come_late(id);
}

}  // namespace
}  // namespace weir::nccl::test
