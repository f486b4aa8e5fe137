// SPDX-License-Identifier: Apache-2.0
// Every exported function with wrong arguments: what is no communicator, and then anything at all. The answer
// is a result that NCCL has, with a text that names the call; the process and its communicators go on.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <climits>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "nccl/device_api.h"
#include "nccl/support.h"

namespace weir::nccl::test {
namespace {

// ---- What is no communicator ----------------------------------------------------------------------

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

// Memory that may not be touched.
class Forbidden {
 public:
  Forbidden() : page_(mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    EXPECT_NE(page_, MAP_FAILED);
  }
  ~Forbidden() { munmap(page_, 4096); }
  Forbidden(const Forbidden&) = delete;
  Forbidden& operator=(const Forbidden&) = delete;
  void* get() const { return page_; }

 private:
  void* page_;
};

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

// ---- Wrong arguments of operations ------------------------------------------------------------------

// An operation with all that it may be given; what it does not take is left out.
struct Operation {
  const char* name;
  bool reduces;
  const char* one_rank;  // "root", "peer" or NULL
  bool sends;
  bool receives;
  std::function<ncclResult_t(const void* send, void* recv, size_t count, int type, int op, int root,
                             ncclComm_t comm)>
      call;
};

#define WEIR_OPERATION(name, reduces, one_rank, sends, receives, ...)                         \
  {                                                                                           \
#name, reduces, one_rank, sends, receives,                                                  \
        [](const void* send, void* recv, size_t count, int type, int op, int root,              \
           ncclComm_t comm) {                                                                   \
          (void)send, (void)recv, (void)op, (void)root;                                         \
          const auto t = static_cast<ncclDataType_t>(type);                                     \
          [[maybe_unused]] const auto o = static_cast<ncclRedOp_t>(op);                         \
          return name(__VA_ARGS__, comm, nullptr);                                              \
        } \
  }

const std::vector<Operation>& operations() {
  static const std::vector<Operation> all = {
      WEIR_OPERATION(ncclAllReduce, true, nullptr, true, true, send, recv, count, t, o),
      WEIR_OPERATION(ncclReduce, true, "root", true, true, send, recv, count, t, o, root),
      WEIR_OPERATION(ncclReduceScatter, true, nullptr, true, true, send, recv, count, t, o),
      WEIR_OPERATION(ncclBroadcast, false, "root", true, true, send, recv, count, t, root),
      WEIR_OPERATION(ncclBcast, false, "root", false, true, recv, count, t, root),
      WEIR_OPERATION(ncclAllGather, false, nullptr, true, true, send, recv, count, t),
      WEIR_OPERATION(ncclAlltoAll, false, nullptr, true, true, send, recv, count, t),
      WEIR_OPERATION(ncclGather, false, "root", true, true, send, recv, count, t, root),
      WEIR_OPERATION(ncclScatter, false, "root", true, true, send, recv, count, t, root),
      WEIR_OPERATION(ncclSend, false, "peer", true, false, send, count, t, root),
      WEIR_OPERATION(ncclRecv, false, "peer", false, true, recv, count, t, root),
  };
  return all;
}

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

// ---- Ranks that do not agree ------------------------------------------------------------------------

// What rank `r` of two calls: everything but one argument is the same on both. (Roots of a broadcast or a scatter
// wait for nobody, so that two of them do not find each other.)
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

// ---- Anything at all --------------------------------------------------------------------------------

// Random calls on a communicator of one rank, where whatever is right is done at once.
class AnyCalls {
 public:
  explicit AnyCalls(unsigned seed) : random_(seed) {
    std::memset(&config_, 0, sizeof config_);
    renew();
  }
  ~AnyCalls() { EXPECT_NCCL(ncclCommDestroy(comm_)); }
  AnyCalls(const AnyCalls&) = delete;
  AnyCalls& operator=(const AnyCalls&) = delete;

  // Checks that what came back is a result, and that a refusal has a text.
  void run(int calls) {
    for (int i = 0; i < calls; ++i) {
      if (i % 150 == 0) renew();
      const ncclResult_t result = one_call();
      ASSERT_GE(static_cast<int>(result), 0);
      ASSERT_LT(static_cast<int>(result), static_cast<int>(ncclNumResults));
      ASSERT_NE(result, ncclInProgress);
      ASSERT_NE(result, ncclInternalError) << ncclGetLastError(nullptr);
      if (result != ncclSuccess) {
        ASSERT_STRNE(ncclGetLastError(nullptr), "");
      }
    }
  }

 private:
  void renew() {
    EXPECT_NCCL(ncclCommDestroy(comm_));
    gone_ = comm_;
    comm_ = nullptr;
    ASSERT_NCCL(ncclCommInitRank(&comm_, 1, make_id(), 0));
    window_ = nullptr;
    ASSERT_NCCL(ncclCommWindowRegister(comm_, memory_, sizeof memory_, &window_, 0));
  }

  template <typename Value>
  Value any_of(std::initializer_list<Value> values) {
    return values.begin()[random_() % values.size()];
  }
  bool rarely() { return random_() % 4 == 0; }

  void* any_pointer() {
    return any_of<void*>({nullptr, forbidden_.get(), reinterpret_cast<void*>(1), gone_});
  }
  ncclComm_t comm() { return rarely() ? static_cast<ncclComm_t>(any_pointer()) : comm_; }
  ncclWindow_t window() { return rarely() ? static_cast<ncclWindow_t>(any_pointer()) : window_; }
  // Memory is read and written: what is given is NULL or large enough for a small count.
  void* buffer() { return any_of<void*>({nullptr, memory_, memory_ + 64, memory_ + 68}); }
  size_t count() {
    return any_of<size_t>({0, 1, 2, 7, SIZE_MAX, SIZE_MAX / 8 + 1, size_t{PTRDIFF_MAX}});
  }
  int number() { return any_of({-1, 0, 0, 0, 1, 2, 5, 12, INT_MAX, INT_MIN}); }
  ncclDataType_t type() {
    return static_cast<ncclDataType_t>(static_cast<int>(random_() % 14) - 1);
  }
  ncclRedOp_t op() { return static_cast<ncclRedOp_t>(rarely() ? number() : random_() % 5); }
  ncclConfig_t* config() {
    const ncclConfig_t sound = NCCL_CONFIG_INITIALIZER;
    if (rarely()) return nullptr;
    config_ = sound;
    if (rarely()) config_.magic = static_cast<unsigned>(number());
    if (rarely()) config_.size = any_of<size_t>({0, 8, 23, 24, 50, sizeof config_});
    if (rarely()) config_.version = static_cast<unsigned>(number());
    int* fields = &config_.cgaClusterSize;
    if (rarely()) fields[random_() % 3] = number();
    if (rarely()) config_.numRmaSig = number();
    if (rarely()) config_.numRmaCtx = number();
    if (rarely()) config_.rmaEagerInit = number();
    return &config_;
  }
  const ncclCollConfig_t* call_config() {
    const ncclCollConfig_t sound = NCCL_COLLCONFIG_INITIALIZER;
    if (rarely()) return nullptr;
    call_config_ = sound;
    if (rarely()) call_config_.magic = 0;
    if (rarely()) call_config_.size = any_of<size_t>({0, 8, 24, sizeof call_config_});
    if (rarely()) call_config_.CTAPolicy = number();
    if (rarely()) call_config_.forceAlgSelection = number();
    return &call_config_;
  }
  ncclUniqueId id() {
    if (!rarely()) return make_id();
    ncclUniqueId any = make_id();
    for (int i = 0; i < 3; ++i) any.internal[random_() % sizeof any] = static_cast<char>(random_());
    return any;
  }
  // Makers: what is made is ended.
  ncclResult_t end(ncclResult_t result) {
    EXPECT_NCCL(ncclCommDestroy(made_)) << "NULL where none was made";
    made_ = nullptr;
    return result;
  }
  ncclComm_t* place() { return rarely() ? nullptr : &made_; }
  int ranks() { return any_of({1, 1, 0, -1, INT_MIN, 65537, INT_MAX}); }

  ncclResult_t maker() {
    int excluded[] = {number(), number()};
    ncclUniqueId ids[] = {id(), id()};
    switch (random_() % 7) {
      case 0:
        return end(ncclCommInitRank(place(), ranks(), ids[0], number()));
      case 1:
        return end(ncclCommInitRankConfig(place(), ranks(), ids[0], number(), config()));
      case 2:
        return end(ncclCommInitRankScalable(place(), ranks(), number(), any_of({-1, 0, 1, 1, 2}),
                                            rarely() ? nullptr : ids, config()));
      case 3:
        return end(ncclCommInitAll(place(), any_of({1, 0, -1, INT_MIN}), excluded));
      case 4:
        return end(ncclCommSplit(comm(), number(), number(), place(), config()));
      case 5:
        return end(ncclCommShrink(comm(), rarely() ? nullptr : excluded,
                                  any_of({0, 1, 2, -1, 1000, INT_MAX}), place(), config(),
                                  number()));
      default:
        // Where it is right it waits for the ranks that are new.
        return end(ncclCommGrow(comm(), any_of({0, -1, 1, INT_MIN, INT_MAX}),
                                rarely() ? nullptr : ids, number(), place(), config()));
    }
  }

  ncclResult_t operation() {
    void* a = buffer();
    void* b = buffer();
    const size_t n = count();
    switch (random_() % 4) {
      case 0: {
        const Operation& it = operations()[random_() % operations().size()];
        return it.call(a, b, n, type(), op(), number(), comm());
      }
      case 1:
        return ncclAllReduceConfig(a, b, n, type(), op(), comm(), nullptr, call_config());
      case 2:
        return ncclGatherConfig(a, b, n, type(), number(), comm(), nullptr, call_config());
      default: {
        ncclRedOp_t made = ncclSum;
        const ncclResult_t result =
            ncclRedOpCreatePreMulSum(rarely() ? nullptr : &made, a, type(),
                                     static_cast<ncclScalarResidence_t>(number()), comm());
        if (made != ncclSum) {
          EXPECT_NCCL(ncclRedOpDestroy(made, comm_));
        }
        return rarely() ? ncclRedOpDestroy(static_cast<ncclRedOp_t>(number()), comm()) : result;
      }
    }
  }

  ncclResult_t memory() {
    void* place_of_pointer = nullptr;
    void** out = rarely() ? nullptr : &place_of_pointer;
    switch (random_() % 7) {
      case 0: {
        const ncclResult_t result =
            ncclMemAlloc(out, any_of<size_t>({0, 1, 4097, SIZE_MAX, size_t{PTRDIFF_MAX}}));
        EXPECT_NCCL(ncclMemFree(place_of_pointer));
        return result;
      }
      case 1:
        return ncclMemFree(any_pointer());
      case 2:
        return ncclCommRegister(comm(), buffer(), count(), out);
      case 3:
        return ncclCommDeregister(comm(), any_pointer());
      case 4: {
        ncclWindow_t made = nullptr;
        const ncclResult_t result = ncclCommWindowRegister(
            comm(), buffer(), any_of<size_t>({0, 1, 64, SIZE_MAX, SIZE_MAX / 2 + 1}),
            rarely() ? nullptr : &made, number());
        EXPECT_NCCL(ncclCommWindowDeregister(comm_, made));
        return result;
      }
      case 5:
        return ncclCommWindowDeregister(comm(), static_cast<ncclWindow_t>(any_pointer()));
      default:
        return ncclWinGetUserPtr(comm(), window(), out);
    }
  }

  ncclResult_t one_sided() {
    switch (random_() % 3) {
      case 0:
        return ncclPutSignal(buffer(), count(), type(), number(), window(),
                             any_of<size_t>({0, 8, SIZE_MAX, SIZE_MAX - 7}), number(), number(),
                             static_cast<unsigned>(number()), comm(), nullptr);
      case 1:
        return ncclSignal(number(), number(), number(), static_cast<unsigned>(number()), comm(),
                          nullptr);
      default: {
        ncclWaitSignalDesc_t wanted{any_of({0, -1, INT_MIN}), number(), number(), number()};
        return ncclWaitSignal(any_of({0, 1, 1, -1, INT_MIN}), rarely() ? nullptr : &wanted, comm(),
                              nullptr);
      }
    }
  }

  ncclResult_t asked() {
    int value = 0;
    uint64_t wide = 0;
    ncclResult_t state = ncclSuccess;
    int* out = rarely() ? nullptr : &value;
    ncclCommProperties properties{};
    properties.size = any_of<size_t>({0, 1, sizeof properties});
    properties.magic = rarely() ? 0 : NCCL_API_MAGIC;
    switch (random_() % 11) {
      case 0:
        return ncclCommCount(comm(), out);
      case 1:
        return ncclCommUserRank(comm(), out);
      case 2:
        return ncclCommCuDevice(comm(), out);
      case 3:
        return ncclCommGetAsyncError(comm(), rarely() ? nullptr : &state);
      case 4:
        return ncclCommMemStats(comm(), static_cast<ncclCommMemStat_t>(number()),
                                rarely() ? nullptr : &wide);
      case 5:
        return ncclCommQueryProperties(comm(), rarely() ? nullptr : &properties);
      case 6:
        return ncclGetVersion(out);
      case 7:
        return ncclGetErrorString(static_cast<ncclResult_t>(number())) != nullptr &&
                       ncclGetLastError(comm()) != nullptr
                   ? ncclSuccess
                   : ncclInternalError;
      case 8:
        (void)ncclTeamRankToWorld(comm(), {number(), number(), number()}, number());
        (void)ncclTeamRankToLsa(comm(), {number(), number(), number()}, number());
        (void)ncclTeamCft(comm(), number());
        (void)ncclLLA2ACalcSlots(number(), number());
        return ncclDevCommCreate(comm(), nullptr, nullptr);
      case 9:
        return ncclGetPeerDevicePointer(window(), count(), number(), nullptr);
      default:
        return changed();
    }
  }

  ncclResult_t changed() {
    switch (random_() % 4) {
      case 0:
        return ncclCommSuspend(comm(), number());
      case 1:
        return ncclCommResume(comm());
      case 2:
        return ncclCommRevoke(comm(), number());
      default:
        return ncclCommFinalize(comm());
    }
  }

  ncclResult_t parameter() {
    ncclParamHandle_t handle = nullptr;
    const char* key = any_of<const char*>({nullptr, "", "NCCL_DEBUG", "NCCL_BUFFSIZE", "PATH"});
    const ncclResult_t bound = ncclParamBind(rarely() ? nullptr : &handle, key);
    if (rarely()) handle = static_cast<ncclParamHandle_t>(any_pointer());
    int64_t value = 0;
    uint8_t small = 0;
    char bytes[8];
    int length = 0;
    const char* text = nullptr;
    switch (random_() % 5) {
      case 0:
        return ncclParamGetI64(handle, rarely() ? nullptr : &value);
      case 1:
        return ncclParamGetU8(handle, rarely() ? nullptr : &small);
      case 2:
        return ncclParamGet(handle, rarely() ? nullptr : bytes, any_of({-1, 0, 8, INT_MIN}),
                            rarely() ? nullptr : &length);
      case 3:
        return ncclParamGetParameter(key, rarely() ? nullptr : &text, rarely() ? nullptr : &length);
      default:
        return bound;
    }
  }

  ncclResult_t group() {
    if (rarely()) return ncclGroupEnd();  // there is none
    EXPECT_NCCL(ncclGroupStart());
    for (int i = 0; i < 3; ++i) {
      // Without messages: one that nobody takes would wait.
      (void)ncclAllReduce(buffer(), buffer(), count(), type(), op(), comm(), nullptr);
      (void)one_sided();
    }
    ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
    if (rarely()) info.magic = 0;
    if (rarely() && ncclGroupSimulateEnd(&info) == ncclSuccess) return ncclSuccess;
    return ncclGroupEnd();
  }

  ncclResult_t one_call() {
    switch (random_() % 12) {
      case 0:
        return maker();
      case 1:
      case 2:
      case 3:
        return operation();
      case 4:
      case 5:
        return memory();
      case 6:
      case 7:
        return one_sided();
      case 8:
      case 9:
        return asked();
      case 10:
        return parameter();
      default:
        return group();
    }
  }

  std::mt19937 random_;
  const Forbidden forbidden_;
  alignas(64) char memory_[1024] = {};
  ncclConfig_t config_;
  ncclCollConfig_t call_config_{};
  ncclComm_t comm_ = nullptr;
  ncclComm_t gone_ = nullptr;
  ncclComm_t made_ = nullptr;
  ncclWindow_t window_ = nullptr;
};

TEST(NcclBadUse, AnyArgumentsGiveAResultWithATextAndTheProcessGoesOn) {
  const char* given = std::getenv("WEIR_TEST_SEED");
  const unsigned seed =
      given != nullptr ? static_cast<unsigned>(std::atoi(given)) : std::random_device()();
  std::printf("WEIR_TEST_SEED=%u\n", seed);
  {
    AnyCalls calls(seed);
    calls.run(3000);
  }
  const AllRanks ranks(2);
  EXPECT_TRUE(sums_up(ranks)) << "the library works as before";
}

}  // namespace
}  // namespace weir::nccl::test
