// SPDX-License-Identifier: Apache-2.0
// Wrong arguments and wrong usage of libnccl.so.2: the code that NCCL documents, and a text that
// names the call, the argument and the rank.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "nccl/support.h"
#include "weir/nccl_device.h"

namespace weir::nccl::test {
namespace {

// Tools look for these words; what Weir has to say is in ncclGetLastError.
TEST(NcclErrors, TheTextsOfResultsAreNccls) {
  const char* const texts[] = {
      "no error",
      "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
      "unhandled system error (run with NCCL_DEBUG=INFO for details)",
      "internal error - please report this issue to the NCCL developers",
      "invalid argument (run with NCCL_DEBUG=WARN for details)",
      "invalid usage (run with NCCL_DEBUG=WARN for details)",
      "remote process exited or there was a network error",
      "NCCL operation in progress",
      "timeout",
      "unknown result code",
  };
  for (int result = -1; result <= ncclNumResults + 1; ++result) {
    const bool is_one = result >= 0 && result < ncclNumResults;
    EXPECT_STREQ(ncclGetErrorString(static_cast<ncclResult_t>(result)),
                 texts[is_one ? result : ncclNumResults]);
  }
  int count = 0;
  EXPECT_EQ(ncclCommCount(nullptr, &count), ncclInvalidArgument);
  expect_error_with({"ncclCommCount", "NULL"});
}

TEST(NcclErrors, EveryResultHasAText) {
  for (int result = 0; result < ncclNumResults; ++result) {
    EXPECT_STRNE(ncclGetErrorString(static_cast<ncclResult_t>(result)), "");
  }
  EXPECT_NE(ncclGetErrorString(static_cast<ncclResult_t>(99)), nullptr);
}

TEST(NcclErrors, WrongArgumentsOfACollectiveAreNamed) {
  const AllRanks ranks(1);
  const ncclComm_t comm = ranks[0];
  int a = 0;
  int b = 0;
  auto reduce = [&](const void* send, void* recv, size_t count, int type, int op) {
    return ncclAllReduce(send, recv, count, static_cast<ncclDataType_t>(type),
                         static_cast<ncclRedOp_t>(op), comm, nullptr);
  };
  EXPECT_EQ(reduce(nullptr, &b, 1, ncclInt, ncclSum), ncclInvalidArgument);
  expect_error_with({"ncclAllReduce", "sendbuff", "rank 0 of 1"});
  EXPECT_EQ(reduce(&a, nullptr, 1, ncclInt, ncclSum), ncclInvalidArgument);
  expect_error_with({"recvbuff"});
  EXPECT_EQ(reduce(&a, &b, 1, ncclNumTypes, ncclSum), ncclInvalidArgument);
  expect_error_with({"datatype 12"});
  EXPECT_EQ(reduce(&a, &b, 1, -1, ncclSum), ncclInvalidArgument);
  EXPECT_EQ(reduce(&a, &b, 1, ncclInt, ncclNumOps), ncclInvalidArgument);
  expect_error_with({"op 5"});
  EXPECT_EQ(reduce(&a, &b, 1, ncclInt, -3), ncclInvalidArgument);
  EXPECT_EQ(reduce(&a, &b, SIZE_MAX / 2, ncclInt, ncclSum), ncclInvalidArgument);
  expect_error_with({"count"});
  EXPECT_NCCL(reduce(nullptr, nullptr, 0, ncclInt, ncclSum)) << "nothing is in no buffer";
  EXPECT_EQ(ncclBroadcast(&a, &b, 1, ncclInt, -1, comm, nullptr), ncclInvalidArgument);
  expect_error_with({"ncclBroadcast", "root -1"});
  EXPECT_EQ(ncclSend(&a, 1, ncclInt, 1, comm, nullptr), ncclInvalidArgument);
  expect_error_with({"ncclSend", "peer 1"});
  EXPECT_EQ(ncclAllReduce(&a, &b, 1, ncclInt, ncclSum, nullptr, nullptr), ncclInvalidArgument);
  expect_error_with({"comm is NULL"});
  EXPECT_TRUE(sums_up(ranks)) << "the communicator is as before";
}

TEST(NcclErrors, BuffersThatOverlapOtherThanInPlaceAreRefused) {
  const AllRanks ranks(1);
  int values[4] = {};
  EXPECT_EQ(ncclAllReduce(values, values + 1, 3, ncclInt, ncclSum, ranks[0], nullptr),
            ncclInvalidArgument);
  expect_error_with({"ncclAllReduce", "overlap by 8 bytes, other than in place",
                     "count 3 may be too large for a buffer"});
}

TEST(NcclErrors, WrongArgumentsOfAMakerAreNamed) {
  const ncclUniqueId id = make_id();
  ncclUniqueId nobodys{};
  ncclComm_t comm = nullptr;
  EXPECT_EQ(ncclCommInitRank(nullptr, 1, id, 0), ncclInvalidArgument);
  EXPECT_EQ(ncclCommInitRank(&comm, 0, id, 0), ncclInvalidArgument);
  expect_error_with({"ncclCommInitRank", "nranks is 0"});
  EXPECT_EQ(ncclCommInitRank(&comm, 2, id, 2), ncclInvalidArgument);
  expect_error_with({"rank 2 of 2"});
  EXPECT_EQ(ncclCommInitRank(&comm, 2, id, -1), ncclInvalidArgument);
  EXPECT_EQ(ncclCommInitRank(&comm, 1, nobodys, 0), ncclInvalidArgument);
  EXPECT_EQ(comm, nullptr);
  EXPECT_EQ(ncclCommInitAll(&comm, 0, nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclCommInitAll(nullptr, 1, nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclCommInitRankScalable(&comm, 1, 0, 0, &nobodys, nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclCommInitRankScalable(&comm, 1, 0, 1, nullptr, nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclGetUniqueId(nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclGetVersion(nullptr), ncclInvalidArgument);

  const AllRanks ranks(2);
  int self[] = {0};
  int nobody[] = {2};
  EXPECT_EQ(ncclCommSplit(ranks[0], -5, 0, &comm, nullptr), ncclInvalidArgument);
  expect_error_with({"ncclCommSplit", "color -5"});
  EXPECT_EQ(ncclCommShrink(ranks[0], self, 1, &comm, nullptr, 0), ncclInvalidArgument);
  expect_error_with({"calling rank 0"});
  EXPECT_EQ(ncclCommShrink(ranks[0], nobody, 1, &comm, nullptr, 0), ncclInvalidArgument);
  EXPECT_EQ(ncclCommShrink(ranks[0], nobody, 0, &comm, nullptr, 0), ncclInvalidArgument);
  EXPECT_EQ(ncclCommShrink(ranks[0], nobody, 1, &comm, nullptr, 8), ncclInvalidArgument);
  EXPECT_EQ(ncclCommShrink(ranks[0], nobody, 3, &comm, nullptr, 0), ncclInvalidArgument);
  expect_error_with({"excludeRanksCount is 3", "2 ranks"});
  EXPECT_EQ(ncclCommGrow(nullptr, 3, nullptr, 2, &comm, nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclCommGrow(ranks[0], 2, nullptr, -1, &comm, nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclCommCount(ranks[0], nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclCommGetAsyncError(ranks[0], nullptr), ncclInvalidArgument);
  EXPECT_TRUE(sums_up(ranks));
}

// ---- Configurations -----------------------------------------------------------------------------

ncclResult_t init_with(ncclConfig_t* config) {
  const ncclUniqueId id = make_id();
  ncclComm_t comm = nullptr;
  const ncclResult_t result = ncclCommInitRankConfig(&comm, 1, id, 0, config);
  EXPECT_NCCL(ncclCommDestroy(comm)) << "NULL where none was made";
  return result;
}

TEST(NcclErrors, AConfigurationIsCheckedFieldByField) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  EXPECT_EQ(init_with(&config), ncclSuccess);
  EXPECT_EQ(init_with(nullptr), ncclSuccess);
  config.magic = 1;
  EXPECT_EQ(init_with(&config), ncclInvalidArgument);
  expect_error_with({"magic", "NCCL_CONFIG_INITIALIZER"});
  config = NCCL_CONFIG_INITIALIZER;
  config.size = 8;
  EXPECT_EQ(init_with(&config), ncclInvalidArgument);
  expect_error_with({"config.size is 8"});
  config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 2;
  EXPECT_EQ(init_with(&config), ncclInvalidArgument);
  expect_error_with({"config.blocking is 2"});
  config = NCCL_CONFIG_INITIALIZER;
  config.cgaClusterSize = 9;
  EXPECT_EQ(init_with(&config), ncclInvalidArgument);
  config = NCCL_CONFIG_INITIALIZER;
  config.minCTAs = 4;
  config.maxCTAs = 2;
  EXPECT_EQ(init_with(&config), ncclInvalidArgument);
  expect_error_with({"minCTAs 4", "maxCTAs 2"});
}

// 2.14 knew `blocking` alone; what lies behind it in memory is not a field.
TEST(NcclErrors, WhatACallersVersionDidNotKnowIsNotRead) {
  std::vector<unsigned char> bytes(24, 0xee);
  auto* config = reinterpret_cast<ncclConfig_t*>(bytes.data());
  const size_t size = 24;
  const unsigned magic = NCCL_API_MAGIC;
  const unsigned version = 21403;
  const int blocking = 1;
  std::memcpy(bytes.data(), &size, 8);
  std::memcpy(bytes.data() + 8, &magic, 4);
  std::memcpy(bytes.data() + 12, &version, 4);
  std::memcpy(bytes.data() + 16, &blocking, 4);
  EXPECT_EQ(init_with(config), ncclSuccess) << ncclGetLastError(nullptr);
}

// The structure ends where memory ends.
TEST(NcclErrors, NothingBehindTheSizeOfAStructureIsRead) {
  const auto page = static_cast<size_t>(getpagesize());
  void* const pages =
      mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  ASSERT_EQ(mprotect(static_cast<char*>(pages) + page, page, PROT_NONE), 0);
  ncclComm_t comm = nullptr;
  ASSERT_NCCL(ncclCommInitRank(&comm, 1, make_id(), 0));
  for (const size_t size : {8, 12, 16, 20}) {
    char* const at = static_cast<char*>(pages) + page - size;
    const size_t head[3] = {size, NCCL_API_MAGIC, 0};
    std::memcpy(at, head, size);
    const std::string word = "size is " + std::to_string(size);
    EXPECT_EQ(init_with(reinterpret_cast<ncclConfig_t*>(at)), ncclInvalidArgument);
    expect_error_with({"config." + word, "NCCL_CONFIG_INITIALIZER"});
    auto* const properties = reinterpret_cast<ncclCommProperties_t*>(at);
    if (size >= offsetof(ncclCommProperties_t, rank)) continue;
    EXPECT_EQ(ncclCommQueryProperties(comm, properties), ncclInvalidArgument);
    expect_error_with({"props", word});
  }
  EXPECT_NCCL(ncclCommDestroy(comm));
  EXPECT_EQ(munmap(pages, 2 * page), 0);
}

// A structure of a later version: `config`, and `words` behind it.
template <typename Config>
std::vector<unsigned char> grown(Config config, unsigned version, const std::vector<int>& words) {
  config.size = sizeof config + words.size() * sizeof(int);
  config.version = version;
  std::vector<unsigned char> bytes(config.size);
  std::memcpy(bytes.data(), &config, sizeof config);
  if (!words.empty()) {
    std::memcpy(bytes.data() + sizeof config, words.data(), words.size() * sizeof(int));
  }
  return bytes;
}

TEST(NcclErrors, AFieldOfALaterVersionMayBeThereButNotBeSet) {
  const AllRanks ranks(1);
  int value = 3;
  // Pointers and masks are 0, other fields NCCL_CONFIG_UNDEF_INT.
  const std::vector<int> unset = {NCCL_CONFIG_UNDEF_INT, 0, 0, NCCL_CONFIG_UNDEF_INT};
  for (size_t at = 0; at <= unset.size(); ++at) {
    std::vector<int> words = unset;
    const bool is_set = at < words.size();
    if (is_set) words[at] = 7;
    const auto bytes = grown<ncclConfig_t>(NCCL_CONFIG_INITIALIZER, 23300, words);
    auto copy = bytes;
    EXPECT_EQ(init_with(reinterpret_cast<ncclConfig_t*>(copy.data())),
              is_set ? ncclInvalidArgument : ncclSuccess);
    if (is_set) {
      expect_error_with({"byte " + std::to_string(sizeof(ncclConfig_t) + 4 * at), "0x7",
                         "136 bytes and version 23300", "120 bytes of version 23203"});
    }
    const auto call = grown<ncclCollConfig_t>(NCCL_COLLCONFIG_INITIALIZER, 23300, words);
    EXPECT_EQ(ncclAllReduceConfig(&value, &value, 1, ncclInt, ncclSum, ranks[0], nullptr,
                                  reinterpret_cast<const ncclCollConfig_t*>(call.data())),
              is_set ? ncclInvalidArgument : ncclSuccess);
    if (is_set) expect_error_with({"byte " + std::to_string(sizeof(ncclCollConfig_t) + 4 * at)});
  }
  auto bytes = grown<ncclConfig_t>(NCCL_CONFIG_INITIALIZER, 23300, {});
  reinterpret_cast<ncclConfig_t*>(bytes.data())->size = 5000;
  EXPECT_EQ(init_with(reinterpret_cast<ncclConfig_t*>(bytes.data())), ncclInvalidArgument);
  expect_error_with({"config.size is 5000"});
}

TEST(NcclErrors, ModesOfNvlsAreItsFlags) {
  for (const int mode : {0, 1, 2, 3, INT_MAX}) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.nvlsHostMode = mode;
    EXPECT_EQ(init_with(&config), ncclSuccess) << ncclGetLastError(nullptr);
  }
  for (const int mode : {-1, 4, INT_MAX - 1}) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.nvlsHostMode = mode;
    EXPECT_EQ(init_with(&config), ncclInvalidArgument);
    expect_error_with({"config.nvlsHostMode is " + std::to_string(mode)});
    config.version = 23102;  // which has padding there
    EXPECT_EQ(init_with(&config), ncclSuccess) << ncclGetLastError(nullptr);
  }
}

// 2.31's structure ends before the event, and what lies behind it is the caller's.
TEST(NcclErrors, AnEventIsReadFrom232On) {
  const AllRanks ranks(1);
  int value = 3;
  int thing = 0;
  ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
  config.launchCompletionEvent = reinterpret_cast<cudaEvent_t>(&thing);
  const auto reduce = [&] {
    return ncclAllReduceConfig(&value, &value, 1, ncclInt, ncclSum, ranks[0], nullptr, &config);
  };
  EXPECT_EQ(reduce(), ncclInvalidUsage);
  expect_error_with({"ncclAllReduce", "launchCompletionEvent", "host mode"});
  config.size = 64;
  config.version = 23102;
  EXPECT_NCCL(reduce());
  config.size = 63;
  EXPECT_EQ(reduce(), ncclInvalidArgument);
  expect_error_with({"config.size is 63"});
}

TEST(NcclErrors, AConfigurationOfACallIsChecked) {
  const AllRanks ranks(1);
  int value = 3;
  auto reduce = [&](const ncclCollConfig_t& config) {
    return ncclAllReduceConfig(&value, &value, 1, ncclInt, ncclSum, ranks[0], nullptr, &config);
  };
  ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
  ncclConfigExt_t option = {};
  option.key.vendorId = 77;
  config.ext = &option;
  EXPECT_NCCL(reduce(config)) << "options of other vendors are ignored";
  config.magic = 0;
  EXPECT_EQ(reduce(config), ncclInvalidArgument);
  config = NCCL_COLLCONFIG_INITIALIZER;
  config.forceAlgSelection = 3;
  EXPECT_EQ(reduce(config), ncclInvalidArgument);
  config = NCCL_COLLCONFIG_INITIALIZER;
  config.algSelection = "ring";
  EXPECT_EQ(reduce(config), ncclInvalidArgument);
  expect_error_with({"ring", "forceAlgSelection"});
  config.forceAlgSelection = 0;
  EXPECT_NCCL(reduce(config));
}

// ---- Reductions with a factor -------------------------------------------------------------------

TEST(NcclErrors, AFactorBelongsToOneCommunicatorAndOneType) {
  const AllRanks ranks(1);
  const AllRanks others(1);
  double scalar = 2;
  double value = 1;
  ncclRedOp_t op;
  ASSERT_NCCL(
      ncclRedOpCreatePreMulSum(&op, &scalar, ncclDouble, ncclScalarHostImmediate, ranks[0]));
  EXPECT_EQ(ncclAllReduce(&value, &value, 1, ncclDouble, op, others[0], nullptr),
            ncclInvalidArgument);
  EXPECT_EQ(ncclAllReduce(&value, &value, 1, ncclFloat, op, ranks[0], nullptr),
            ncclInvalidArgument);
  expect_error_with({"made for ncclFloat64, the data are ncclFloat32"});
  EXPECT_EQ(ncclRedOpDestroy(op, others[0]), ncclInvalidArgument);
  EXPECT_NCCL(ncclAllReduce(&value, &value, 1, ncclDouble, op, ranks[0], nullptr));
  EXPECT_EQ(value, 2);
  EXPECT_NCCL(ncclRedOpDestroy(op, ranks[0]));
  EXPECT_EQ(ncclRedOpDestroy(ncclSum, ranks[0]), ncclInvalidArgument);
  EXPECT_EQ(ncclRedOpCreatePreMulSum(&op, nullptr, ncclDouble, ncclScalarHostImmediate, ranks[0]),
            ncclInvalidArgument);
  EXPECT_EQ(ncclRedOpCreatePreMulSum(&op, &scalar, ncclDouble,
                                     static_cast<ncclScalarResidence_t>(4), ranks[0]),
            ncclInvalidArgument);
}

TEST(NcclErrors, RanksThatDisagreeAreBothNamed) {
  ncclComm_t comms[2] = {};
  ASSERT_NCCL(ncclCommInitAll(comms, 2, nullptr));
  int values[2] = {};
  ASSERT_NCCL(ncclGroupStart());
  EXPECT_NCCL(ncclAllReduce(&values[0], &values[0], 1, ncclInt, ncclSum, comms[0], nullptr));
  EXPECT_NCCL(ncclAllReduce(&values[1], &values[1], 1, ncclInt, ncclMax, comms[1], nullptr));
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
  expect_error_with({"rank 0", "rank 1"});
  for (ncclComm_t comm : comms) EXPECT_NCCL(ncclCommAbort(comm));
}

TEST(NcclErrors, AThreadSeesItsOwnLatestError) {
  int version = 0;
  EXPECT_EQ(ncclGetVersion(nullptr), ncclInvalidArgument);
  std::thread([] {
    EXPECT_EQ(ncclGetUniqueId(nullptr), ncclInvalidArgument);
    expect_error_with({"ncclGetUniqueId"});
  }).join();
  EXPECT_NCCL(ncclGetVersion(&version));
  expect_error_with({"ncclGetVersion"});
}

// ---- What a host cannot do ----------------------------------------------------------------------

TEST(NcclErrors, DeviceSideCommunicationIsRefusedWithAReason) {
  const AllRanks ranks(2);
  EXPECT_EQ(ncclDevCommCreate(ranks[0], nullptr, nullptr), ncclInvalidUsage);
  expect_error_with({"ncclDevCommCreate", "host memory"});
  int value = 0;
  EXPECT_EQ(ncclPutSignal(&value, 1, ncclInt, 1, nullptr, 0, 0, 0, 0, ranks[0], nullptr),
            ncclInvalidUsage);
  EXPECT_EQ(ncclSignal(1, 0, 0, 0, ranks[0], nullptr), ncclInvalidUsage);
  EXPECT_EQ(ncclWaitSignal(0, nullptr, ranks[0], nullptr), ncclInvalidUsage);
  const ncclTeam_t world = ncclTeamWorld(ranks[1]);
  EXPECT_EQ(world.nRanks, 2);
  EXPECT_EQ(world.rank, 1);
  EXPECT_EQ(ncclTeamRankToWorld(ranks[1], world, 0), 0);
  EXPECT_EQ(ncclTeamLsa(ranks[1]).nRanks, 1);
  EXPECT_EQ(ncclLLA2ACalcSlots(3, 12), 6);
}

TEST(NcclErrors, PropertiesFillTheSizeThatTheCallerHas) {
  const AllRanks ranks(2);
  ncclCommProperties props{};
  props.size = offsetof(ncclCommProperties, cudaDev);
  props.magic = NCCL_API_MAGIC;
  props.cudaDev = 41;
  EXPECT_NCCL(ncclCommQueryProperties(ranks[1], &props));
  EXPECT_EQ(props.rank, 1);
  EXPECT_EQ(props.nRanks, 2);
  EXPECT_EQ(props.cudaDev, 41) << "beyond the caller's size";
  props.magic = 0;
  EXPECT_EQ(ncclCommQueryProperties(ranks[1], &props), ncclInvalidArgument);
  ncclCommProperties_t all = NCCL_COMM_PROPERTIES_INITIALIZER;
  EXPECT_NCCL(ncclCommQueryProperties(ranks[1], &all));
  EXPECT_TRUE(all.hostRmaSupport);
  EXPECT_FALSE(all.deviceApiSupport || all.cftSupport || all.multimemSupport);
}

// ---- Parameters ---------------------------------------------------------------------------------

TEST(NcclErrors, ParametersThatAreHonouredCanBeRead) {
  ncclParamHandle_t handle = nullptr;
  EXPECT_EQ(ncclParamBind(&handle, "NCCL_NO_SUCH_THING"), ncclInvalidArgument);
  expect_error_with({"NCCL_NO_SUCH_THING"});
  ASSERT_NCCL(ncclParamBind(&handle, "NCCL_COMM_BLOCKING"));
  int8_t narrow = 9;
  uint64_t wide = 9;
  const char* text = nullptr;
  int length = 0;
  EXPECT_NCCL(ncclParamGetI8(handle, &narrow));
  EXPECT_NCCL(ncclParamGetU64(handle, &wide));
  EXPECT_NCCL(ncclParamGetStr(handle, &text));
  EXPECT_EQ(narrow, 1);
  EXPECT_EQ(wide, 1u);
  EXPECT_STREQ(text, "1");
  EXPECT_NCCL(ncclParamGetParameter("NCCL_COMM_BLOCKING", &text, &length));
  EXPECT_EQ(length, 1);
  const char** keys = nullptr;
  EXPECT_NCCL(ncclParamGetAllParameterKeys(&keys, &length));
  ASSERT_GT(length, 1);
  for (int i = 0; i < length; ++i) {
    EXPECT_NCCL(ncclParamGetParameter(keys[i], &text, nullptr)) << keys[i];
  }
  EXPECT_EQ(ncclParamGet(handle, &narrow, 0, &length), ncclInvalidArgument);
}

// ---- Memory -------------------------------------------------------------------------------------

TEST(NcclErrors, MemoryIsFreedOnce) {
  void* memory = nullptr;
  ASSERT_NCCL(ncclMemAlloc(&memory, 10000));
  std::memset(memory, 1, 10000);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % NCCL_WIN_REQUIRED_ALIGNMENT, 0u);
  EXPECT_NCCL(ncclMemFree(memory));
  EXPECT_EQ(ncclMemFree(memory), ncclInvalidArgument);
  EXPECT_EQ(ncclMemFree(&memory), ncclInvalidArgument);
  EXPECT_NCCL(ncclMemFree(nullptr));
  EXPECT_EQ(ncclMemAlloc(nullptr, 1), ncclInvalidArgument);
  EXPECT_EQ(ncclMemAlloc(&memory, SIZE_MAX), ncclInvalidArgument);
}

TEST(NcclErrors, RegistrationsBelongToTheirCommunicator) {
  const AllRanks ranks(2);
  std::vector<float> data(1000);
  void* handle = nullptr;
  ASSERT_NCCL(ncclCommRegister(ranks[0], data.data(), data.size() * sizeof(float), &handle));
  EXPECT_NE(handle, nullptr);
  EXPECT_EQ(ncclCommDeregister(ranks[1], handle), ncclInvalidArgument);
  EXPECT_NCCL(ncclCommDeregister(ranks[0], handle));
  EXPECT_EQ(ncclCommDeregister(ranks[0], handle), ncclInvalidArgument);

  ncclWindow_t windows[2] = {};
  void* memory[2] = {};
  for (void*& it : memory) ASSERT_NCCL(ncclMemAlloc(&it, 4096));
  ASSERT_NCCL(ncclGroupStart());
  for (int r = 0; r < 2; ++r) {
    EXPECT_NCCL(
        ncclCommWindowRegister(ranks[r], memory[r], 4096, &windows[r], NCCL_WIN_COLL_SYMMETRIC));
  }
  ASSERT_NCCL(ncclGroupEnd());
  for (int r = 0; r < 2; ++r) {
    void* pointer = nullptr;
    EXPECT_NCCL(ncclWinGetUserPtr(ranks[r], windows[r], &pointer));
    EXPECT_EQ(pointer, memory[r]);
    EXPECT_EQ(ncclCommWindowDeregister(ranks[1 - r], windows[r]), ncclInvalidArgument);
    EXPECT_NCCL(ncclCommWindowDeregister(ranks[r], windows[r]));
    EXPECT_EQ(ncclWinGetUserPtr(ranks[r], windows[r], &pointer), ncclInvalidArgument);
    EXPECT_NCCL(ncclMemFree(memory[r]));
  }
  EXPECT_EQ(ncclCommWindowRegister(ranks[0], nullptr, 8, &windows[0], 0), ncclInvalidArgument);
  EXPECT_EQ(ncclCommWindowRegister(ranks[0], data.data(), 8, &windows[0], 0x100),
            ncclInvalidArgument);
}

TEST(NcclErrors, TextsOutliveLaterErrorsThreadsAndCommunicators) {
  const char* held[3] = {};
  std::string copies[3];
  {
    const AllRanks a(1);
    const AllRanks b(1);
    int value = 1;
    EXPECT_EQ(ncclAllReduce(nullptr, &value, 1, ncclInt, ncclSum, a[0], nullptr),
              ncclInvalidArgument);
    EXPECT_EQ(ncclBroadcast(&value, &value, 1, ncclInt, 77, b[0], nullptr), ncclInvalidArgument);
    // As the arguments of one printf.
    held[0] = ncclGetLastError(a[0]);
    held[1] = ncclGetLastError(b[0]);
    copies[0] = held[0];
    copies[1] = held[1];
    EXPECT_NE(copies[0].find("sendbuff is NULL"), std::string::npos) << copies[0];
    EXPECT_NE(copies[1].find("77"), std::string::npos) << copies[1];
    std::thread([&] {
      EXPECT_EQ(ncclCommCount(a[0], nullptr), ncclInvalidArgument);
      held[2] = ncclGetLastError(nullptr);
      copies[2] = held[2];
    }).join();
    for (int i = 0; i < 100; ++i) {
      EXPECT_EQ(ncclBroadcast(&value, &value, 1, ncclInt, 100 + i, a[0], nullptr),
                ncclInvalidArgument);
      EXPECT_STRNE(ncclGetLastError(a[0]), "");
      EXPECT_STRNE(ncclGetLastError(nullptr), "");
    }
  }
  for (int i = 0; i < 3; ++i) EXPECT_EQ(held[i], copies[i]);
}

}  // namespace
}  // namespace weir::nccl::test
