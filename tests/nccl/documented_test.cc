// SPDX-License-Identifier: Apache-2.0
// More sentences of NCCL's user guide (docs/nccl_semantics.md), on host memory: configurations,
// what is made from another communicator, the order of messages, and who may ask for what while
// operations run.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "nccl/support.h"

namespace weir::nccl::test {
namespace {

ncclConfig_t nonblocking() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return config;
}

// ---- Makers -------------------------------------------------------------------------------------

TEST(NcclDocumented, ANumberThatTwoRanksTakeIsNamed) {
  const ncclUniqueId id = make_id();
  ncclComm_t comms[3] = {};
  ASSERT_NCCL(ncclGroupStart());
  for (int i = 0; i < 3; ++i) {
    EXPECT_NCCL(ncclCommInitRank(&comms[i], 3, id, i == 2 ? 1 : i));
  }
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
  expect_error_with({"ncclCommInitRank", "two ranks joined as rank 1 of 3"});
  for (ncclComm_t comm : comms) EXPECT_EQ(comm, nullptr);
}

TEST(NcclDocumented, RanksThatWereToldDifferentNumbersOfRanksAreNamed) {
  const ncclUniqueId id = make_id();
  ncclComm_t comms[2] = {};
  ASSERT_NCCL(ncclGroupStart());
  EXPECT_NCCL(ncclCommInitRank(&comms[0], 2, id, 0));
  EXPECT_NCCL(ncclCommInitRank(&comms[1], 3, id, 1));
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
  expect_error_with({"ncclCommInitRank", "rank 1", "nranks 3", "nranks 2"});
}

TEST(NcclDocumented, MoreRanksThanACommunicatorCanHaveAreRefusedAtOnce) {
  ncclComm_t comm = nullptr;
  EXPECT_EQ(ncclCommInitAll(&comm, 65537, nullptr), ncclInvalidArgument);
  expect_error_with({"ncclCommInitAll", "nranks is 65537", "65536"});
  EXPECT_EQ(ncclCommInitRank(&comm, INT_MAX, make_id(), 0), ncclInvalidArgument);
  expect_error_with({"ncclCommInitRank", "nranks is 2147483647"});
  EXPECT_EQ(comm, nullptr);
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage) << "no group is left open";
}

// ---- Configurations -----------------------------------------------------------------------------

ncclResult_t init_with(const ncclConfig_t& config) {
  ncclConfig_t copy = config;
  ncclComm_t comm = nullptr;
  const ncclResult_t result = ncclCommInitRankConfig(&comm, 1, make_id(), 0, &copy);
  EXPECT_EQ(comm != nullptr, result == ncclSuccess || result == ncclInProgress);
  if (result == ncclInProgress) {
    EXPECT_EQ(settle(comm), ncclSuccess);
  }
  EXPECT_NCCL(ncclCommDestroy(comm));
  return result;
}

// What the guide allows, and the next numbers on both sides.
struct Field {
  const char* name;
  int ncclConfig_t::*field;
  int least;
  int most;  // INT_MAX: no limit
};
constexpr Field kFields[] = {
    {"blocking", &ncclConfig_t::blocking, 0, 1},
    {"cgaClusterSize", &ncclConfig_t::cgaClusterSize, 0, 8},
    {"minCTAs", &ncclConfig_t::minCTAs, 1, INT_MAX},
    {"maxCTAs", &ncclConfig_t::maxCTAs, 1, INT_MAX},
    {"splitShare", &ncclConfig_t::splitShare, 0, 1},
    {"trafficClass", &ncclConfig_t::trafficClass, 0, INT_MAX},
    {"collnetEnable", &ncclConfig_t::collnetEnable, 0, 1},
    {"CTAPolicy", &ncclConfig_t::CTAPolicy, 0, 3},
    {"shrinkShare", &ncclConfig_t::shrinkShare, 0, 1},
    {"nvlsCTAs", &ncclConfig_t::nvlsCTAs, 1, INT_MAX},
    {"nChannelsPerNetPeer", &ncclConfig_t::nChannelsPerNetPeer, 1, INT_MAX},
    {"nvlinkCentricSched", &ncclConfig_t::nvlinkCentricSched, 0, 1},
    {"graphUsageMode", &ncclConfig_t::graphUsageMode, 0, 2},
    {"graphStreamOrdering", &ncclConfig_t::graphStreamOrdering, 0, 1},
    {"launchOrderImplicit", &ncclConfig_t::launchOrderImplicit, 0, 1},
    {"numRmaCtx", &ncclConfig_t::numRmaCtx, 0, INT_MAX},
    {"numRmaSig", &ncclConfig_t::numRmaSig, 0, INT_MAX},
    {"rmaEagerInit", &ncclConfig_t::rmaEagerInit, 0, 1},
    {"hostCftMode", &ncclConfig_t::hostCftMode, ncclHostCftEnable, ncclHostCftFallback},
};

TEST(NcclDocumented, EveryFieldOfAConfigurationHasItsRange) {
  for (const Field& one : kFields) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.*one.field = one.least;
    EXPECT_NE(init_with(config), ncclInvalidArgument) << one.name << ncclGetLastError(nullptr);
    config.*one.field = one.most;
    EXPECT_NE(init_with(config), ncclInvalidArgument) << one.name << ncclGetLastError(nullptr);
    config.*one.field = one.least - 1;
    EXPECT_EQ(init_with(config), ncclInvalidArgument) << one.name;
    const std::string given = std::to_string(one.least - 1);
    expect_error_with(
        {"ncclCommInitRankConfig", "config." + std::string(one.name) + " is " + given});
    if (one.most == INT_MAX) continue;
    config.*one.field = one.most + 1;
    EXPECT_EQ(init_with(config), ncclInvalidArgument) << one.name;
    expect_error_with({"config." + std::string(one.name) + " is " + std::to_string(one.most + 1)});
  }
  // Values below one, or above the number of ranks, mean the number of ranks.
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  for (const int peers : {-3, 0, 1, 1000}) {
    config.maxP2pPeers = peers;
    EXPECT_EQ(init_with(config), ncclSuccess) << peers << ncclGetLastError(nullptr);
  }
}

TEST(NcclDocumented, GraphsWithoutAnOrderOfTheirOwnAreNotMixed) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.graphStreamOrdering = 0;
  for (const int mode : {0, 1}) {
    config.graphUsageMode = mode;
    EXPECT_EQ(init_with(config), ncclSuccess) << ncclGetLastError(nullptr);
  }
  config.graphUsageMode = 2;
  EXPECT_EQ(init_with(config), ncclInvalidArgument);
  expect_error_with({"graphStreamOrdering", "graphUsageMode"});
}

TEST(NcclDocumented, TheNameOfACommunicatorStandsInItsErrors) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  char name[] = "gradients";
  config.commName = name;
  ncclComm_t comm = nullptr;
  ASSERT_NCCL(ncclCommInitRankConfig(&comm, 1, make_id(), 0, &config));
  std::memset(name, 'x', sizeof name - 1);  // it was copied
  EXPECT_NCCL(ncclCommFinalize(comm));
  EXPECT_EQ(ncclCommFinalize(comm), ncclInvalidArgument);
  expect_error_with({"rank 0 of 1 on 'gradients'"});
  EXPECT_NCCL(ncclCommDestroy(comm));
  const std::string long_name(300, 'n');
  config.commName = long_name.c_str();
  EXPECT_EQ(init_with(config), ncclInvalidArgument);
  expect_error_with({"commName", "256"});
}

// What a configuration leaves undefined has its default; without a configuration, the parent's
// holds.
TEST(NcclDocumented, AConfigurationOfAChildStandsAloneAndWithoutOneTheParentsHolds) {
  ncclComm_t parents[2] = {};
  ncclConfig_t config = nonblocking();
  const ncclUniqueId id = make_id();
  ASSERT_NCCL(ncclGroupStart());
  for (int r = 0; r < 2; ++r) (void)ncclCommInitRankConfig(&parents[r], 2, id, r, &config);
  (void)ncclGroupEnd();
  for (ncclComm_t comm : parents) ASSERT_EQ(settle(comm), ncclSuccess);
  ncclConfig_t plain = NCCL_CONFIG_INITIALIZER;
  for (ncclConfig_t* of_child : {static_cast<ncclConfig_t*>(nullptr), &plain}) {
    ncclComm_t children[2] = {};
    ASSERT_NCCL(ncclGroupStart());
    for (int r = 0; r < 2; ++r) {
      (void)ncclCommSplit(parents[r], 0, r, &children[r], of_child);
    }
    (void)ncclGroupEnd();
    for (ncclComm_t comm : parents) ASSERT_EQ(settle(comm), ncclSuccess);
    int values[2] = {1, 2};
    ASSERT_NCCL(ncclGroupStart());
    for (int r = 0; r < 2; ++r) {
      EXPECT_NCCL(ncclAllReduce(&values[r], &values[r], 1, ncclInt, ncclSum, children[r], nullptr));
    }
    EXPECT_EQ(ncclGroupEnd(), of_child == nullptr ? ncclInProgress : ncclSuccess);
    for (ncclComm_t comm : children) {
      EXPECT_EQ(settle(comm), ncclSuccess);
      EXPECT_NCCL(ncclCommDestroy(comm));
    }
    EXPECT_EQ(values[0] + values[1], 6);
  }
  for (ncclComm_t comm : parents) EXPECT_NCCL(ncclCommDestroy(comm));
}

// Nothing is shared, whatever splitShare and shrinkShare say: an abort of the parent leaves its
// children.
TEST(NcclDocumented, AChildOutlivesItsParentHoweverThatEnds) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.splitShare = config.shrinkShare = 1;
  for (const bool aborts : {false, true}) {
    ncclComm_t parents[3] = {};
    ncclComm_t children[3] = {};
    ncclComm_t rest[2] = {};
    const ncclUniqueId id = make_id();
    ASSERT_NCCL(ncclGroupStart());
    for (int r = 0; r < 3; ++r) {
      EXPECT_NCCL(ncclCommInitRankConfig(&parents[r], 3, id, r, &config));
    }
    ASSERT_NCCL(ncclGroupEnd());
    int excluded[] = {2};
    ASSERT_NCCL(ncclGroupStart());
    for (int r = 0; r < 3; ++r) {
      EXPECT_NCCL(ncclCommSplit(parents[r], 0, -r, &children[r], nullptr));
      if (r == 2) continue;
      EXPECT_NCCL(ncclCommShrink(parents[r], excluded, 1, &rest[r], nullptr, NCCL_SHRINK_DEFAULT));
    }
    ASSERT_NCCL(ncclGroupEnd());
    for (ncclComm_t comm : parents) {
      EXPECT_NCCL(aborts ? ncclCommAbort(comm) : ncclCommDestroy(comm));
    }
    int values[5] = {1, 2, 4, 8, 16};
    ASSERT_NCCL(ncclGroupStart());
    for (int r = 0; r < 5; ++r) {
      EXPECT_NCCL(ncclAllReduce(&values[r], &values[r], 1, ncclInt, ncclSum,
                                r < 3 ? children[r] : rest[r - 3], nullptr));
    }
    ASSERT_NCCL(ncclGroupEnd());
    EXPECT_EQ(std::vector<int>(values, values + 5), (std::vector<int>{7, 7, 7, 24, 24}));
    for (ncclComm_t comm : children) EXPECT_NCCL(ncclCommDestroy(comm));
    for (ncclComm_t comm : rest) EXPECT_NCCL(ncclCommDestroy(comm));
  }
}

// ---- Nonblocking communicators ------------------------------------------------------------------

// Documented programs poll the parent and then use what was made from it. With many at once, the
// last of them would be late.
TEST(NcclDocumented, AChildIsReadyWhenItsParentIsNoLongerInProgress) {
  constexpr size_t kChildren = 400;
  ncclComm_t comm = nullptr;
  ncclConfig_t config = nonblocking();
  (void)ncclCommInitRankConfig(&comm, 1, make_id(), 0, &config);
  ASSERT_EQ(settle(comm), ncclSuccess);
  for (int round = 0; round < 2; ++round) {
    std::vector<ncclComm_t> children(kChildren, nullptr);
    ASSERT_NCCL(ncclGroupStart());
    for (ncclComm_t& child : children) EXPECT_NCCL(ncclCommSplit(comm, 0, 0, &child, nullptr));
    EXPECT_EQ(ncclGroupEnd(), ncclInProgress);
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress) ASSERT_NCCL(ncclCommGetAsyncError(comm, &state));
    ASSERT_EQ(state, ncclSuccess);
    for (size_t i = kChildren; i-- > 0;) {
      int count = 0;
      ASSERT_NCCL(ncclCommCount(children[i], &count)) << "round " << round << ", child " << i;
    }
    for (ncclComm_t child : children) EXPECT_NCCL(ncclCommDestroy(child));
  }
  EXPECT_NCCL(ncclCommDestroy(comm));
}

TEST(NcclDocumented, AnAbortOfTheParentThenOfTheChildEndsASplitThatOthersDoNotJoin) {
  const ncclUniqueId id = make_id();
  ncclComm_t comms[2] = {};
  ncclConfig_t config = nonblocking();
  for (int r = 0; r < 2; ++r) (void)ncclCommInitRankConfig(&comms[r], 2, id, r, &config);
  for (ncclComm_t comm : comms) ASSERT_EQ(settle(comm), ncclSuccess);
  ncclComm_t child = nullptr;
  EXPECT_EQ(ncclCommSplit(comms[0], 0, 0, &child, nullptr), ncclInProgress);
  ASSERT_NE(child, nullptr) << "it may be aborted before it is made";
  EXPECT_NCCL(ncclCommAbort(comms[0]));
  EXPECT_NCCL(ncclCommAbort(child));
  ncclResult_t state = ncclSuccess;
  EXPECT_EQ(ncclCommGetAsyncError(child, &state), ncclInvalidArgument);
  EXPECT_NCCL(ncclCommAbort(comms[1]));
}

// Such as a watchdog beside the thread that calls.
TEST(NcclDocumented, OtherThreadsMayAskForTheAsyncErrorWhileOperationsRun) {
  const AllRanks ranks(2);
  std::atomic<bool> over{false};
  std::atomic<int> asked{0};
  std::vector<std::thread> watchdogs;
  for (int w = 0; w < 2; ++w) {
    watchdogs.emplace_back([&, w] {
      while (!over) {
        ncclResult_t state = ncclInternalError;
        EXPECT_NCCL(ncclCommGetAsyncError(ranks[w], &state));
        EXPECT_EQ(state, ncclSuccess);
        ++asked;
        std::this_thread::yield();
      }
    });
  }
  for (int round = 0; round < 50 || asked < 100; ++round) EXPECT_TRUE(sums_up(ranks));
  over = true;
  for (std::thread& watchdog : watchdogs) watchdog.join();
}

// The guide's example of thread safety: one thread makes them all, and others poll and use one
// each.
TEST(NcclDocumented, OneThreadMakesCommunicatorsThatOthersPollAndUse) {
  constexpr int kRanks = 4;
  const ncclUniqueId id = make_id();
  ncclComm_t comms[kRanks] = {};
  ncclConfig_t config = nonblocking();
  ASSERT_NCCL(ncclGroupStart());
  for (int r = 0; r < kRanks; ++r) (void)ncclCommInitRankConfig(&comms[r], kRanks, id, r, &config);
  EXPECT_EQ(ncclGroupEnd(), ncclInProgress);
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r) {
    threads.emplace_back([&, r] {
      ASSERT_EQ(settle(comms[r]), ncclSuccess);
      int sum = 0;
      EXPECT_EQ(sum_of_ranks(comms[r], r, &sum), ncclInProgress) << ncclGetLastError(comms[r]);
      ASSERT_EQ(settle(comms[r]), ncclSuccess);
      EXPECT_EQ(sum, 10);
      EXPECT_NCCL(ncclCommDestroy(comms[r]));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// ---- Ending -------------------------------------------------------------------------------------

// One thread with several ranks ends them in one group, as documented, also with operations before
// that.
TEST(NcclDocumented, CommunicatorsAreFinalizedAndDestroyedInTheGroupOfTheirLastOperations) {
  ncclComm_t comms[3] = {};
  ASSERT_NCCL(ncclCommInitAll(comms, 3, nullptr));
  int values[3] = {1, 2, 4};
  ASSERT_NCCL(ncclGroupStart());
  for (int r = 0; r < 3; ++r) {
    EXPECT_NCCL(ncclAllReduce(&values[r], &values[r], 1, ncclInt, ncclSum, comms[r], nullptr));
    EXPECT_NCCL(ncclCommFinalize(comms[r]));
  }
  for (ncclComm_t comm : comms) EXPECT_NCCL(ncclCommDestroy(comm));
  ASSERT_NCCL(ncclGroupEnd());
  EXPECT_EQ(std::vector<int>(values, values + 3), (std::vector<int>{7, 7, 7}));
  for (ncclComm_t comm : comms) EXPECT_EQ(ncclCommDestroy(comm), ncclInvalidArgument);
}

// Rank 2 never calls: the others leave it out, and with it what waits for it.
TEST(NcclDocumented, ShrinkingWithAnAbortEndsWhatIsUnderWay) {
  std::atomic<int> shrunk{0};
  run_threads(3, [&](int rank, ncclComm_t comm) {
    if (rank == 2) {
      while (shrunk < 2) std::this_thread::yield();
      return;
    }
    std::atomic<bool> calls{false};
    std::thread stuck([&] {
      int sum = 0;
      calls = true;
      EXPECT_NE(sum_of_ranks(comm, rank, &sum), ncclSuccess);
    });
    while (!calls) std::this_thread::yield();
    int excluded[] = {2};
    ncclComm_t rest = nullptr;
    EXPECT_NCCL(ncclCommShrink(comm, excluded, 1, &rest, nullptr, NCCL_SHRINK_ABORT));
    stuck.join();
    int sum = 0;
    EXPECT_NCCL(sum_of_ranks(rest, rank, &sum));
    EXPECT_EQ(sum, 3);
    EXPECT_NCCL(ncclCommDestroy(rest));
    ++shrunk;
  });
}

// ---- Messages -----------------------------------------------------------------------------------

int value_of(int rank, int message, size_t at) {
  return rank * 1000003 + message * 1009 + static_cast<int>(at);
}

// Messages of a group to one peer arrive in the order of the calls, also where the peer takes them
// one by one, and the other way round; sizes of nothing, of a few bytes and of more than a
// transport takes at once.
TEST(NcclDocumented, SeveralMessagesOfAGroupMeetSeparateCallsInTheirOrder) {
  const size_t counts[] = {3, 200000, 0, 1, 70000, 3, 300000};
  constexpr int kMessages = 7;
  run_threads(2, [&](int rank, ncclComm_t comm) {
    for (const bool sender_groups : {true, false}) {
      std::vector<std::vector<int>> data(kMessages);
      for (int m = 0; m < kMessages; ++m) {
        data[static_cast<size_t>(m)].resize(counts[m]);
        for (size_t i = 0; rank == 0 && i < counts[m]; ++i) {
          data[static_cast<size_t>(m)][i] = value_of(rank, m, i);
        }
      }
      const bool groups = (rank == 0) == sender_groups;
      if (groups) {
        EXPECT_NCCL(ncclGroupStart());
      }
      for (int m = 0; m < kMessages; ++m) {
        int* buffer = data[static_cast<size_t>(m)].data();
        EXPECT_NCCL(rank == 0 ? ncclSend(buffer, counts[m], ncclInt, 1, comm, nullptr)
                              : ncclRecv(buffer, counts[m], ncclInt, 0, comm, nullptr));
      }
      if (groups) {
        EXPECT_NCCL(ncclGroupEnd());
      }
      for (int m = 0; rank == 1 && m < kMessages; ++m) {
        const auto& got = data[static_cast<size_t>(m)];
        for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], value_of(0, m, i)) << m;
      }
    }
  });
}

// Descriptors of one rank, signal and context add up.
TEST(NcclDocumented, TwoDescriptorsOfOneRankWaitForTheSignalsOfBoth) {
  const AllRanks ranks(2);
  int memory[2] = {};
  ncclWindow_t windows[2] = {};
  ASSERT_NCCL(ncclGroupStart());
  for (int r = 0; r < 2; ++r) {
    EXPECT_NCCL(ncclCommWindowRegister(ranks[r], &memory[r], sizeof memory[r], &windows[r], 0));
  }
  ASSERT_NCCL(ncclGroupEnd());
  EXPECT_NCCL(ncclSignal(1, 0, 0, 0, ranks[0], nullptr));
  std::atomic<bool> waits{false};
  std::atomic<bool> second{false};
  std::thread waiter([&] {
    ncclWaitSignalDesc_t both[] = {{1, 0, 0, 0}, {1, 0, 0, 0}};
    waits = true;
    EXPECT_NCCL(ncclWaitSignal(2, both, ranks[1], nullptr));
    EXPECT_TRUE(second) << "one signal was taken for two";
  });
  while (!waits) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));  // time for what is wrong to show
  second = true;
  EXPECT_NCCL(ncclSignal(1, 0, 0, 0, ranks[0], nullptr));
  waiter.join();
  for (int r = 0; r < 2; ++r) EXPECT_NCCL(ncclCommWindowDeregister(ranks[r], windows[r]));
}

// ---- Operations ---------------------------------------------------------------------------------

// An average of whole numbers is the sum, divided as C divides.
TEST(NcclDocumented, AnAverageOfWholeNumbersIsCutTowardsZero) {
  const AllRanks ranks(2);
  int values[2] = {-3, 0};
  uint8_t small[2] = {3, 4};
  ASSERT_NCCL(ncclGroupStart());
  for (int r = 0; r < 2; ++r) {
    EXPECT_NCCL(ncclAllReduce(&values[r], &values[r], 1, ncclInt, ncclAvg, ranks[r], nullptr));
    EXPECT_NCCL(ncclAllReduce(&small[r], &small[r], 1, ncclUint8, ncclAvg, ranks[r], nullptr));
  }
  ASSERT_NCCL(ncclGroupEnd());
  for (const int value : values) EXPECT_EQ(value, -1);
  for (const uint8_t value : small) EXPECT_EQ(value, 3);
}

TEST(NcclDocumented, ReadingAnErrorDoesNotClearIt) {
  int count = 0;
  EXPECT_EQ(ncclCommCount(nullptr, &count), ncclInvalidArgument);
  const std::string first = ncclGetLastError(nullptr);
  EXPECT_NE(first.find("ncclCommCount"), std::string::npos) << first;
  EXPECT_EQ(ncclGetLastError(nullptr), first);
}

// ---- Parameters ---------------------------------------------------------------------------------

TEST(NcclDocumented, WhatIsNoParameterLeavesTheHandleAndWhatDoesNotFitTellsItsSize) {
  ncclParamHandle_t handle = nullptr;
  ASSERT_NCCL(ncclParamBind(&handle, "NCCL_SHM_DISABLE"));
  const ncclParamHandle_t before = handle;
  EXPECT_EQ(ncclParamBind(&handle, "NCCL_NO_SUCH_THING"), ncclInvalidArgument);
  EXPECT_EQ(handle, before) << "is left unmodified";
  setenv("NCCL_SHM_DISABLE", "12345", 1);
  char text[5] = {};
  int bytes = 0;
  EXPECT_EQ(ncclParamGet(handle, text, 4, &bytes), ncclInvalidArgument);
  EXPECT_EQ(bytes, 5) << "what is needed";
  EXPECT_NCCL(ncclParamGet(handle, text, bytes, &bytes));
  EXPECT_EQ(std::string(text, 5), "12345");
  unsetenv("NCCL_SHM_DISABLE");
}

}  // namespace
}  // namespace weir::nccl::test
