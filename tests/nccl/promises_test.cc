// SPDX-License-Identifier: Apache-2.0
// Sentences of NCCL's documentation that no other test of this folder holds
// (docs/nccl_semantics.md), on host memory.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "nccl/support.h"

namespace weir::nccl::test {
namespace {

// `body(rank)` for all ranks in one group.
template <typename Call>
void in_one_group(const AllRanks& ranks, Call call) {
  ASSERT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < ranks.size(); ++rank) EXPECT_NCCL(call(rank));
  ASSERT_NCCL(ncclGroupEnd());
}

TEST(NcclPromises, OnlyTheRootReceivesAReduceAndAGather) {
  const AllRanks ranks(3);
  const int values[] = {1, 2, 4};
  int sum = 0;
  int all[3] = {};
  in_one_group(ranks, [&](int rank) {
    return ncclReduce(&values[rank], rank == 1 ? &sum : nullptr, 1, ncclInt, ncclSum, 1,
                      ranks[rank], nullptr);
  });
  EXPECT_EQ(sum, 7);
  in_one_group(ranks, [&](int rank) {
    return ncclGather(&values[rank], rank == 2 ? all : nullptr, 1, ncclInt, 2, ranks[rank],
                      nullptr);
  });
  EXPECT_EQ(std::vector<int>(all, all + 3), (std::vector<int>{1, 2, 4}));
}

TEST(NcclPromises, OnlyTheRootSendsABroadcastAndAScatter) {
  const AllRanks ranks(3);
  const int values[] = {5, 6, 7};
  int got[3] = {};
  in_one_group(ranks, [&](int rank) {
    return ncclBroadcast(rank == 2 ? values : nullptr, &got[rank], 1, ncclInt, 2, ranks[rank],
                         nullptr);
  });
  EXPECT_EQ(std::vector<int>(got, got + 3), (std::vector<int>{5, 5, 5}));
  in_one_group(ranks, [&](int rank) {
    return ncclScatter(rank == 0 ? values : nullptr, &got[rank], 1, ncclInt, 0, ranks[rank],
                       nullptr);
  });
  EXPECT_EQ(std::vector<int>(got, got + 3), (std::vector<int>{5, 6, 7}));
}

TEST(NcclPromises, BlocksLieAtTheirRanksOffset) {
  const AllRanks ranks(3);
  int sent[3][6];
  int exchanged[3][6] = {};
  int gathered[3][6] = {};
  int scattered[3][2] = {};
  for (int rank = 0; rank < 3; ++rank) {
    for (int i = 0; i < 6; ++i) sent[rank][i] = 100 * rank + i;
  }
  in_one_group(ranks, [&](int rank) {
    return ncclAlltoAll(sent[rank], exchanged[rank], 2, ncclInt, ranks[rank], nullptr);
  });
  in_one_group(ranks, [&](int rank) {
    return ncclAllGather(sent[rank], gathered[rank], 2, ncclInt, ranks[rank], nullptr);
  });
  in_one_group(ranks, [&](int rank) {
    return ncclReduceScatter(sent[rank], scattered[rank], 2, ncclInt, ncclMax, ranks[rank],
                             nullptr);
  });
  for (int rank = 0; rank < 3; ++rank) {
    for (int i = 0; i < 6; ++i) {
      const int from = i / 2;
      EXPECT_EQ(exchanged[rank][i], 100 * from + 2 * rank + i % 2);
      EXPECT_EQ(gathered[rank][i], 100 * from + i % 2);
    }
    for (int i = 0; i < 2; ++i) EXPECT_EQ(scattered[rank][i], 200 + 2 * rank + i);
  }
}

TEST(NcclPromises, AnAverageDividesByTheNumberOfRanks) {
  const AllRanks ranks(4);
  const double values[] = {1, 2, 4, 9};
  double mean[4] = {};
  in_one_group(ranks, [&](int rank) {
    return ncclAllReduce(&values[rank], &mean[rank], 1, ncclDouble, ncclAvg, ranks[rank], nullptr);
  });
  for (const double value : mean) EXPECT_EQ(value, 4);
}

// Sums of floats depend on their order: copies are the same, bit by bit, all the same.
TEST(NcclPromises, EveryRankHasAnIdenticalCopyOfAnAllReduce) {
  constexpr size_t kCount = 5000;
  const AllRanks ranks(4);
  std::vector<std::vector<float>> values(4, std::vector<float>(kCount));
  unsigned state = 7;
  for (auto& of_rank : values) {
    for (float& value : of_rank) {
      state = state * 1664525u + 1013904223u;
      value = static_cast<float>(state) / (state % 2 == 0 ? 1e3f : -1e9f);
    }
  }
  in_one_group(ranks, [&](int rank) {
    float* buffer = values[static_cast<size_t>(rank)].data();
    return ncclAllReduce(buffer, buffer, kCount, ncclFloat, ncclSum, ranks[rank], nullptr);
  });
  for (size_t rank = 1; rank < 4; ++rank) {
    EXPECT_EQ(std::memcmp(values[0].data(), values[rank].data(), kCount * sizeof(float)), 0);
  }
}

TEST(NcclPromises, NothingIsAskedOfBuffersOfNoElements) {
  const AllRanks ranks(2);
  const auto both = [&](auto call) {
    in_one_group(ranks, [&](int r) { return call(ranks[r], r); });
  };
  both([](ncclComm_t comm, int) {
    return ncclAllReduce(nullptr, nullptr, 0, ncclFloat, ncclSum, comm, nullptr);
  });
  both([](ncclComm_t comm, int) {
    return ncclReduce(nullptr, nullptr, 0, ncclFloat, ncclSum, 0, comm, nullptr);
  });
  both([](ncclComm_t comm, int) {
    return ncclBroadcast(nullptr, nullptr, 0, ncclFloat, 1, comm, nullptr);
  });
  both([](ncclComm_t comm, int) {
    return ncclReduceScatter(nullptr, nullptr, 0, ncclFloat, ncclSum, comm, nullptr);
  });
  both([](ncclComm_t comm, int) {
    return ncclAllGather(nullptr, nullptr, 0, ncclFloat, comm, nullptr);
  });
  both([](ncclComm_t comm, int) {
    return ncclAlltoAll(nullptr, nullptr, 0, ncclFloat, comm, nullptr);
  });
  both([](ncclComm_t comm, int rank) {
    return rank == 0 ? ncclSend(nullptr, 0, ncclFloat, 1, comm, nullptr)
                     : ncclRecv(nullptr, 0, ncclFloat, 0, comm, nullptr);
  });
  EXPECT_TRUE(sums_up(ranks));
}

TEST(NcclPromises, ACallWithoutAConfigurationIsThePlainOne) {
  const AllRanks ranks(2);
  ncclCollConfig_t plain = NCCL_COLLCONFIG_INITIALIZER;
  plain.userProfilerTag = 12345;  // does not change what happens
  for (const ncclCollConfig_t* config : {static_cast<const ncclCollConfig_t*>(nullptr),
                                         static_cast<const ncclCollConfig_t*>(&plain)}) {
    int value[2] = {1, 2};
    int blocks[2][2] = {};
    const auto both = [&](auto call) { in_one_group(ranks, [&](int r) { return call(r); }); };
    both([&](int r) {
      return ncclAllReduceConfig(&value[r], &value[r], 1, ncclInt, ncclSum, ranks[r], nullptr,
                                 config);
    });
    EXPECT_EQ(value[0] + value[1], 6);
    both([&](int r) {
      return ncclBroadcastConfig(&value[r], &value[r], 1, ncclInt, 0, ranks[r], nullptr, config);
    });
    both([&](int r) {
      return ncclReduceConfig(&value[r], &value[r], 1, ncclInt, ncclSum, 0, ranks[r], nullptr,
                              config);
    });
    EXPECT_EQ(value[0], 6);
    both([&](int r) {
      return ncclAllGatherConfig(&value[r], blocks[r], 1, ncclInt, ranks[r], nullptr, config);
    });
    EXPECT_EQ(blocks[1][0], 6);
    both([&](int r) {
      return ncclReduceScatterConfig(blocks[r], &value[r], 1, ncclInt, ncclSum, ranks[r], nullptr,
                                     config);
    });
    EXPECT_EQ(value[0], 12);
    int other[2][2] = {};
    both([&](int r) {
      return ncclAlltoAllConfig(blocks[r], other[r], 1, ncclInt, ranks[r], nullptr, config);
    });
    EXPECT_EQ(other[0][1], 6);
    both([&](int r) {
      return ncclGatherConfig(&value[r], other[r], 1, ncclInt, 1, ranks[r], nullptr, config);
    });
    EXPECT_EQ(other[1][0], 12);
    both([&](int r) {
      return ncclScatterConfig(other[r], &value[r], 1, ncclInt, 1, ranks[r], nullptr, config);
    });
    EXPECT_EQ(value[0], 12);
  }
}

TEST(NcclPromises, BcastIsABroadcastInPlace) {
  const AllRanks ranks(3);
  int values[] = {1, 2, 3};
  in_one_group(ranks, [&](int rank) {
    return ncclBcast(&values[rank], 1, ncclInt, 2, ranks[rank], nullptr);
  });
  EXPECT_EQ(std::vector<int>(values, values + 3), (std::vector<int>{3, 3, 3}));
}

// ---- Communicators ------------------------------------------------------------------------------

TEST(NcclPromises, EveryUniqueIdIsAnotherOne) {
  const ncclUniqueId a = make_id(), b = make_id();
  EXPECT_NE(std::memcmp(&a, &b, sizeof a), 0);
}

TEST(NcclPromises, InitAllWithoutAListUsesTheFirstDevices) {
  const AllRanks ranks(3);
  for (int rank = 0; rank < 3; ++rank) {
    int device = -1, number = -1;
    EXPECT_NCCL(ncclCommCuDevice(ranks[rank], &device));
    EXPECT_NCCL(ncclCommUserRank(ranks[rank], &number));
    EXPECT_EQ(device, rank);
    EXPECT_EQ(number, rank);
  }
}

TEST(NcclPromises, EndingNoCommunicatorIsNoError) {
  EXPECT_NCCL(ncclCommDestroy(nullptr));
  EXPECT_NCCL(ncclCommAbort(nullptr));
  EXPECT_NCCL(ncclMemFree(nullptr));
}

TEST(NcclPromises, EqualKeysKeepTheOrderOfTheParentAndKeysMayBeNegative) {
  const AllRanks ranks(4);
  ncclComm_t same[4] = {}, turned[4] = {};
  in_one_group(ranks,
               [&](int rank) { return ncclCommSplit(ranks[rank], 2, 9, &same[rank], nullptr); });
  in_one_group(ranks, [&](int rank) {
    return ncclCommSplit(ranks[rank], 0, -rank, &turned[rank], nullptr);
  });
  for (int rank = 0; rank < 4; ++rank) {
    int number = -1;
    EXPECT_NCCL(ncclCommUserRank(same[rank], &number));
    EXPECT_EQ(number, rank);
    EXPECT_NCCL(ncclCommUserRank(turned[rank], &number));
    EXPECT_EQ(number, 3 - rank);
    EXPECT_NCCL(ncclCommDestroy(same[rank]));
    EXPECT_NCCL(ncclCommDestroy(turned[rank]));
  }
}

// A nonblocking parent's children are nonblocking unless a configuration says otherwise.
TEST(NcclPromises, WhatIsMadeWithoutAConfigurationInheritsTheParents) {
  const ncclUniqueId id = make_id();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      ncclComm_t comm = nullptr, child = nullptr;
      ASSERT_EQ(ncclCommInitRankConfig(&comm, 2, id, rank, &config), ncclInProgress);
      ASSERT_EQ(settle(comm), ncclSuccess);
      ASSERT_EQ(ncclCommSplit(comm, 0, rank, &child, nullptr), ncclInProgress);
      ASSERT_EQ(settle(comm), ncclSuccess);
      ASSERT_EQ(settle(child), ncclSuccess);
      int value = 1;
      EXPECT_EQ(ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, child, nullptr), ncclInProgress);
      EXPECT_EQ(settle(child), ncclSuccess);
      EXPECT_EQ(value, 2);
      EXPECT_NCCL(ncclCommDestroy(child));
      EXPECT_NCCL(ncclCommDestroy(comm));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(NcclPromises, ANonblockingCommunicatorIsFinalizedOnceItsOperationsAreDone) {
  const ncclUniqueId id = make_id();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      ncclComm_t comm = nullptr;
      ASSERT_EQ(ncclCommInitRankConfig(&comm, 2, id, rank, &config), ncclInProgress);
      ASSERT_EQ(settle(comm), ncclSuccess);
      int value = 1;
      EXPECT_EQ(ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, comm, nullptr), ncclInProgress);
      EXPECT_EQ(settle(comm), ncclSuccess);
      const ncclResult_t begun = ncclCommFinalize(comm);
      EXPECT_TRUE(begun == ncclSuccess || begun == ncclInProgress) << begun;
      EXPECT_EQ(settle(comm), ncclSuccess);
      EXPECT_EQ(value, 2);
      EXPECT_NCCL(ncclCommDestroy(comm));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(NcclPromises, ARevokedCommunicatorCannotBeFinalizedAndFlagsAreReserved) {
  const AllRanks ranks(1);
  EXPECT_EQ(ncclCommRevoke(ranks[0], 1), ncclInvalidArgument);
  expect_error_with({"ncclCommRevoke", "revokeFlags"});
  EXPECT_TRUE(sums_up(ranks)) << "nothing was revoked";
  EXPECT_NCCL(ncclCommRevoke(ranks[0], NCCL_REVOKE_DEFAULT));
  EXPECT_EQ(settle(ranks[0]), ncclSuccess);
  EXPECT_EQ(ncclCommFinalize(ranks[0]), ncclInvalidArgument);
  expect_error_with({"ncclCommFinalize", "revoked"});
}

TEST(NcclPromises, MemoryStatisticsTellWhatIsSuspended) {
  const AllRanks ranks(1);
  const auto statistic = [&](ncclCommMemStat_t which) {
    uint64_t value = 99;
    EXPECT_NCCL(ncclCommMemStats(ranks[0], which, &value));
    return value;
  };
  EXPECT_EQ(statistic(ncclStatGpuMemSuspended), 0u);
  EXPECT_NCCL(ncclCommSuspend(ranks[0], NCCL_SUSPEND_MEM));
  EXPECT_EQ(statistic(ncclStatGpuMemSuspended), 1u);
  EXPECT_NCCL(ncclCommResume(ranks[0]));
  EXPECT_EQ(statistic(ncclStatGpuMemSuspended), 0u);
  EXPECT_EQ(statistic(ncclStatGpuMemTotal),
            statistic(ncclStatGpuMemSuspend) + statistic(ncclStatGpuMemPersist));
  EXPECT_EQ(ncclCommSuspend(ranks[0], 0), ncclInvalidArgument);
  EXPECT_EQ(ncclCommMemStats(ranks[0], ncclStatGpuMemTotal, nullptr), ncclInvalidArgument);
}

TEST(NcclPromises, AReductionThatWasNotCreatedCannotBeDestroyed) {
  const AllRanks ranks(1);
  EXPECT_EQ(ncclRedOpDestroy(ncclSum, ranks[0]), ncclInvalidArgument);
  float two = 2;
  ncclRedOp_t op = ncclSum;
  ASSERT_NCCL(ncclRedOpCreatePreMulSum(&op, &two, ncclFloat, ncclScalarHostImmediate, ranks[0]));
  EXPECT_GE(static_cast<int>(op), static_cast<int>(ncclNumOps));
  two = 100;  // was read before the call returned
  float value = 3;
  EXPECT_NCCL(ncclAllReduce(&value, &value, 1, ncclFloat, op, ranks[0], nullptr));
  EXPECT_EQ(value, 6);
  EXPECT_NCCL(ncclRedOpDestroy(op, ranks[0]));
  EXPECT_EQ(ncclRedOpDestroy(op, ranks[0]), ncclInvalidArgument);
}

TEST(NcclPromises, AHealthyCommunicatorHasNoAsyncErrorAndASentenceForEachOfItsCalls) {
  const AllRanks ranks(2);
  ncclResult_t state = ncclInternalError;
  EXPECT_NCCL(ncclCommGetAsyncError(ranks[1], &state));
  EXPECT_EQ(state, ncclSuccess);
  EXPECT_EQ(ncclSend(nullptr, 1, ncclInt, 7, ranks[0], nullptr), ncclInvalidArgument);
  EXPECT_NE(std::string(ncclGetLastError(ranks[0])).find("ncclSend"), std::string::npos);
  EXPECT_NCCL(ncclCommGetAsyncError(ranks[0], &state));
  EXPECT_EQ(state, ncclSuccess) << "a call that was refused leaves the communicator as it was";
  EXPECT_TRUE(sums_up(ranks));
}

TEST(NcclPromises, TheVersionIsTheHeaders) {
  int version = 0;
  EXPECT_NCCL(ncclGetVersion(&version));
  EXPECT_EQ(version, NCCL_VERSION_CODE);
  EXPECT_EQ(NCCL_VERSION(2, 32, 3), 23203);
  EXPECT_EQ(NCCL_VERSION(2, 8, 4), 2804);
}

// ---- Several unique ids -------------------------------------------------------------------------

// As many ids as ranks, one, and numbers that divide the ranks unevenly.
TEST(NcclPromises, AnyNumberOfUniqueIdsUpToThatOfTheRanksMakesOneCommunicator) {
  constexpr int kRanks = 5;
  for (int id_count = 1; id_count <= kRanks; ++id_count) {
    std::vector<ncclUniqueId> ids(static_cast<size_t>(id_count));
    std::vector<std::thread> makers;  // any rank may make one; they are told to all
    for (ncclUniqueId& id : ids) makers.emplace_back([&id] { id = make_id(); });
    for (std::thread& maker : makers) maker.join();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        ncclComm_t comm = nullptr;
        std::vector<ncclUniqueId> mine = ids;
        ASSERT_NCCL(ncclCommInitRankScalable(&comm, kRanks, rank, id_count, mine.data(), nullptr));
        int sum = 0, number = -1, count = 0;
        EXPECT_NCCL(sum_of_ranks(comm, rank, &sum));
        EXPECT_NCCL(ncclCommUserRank(comm, &number));
        EXPECT_NCCL(ncclCommCount(comm, &count));
        EXPECT_EQ(sum, 15);
        EXPECT_EQ(number, rank);
        EXPECT_EQ(count, kRanks);
        EXPECT_NCCL(ncclCommDestroy(comm));
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

TEST(NcclPromises, MoreUniqueIdsThanRanksAreRefused) {
  std::vector<ncclUniqueId> ids = {make_id(), make_id(), make_id()};
  ncclComm_t comm = nullptr;
  EXPECT_EQ(ncclCommInitRankScalable(&comm, 2, 0, 3, ids.data(), nullptr), ncclInvalidArgument);
  expect_error_with({"ncclCommInitRankScalable", "nId is 3"});
  EXPECT_EQ(comm, nullptr);
}

}  // namespace
}  // namespace weir::nccl::test
