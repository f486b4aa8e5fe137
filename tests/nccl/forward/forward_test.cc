// SPDX-License-Identifier: Apache-2.0
// Communicators that go to the real NCCL, which a library of the tests plays; WEIR_BACKEND is unset
// and a driver with eight devices is there.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "nccl/forward/forward_support.h"

namespace weir::nccl::test {
namespace {

TEST(NcclForward, TheHandleIsTheRealOneAndIsMadeOnTheCallersDevice) {
  const NcclDouble nccl_double;
  run_on_devices({4, 2, 7}, [&](int rank, ncclComm_t comm) {
    ASSERT_TRUE(is_real(comm));
    EXPECT_EQ(nccl_double.device_of(comm), (std::vector<int>{4, 2, 7}[static_cast<size_t>(rank)]));
    EXPECT_EQ(sum_on(comm, rank), NCCL_DOUBLE_SUM + rank);
    int count = 0;
    EXPECT_NCCL(ncclCommCount(comm, &count));
    EXPECT_EQ(count, 3);
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
  EXPECT_EQ(nccl_double.alive(), 0);
}

TEST(NcclForward, InitAllUsesTheDevicesOfItsList) {
  const NcclDouble nccl_double;
  const int devices[] = {3, 1};
  ncclComm_t comms[2] = {};
  ASSERT_NCCL(ncclCommInitAll(comms, 2, devices));
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(is_real(comms[rank]));
    EXPECT_EQ(nccl_double.device_of(comms[rank]), devices[rank]);
    EXPECT_NCCL(ncclCommDestroy(comms[rank]));
  }
  EXPECT_EQ(nccl_double.alive(), 0);
}

TEST(NcclForward, InitAllOfMoreRanksThanDevicesRunsOnWeir) {
  const NcclDouble nccl_double;
  const int calls = nccl_double.calls("ncclCommInitRankConfig");
  const AllRanks ranks(12);
  EXPECT_FALSE(is_real(ranks[0]));
  EXPECT_TRUE(sums_up(ranks));
  EXPECT_EQ(nccl_double.calls("ncclCommInitRankConfig"), calls);
}

TEST(NcclForward, AGroupThatMakesCommunicatorsHandsOutRealOnesAtItsEnd) {
  const NcclDouble nccl_double;
  const ncclUniqueId id = make_id();
  ncclComm_t comms[2] = {};
  ASSERT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < 2; ++rank) {
    choose_device(5 + rank);
    std::string name = "rank " + std::to_string(rank);  // gone when the group ends
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.commName = name.c_str();
    EXPECT_NCCL(ncclCommInitRankConfig(&comms[rank], 2, id, rank, &config));
  }
  ASSERT_NCCL(ncclGroupEnd());
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(is_real(comms[rank]));
    EXPECT_EQ(nccl_double.device_of(comms[rank]), 5 + rank);
    EXPECT_EQ(nccl_double.name_of(comms[rank]), "rank " + std::to_string(rank));
    EXPECT_NCCL(ncclCommDestroy(comms[rank]));
  }
}

TEST(NcclForward, ANonblockingCommunicatorKeepsTheHandleThatItHadAtOnce) {
  const NcclDouble nccl_double;
  const ncclUniqueId id = make_id();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      choose_device(rank);
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      ncclComm_t comm = nullptr;
      const ncclResult_t started = ncclCommInitRankConfig(&comm, 2, id, rank, &config);
      ASSERT_EQ(started, ncclInProgress);
      ASSERT_NE(comm, nullptr);
      const ncclComm_t handle = comm;
      EXPECT_EQ(settle(comm), ncclSuccess);
      EXPECT_EQ(comm, handle);
      EXPECT_EQ(sum_on(comm, rank), NCCL_DOUBLE_SUM + rank);
      EXPECT_NCCL(ncclCommDestroy(comm));
      int count = 0;
      EXPECT_EQ(ncclCommCount(handle, &count), ncclInvalidArgument);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(nccl_double.alive(), 0);
}

TEST(NcclForward, WhatARealCommunicatorMakesIsReal) {
  run_on_devices({0, 1}, [&](int rank, ncclComm_t comm) {
    ncclComm_t child = nullptr;
    ASSERT_NCCL(ncclCommSplit(comm, 0, rank, &child, nullptr));
    ASSERT_TRUE(is_real(child));
    EXPECT_EQ(sum_on(child, rank), NCCL_DOUBLE_SUM + rank);
    EXPECT_NCCL(ncclCommAbort(child));
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

TEST(NcclForward, ACommunicatorThatTheRealLibraryMadeByItselfIsServed) {
  const NcclDouble nccl_double;
  ncclUniqueId id;
  ncclComm_t comm = nullptr;
  ASSERT_EQ(nccl_double.get<decltype(ncclGetUniqueId)>("ncclGetUniqueId")(&id), ncclSuccess);
  ASSERT_EQ(nccl_double.get<decltype(ncclCommInitRank)>("ncclCommInitRank")(&comm, 1, id, 0),
            ncclSuccess);
  EXPECT_EQ(sum_on(comm, 0), NCCL_DOUBLE_SUM);
  EXPECT_NCCL(ncclCommDestroy(comm));
  // An id of the real library's says where to meet.
  ASSERT_NCCL(ncclCommInitRank(&comm, 1, id, 0));
  EXPECT_TRUE(is_real(comm));
  EXPECT_NCCL(ncclCommDestroy(comm));
}

TEST(NcclForward, OfSeveralUniqueIdsTheRealLibraryGetsAsManyOfItsOwn) {
  const NcclDouble nccl_double;
  const std::vector<ncclUniqueId> ids = {make_id(), make_id(), make_id()};
  const int made = nccl_double.calls("ncclGetUniqueId");
  const int calls = nccl_double.calls("ncclCommInitRankScalable");
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 5; ++rank) {
    threads.emplace_back([&, rank] {
      choose_device(rank);
      std::vector<ncclUniqueId> mine = ids;
      ncclComm_t comm = nullptr;
      ASSERT_NCCL(ncclCommInitRankScalable(&comm, 5, rank, 3, mine.data(), nullptr));
      EXPECT_TRUE(is_real(comm));
      EXPECT_EQ(sum_on(comm, rank), NCCL_DOUBLE_SUM + rank);
      EXPECT_NCCL(ncclCommDestroy(comm));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(nccl_double.calls("ncclGetUniqueId"), made + 3);
  EXPECT_EQ(nccl_double.calls("ncclCommInitRankScalable"), calls + 5);
}

// The program is linked with the library under test, which so comes first for everybody else.
TEST(NcclForward, TheRealLibrarysCallsOfItsOwnExportsComeBack) {
  const NcclDouble nccl_double;
  EXPECT_EQ(nccl_double.get<int()>("nccl_double_binds_to_itself")(), 0);
  // It gets an id, opens a group and makes communicators, all by calls of its own exports.
  const int calls = nccl_double.calls("ncclCommInitRankConfig");
  ncclComm_t comms[2] = {};
  ASSERT_EQ(nccl_double.get<decltype(ncclCommInitAll)>("ncclCommInitAll")(comms, 2, nullptr),
            ncclSuccess);
  EXPECT_EQ(nccl_double.calls("ncclCommInitRankConfig"), calls + 2);
  for (ncclComm_t comm : comms) {
    ASSERT_TRUE(is_real(comm));
    EXPECT_NCCL(ncclCommDestroy(comm));
  }
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage) << "its group is closed, and ours was never open";
}

TEST(NcclForward, RanksThatShareAGpuRunOnWeir) {
  const NcclDouble nccl_double;
  const int calls = nccl_double.calls("ncclCommInitRankConfig");
  run_on_devices({1, 0, 1}, [&](int rank, ncclComm_t comm) {
    EXPECT_FALSE(is_real(comm));
    EXPECT_EQ(sum_on(comm, rank), 6);
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
  EXPECT_EQ(nccl_double.calls("ncclCommInitRankConfig"), calls);
}

// The ranks that do not fail wait for the one that does for ever, as NCCL's would.
TEST(NcclForward, WhenOneRankFailsToStartAllGoOnWithWeirAndItIsSaidOnce) {
  const NcclDouble nccl_double;
  nccl_double.fail(1, ncclInvalidUsage, true);
  testing::internal::CaptureStderr();
  run_on_devices({0, 1, 2}, [&](int rank, ncclComm_t comm) {
    EXPECT_FALSE(is_real(comm));
    EXPECT_EQ(sum_on(comm, rank), 6);
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
  nccl_double.fail(-1, ncclSuccess, false);
  const std::string said = testing::internal::GetCapturedStderr();
  const std::string words = "uses Weir's transports instead";
  const size_t at = said.find(words);
  ASSERT_NE(at, std::string::npos) << said;
  EXPECT_EQ(said.find(words, at + 1), std::string::npos) << said;
  EXPECT_NE(said.find("failed on rank 1"), std::string::npos) << said;
  EXPECT_NE(said.find("Duplicate GPU"), std::string::npos) << said;
}

TEST(NcclForward, ANonblockingCommunicatorFallsToWeirToo) {
  const NcclDouble nccl_double;
  nccl_double.fail(0, ncclUnhandledCudaError, false);
  const ncclUniqueId id = make_id();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      choose_device(rank);
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      ncclComm_t comm = nullptr;
      ASSERT_EQ(ncclCommInitRankConfig(&comm, 2, id, rank, &config), ncclInProgress);
      ASSERT_EQ(settle(comm), ncclSuccess) << ncclGetLastError(comm);
      int sum = rank + 1;
      EXPECT_EQ(ncclAllReduce(&sum, &sum, 1, ncclInt, ncclSum, comm, nullptr), ncclInProgress);
      EXPECT_EQ(settle(comm), ncclSuccess);
      EXPECT_EQ(sum, 3);
      EXPECT_NCCL(ncclCommDestroy(comm));
    });
  }
  for (std::thread& thread : threads) thread.join();
  nccl_double.fail(-1, ncclSuccess, false);
  // What the other rank has made is ended, by the thread that makes it.
  while (nccl_double.alive() != 0) std::this_thread::yield();
}

TEST(NcclForward, AGroupMayMixBothKindsAndNothingStartsBeforeItsEnd) {
  const NcclDouble nccl_double;
  const int shared[] = {0, 0};
  const int apart[] = {0, 1};
  ncclComm_t own[2] = {}, real[2] = {};
  ASSERT_NCCL(ncclCommInitAll(own, 2, shared));
  ASSERT_NCCL(ncclCommInitAll(real, 2, apart));
  ASSERT_FALSE(is_real(own[0]));
  ASSERT_TRUE(is_real(real[0]));
  const int started = nccl_double.started();
  int sums[2] = {}, reals[2] = {};
  ASSERT_NCCL(ncclGroupStart());
  ASSERT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_NCCL(sum_of_ranks(own[rank], rank, &sums[rank]));
    EXPECT_NCCL(sum_of_ranks(real[rank], rank, &reals[rank]));
  }
  ASSERT_NCCL(ncclGroupEnd());
  EXPECT_EQ(nccl_double.started(), started);
  EXPECT_EQ(sums[0], 1);
  ASSERT_NCCL(ncclGroupEnd());
  EXPECT_EQ(nccl_double.started(), started + 2);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(sums[rank], 3);
    EXPECT_EQ(reals[rank], NCCL_DOUBLE_SUM + rank);
    EXPECT_NCCL(ncclCommDestroy(own[rank]));
    EXPECT_NCCL(ncclCommDestroy(real[rank]));
  }
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage) << "both are told the same depth";
}

TEST(NcclForward, ASimulatedGroupEndsInBoth) {
  const NcclDouble nccl_double;
  const int ends = nccl_double.calls("ncclGroupSimulateEnd");
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  ASSERT_NCCL(ncclGroupStart());
  info.magic = 1;
  EXPECT_EQ(ncclGroupSimulateEnd(&info), ncclInvalidArgument) << "the group stays open";
  info.magic = 0x74685283;
  EXPECT_NCCL(ncclGroupSimulateEnd(&info));
  EXPECT_EQ(nccl_double.calls("ncclGroupSimulateEnd"), ends + 1);
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
}

TEST(NcclForward, TheVersionIsTheRealLibrarys) {
  int version = 0;
  EXPECT_NCCL(ncclGetVersion(&version));
  EXPECT_EQ(version, 23299);
}

TEST(NcclForward, TheLastErrorIsOfTheLibraryThatFailedLast) {
  run_on_devices({0}, [&](int, ncclComm_t comm) {
    float value = 0;
    EXPECT_EQ(ncclAllReduce(&value, &value, 1, ncclFloat, ncclSum, comm, nullptr),
              ncclInvalidArgument);
    EXPECT_STREQ(ncclGetLastError(comm), "double: only ints");
    EXPECT_STREQ(ncclGetLastError(nullptr), "double: only ints");
    int count = 0;
    EXPECT_EQ(ncclCommCount(nullptr, &count), ncclInvalidArgument);
    expect_error_with({"ncclCommCount", "NULL"});
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

TEST(NcclForward, MemoryGoesBackToTheLibraryThatGaveIt) {
  const NcclDouble nccl_double;
  void* memory = nullptr;
  const int freed = nccl_double.calls("ncclMemFree");
  ASSERT_NCCL(ncclMemAlloc(&memory, 4096));
  EXPECT_GE(nccl_double.calls("ncclMemAlloc"), 1);
  // It is not a child's to give back.
  const pid_t child = fork();
  if (child == 0) {
    const bool is_refused = ncclMemFree(memory) == ncclInvalidUsage;
    _exit(is_refused && nccl_double.calls("ncclMemFree") == freed ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_NCCL(ncclMemFree(memory));
  EXPECT_EQ(nccl_double.calls("ncclMemFree"), freed + 1);
  int other = 0;
  EXPECT_EQ(ncclMemFree(&other), ncclInvalidArgument);
  EXPECT_EQ(nccl_double.calls("ncclMemFree"), freed + 1);
}

// A simulated end is one of both libraries (above); that of no group is Weir's to refuse.
TEST(NcclForward, EveryFunctionOfARealCommunicatorIsTheRealOnes) {
  const NcclDouble nccl_double;
  run_on_devices({0}, [&](int, ncclComm_t comm) {
    ASSERT_TRUE(is_real(comm));
    expect_every_function_to_be_the_real_ones(nccl_double, comm, "GroupSimulateEnd");
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

TEST(NcclForward, AHandleThatIsNoneIsAnErrorAndNoCrash) {
  int count = 0;
  for (const uintptr_t value : {uintptr_t{1}, uintptr_t{0x1230}, ~uintptr_t{0xffff}}) {
    EXPECT_EQ(ncclCommCount(reinterpret_cast<ncclComm_t>(value), &count), ncclInvalidArgument);
  }
  alignas(8) char zeros[64] = {};
  EXPECT_EQ(ncclCommCount(reinterpret_cast<ncclComm_t>(zeros), &count), ncclInvalidArgument);
}

TEST(NcclForward, MoreCommunicatorsThanTheTableOfKnownOnesHolds) {
  const NcclDouble nccl_double;
  ncclUniqueId id;
  auto* make = nccl_double.get<decltype(ncclCommInitRank)>("ncclCommInitRank");
  ASSERT_EQ(nccl_double.get<decltype(ncclGetUniqueId)>("ncclGetUniqueId")(&id), ncclSuccess);
  std::vector<ncclComm_t> comms(1500);
  for (ncclComm_t& comm : comms) ASSERT_EQ(make(&comm, 1, id, 0), ncclSuccess);
  for (int round = 0; round < 2; ++round) {
    for (ncclComm_t comm : comms) ASSERT_EQ(sum_on(comm, 0), NCCL_DOUBLE_SUM);
  }
  for (ncclComm_t comm : comms) ASSERT_NCCL(ncclCommDestroy(comm));
  EXPECT_EQ(nccl_double.alive(), 0);
}

TEST(NcclForward, AbortFromAnotherThreadEndsAStartThatHangs) {
  const NcclDouble nccl_double;
  nccl_double.fail(5, ncclSystemError, true);  // nobody fails, and all wait for ever
  const ncclUniqueId id = make_id();
  ncclComm_t comm = nullptr;
  std::atomic<bool> waits{false};
  ncclResult_t result = ncclSuccess;
  const int calls = nccl_double.calls("ncclCommInitRankConfig");
  std::thread stuck([&] {
    choose_device(0);
    waits = true;
    result = ncclCommInitRank(&comm, 1, id, 0);
  });
  while (!waits || nccl_double.calls("ncclCommInitRankConfig") == calls) std::this_thread::yield();
  EXPECT_NCCL(ncclCommAbort(comm));
  stuck.join();
  EXPECT_NE(result, ncclSuccess);
  nccl_double.fail(-1, ncclSuccess, false);
}

}  // namespace
}  // namespace weir::nccl::test
