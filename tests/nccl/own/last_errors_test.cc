// SPDX-License-Identifier: Apache-2.0
// ncclGetLastError of a communicator: the text of its latest call that was refused, whichever
// function that was.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <type_traits>

#include "nccl/api/functions.h"
#include "nccl/support.h"

namespace weir::nccl::test {
namespace {

template <typename Result, typename... Arguments>
constexpr bool takes_comm(Result (*)(Arguments...)) {
  return (std::is_same_v<Arguments, ncclComm_t> || ...);
}

std::set<std::string> functions_that_take_one() {
  std::set<std::string> names;
#define WEIR_NCCL_NAME(name, ...) \
  if (takes_comm(&nccl##name)) names.insert("nccl" #name);
  WEIR_NCCL_FUNCTIONS(WEIR_NCCL_NAME)
#undef WEIR_NCCL_NAME
  return names;
}

// They end the communicator, ask for the text, or are never refused by one that is made.
const std::set<std::string> kOthers = {
    "ncclCommDestroy",     "ncclCommAbort",     "ncclGetLastError", "ncclTeamWorld",
    "ncclTeamLsa",         "ncclTeamRail",      "ncclTeamCft",      "ncclTeamCftMultimem",
    "ncclTeamRankToWorld", "ncclTeamRankToLsa",
};

using Refused = std::function<ncclResult_t(ncclComm_t comm)>;

// Calls that a healthy communicator of two ranks without windows refuses.
std::map<std::string, Refused> refused_calls() {
  static int a[4];
  static int number;
  static uint64_t wide;
  static void* pointer;
  static ncclComm_t made;
  static ncclWindow_t window;
  static ncclRedOp_t op;
  static ncclWaitSignalDesc_t signal{0, 0, 0, 0};
  static ncclTeam_t team{1, 0, 1};
  const auto type = ncclInt;
  const auto no_window = reinterpret_cast<ncclWindow_t>(a);
#define WEIR_CALL(name, ...)                               \
  {                                                        \
#name, [=](ncclComm_t c) { return name(__VA_ARGS__); } \
  }
  return {
      WEIR_CALL(ncclCommSplit, c, -5, 0, &made, nullptr),
      WEIR_CALL(ncclCommShrink, c, a, 1, &made, nullptr, 99),
      WEIR_CALL(ncclCommGrow, c, 1, nullptr, -1, &made, nullptr),
      WEIR_CALL(ncclCommGetUniqueId, c, nullptr),
      WEIR_CALL(ncclCommRevoke, c, 5),
      WEIR_CALL(ncclCommGetAsyncError, c, nullptr),
      WEIR_CALL(ncclCommCount, c, nullptr),
      WEIR_CALL(ncclCommCuDevice, c, nullptr),
      WEIR_CALL(ncclCommUserRank, c, nullptr),
      WEIR_CALL(ncclCommSuspend, c, 99),
      WEIR_CALL(ncclCommResume, c),
      WEIR_CALL(ncclCommMemStats, c, static_cast<ncclCommMemStat_t>(99), &wide),
      WEIR_CALL(ncclCommQueryProperties, c, nullptr),
      WEIR_CALL(ncclCommRegister, c, nullptr, 4, &pointer),
      WEIR_CALL(ncclCommDeregister, c, a),
      WEIR_CALL(ncclCommWindowRegister, c, nullptr, 4, &window, 0),
      WEIR_CALL(ncclCommWindowDeregister, c, no_window),
      WEIR_CALL(ncclWinGetUserPtr, c, no_window, &pointer),
      WEIR_CALL(ncclRedOpCreatePreMulSum, &op, nullptr, type, ncclScalarHostImmediate, c),
      WEIR_CALL(ncclRedOpDestroy, ncclSum, c),
      WEIR_CALL(ncclReduce, nullptr, a, 1, type, ncclSum, 0, c, nullptr),
      WEIR_CALL(ncclBcast, nullptr, 1, type, 0, c, nullptr),
      WEIR_CALL(ncclBroadcast, nullptr, a, 1, type, 0, c, nullptr),
      WEIR_CALL(ncclAllReduce, nullptr, a, 1, type, ncclSum, c, nullptr),
      WEIR_CALL(ncclReduceScatter, nullptr, a, 1, type, ncclSum, c, nullptr),
      WEIR_CALL(ncclAllGather, nullptr, a, 1, type, c, nullptr),
      WEIR_CALL(ncclAlltoAll, nullptr, a, 1, type, c, nullptr),
      WEIR_CALL(ncclGather, nullptr, a, 1, type, 0, c, nullptr),
      WEIR_CALL(ncclScatter, nullptr, a, 1, type, 0, c, nullptr),
      WEIR_CALL(ncclReduceConfig, nullptr, a, 1, type, ncclSum, 0, c, nullptr, nullptr),
      WEIR_CALL(ncclBroadcastConfig, nullptr, a, 1, type, 0, c, nullptr, nullptr),
      WEIR_CALL(ncclAllReduceConfig, nullptr, a, 1, type, ncclSum, c, nullptr, nullptr),
      WEIR_CALL(ncclReduceScatterConfig, nullptr, a, 1, type, ncclSum, c, nullptr, nullptr),
      WEIR_CALL(ncclAllGatherConfig, nullptr, a, 1, type, c, nullptr, nullptr),
      WEIR_CALL(ncclAlltoAllConfig, nullptr, a, 1, type, c, nullptr, nullptr),
      WEIR_CALL(ncclGatherConfig, nullptr, a, 1, type, 0, c, nullptr, nullptr),
      WEIR_CALL(ncclScatterConfig, nullptr, a, 1, type, 0, c, nullptr, nullptr),
      WEIR_CALL(ncclSend, nullptr, 1, type, 1, c, nullptr),
      WEIR_CALL(ncclRecv, nullptr, 1, type, 1, c, nullptr),
      WEIR_CALL(ncclPutSignal, a, 1, type, 1, no_window, 0, 0, 0, 0, c, nullptr),
      WEIR_CALL(ncclSignal, 1, 0, 0, 0, c, nullptr),
      WEIR_CALL(ncclWaitSignal, 1, &signal, c, nullptr),
      WEIR_CALL(ncclDevCommCreate, c, nullptr, nullptr),
      WEIR_CALL(ncclDevCommDestroy, c, nullptr),
      WEIR_CALL(ncclGinBarrierCreateRequirement, c, team, number, nullptr, nullptr),
      // The second time.
      {"ncclCommFinalize",
       [](ncclComm_t c) {
         EXPECT_NCCL(ncclCommFinalize(c));
         return ncclCommFinalize(c);
       }},
  };
#undef WEIR_CALL
}

// The text of a call with a configuration has the name of the one without.
std::string name_in_text(const std::string& name) {
  constexpr std::string_view kEnd = "Config";
  return name.ends_with(kEnd) ? name.substr(0, name.size() - kEnd.size()) : name;
}

TEST(NcclLastErrors, ACommunicatorsTextIsThatOfItsLatestCallThatWasRefused) {
  std::set<std::string> missing = functions_that_take_one();
  for (const std::string& name : kOthers) EXPECT_EQ(missing.erase(name), 1u) << name;
  for (const auto& [name, call] : refused_calls()) {
    EXPECT_EQ(missing.erase(name), 1u) << name;
    const AllRanks ranks(2);
    const ncclComm_t comm = ranks[0];
    const bool sends = name == "ncclSend";
    EXPECT_NE((sends ? ncclRecv(nullptr, 1, ncclInt, 7, comm, nullptr)
                     : ncclSend(nullptr, 1, ncclInt, 7, comm, nullptr)),
              ncclSuccess);
    const std::string earlier = ncclGetLastError(comm);
    EXPECT_NE(earlier.find(sends ? "ncclRecv, rank 0" : "ncclSend, rank 0"), std::string::npos);
    EXPECT_NE(call(comm), ncclSuccess) << name;
    const std::string text = ncclGetLastError(comm);
    EXPECT_EQ(text, ncclGetLastError(nullptr)) << name;
    EXPECT_TRUE(text.starts_with(name_in_text(name) + ":") ||
                text.starts_with(name_in_text(name) + ","))
        << name << ": " << text;
  }
  for (const std::string& name : missing) ADD_FAILURE() << name << " has no call in the table";
}

TEST(NcclLastErrors, ACommunicatorHasNoTextOfAnotherOne) {
  const AllRanks ranks(2);
  EXPECT_EQ(ncclGetVersion(nullptr), ncclInvalidArgument);
  EXPECT_EQ(std::string(ncclGetLastError(ranks[1])), ncclGetLastError(nullptr));  // of none
  EXPECT_NE(ncclSend(nullptr, 1, ncclInt, 7, ranks[0], nullptr), ncclSuccess);
  EXPECT_STREQ(ncclGetLastError(ranks[1]), "");
  std::thread([&] {
    EXPECT_STREQ(ncclGetLastError(ranks[1]), "");
    EXPECT_EQ(std::string(ncclGetLastError(ranks[0])), ncclGetLastError(nullptr));
  }).join();
}

}  // namespace
}  // namespace weir::nccl::test
