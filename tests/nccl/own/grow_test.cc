// SPDX-License-Identifier: Apache-2.0
// Communicators that grow, as NCCL's documentation has it: a coordinator makes an id, the new ranks
// are given it, and the old ones pass what they like.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <future>
#include <string>
#include <vector>

#include "nccl/support.h"

namespace weir::nccl::test {
namespace {

constexpr int kOld = 3;
constexpr int kNew = 5;

// Calls of all ranks of a grown communicator, each in a thread of its own.
struct Grow {
  // What an old rank does before the call: makes an id, or not.
  std::function<bool(int rank)> coordinates = [](int rank) { return rank == 1; };
  // What an old rank passes: `id` is what it has made, or zeros.
  std::function<const ncclUniqueId*(int rank, const ncclUniqueId& id)> passes =
      [](int, const ncclUniqueId&) { return static_cast<const ncclUniqueId*>(nullptr); };
  ncclConfig_t* config = nullptr;
};

// `body(rank, old, grown, result)`; old is NULL on new ranks. Each ends what it was given.
using GrownBody =
    std::function<void(int rank, ncclComm_t old, ncclComm_t grown, ncclResult_t result)>;

void grow(const Grow& how, const GrownBody& body) {
  const ncclUniqueId first = make_id();
  std::promise<ncclUniqueId> made;
  const std::shared_future<ncclUniqueId> told = made.get_future().share();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kNew; ++rank) {
    threads.emplace_back([&, rank] {
      ncclComm_t old = nullptr;
      ncclComm_t grown = nullptr;
      ncclResult_t result = ncclSuccess;
      if (rank < kOld) {
        ASSERT_NCCL(ncclCommInitRank(&old, kOld, first, rank));
        ncclUniqueId mine{};
        if (how.coordinates(rank)) {
          ASSERT_NCCL(ncclCommGetUniqueId(old, &mine));
          made.set_value(mine);
        }
        result = ncclCommGrow(old, kNew, how.passes(rank, mine), -1, &grown, how.config);
      } else {
        const ncclUniqueId id = told.get();
        result = ncclCommGrow(nullptr, kNew, &id, rank, &grown, how.config);
      }
      body(rank, old, grown, result);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void expect_grown(int rank, ncclComm_t old, ncclComm_t grown, ncclResult_t result) {
  ASSERT_EQ(result, ncclSuccess) << rank << ": " << ncclGetLastError(nullptr);
  int number = -1;
  int count = 0;
  int sum = 0;
  EXPECT_NCCL(ncclCommUserRank(grown, &number));
  EXPECT_NCCL(ncclCommCount(grown, &count));
  EXPECT_EQ(number, rank) << "old ranks keep theirs";
  EXPECT_EQ(count, kNew);
  EXPECT_NCCL(ncclCommDestroy(old)) << "the old one is no longer needed";
  EXPECT_NCCL(sum_of_ranks(grown, rank, &sum));
  EXPECT_EQ(sum, kNew * (kNew + 1) / 2);
  EXPECT_NCCL(ncclCommDestroy(grown));
}

TEST(NcclGrow, OldRanksPassNoIdEvenTheOneThatMadeIt) { grow({}, expect_grown); }

TEST(NcclGrow, WhatOldRanksPassDoesNotMatter) {
  ncclUniqueId garbage;
  std::memset(garbage.internal, 0x5a, sizeof garbage.internal);
  const ncclUniqueId another = make_id();
  Grow how;
  how.passes = [&](int rank, const ncclUniqueId& mine) {
    return rank == 0 ? &garbage : rank == 1 ? &mine : &another;
  };
  grow(how, expect_grown);
}

// As the header of NCCL 2.29 had it.
TEST(NcclGrow, TheCoordinatorMayPassItsIdItself) {
  Grow how;
  how.passes = [](int rank, const ncclUniqueId& mine) { return rank == 1 ? &mine : nullptr; };
  grow(how, expect_grown);
}

// A communicator that one thread holds all old ranks of: what they are told when they cannot agree.
void expect_refused(const std::vector<const ncclUniqueId*>& passed, const AllRanks& old,
                    const std::vector<std::string>& words) {
  std::vector<ncclComm_t> grown(passed.size(), nullptr);
  ASSERT_NCCL(ncclGroupStart());
  for (size_t r = 0; r < passed.size(); ++r) {
    EXPECT_NCCL(ncclCommGrow(old[static_cast<int>(r)], 4, passed[r], -1, &grown[r], nullptr));
  }
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument);
  expect_error_with(words);
  for (ncclComm_t comm : grown) EXPECT_EQ(comm, nullptr);
  EXPECT_TRUE(sums_up(old)) << "the old one goes on";
}

TEST(NcclGrow, WithoutACoordinatorAndWithTwoThereIsNoIdAndTheRanksAreNamed) {
  const AllRanks old(3);
  expect_refused({nullptr, nullptr, nullptr}, old, {"ncclCommGrow", "ncclCommGetUniqueId"});
  ncclUniqueId a{};
  ncclUniqueId b{};
  ASSERT_NCCL(ncclCommGetUniqueId(old[0], &a));
  ASSERT_NCCL(ncclCommGetUniqueId(old[2], &b));
  expect_refused({nullptr, nullptr, nullptr}, old, {"ranks 0, 2", "ncclCommGetUniqueId"});
  expect_refused({&a, nullptr, &b}, old, {"ranks 0 and 2", "different"});
}

// One thread has all ranks, old and new; and each id is good for one.
TEST(NcclGrow, InOneGroupAndAgainWithAnotherId) {
  const AllRanks old(2);
  for (int time = 0; time < 2; ++time) {
    ncclUniqueId id{};
    ASSERT_NCCL(ncclCommGetUniqueId(old[time], &id));
    ncclComm_t grown[3] = {};
    ASSERT_NCCL(ncclGroupStart());
    for (int r = 0; r < 2; ++r) {
      EXPECT_NCCL(ncclCommGrow(old[r], 3, nullptr, -1, &grown[r], nullptr));
    }
    EXPECT_NCCL(ncclCommGrow(nullptr, 3, &id, 2, &grown[2], nullptr));
    ASSERT_NCCL(ncclGroupEnd());
    int values[3] = {1, 2, 4};
    ASSERT_NCCL(ncclGroupStart());
    for (int r = 0; r < 3; ++r) {
      EXPECT_NCCL(ncclAllReduce(&values[r], &values[r], 1, ncclInt, ncclSum, grown[r], nullptr));
    }
    ASSERT_NCCL(ncclGroupEnd());
    EXPECT_EQ(values[2], 7);
    for (ncclComm_t comm : grown) EXPECT_NCCL(ncclCommDestroy(comm));
    EXPECT_TRUE(sums_up(old));
  }
  expect_refused({nullptr, nullptr}, old, {"ncclCommGetUniqueId before each ncclCommGrow"});
}

// As documented: poll the new one only, destroy the old one, and use the new one.
TEST(NcclGrow, NonblockingRanksPollTheNewOneAndDestroyTheOld) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  Grow how;
  how.config = &config;
  grow(how, [](int rank, ncclComm_t old, ncclComm_t grown, ncclResult_t result) {
    ASSERT_TRUE(result == ncclSuccess || result == ncclInProgress) << ncclGetLastError(nullptr);
    ASSERT_EQ(settle(grown), ncclSuccess) << ncclGetLastError(grown);
    EXPECT_NCCL(ncclCommDestroy(old));
    int sum = rank + 1;
    const ncclResult_t begun = ncclAllReduce(&sum, &sum, 1, ncclInt, ncclSum, grown, nullptr);
    EXPECT_EQ(begun, ncclInProgress) << ncclGetLastError(nullptr);
    EXPECT_EQ(settle(grown), ncclSuccess);
    EXPECT_EQ(sum, kNew * (kNew + 1) / 2);
    EXPECT_NCCL(ncclCommDestroy(grown));
  });
}

// New ranks are numbered behind the old ones: one that takes an old number is refused, and so is
// everybody.
TEST(NcclGrow, ANewRankThatTakesAnOldNumberIsNamed) {
  const AllRanks old(2);
  ncclUniqueId id{};
  ASSERT_NCCL(ncclCommGetUniqueId(old[0], &id));
  ncclComm_t grown[3] = {};
  ASSERT_NCCL(ncclGroupStart());
  for (int r = 0; r < 2; ++r) {
    EXPECT_NCCL(ncclCommGrow(old[r], 3, nullptr, -1, &grown[r], nullptr));
  }
  EXPECT_NCCL(ncclCommGrow(nullptr, 3, &id, 1, &grown[2], nullptr));
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
  expect_error_with({"ncclCommGrow", "two ranks joined as rank 1 of 3"});
  for (ncclComm_t comm : grown) EXPECT_EQ(comm, nullptr);
}

}  // namespace
}  // namespace weir::nccl::test
