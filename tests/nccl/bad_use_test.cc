// SPDX-License-Identifier: Apache-2.0
// Exported functions with wrong arguments: what is no communicator, each argument of each
// operation, and ranks that do not agree. The answer is a result that NCCL has, with a text that
// names the call; the communicators go on.
#include <gtest/gtest.h>

#include <barrier>
#include <chrono>
#include <climits>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "nccl/support.h"
#include "nccl/wrong_calls.h"
#include "weir/nccl_device.h"

namespace weir::nccl::test {
namespace {

// ---- What is no communicator --------------------------------------------------------------------

struct OfComm {
  const char* name;
  std::function<ncclResult_t(ncclComm_t)> call;
};

// Arguments that would do on a communicator of one rank.
struct Arguments {
  int a[4] = {};
  int b[4] = {};
  int number = 0;
  uint64_t wide = 0;
  void* pointer = nullptr;
  ncclComm_t made = nullptr;
  ncclWindow_t window = nullptr;
  ncclRedOp_t op = ncclSum;
  ncclUniqueId id{};
  ncclResult_t state = ncclSuccess;
  ncclWaitSignalDesc_t signal{0, 0, 0, 0};
  ncclCommProperties properties{};
};

std::vector<OfComm> functions_of_comm(Arguments& it) {
  const auto type = ncclInt;
  return {
      {"ncclCommSplit", [&](ncclComm_t c) { return ncclCommSplit(c, 0, 0, &it.made, nullptr); }},
      {"ncclCommShrink",
       [&](ncclComm_t c) { return ncclCommShrink(c, it.a, 1, &it.made, nullptr, 0); }},
      {"ncclCommGetUniqueId", [&](ncclComm_t c) { return ncclCommGetUniqueId(c, &it.id); }},
      {"ncclCommFinalize", [&](ncclComm_t c) { return ncclCommFinalize(c); }},
      {"ncclCommRevoke", [&](ncclComm_t c) { return ncclCommRevoke(c, 0); }},
      {"ncclCommGetAsyncError", [&](ncclComm_t c) { return ncclCommGetAsyncError(c, &it.state); }},
      {"ncclCommCount", [&](ncclComm_t c) { return ncclCommCount(c, &it.number); }},
      {"ncclCommCuDevice", [&](ncclComm_t c) { return ncclCommCuDevice(c, &it.number); }},
      {"ncclCommUserRank", [&](ncclComm_t c) { return ncclCommUserRank(c, &it.number); }},
      {"ncclCommSuspend", [&](ncclComm_t c) { return ncclCommSuspend(c, NCCL_SUSPEND_MEM); }},
      {"ncclCommResume", [&](ncclComm_t c) { return ncclCommResume(c); }},
      {"ncclCommMemStats",
       [&](ncclComm_t c) { return ncclCommMemStats(c, ncclStatGpuMemTotal, &it.wide); }},
      {"ncclCommQueryProperties",
       [&](ncclComm_t c) { return ncclCommQueryProperties(c, &it.properties); }},
      {"ncclCommRegister",
       [&](ncclComm_t c) { return ncclCommRegister(c, it.a, sizeof it.a, &it.pointer); }},
      {"ncclCommDeregister", [&](ncclComm_t c) { return ncclCommDeregister(c, it.a); }},
      {"ncclCommWindowRegister",
       [&](ncclComm_t c) { return ncclCommWindowRegister(c, it.a, sizeof it.a, &it.window, 0); }},
      {"ncclCommWindowDeregister",
       [&](ncclComm_t c) { return ncclCommWindowDeregister(c, it.window); }},
      {"ncclWinGetUserPtr",
       [&](ncclComm_t c) { return ncclWinGetUserPtr(c, it.window, &it.pointer); }},
      {"ncclRedOpCreatePreMulSum",
       [&](ncclComm_t c) {
         return ncclRedOpCreatePreMulSum(&it.op, it.a, type, ncclScalarHostImmediate, c);
       }},
      {"ncclRedOpDestroy", [&](ncclComm_t c) { return ncclRedOpDestroy(it.op, c); }},
      {"ncclReduce",
       [&](ncclComm_t c) { return ncclReduce(it.a, it.b, 1, type, ncclSum, 0, c, nullptr); }},
      {"ncclBcast", [&](ncclComm_t c) { return ncclBcast(it.a, 1, type, 0, c, nullptr); }},
      {"ncclBroadcast",
       [&](ncclComm_t c) { return ncclBroadcast(it.a, it.b, 1, type, 0, c, nullptr); }},
      {"ncclAllReduce",
       [&](ncclComm_t c) { return ncclAllReduce(it.a, it.b, 1, type, ncclSum, c, nullptr); }},
      {"ncclReduceScatter",
       [&](ncclComm_t c) { return ncclReduceScatter(it.a, it.b, 1, type, ncclSum, c, nullptr); }},
      {"ncclAllGather",
       [&](ncclComm_t c) { return ncclAllGather(it.a, it.b, 1, type, c, nullptr); }},
      {"ncclAlltoAll", [&](ncclComm_t c) { return ncclAlltoAll(it.a, it.b, 1, type, c, nullptr); }},
      {"ncclGather", [&](ncclComm_t c) { return ncclGather(it.a, it.b, 1, type, 0, c, nullptr); }},
      {"ncclScatter",
       [&](ncclComm_t c) { return ncclScatter(it.a, it.b, 1, type, 0, c, nullptr); }},
      {"ncclReduce",
       [&](ncclComm_t c) {
         return ncclReduceConfig(it.a, it.b, 1, type, ncclSum, 0, c, nullptr, nullptr);
       }},
      {"ncclBroadcast",
       [&](ncclComm_t c) {
         return ncclBroadcastConfig(it.a, it.b, 1, type, 0, c, nullptr, nullptr);
       }},
      {"ncclAllReduce",
       [&](ncclComm_t c) {
         return ncclAllReduceConfig(it.a, it.b, 1, type, ncclSum, c, nullptr, nullptr);
       }},
      {"ncclReduceScatter",
       [&](ncclComm_t c) {
         return ncclReduceScatterConfig(it.a, it.b, 1, type, ncclSum, c, nullptr, nullptr);
       }},
      {"ncclAllGather",
       [&](ncclComm_t c) { return ncclAllGatherConfig(it.a, it.b, 1, type, c, nullptr, nullptr); }},
      {"ncclAlltoAll",
       [&](ncclComm_t c) { return ncclAlltoAllConfig(it.a, it.b, 1, type, c, nullptr, nullptr); }},
      {"ncclGather",
       [&](ncclComm_t c) { return ncclGatherConfig(it.a, it.b, 1, type, 0, c, nullptr, nullptr); }},
      {"ncclScatter",
       [&](ncclComm_t c) {
         return ncclScatterConfig(it.a, it.b, 1, type, 0, c, nullptr, nullptr);
       }},
      {"ncclSend", [&](ncclComm_t c) { return ncclSend(it.a, 1, type, 0, c, nullptr); }},
      {"ncclRecv", [&](ncclComm_t c) { return ncclRecv(it.a, 1, type, 0, c, nullptr); }},
      {"ncclPutSignal",
       [&](ncclComm_t c) {
         return ncclPutSignal(it.a, 1, type, 0, it.window, 0, 0, 0, 0, c, nullptr);
       }},
      {"ncclSignal", [&](ncclComm_t c) { return ncclSignal(0, 0, 0, 0, c, nullptr); }},
      {"ncclWaitSignal", [&](ncclComm_t c) { return ncclWaitSignal(1, &it.signal, c, nullptr); }},
      {"ncclTeamWorld",
       [&](ncclComm_t c) {
         return ncclTeamWorld(c).nRanks == 0 ? ncclInvalidArgument : ncclSuccess;
       }},
      {"ncclTeamLsa",
       [&](ncclComm_t c) {
         return ncclTeamLsa(c).nRanks == 0 ? ncclInvalidArgument : ncclSuccess;
       }},
      {"ncclTeamRail",
       [&](ncclComm_t c) {
         return ncclTeamRail(c).nRanks == 0 ? ncclInvalidArgument : ncclSuccess;
       }},
  };
}

TEST(NcclBadUse, WhatIsNoCommunicatorIsAnInvalidArgumentOfEveryFunctionThatTakesOne) {
  Arguments it;
  const Forbidden forbidden;
  std::vector<uint64_t> zeros(64);
  char bytes[64] = {};
  ncclComm_t destroyed[2] = {};
  ASSERT_NCCL(ncclCommInitAll(destroyed, 2, nullptr));
  EXPECT_NCCL(ncclCommDestroy(destroyed[0]));
  EXPECT_NCCL(ncclCommAbort(destroyed[1]));
  const std::vector<void*> none = {nullptr,
                                   destroyed[0],
                                   destroyed[1],
                                   forbidden.get(),
                                   zeros.data(),
                                   bytes + 1,
                                   &it,
                                   reinterpret_cast<void*>(1),
                                   reinterpret_cast<void*>(~uintptr_t{7})};
  for (void* pointer : none) {
    const auto comm = static_cast<ncclComm_t>(pointer);
    for (const OfComm& function : functions_of_comm(it)) {
      EXPECT_EQ(function.call(comm), ncclInvalidArgument) << function.name << " " << pointer;
      expect_error_with({std::string(function.name) + ": comm"});
    }
    if (pointer == nullptr) continue;  // nothing to end, and a new rank that grows
    EXPECT_EQ(ncclCommDestroy(comm), ncclInvalidArgument) << pointer;
    EXPECT_EQ(ncclCommAbort(comm), ncclInvalidArgument) << pointer;
    EXPECT_EQ(ncclCommGrow(comm, 2, nullptr, -1, &it.made, nullptr), ncclInvalidArgument);
    expect_error_with({"ncclCommGrow: comm"});
    EXPECT_STRNE(ncclGetLastError(comm), "");
  }
}

// ---- Wrong arguments of operations --------------------------------------------------------------

TEST(NcclBadUse, EveryArgumentOfEveryOperationIsNamedWithTheRank) {
  const AllRanks ranks(2);
  const ncclComm_t comm = ranks[1];
  int a[8] = {};
  int b[8] = {};
  for (const Operation& it : operations()) {
    const auto refused = [&](const void* send, void* recv, size_t count, int type, int op, int root,
                             const std::string& argument) {
      EXPECT_EQ(it.call(send, recv, count, type, op, root, comm), ncclInvalidArgument)
          << it.name << " " << argument;
      expect_error_with({it.name, "rank 1 of 2", argument});
    };
    for (const int type : {-1, 12, INT_MAX, INT_MIN}) {
      refused(a, b, 1, type, ncclSum, 1, "datatype " + std::to_string(type));
    }
    for (const int op : {-1, 5, INT_MAX, INT_MIN}) {
      if (it.reduces) refused(a, b, 1, ncclInt, op, 1, "op " + std::to_string(op));
    }
    for (const int root : {-1, 2, INT_MAX, INT_MIN}) {
      if (it.one_rank == nullptr) continue;
      refused(a, b, 1, ncclInt, ncclSum, root, it.one_rank + (" " + std::to_string(root)));
    }
    for (const size_t count : {SIZE_MAX, SIZE_MAX / 2, SIZE_MAX / 4 + 1, size_t{PTRDIFF_MAX}}) {
      refused(a, b, count, ncclDouble, ncclSum, 1, "count " + std::to_string(count));
    }
    if (it.sends) refused(nullptr, b, 1, ncclInt, ncclSum, 1, "sendbuff is NULL");
    if (it.receives)
      refused(a, nullptr, 1, ncclInt, ncclSum, 1, it.sends ? "recvbuff is NULL" : "buff is NULL");
  }
  EXPECT_TRUE(sums_up(ranks)) << "the communicator is as before";
}

// ---- Ranks that do not agree --------------------------------------------------------------------

// What rank `r` of two calls: everything but one argument is the same on both. (Roots of a
// broadcast or a scatter wait for nobody, so that two of them do not find each other.)
struct Disagreement {
  const char* what;
  std::function<ncclResult_t(int r, ncclComm_t comm, int* a, int* b)> call;
};

const std::vector<Disagreement>& disagreements() {
  static const std::vector<Disagreement> all = {
      {"counts of an all-reduce",
       [](int r, ncclComm_t comm, int* a, int* b) {
         return ncclAllReduce(a, b, r == 0 ? 3 : 4, ncclInt, ncclSum, comm, nullptr);
       }},
      {"nothing and something",
       [](int r, ncclComm_t comm, int* a, int* b) {
         return ncclAllReduce(a, b, r == 0 ? 0 : 4, ncclInt, ncclSum, comm, nullptr);
       }},
      {"counts of an all-gather",
       [](int r, ncclComm_t comm, int* a, int* b) {
         return ncclAllGather(a, b, r == 0 ? 2 : 1, ncclInt, comm, nullptr);
       }},
      {"counts of a reduce-scatter",
       [](int r, ncclComm_t comm, int* a, int* b) {
         return ncclReduceScatter(a, b, r == 0 ? 2 : 1, ncclInt, ncclSum, comm, nullptr);
       }},
      {"counts of an all-to-all",
       [](int r, ncclComm_t comm, int* a, int* b) {
         return ncclAlltoAll(a, b, r == 0 ? 2 : 1, ncclInt, comm, nullptr);
       }},
      {"counts of a gather",
       [](int r, ncclComm_t comm, int* a, int* b) {
         return ncclGather(a, b, r == 0 ? 2 : 1, ncclInt, 0, comm, nullptr);
       }},
      {"counts of a scatter",
       [](int r, ncclComm_t comm, int* a, int* b) {
         return ncclScatter(a, b, r == 0 ? 2 : 1, ncclInt, 0, comm, nullptr);
       }},
      {"counts of a broadcast",
       [](int r, ncclComm_t comm, int* a, int* b) {
         return ncclBroadcast(a, b, r == 0 ? 2 : 1, ncclInt, 0, comm, nullptr);
       }},
      {"types",
       [](int r, ncclComm_t comm, int* a, int* b) {
         return ncclAllReduce(a, b, 2, r == 0 ? ncclInt : ncclFloat, ncclSum, comm, nullptr);
       }},
      {"reductions",
       [](int r, ncclComm_t comm, int* a, int* b) {
         return ncclReduce(a, b, 2, ncclInt, r == 0 ? ncclMin : ncclMax, 0, comm, nullptr);
       }},
      {"roots of a reduce",
       [](int r, ncclComm_t comm, int* a, int* b) {
         return ncclReduce(a, b, 2, ncclInt, ncclSum, r, comm, nullptr);
       }},
      {"roots of a gather", [](int r, ncclComm_t comm, int* a,
                               int* b) { return ncclGather(a, b, 2, ncclInt, r, comm, nullptr); }},
      {"operations",
       [](int r, ncclComm_t comm, int* a, int* b) {
         return r == 0 ? ncclAllGather(a, b, 2, ncclInt, comm, nullptr)
                       : ncclAlltoAll(a, b, 2, ncclInt, comm, nullptr);
       }},
      {"with a factor and without one",
       [](int r, ncclComm_t comm, int* a, int* b) {
         ncclRedOp_t op = ncclSum;
         int two = 2;
         if (r == 0) {
           EXPECT_NCCL(ncclRedOpCreatePreMulSum(&op, &two, ncclInt, ncclScalarHostImmediate, comm));
         }
         return ncclAllReduce(a, b, 2, ncclInt, op, comm, nullptr);
       }},
  };
  return all;
}

TEST(NcclBadUse, RanksThatCallOtherwiseAreNamedWhateverIsOther) {
  for (const Disagreement& it : disagreements()) {
    ncclComm_t comms[2] = {};
    ASSERT_NCCL(ncclCommInitAll(comms, 2, nullptr));
    int a[2][8] = {};
    int b[2][8] = {};
    ASSERT_NCCL(ncclGroupStart());
    for (int r = 0; r < 2; ++r) EXPECT_NCCL(it.call(r, comms[r], a[r], b[r])) << it.what;
    EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage) << it.what;
    expect_error_with({"rank 0", "rank 1"});
    ncclResult_t state = ncclSuccess;
    EXPECT_NCCL(ncclCommGetAsyncError(comms[0], &state));
    EXPECT_EQ(state, ncclInvalidUsage) << it.what;
    for (ncclComm_t comm : comms) EXPECT_NCCL(ncclCommAbort(comm));
  }
}

// None waits out its deadline, which is half an hour here, wherever the data lie and however late a
// rank calls.
TEST(NcclBadUse, ThreadsWithDifferentCountsAllLearnItAtOnce) {
  for (const bool in_window : {false, true}) {
    for (const size_t count : {size_t{1}, size_t{5000}, size_t{100000}}) {
      for (int late = -1; late < 3; ++late) {
        std::barrier ready(3);  // a failure may end what another rank still does before
        run_threads(3, [&](int rank, ncclComm_t comm) {
          std::vector<float> own(3 * count);
          void* memory = own.data();
          ncclWindow_t window = nullptr;
          if (in_window) {
            ASSERT_NCCL(ncclMemAlloc(&memory, 3 * count * sizeof(float)));
            ASSERT_NCCL(ncclCommWindowRegister(comm, memory, 3 * count * sizeof(float), &window,
                                               NCCL_WIN_COLL_SYMMETRIC));
          }
          ready.arrive_and_wait();
          if (rank == late) std::this_thread::sleep_for(std::chrono::milliseconds(30));
          const auto begin = std::chrono::steady_clock::now();
          EXPECT_EQ(ncclAllReduce(memory, memory, count * (static_cast<size_t>(rank) + 1),
                                  ncclFloat, ncclSum, comm, nullptr),
                    ncclInvalidUsage)
              << "rank " << rank << ", late " << late;
          EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
          expect_error_with({"made different calls", "ncclAllReduce(ncclFloat32, ncclSum, count "});
          EXPECT_NCCL(ncclMemFree(in_window ? memory : nullptr));
        });
      }
    }
  }
}

TEST(NcclBadUse, AMessageOfAnotherSizeIsToldByWhoReceivesIt) {
  for (const auto& [sent, wanted] :
       {std::pair<size_t, size_t>{4, 3}, {3, 4}, {100000, 3}, {0, 3}}) {
    ncclComm_t comms[2] = {};
    ASSERT_NCCL(ncclCommInitAll(comms, 2, nullptr));
    std::vector<int> out(100000, 1);
    std::vector<int> in(100000, 7);
    ASSERT_NCCL(ncclGroupStart());
    EXPECT_NCCL(ncclSend(out.data(), sent, ncclInt, 1, comms[0], nullptr));
    EXPECT_NCCL(ncclRecv(in.data(), wanted, ncclInt, 0, comms[1], nullptr));
    EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage) << sent << " for " << wanted;
    expect_error_with({"rank 0", std::to_string(4 * sent), std::to_string(4 * wanted)});
    for (size_t i = wanted; i < in.size(); ++i) ASSERT_EQ(in[i], 7) << "beyond what was asked for";
    for (ncclComm_t comm : comms) EXPECT_NCCL(ncclCommAbort(comm));
  }
}

}  // namespace
}  // namespace weir::nccl::test
