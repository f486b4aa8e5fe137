// SPDX-License-Identifier: Apache-2.0
// The way to the real NCCL as the environment says it: each test runs in a process of its own with
// an environment of its own (CMakeLists.txt), and is skipped where that is not set.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "nccl/forward/forward_support.h"

namespace weir::nccl::test {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(NcclDisabled, EveryCallGoesToTheRealLibrary) {
  const NcclDouble nccl_double;
  ncclUniqueId id;
  ASSERT_NCCL(ncclGetUniqueId(&id));
  EXPECT_STREQ(ncclGetErrorString(ncclSystemError), "double: error");
  EXPECT_EQ(std::string(id.internal, 6), "double");
  ncclComm_t comm = nullptr;
  ASSERT_NCCL(ncclCommInitRank(&comm, 2, id, 1));
  EXPECT_TRUE(is_real(comm));
  EXPECT_EQ(sum_on(comm, 1), NCCL_DOUBLE_SUM + 1);
  EXPECT_NCCL(ncclGroupStart());
  EXPECT_NCCL(ncclGroupEnd());
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
  EXPECT_STREQ(ncclGetLastError(nullptr), "double: ncclGroupEnd without ncclGroupStart");
  EXPECT_NCCL(ncclCommDestroy(comm));
  ncclComm_t comms[3] = {};
  ASSERT_NCCL(ncclCommInitAll(comms, 3, nullptr));
  for (ncclComm_t made : comms) EXPECT_NCCL(ncclCommDestroy(made));
  ncclParamHandle_t param = nullptr;
  EXPECT_NCCL(ncclParamBind(&param, "NCCL_ANYTHING"));
  EXPECT_EQ(nccl_double.calls("ncclParamBind"), 1);
  EXPECT_EQ(nccl_double.alive(), 0);
}

TEST(NcclDisabled, EveryCallOfEveryFunctionIsOneOfTheRealLibrarys) {
  const NcclDouble nccl_double;
  ncclComm_t comm = nullptr;
  ASSERT_NCCL(ncclCommInitAll(&comm, 1, nullptr));
  expect_every_function_to_be_the_real_ones(nccl_double, comm);
  expect_every_function_to_be_the_real_ones(nccl_double, nullptr);
  const auto once = [&](const char* name, const auto& call) {
    const int before = nccl_double.calls(name);
    call();
    EXPECT_EQ(nccl_double.calls(name), before + 1) << name;
  };
  int number = 0;
  int excluded = 5;
  void* memory = nullptr;
  ncclComm_t made = nullptr;
  ncclUniqueId id{};
  ncclResult_t state = ncclSuccess;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  once("ncclGetVersion", [&] { EXPECT_NCCL(ncclGetVersion(&number)); });
  once("ncclGetUniqueId", [&] { EXPECT_NCCL(ncclGetUniqueId(&id)); });
  once("ncclGetErrorString", [&] { (void)ncclGetErrorString(ncclSuccess); });
  once("ncclGetLastError", [&] { (void)ncclGetLastError(comm); });
  once("ncclCommCount", [&] { EXPECT_NCCL(ncclCommCount(comm, &number)); });
  once("ncclCommUserRank", [&] { EXPECT_NCCL(ncclCommUserRank(comm, &number)); });
  once("ncclCommGetAsyncError", [&] { EXPECT_NCCL(ncclCommGetAsyncError(comm, &state)); });
  once("ncclAllReduce", [&] { EXPECT_EQ(sum_on(comm, 0), NCCL_DOUBLE_SUM); });
  once("ncclGroupStart", [&] { EXPECT_NCCL(ncclGroupStart()); });
  once("ncclGroupEnd", [&] { EXPECT_NCCL(ncclGroupEnd()); });
  once("ncclMemAlloc", [&] { EXPECT_NCCL(ncclMemAlloc(&memory, 8)); });
  once("ncclMemFree", [&] { EXPECT_NCCL(ncclMemFree(memory)); });
  once("ncclCommGetUniqueId", [&] { EXPECT_NCCL(ncclCommGetUniqueId(comm, &id)); });
  const auto makes = [&](const char* name, const auto& call) {
    once(name, [&] { EXPECT_NCCL(call()); });
    EXPECT_TRUE(is_real(made)) << name;
    EXPECT_NCCL(ncclCommDestroy(made));
  };
  makes("ncclCommSplit", [&] { return ncclCommSplit(comm, 0, 0, &made, nullptr); });
  makes("ncclCommShrink", [&] { return ncclCommShrink(comm, &excluded, 1, &made, nullptr, 0); });
  makes("ncclCommGrow", [&] { return ncclCommGrow(comm, 2, &id, -1, &made, nullptr); });
  ASSERT_NCCL(ncclGetUniqueId(&id));
  makes("ncclCommInitRank", [&] { return ncclCommInitRank(&made, 1, id, 0); });
  makes("ncclCommInitRankConfig", [&] { return ncclCommInitRankConfig(&made, 1, id, 0, &config); });
  makes("ncclCommInitRankScalable",
        [&] { return ncclCommInitRankScalable(&made, 1, 0, 1, &id, &config); });
  makes("ncclCommInitAll", [&] { return ncclCommInitAll(&made, 1, nullptr); });
  ASSERT_NCCL(ncclCommInitAll(&made, 1, nullptr));
  once("ncclCommAbort", [&] { EXPECT_NCCL(ncclCommAbort(made)); });
  once("ncclCommDestroy", [&] { EXPECT_NCCL(ncclCommDestroy(comm)); });
  EXPECT_EQ(nccl_double.alive(), 0);
}

TEST(NcclDisabled, WithoutARealLibraryEveryCallIsAnErrorThatSaysSo) {
  int version = 0;
  EXPECT_EQ(ncclGetVersion(&version), ncclSystemError);
  expect_error_with({"ncclGetVersion", "WEIR_DISABLE", "WEIR_NCCL_LIBRARY"});
  ncclComm_t comms[2] = {};
  EXPECT_EQ(ncclCommInitAll(comms, 2, nullptr), ncclSystemError);
  EXPECT_EQ(ncclGroupStart(), ncclSystemError);
  EXPECT_STRNE(ncclGetErrorString(ncclSystemError), "");
}

TEST(NcclBackendWeir, NothingGoesToTheRealLibraryThoughItIsThere) {
  const AllRanks ranks(3);
  EXPECT_FALSE(is_real(ranks[0]));
  EXPECT_TRUE(sums_up(ranks));
  int version = 0;
  EXPECT_NCCL(ncclGetVersion(&version));
  EXPECT_EQ(version, NCCL_VERSION_CODE);
}

TEST(NcclBackendNccl, CommunicatorsAreRealWithoutAskingForDevices) {
  run_on_devices({0, 0}, [&](int rank, ncclComm_t comm) {
    EXPECT_TRUE(is_real(comm));
    EXPECT_EQ(sum_on(comm, rank), NCCL_DOUBLE_SUM + rank);
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

TEST(NcclBackendNccl, AFailureIsAnErrorOfEveryRank) {
  const NcclDouble nccl_double;
  nccl_double.fail(1, ncclUnhandledCudaError, true);
  const ncclUniqueId id = make_id();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      ncclComm_t comm = nullptr;
      EXPECT_EQ(ncclCommInitRank(&comm, 2, id, rank), ncclUnhandledCudaError);
      expect_error_with({"rank 1", "Duplicate GPU", "WEIR_BACKEND=nccl"});
      EXPECT_EQ(comm, nullptr);
    });
  }
  for (std::thread& thread : threads) thread.join();
  nccl_double.fail(-1, ncclSuccess, false);
}

TEST(NcclOlder, AFunctionThatItLacksIsAnErrorThatNamesItsVersion) {
  run_on_devices({3}, [&](int rank, ncclComm_t comm) {
    EXPECT_TRUE(is_real(comm));
    EXPECT_EQ(sum_on(comm, rank), NCCL_DOUBLE_SUM);
    ncclComm_t child = nullptr;
    EXPECT_EQ(ncclCommSplit(comm, 0, 0, &child, nullptr), ncclInvalidUsage);
    expect_error_with({"ncclCommSplit", "2.18.1", "2.14.5"});
    const std::string text = ncclGetLastError(comm);  // stays until this thread asks again
    EXPECT_EQ(text, ncclGetLastError(nullptr));
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
  int version = 0;
  EXPECT_NCCL(ncclGetVersion(&version));
  EXPECT_EQ(version, 21405);
  // What needs no communicator is Weir's, where the real library has it not.
  void* memory = nullptr;
  EXPECT_NCCL(ncclMemAlloc(&memory, 64));
  EXPECT_NCCL(ncclMemFree(memory));
  ncclParamHandle_t param = nullptr;
  EXPECT_NCCL(ncclParamBind(&param, "NCCL_COMM_BLOCKING"));
}

// A key of ncclSetEncryption reaches the real library, and one that knows no keys serves nobody:
// the data would be in the clear.
ncclResult_t set_key() {
  ncclEncryptionConfig_t config = NCCL_ENCRYPTION_CONFIG_INITIALIZER;
  config.mode = NCCL_ENCRYPTION_MODE_PSK;
  config.psk = "the key of all ranks, with more than 32 characters";
  return ncclSetEncryption(&config);
}

TEST(NcclKeyed, TheRealLibraryGetsTheKey) {
  const NcclDouble nccl_double;
  EXPECT_NCCL(set_key());
  EXPECT_EQ(nccl_double.calls("ncclSetEncryption"), 1);
  run_on_devices({0}, [&](int, ncclComm_t comm) {
    EXPECT_TRUE(is_real(comm));
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

TEST(NcclKeyedOlder, ARealLibraryThatCannotEncryptServesNobody) {
  EXPECT_NCCL(set_key());
  run_on_devices({0, 1}, [&](int rank, ncclComm_t comm) {
    EXPECT_FALSE(is_real(comm));
    EXPECT_EQ(sum_on(comm, rank), 3);
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

TEST(NcclWithoutDevices, CommunicatorsRunOnWeir) {
  run_on_devices({0, 1}, [&](int rank, ncclComm_t comm) {
    EXPECT_FALSE(is_real(comm));
    EXPECT_EQ(sum_on(comm, rank), 3);
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

// A rank of the real library's and one that cannot use it: WEIR_BACKEND differs in two processes.
TEST(NcclMixed, ProcessesThatDisagreeAllRunOnWeir) {
  ASSERT_EQ(setenv("WEIR_BACKEND", "weir", 1), 0);
  ncclUniqueId id = make_id();  // this process has found out that it does not want the real library
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_EQ(write(ends[1], &id, sizeof id), static_cast<ssize_t>(sizeof id));
  const pid_t child = fork();
  if (child == 0) {
    setenv("WEIR_BACKEND", "auto", 1);
    setenv("NCCL_DOUBLE_MIXED_RANK", std::to_string(ends[0]).c_str(), 1);
    execl("/proc/self/exe", "nccl_forward_ways_test", "--gtest_filter=NcclMixedOther.*", nullptr);
    _exit(90);
  }
  ncclComm_t comm = nullptr;
  ASSERT_NCCL(ncclCommInitRank(&comm, 2, id, 0));
  EXPECT_FALSE(is_real(comm));
  EXPECT_EQ(sum_on(comm, 0), 3);
  EXPECT_NCCL(ncclCommDestroy(comm));
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  close(ends[0]);
  close(ends[1]);
}

TEST(NcclMixedOther, TheRankThatCouldUseTheRealLibrary) {
  const char* end = std::getenv("NCCL_DOUBLE_MIXED_RANK");
  if (end == nullptr) GTEST_SKIP() << "runs in a process that NcclMixed starts";
  ncclUniqueId id;
  ASSERT_EQ(read(std::atoi(end), &id, sizeof id), static_cast<ssize_t>(sizeof id));
  int version = 0;
  ASSERT_NCCL(ncclGetVersion(&version));
  ASSERT_EQ(version, 23299) << "the real library is behind this process";
  ncclComm_t comm = nullptr;
  ASSERT_NCCL(ncclCommInitRank(&comm, 2, id, 1));
  EXPECT_FALSE(is_real(comm));
  EXPECT_EQ(sum_on(comm, 1), 3);
  EXPECT_NCCL(ncclCommDestroy(comm));
}

TEST(NcclExplained, TheChoiceIsPrintedOnceWithItsReason) {
  testing::internal::CaptureStderr();
  run_on_devices({0, 1}, [&](int, ncclComm_t comm) { EXPECT_NCCL(ncclCommDestroy(comm)); });
  run_on_devices({2, 2}, [&](int, ncclComm_t comm) { EXPECT_NCCL(ncclCommDestroy(comm)); });
  const std::string said = testing::internal::GetCapturedStderr();
  for (const std::string words : {"communicator of 2 ranks: the real NCCL 2.32.99",
                                  "Weir's transports: ranks 0 and 1 share a GPU"}) {
    const size_t at = said.find(words);
    ASSERT_NE(at, std::string::npos) << words << " is not in: " << said;
    EXPECT_EQ(said.find(words, at + 1), std::string::npos) << said;
  }
}

// A child's process writes its counters when it ends.
TEST(NcclMetrics, CallsBytesAndTimeAreCountedByFunctionAndCommunicator) {
  const pid_t child = fork();
  if (child == 0) {
    {
      const int shared[] = {0, 0};
      ncclComm_t own[2] = {}, real[1] = {};
      ASSERT_NCCL(ncclCommInitAll(own, 2, shared));
      ASSERT_NCCL(ncclCommInitAll(real, 1, nullptr));
      int value[4] = {};
      for (int time = 0; time < 3; ++time) {
        ASSERT_NCCL(ncclAllReduce(value, value, 4, ncclInt, ncclSum, real[0], nullptr));
      }
      ASSERT_NCCL(ncclBcast(value, 4, ncclInt, 0, real[0], nullptr));
      ASSERT_NCCL(ncclGroupStart());
      ASSERT_NCCL(sum_of_ranks(own[0], 0, &value[0]));
      ASSERT_NCCL(sum_of_ranks(own[1], 1, &value[1]));
      ASSERT_NCCL(ncclGroupEnd());
      float wrong = 0;
      EXPECT_NE(ncclAllReduce(&wrong, &wrong, 1, ncclFloat, ncclSum, real[0], nullptr),
                ncclSuccess);
      EXPECT_NCCL(ncclCommDestroy(real[0]));
    }
    std::exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  std::string path = std::getenv("WEIR_METRICS");
  path.replace(path.find("%p"), 2, std::to_string(child));
  const std::string text = read_file(path);
  for (const char* line : {
           "# TYPE weir_nccl_calls_total counter\n",
           "weir_nccl_calls_total{function=\"ncclAllReduce\",communicator=\"1\",backend=\"nccl\"} "
           "4\n",
           "weir_nccl_errors_total{function=\"ncclAllReduce\",communicator=\"1\",backend=\"nccl\"} "
           "1\n",
           "weir_nccl_bytes_total{function=\"ncclAllReduce\",communicator=\"1\",backend=\"nccl\"} "
           "52\n",
           "weir_nccl_calls_total{function=\"ncclAllReduce\",communicator=\"2\",backend=\"weir\"} "
           "1\n",
           "weir_nccl_bytes_total{function=\"ncclAllReduce\",communicator=\"3\",backend=\"weir\"} "
           "4\n",
           "weir_nccl_calls_total{function=\"ncclCommInitAll\",communicator=\"\",backend=\"weir\"} "
           "2\n",
           "weir_nccl_communicator_info{communicator=\"1\",rank=\"0\",ranks=\"1\"} 1\n",
           "weir_nccl_seconds_total{function=\"ncclAllReduce\",communicator=\"1\",backend=\"nccl\"}"
           " ",
       }) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "is not in:\n" << text;
  }
  // The real library's own call of ncclBroadcast is part of the program's ncclBcast.
  EXPECT_NE(text.find("ncclBcast"), std::string::npos) << text;
  EXPECT_EQ(text.find("ncclBroadcast"), std::string::npos) << text;
  EXPECT_EQ(unlink(path.c_str()), 0);
}

// NVIDIA's own library, where the test finds it: what it does without a driver.
TEST(NcclNvidia, ItsVersionAndTextsComeThrough) {
  int version = 0;
  ASSERT_EQ(ncclGetVersion(&version), ncclSuccess);
  if (version == NCCL_VERSION_CODE && std::getenv("WEIR_NCCL_LIBRARY") == nullptr) {
    GTEST_SKIP() << "no libnccl.so.2 of NVIDIA's was found; WEIR_TEST_NCCL_LIBRARY may name one";
  }
  EXPECT_GE(version, 20300);
  EXPECT_STRNE(ncclGetErrorString(ncclSystemError), "");
  // Without a driver it fails to start; with one it may start. It must not end the process.
  ncclComm_t comm = nullptr;
  const ncclUniqueId id = make_id();
  if (ncclCommInitRank(&comm, 1, id, 0) == ncclSuccess) {
    EXPECT_TRUE(is_real(comm));
    EXPECT_NCCL(ncclCommDestroy(comm));
  } else {
    EXPECT_STRNE(ncclGetLastError(nullptr), "");
  }
}

}  // namespace
}  // namespace weir::nccl::test
