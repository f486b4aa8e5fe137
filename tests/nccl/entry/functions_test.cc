// SPDX-License-Identifier: Apache-2.0
// Functions of libnccl.so.2 that few programs call: those for device code, which host memory
// refuses, teams, parameters, and what a group, a communicator and its memory answer at their
// edges.
#include <gtest/gtest.h>

#include <climits>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "nccl/support.h"
#include "weir/nccl_device.h"

namespace weir::nccl::test {
namespace {

// ---- Functions for device code ------------------------------------------------------------------

TEST(NcclFunctions, WhatIsForDeviceCodeIsRefusedAndSaysWhy) {
  const AllRanks ranks(2);
  const ncclComm_t comm = ranks[0];
  const ncclTeam_t team = ncclTeamWorld(comm);
  void* pointer = nullptr;
  uint32_t id = 0;
  size_t offset = 0;
  struct Refused {
    const char* name;
    std::function<ncclResult_t()> call;
  };
  const Refused all[] = {
      {"ncclDevCommCreate", [&] { return ncclDevCommCreate(comm, nullptr, nullptr); }},
      {"ncclDevCommDestroy", [&] { return ncclDevCommDestroy(comm, nullptr); }},
      {"ncclGetLsaDevicePointer", [&] { return ncclGetLsaDevicePointer(nullptr, 0, 0, &pointer); }},
      {"ncclGetLsaMultimemDevicePointer",
       [&] { return ncclGetLsaMultimemDevicePointer(nullptr, 0, &pointer); }},
      {"ncclGetMultimemDevicePointer",
       [&] { return ncclGetMultimemDevicePointer(nullptr, 0, {nullptr}, &pointer); }},
      {"ncclGetMultimemDeviceLeInfo",
       [&] { return ncclGetMultimemDeviceLeInfo(nullptr, 0, &id, &offset); }},
      {"ncclGetCftDeviceLeInfo",
       [&] { return ncclGetCftDeviceLeInfo(nullptr, 0, 1, team, &id, &offset); }},
      {"ncclGetPeerDeviceLeInfo",
       [&] { return ncclGetPeerDeviceLeInfo(nullptr, 0, 1, &id, &offset); }},
      {"ncclLsaBarrierCreateRequirement",
       [&] { return ncclLsaBarrierCreateRequirement(team, 1, nullptr, nullptr); }},
      {"ncclGinBarrierCreateRequirement",
       [&] { return ncclGinBarrierCreateRequirement(comm, team, 1, nullptr, nullptr); }},
      {"ncclGinOutboxCreateRequirement",
       [&] { return ncclGinOutboxCreateRequirement(1, 4, nullptr, nullptr); }},
      {"ncclGinInboxA2ACreateRequirement",
       [&] { return ncclGinInboxA2ACreateRequirement(team, 1, 4, nullptr, nullptr); }},
      {"ncclLLA2ACreateRequirement",
       [&] { return ncclLLA2ACreateRequirement(1, 1, nullptr, nullptr); }},
  };
  for (const Refused& one : all) {
    EXPECT_EQ(one.call(), ncclInvalidUsage) << one.name;
    expect_error_with({std::string(one.name) + ": device-side communication", "host memory"});
  }
  EXPECT_EQ(pointer, nullptr);
  EXPECT_TRUE(sums_up(ranks)) << "the communicator is as before";
}

void expect_team(ncclTeam_t team, int rank_count, int rank) {
  EXPECT_EQ(team.nRanks, rank_count);
  EXPECT_EQ(team.rank, rank);
  EXPECT_EQ(team.stride, rank_count == 0 ? 0 : 1);
}

// No rank loads from another's memory, so that each is a local team of its own, and all share the
// network.
TEST(NcclFunctions, ATeamOfLocalMemoryHasOneRankAndTheOthersHaveAll) {
  const AllRanks ranks(3);
  for (int rank = 0; rank < 3; ++rank) {
    expect_team(ncclTeamWorld(ranks[rank]), 3, rank);
    expect_team(ncclTeamRail(ranks[rank]), 3, rank);
    expect_team(ncclTeamLsa(ranks[rank]), 1, 0);
    expect_team(ncclTeamCft(ranks[rank], NCCL_CFT_TEAM_FLAT), 1, 0);
    expect_team(ncclTeamCftMultimem(ranks[rank]), 1, 0);
    EXPECT_EQ(ncclTeamRankToWorld(ranks[rank], ncclTeamRail(ranks[rank]), 2), 2);
    EXPECT_EQ(ncclTeamRankToWorld(ranks[rank], ncclTeamLsa(ranks[rank]), 0), rank);
    EXPECT_EQ(ncclTeamRankToLsa(ranks[rank], ncclTeamWorld(ranks[rank]), rank), 0);
    EXPECT_EQ(ncclTeamRankToWorld(ranks[rank], {3, INT_MIN, INT_MAX}, INT_MAX), -1);
  }
}

TEST(NcclFunctions, ATeamOfNoCommunicatorIsEmptyAndTheErrorIsTold) {
  expect_team(ncclTeamWorld(nullptr), 0, 0);
  expect_error_with({"ncclTeamWorld", "comm is NULL"});
  expect_team(ncclTeamRail(nullptr), 0, 0);
  expect_error_with({"ncclTeamRail"});
  EXPECT_EQ(ncclTeamRankToWorld(nullptr, {1, 0, 1}, 0), -1);
  expect_error_with({"ncclTeamRankToWorld"});
  EXPECT_EQ(ncclTeamRankToLsa(nullptr, {1, 0, 1}, 0), -1);
}

// A slot holds 8 bytes, of one element.
TEST(NcclFunctions, SlotsAreCountedByWholeElements) {
  EXPECT_EQ(ncclLLA2ACalcSlots(0, 16), 0);
  EXPECT_EQ(ncclLLA2ACalcSlots(5, 1), 5);
  EXPECT_EQ(ncclLLA2ACalcSlots(5, 8), 5);
  EXPECT_EQ(ncclLLA2ACalcSlots(5, 9), 10);
  EXPECT_EQ(ncclLLA2ACalcSlots(INT_MAX, INT_MAX), INT_MAX) << "more than there are numbers";
}

// ---- Parameters ---------------------------------------------------------------------------------

template <typename Integer>
ncclResult_t get(ncclResult_t (*function)(ncclParamHandle_t, Integer*), const char* text,
                 Integer* out) {
  EXPECT_EQ(setenv("NCCL_BUFFSIZE", text, 1), 0);
  ncclParamHandle_t handle = nullptr;
  EXPECT_NCCL(ncclParamBind(&handle, "NCCL_BUFFSIZE"));
  const ncclResult_t result = function(handle, out);
  unsetenv("NCCL_BUFFSIZE");
  return result;
}

template <typename Integer>
void expect_width(ncclResult_t (*function)(ncclParamHandle_t, Integer*), const char* largest,
                  const char* beyond) {
  Integer value = 0;
  EXPECT_NCCL(get(function, largest, &value));
  EXPECT_EQ(std::to_string(value), largest);
  EXPECT_EQ(get(function, beyond, &value), ncclInvalidArgument);
  expect_error_with({"ncclParamGet", "NCCL_BUFFSIZE", beyond});
  EXPECT_EQ(std::to_string(value), largest) << "is left as it was";
  EXPECT_EQ(get(function, "4k", &value), ncclInvalidArgument);
  EXPECT_EQ(get<Integer>(function, "1", nullptr), ncclInvalidArgument);
  EXPECT_EQ(function(nullptr, &value), ncclInvalidArgument);
}

TEST(NcclFunctions, AParameterIsReadInTheWidthThatIsAskedForOrRefused) {
  expect_width<int8_t>(ncclParamGetI8, "127", "128");
  expect_width<int16_t>(ncclParamGetI16, "-32768", "-32769");
  expect_width<int32_t>(ncclParamGetI32, "2147483647", "2147483648");
  expect_width<int64_t>(ncclParamGetI64, "-9223372036854775808", "9223372036854775808");
  expect_width<uint8_t>(ncclParamGetU8, "255", "256");
  expect_width<uint16_t>(ncclParamGetU16, "65535", "-1");
  expect_width<uint32_t>(ncclParamGetU32, "4294967295", "4294967296");
  expect_width<uint64_t>(ncclParamGetU64, "18446744073709551615", "18446744073709551616");
}

TEST(NcclFunctions, AParametersTextFitsWhereItsLengthDoes) {
  ncclParamHandle_t handle = nullptr;
  ASSERT_NCCL(ncclParamBind(&handle, "NCCL_COMM_BLOCKING"));
  char text[4] = {'x', 'x', 'x', 'x'};
  int length = 0;
  EXPECT_NCCL(ncclParamGet(handle, text, 1, &length));
  EXPECT_EQ(length, 1);
  EXPECT_EQ(std::string(text, 4), "1xxx") << "no end is written";
  EXPECT_EQ(ncclParamGet(handle, text, 0, &length), ncclInvalidArgument);
  expect_error_with({"needs 1 bytes", "maxLen is 0"});
  EXPECT_EQ(ncclParamGet(handle, text, -1, &length), ncclInvalidArgument);
  EXPECT_EQ(ncclParamGet(handle, text, 1, nullptr), ncclInvalidArgument);
  const char* value = nullptr;
  EXPECT_EQ(ncclParamGetParameter(nullptr, &value, &length), ncclInvalidArgument);
  EXPECT_EQ(ncclParamGetParameter("NCCL_COMM_BLOCKING", nullptr, &length), ncclInvalidArgument);
  EXPECT_EQ(ncclParamGetAllParameterKeys(nullptr, &length), ncclInvalidArgument);
  EXPECT_EQ(ncclParamBind(nullptr, "NCCL_COMM_BLOCKING"), ncclInvalidArgument);
}

TEST(NcclFunctions, DumpAllPrintsEveryParameterWithItsValue) {
  const char** keys = nullptr;
  int count = 0;
  ASSERT_NCCL(ncclParamGetAllParameterKeys(&keys, &count));
  testing::internal::CaptureStderr();
  ncclParamDumpAll();
  const std::string printed = "\n" + testing::internal::GetCapturedStderr();
  for (int i = 0; i < count; ++i) {
    EXPECT_NE(printed.find("\n" + std::string(keys[i]) + "="), std::string::npos) << keys[i];
  }
}

// ---- The library, memory ------------------------------------------------------------------------

// Weir's log is set up once a process; NCCL would read its variables again.
TEST(NcclFunctions, ResetDebugInitMayBeCalledAtAnyTime) {
  ncclResetDebugInit();
  const AllRanks ranks(2);
  ASSERT_NCCL(ncclGroupStart());
  ncclResetDebugInit();
  ASSERT_NCCL(ncclGroupEnd());
  EXPECT_TRUE(sums_up(ranks));
}

TEST(NcclFunctions, EveryResultHasATextOfItsOwn) {
  std::vector<std::string> texts;
  for (int result = 0; result < ncclNumResults; ++result) {
    texts.emplace_back(ncclGetErrorString(static_cast<ncclResult_t>(result)));
    for (size_t other = 0; other + 1 < texts.size(); ++other) {
      EXPECT_NE(texts[other], texts.back()) << other << " and " << result;
    }
  }
  EXPECT_NE(std::string(ncclGetErrorString(static_cast<ncclResult_t>(-7))), "");
}

TEST(NcclFunctions, NothingIsAllocatedAsNull) {
  int somewhere = 0;
  void* memory = &somewhere;
  EXPECT_NCCL(ncclMemAlloc(&memory, 0));
  EXPECT_EQ(memory, nullptr);
  EXPECT_NCCL(ncclMemFree(memory));
}

TEST(NcclFunctions, ARegistrationNeedsABufferAndAPlaceForItsHandle) {
  const AllRanks ranks(1);
  char buffer[64] = {};
  void* handle = buffer;
  EXPECT_EQ(ncclCommRegister(ranks[0], nullptr, 64, &handle), ncclInvalidArgument);
  expect_error_with({"ncclCommRegister", "buff is NULL but size is 64"});
  EXPECT_EQ(handle, nullptr);
  EXPECT_EQ(ncclCommRegister(ranks[0], buffer, 64, nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclCommRegister(nullptr, buffer, 64, &handle), ncclInvalidArgument);
  EXPECT_NCCL(ncclCommDeregister(ranks[0], nullptr)) << "there is nothing to end";
  // A buffer may be registered twice, and each registration ends by itself.
  void* again = nullptr;
  ASSERT_NCCL(ncclCommRegister(ranks[0], buffer, 64, &handle));
  ASSERT_NCCL(ncclCommRegister(ranks[0], buffer, 64, &again));
  EXPECT_NE(handle, again);
  EXPECT_NCCL(ncclCommDeregister(ranks[0], again));
  EXPECT_NCCL(ncclCommDeregister(ranks[0], handle));
}

TEST(NcclFunctions, AWindowNeedsAPlaceAndKnownFlags) {
  const AllRanks ranks(1);
  char buffer[64] = {};
  ncclWindow_t window = nullptr;
  EXPECT_EQ(ncclCommWindowRegister(ranks[0], buffer, 64, nullptr, 0), ncclInvalidArgument);
  expect_error_with({"ncclCommWindowRegister", "win is NULL"});
  EXPECT_EQ(ncclCommWindowRegister(ranks[0], nullptr, 64, &window, 0), ncclInvalidArgument);
  EXPECT_EQ(ncclCommWindowRegister(ranks[0], buffer, 64, &window, 0x40), ncclInvalidArgument);
  expect_error_with({"winFlags 0x40"});
  // A window for counted operations is aligned.
  alignas(256) static char aligned[512];
  EXPECT_EQ(ncclCommWindowRegister(ranks[0], aligned + 128, 64, &window, NCCL_WIN_CFT_COUNTED),
            ncclInvalidArgument);
  expect_error_with({"NCCL_WIN_CFT_COUNTED", "256"});
  for (const int flags : {NCCL_WIN_CFT_COUNTED, NCCL_WIN_GIN_ONLY}) {
    ASSERT_NCCL(ncclCommWindowRegister(ranks[0], aligned, sizeof aligned, &window, flags));
    EXPECT_NCCL(ncclCommWindowDeregister(ranks[0], window));
  }
  EXPECT_NCCL(ncclCommWindowDeregister(ranks[0], nullptr)) << "there is nothing to end";
  ASSERT_NCCL(ncclCommWindowRegister(ranks[0], buffer, 64, &window, NCCL_WIN_COLL_SYMMETRIC));
  EXPECT_EQ(ncclWinGetUserPtr(ranks[0], window, nullptr), ncclInvalidArgument);
  EXPECT_NCCL(ncclCommWindowDeregister(ranks[0], window));
  EXPECT_EQ(ncclCommWindowDeregister(ranks[0], window), ncclInvalidArgument) << "it is gone";
}

// ---- Groups and communicators -------------------------------------------------------------------

TEST(NcclFunctions, ASimulatedEndChecksItsArgumentsAndLeavesTheGroupOpen) {
  const AllRanks ranks(1);
  int value = 1;
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  EXPECT_EQ(ncclGroupSimulateEnd(&info), ncclInvalidUsage) << "there is no group";
  ASSERT_NCCL(ncclGroupStart());
  EXPECT_NCCL(ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, ranks[0], nullptr));
  info.magic = 1;
  EXPECT_EQ(ncclGroupSimulateEnd(&info), ncclInvalidArgument);
  expect_error_with({"ncclGroupSimulateEnd", "magic", "NCCL_SIM_INFO_INITIALIZER"});
  info = NCCL_SIM_INFO_INITIALIZER;
  info.size = 4;
  EXPECT_EQ(ncclGroupSimulateEnd(&info), ncclInvalidArgument);
  expect_error_with({"simInfo.size is 4"});
  info = NCCL_SIM_INFO_INITIALIZER;
  info.estimatedTime = 3;
  EXPECT_NCCL(ncclGroupSimulateEnd(&info)) << "the group was still open";
  EXPECT_EQ(info.estimatedTime, NCCL_UNDEF_FLOAT) << "nothing is estimated";
  ASSERT_NCCL(ncclGroupStart());
  EXPECT_NCCL(ncclGroupSimulateEnd(nullptr)) << "nobody wants to know";
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
}

ncclResult_t state_of(ncclComm_t comm) {
  ncclResult_t state = ncclInternalError;
  EXPECT_NCCL(ncclCommGetAsyncError(comm, &state));
  return state;
}

TEST(NcclFunctions, ACommunicatorEndsInAnyOfTheDocumentedOrders) {
  ncclComm_t comms[4] = {};
  ASSERT_NCCL(ncclCommInitAll(comms, 4, nullptr));
  ASSERT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < 3; ++rank) EXPECT_NCCL(ncclCommFinalize(comms[rank]));
  ASSERT_NCCL(ncclGroupEnd());
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(state_of(comms[rank]), ncclSuccess) << rank;
  EXPECT_NCCL(ncclCommDestroy(comms[0])) << "finalized, then destroyed";
  EXPECT_NCCL(ncclCommAbort(comms[1])) << "finalized, then aborted";
  EXPECT_EQ(ncclCommFinalize(comms[2]), ncclInvalidArgument) << "once only";
  EXPECT_NCCL(ncclCommDestroy(comms[2]));
  EXPECT_NCCL(ncclCommDestroy(comms[3])) << "destroyed at once";
  for (ncclComm_t comm : comms) {
    ncclResult_t state = ncclSuccess;
    EXPECT_EQ(ncclCommFinalize(comm), ncclInvalidArgument);
    EXPECT_EQ(ncclCommGetAsyncError(comm, &state), ncclInvalidArgument);
    expect_error_with({"ncclCommGetAsyncError"});
  }
}

TEST(NcclFunctions, TheAsyncErrorOfAPeersAbortStaysUntilTheEnd) {
  run_threads(1, [](int, ncclComm_t comm) { EXPECT_EQ(state_of(comm), ncclSuccess); });
  ncclComm_t comms[2] = {};
  ASSERT_NCCL(ncclCommInitAll(comms, 2, nullptr));
  EXPECT_NCCL(ncclCommAbort(comms[0]));
  int value = 1;
  EXPECT_EQ(ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, comms[1], nullptr), ncclRemoteError);
  EXPECT_EQ(state_of(comms[1]), ncclRemoteError);
  EXPECT_EQ(state_of(comms[1]), ncclRemoteError) << "asking does not clear it";
  EXPECT_NE(std::string(ncclGetLastError(comms[1])).find("rank 0"), std::string::npos)
      << ncclGetLastError(comms[1]);
  EXPECT_NCCL(ncclCommAbort(comms[1]));
}

// Every version since 2.14, whose `version` fields a program keeps.
TEST(NcclFunctions, AConfigurationOfEverySizeThatThereWasIsTaken) {
  for (const size_t size : {24u, 40u, 48u, 72u, 80u, 88u, 96u}) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.size = size;
    const ncclUniqueId id = make_id();
    ncclComm_t comm = nullptr;
    ASSERT_NCCL(ncclCommInitRankConfig(&comm, 1, id, 0, &config)) << size;
    EXPECT_NCCL(ncclCommDestroy(comm));
  }
}

}  // namespace
}  // namespace weir::nccl::test
