// SPDX-License-Identifier: Apache-2.0
// Groups of libnccl.so.2: what runs when, and what an error does to them.
#include <gtest/gtest.h>

#include <chrono>
#include <vector>

#include "nccl/support.h"

namespace weir::nccl::test {
namespace {

TEST(NcclGroup, OneThreadMakesAllRanksOfTwoCommunicatorsInOneGroup) {
  const ncclUniqueId first = make_id();
  const ncclUniqueId second = make_id();
  ncclComm_t a[3] = {};
  ncclComm_t b[2] = {};
  ASSERT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < 3; ++rank) EXPECT_NCCL(ncclCommInitRank(&a[rank], 3, first, rank));
  for (int rank = 0; rank < 2; ++rank) EXPECT_NCCL(ncclCommInitRank(&b[rank], 2, second, rank));
  ASSERT_NCCL(ncclGroupEnd());
  for (ncclComm_t comm : {a[0], a[1], a[2], b[0], b[1]}) {
    int count = 0;
    EXPECT_NCCL(ncclCommCount(comm, &count));
    EXPECT_EQ(count, comm == b[0] || comm == b[1] ? 2 : 3);
    EXPECT_NCCL(ncclCommDestroy(comm));
  }
}

// Ranks 0, 1, 2 of the first communicator are 2, 1, 0 of the second.
TEST(NcclGroup, CommunicatorsCollectivesAndMessagesMixInAnyOrder) {
  constexpr int kRanks = 3;
  constexpr size_t kCount = 20000;
  const AllRanks forth(kRanks);
  const AllRanks back(kRanks);
  std::vector<float> sums[kRanks];
  std::vector<float> sent[kRanks];
  std::vector<float> received[kRanks];
  std::vector<float> gathered[kRanks];
  ASSERT_NCCL(ncclGroupStart());
  for (int r = 0; r < kRanks; ++r) {
    sums[r].assign(kCount, static_cast<float>(r + 1));
    sent[r].assign(kCount, static_cast<float>(10 + r));
    received[r].assign(kCount, 0);
    gathered[r].assign(kRanks * kCount, 0);
  }
  for (int r = 0; r < kRanks; ++r) {
    const ncclComm_t other = back[kRanks - 1 - r];
    auto reduce = [&] {
      EXPECT_NCCL(ncclAllReduce(sums[r].data(), sums[r].data(), kCount, ncclFloat, ncclSum,
                                forth[r], nullptr));
    };
    auto gather = [&] {
      EXPECT_NCCL(
          ncclAllGather(sent[r].data(), gathered[r].data(), kCount, ncclFloat, other, nullptr));
    };
    // The order of calls on different communicators differs between ranks.
    if (r != 1) reduce();
    EXPECT_NCCL(ncclSend(sent[r].data(), kCount, ncclFloat, (r + 1) % kRanks, forth[r], nullptr));
    gather();
    if (r == 1) reduce();
    EXPECT_NCCL(ncclRecv(received[r].data(), kCount, ncclFloat, (r + kRanks - 1) % kRanks, forth[r],
                         nullptr));
  }
  ASSERT_NCCL(ncclGroupEnd());
  for (int r = 0; r < kRanks; ++r) {
    EXPECT_EQ(sums[r], std::vector<float>(kCount, 6));
    EXPECT_EQ(received[r],
              std::vector<float>(kCount, static_cast<float>(10 + (r + kRanks - 1) % kRanks)));
    for (int block = 0; block < kRanks; ++block) {
      const float want = static_cast<float>(10 + kRanks - 1 - block);
      EXPECT_EQ(gathered[r][static_cast<size_t>(block) * kCount], want);
      EXPECT_EQ(gathered[r][static_cast<size_t>(block + 1) * kCount - 1], want);
    }
  }
}

TEST(NcclGroup, NothingRunsBeforeTheOutermostEnd) {
  const AllRanks ranks(2);
  int values[2] = {1, 2};
  ASSERT_NCCL(ncclGroupStart());
  ASSERT_NCCL(ncclGroupStart());
  for (int r = 0; r < 2; ++r) {
    EXPECT_NCCL(ncclAllReduce(&values[r], &values[r], 1, ncclInt, ncclSum, ranks[r], nullptr));
  }
  ASSERT_NCCL(ncclGroupEnd());
  EXPECT_EQ(values[0], 1);
  EXPECT_EQ(values[1], 2);
  ASSERT_NCCL(ncclGroupEnd());
  EXPECT_EQ(values[0], 3);
  EXPECT_EQ(values[1], 3);
}

TEST(NcclGroup, AnErrorInAGroupIsToldAtItsEndAndNothingRuns) {
  const AllRanks ranks(2);
  int values[2] = {1, 2};
  ASSERT_NCCL(ncclGroupStart());
  EXPECT_NCCL(ncclAllReduce(&values[0], &values[0], 1, ncclInt, ncclSum, ranks[0], nullptr));
  EXPECT_EQ(ncclBroadcast(&values[1], &values[1], 1, ncclInt, 5, ranks[1], nullptr),
            ncclInvalidArgument);
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument);
  expect_error_with({"ncclGroupEnd", "ncclBroadcast", "root 5"});
  EXPECT_EQ(values[0], 1);
  EXPECT_TRUE(sums_up(ranks)) << "the communicator is as before";
}

TEST(NcclGroup, AFailedGroupTakesBackTheHandlesOfItsCommunicators) {
  const ncclUniqueId id = make_id();
  ncclComm_t comm = nullptr;
  ASSERT_NCCL(ncclGroupStart());
  EXPECT_NCCL(ncclCommInitRank(&comm, 2, id, 0));
  EXPECT_EQ(ncclCommInitRank(&comm, 2, id, 7), ncclInvalidArgument);
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument);
  EXPECT_EQ(comm, nullptr);
}

TEST(NcclGroup, AnEndWithoutAStartIsInvalidUsage) {
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
  expect_error_with({"ncclGroupEnd", "ncclGroupStart"});
  ASSERT_NCCL(ncclGroupStart());
  EXPECT_NCCL(ncclGroupEnd()) << "an empty group is legal";
}

TEST(NcclGroup, ASimulatedEndRunsNothing) {
  const AllRanks ranks(2);
  int values[2] = {1, 2};
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  info.estimatedTime = 5;
  ASSERT_NCCL(ncclGroupStart());
  for (int r = 0; r < 2; ++r) {
    EXPECT_NCCL(ncclAllReduce(&values[r], &values[r], 1, ncclInt, ncclSum, ranks[r], nullptr));
  }
  EXPECT_NCCL(ncclGroupSimulateEnd(&info));
  EXPECT_EQ(info.estimatedTime, NCCL_UNDEF_FLOAT);
  EXPECT_EQ(values[0], 1);
  EXPECT_EQ(values[1], 2);
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage) << "the simulated end has ended the group";
  info.magic = 0;
  EXPECT_EQ(ncclGroupSimulateEnd(&info), ncclInvalidArgument);
  EXPECT_TRUE(sums_up(ranks));
  // What was to be made is not.
  ncclComm_t comm = nullptr;
  ASSERT_NCCL(ncclGroupStart());
  EXPECT_NCCL(ncclCommInitRank(&comm, 2, make_id(), 0));
  const ncclComm_t handle = comm;
  EXPECT_NCCL(ncclGroupSimulateEnd(nullptr));
  EXPECT_EQ(comm, nullptr);
  EXPECT_EQ(ncclCommAbort(handle), ncclInvalidArgument);
}

TEST(NcclGroup, AMessageToOneselfNeedsAGroup) {
  const AllRanks ranks(1);
  int out = 4;
  int in = 0;
  EXPECT_EQ(ncclSend(&out, 1, ncclInt, 0, ranks[0], nullptr), ncclInvalidUsage);
  expect_error_with({"group"});
  ASSERT_NCCL(ncclGroupStart());
  EXPECT_NCCL(ncclSend(&out, 1, ncclInt, 0, ranks[0], nullptr));
  EXPECT_NCCL(ncclRecv(&in, 1, ncclInt, 0, ranks[0], nullptr));
  ASSERT_NCCL(ncclGroupEnd());
  EXPECT_EQ(in, 4);
}

// Data of earlier operations lie where a late rank's next message is awaited, and here look like
// the sequence numbers of operations 3 and 4.
TEST(NcclGroup, EarlierDataOfALateRankAreNotTakenForAnotherCall) {
  run_threads(2, [](int rank, ncclComm_t comm) {
    for (int value = 3; value <= 4; ++value) {
      std::vector<int> values(200, value);
      EXPECT_NCCL(ncclAllReduce(values.data(), values.data(), values.size(), ncclInt, ncclMax, comm,
                                nullptr));
    }
    for (int i = 0; i < 2; ++i) {
      if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      int sum = 0;
      EXPECT_NCCL(sum_of_ranks(comm, rank, &sum));
      EXPECT_EQ(sum, 3);
    }
  });
}

// The operation runs when its reduction and the scalar are gone.
TEST(NcclGroup, AnOperationKeepsTheFactorThatItWasGiven) {
  const AllRanks ranks(2);
  float values[2] = {1, 1};
  ASSERT_NCCL(ncclGroupStart());
  for (int r = 0; r < 2; ++r) {
    float factor = 3;
    ncclRedOp_t op;
    EXPECT_NCCL(
        ncclRedOpCreatePreMulSum(&op, &factor, ncclFloat, ncclScalarHostImmediate, ranks[r]));
    EXPECT_NCCL(ncclAllReduce(&values[r], &values[r], 1, ncclFloat, op, ranks[r], nullptr));
    EXPECT_NCCL(ncclRedOpDestroy(op, ranks[r]));
    EXPECT_EQ(ncclRedOpDestroy(op, ranks[r]), ncclInvalidArgument) << "destroyed already";
  }
  ASSERT_NCCL(ncclGroupEnd());
  EXPECT_EQ(values[0], 6);
  EXPECT_EQ(values[1], 6);
}

}  // namespace
}  // namespace weir::nccl::test
