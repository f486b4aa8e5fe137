// SPDX-License-Identifier: Apache-2.0
// What weir-trace says of processes whose communicator goes to the real NCCL, which a library of
// the tests plays: it queues operations and returns, as the real one does. WEIR_RECORDER_NCCL is
// set.
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "nccl/forward/forward_support.h"
#include "perf/command.h"
#include "trace/temporary_folder.h"

namespace weir::nccl::test {
namespace {

using weir::test::CommandResult;
using weir::test::TemporaryFolder;

// The library looks at the environment once a process: one folder for all tests.
const TemporaryFolder& folder() {
  static const TemporaryFolder made;
  static const bool is_set = setenv("WEIR_RECORDER_DIR", made.path().c_str(), 1) == 0;
  EXPECT_TRUE(is_set);
  return made;
}

size_t record_count() { return folder().files().size(); }

// One process a rank, each on its own device. `body` returns, and the process stays as it is, with
// what it has queued. Killed with the object.
class Job {
 public:
  Job(int n, const Body& body) {
    for (const std::string& name : folder().files()) {
      std::filesystem::remove(folder().path() + "/" + name);
    }
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    const ncclUniqueId id = make_id();
    for (int rank = 0; rank < n; ++rank) {
      const pid_t pid = fork();
      if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        choose_device(rank);
        ncclComm_t comm = nullptr;
        if (ncclCommInitRank(&comm, n, id, rank) != ncclSuccess || !is_real(comm)) _exit(90);
        body(rank, comm);
        const char ok = testing::Test::HasFailure() ? 'f' : 'k';
        if (write(ends[1], &ok, 1) != 1) _exit(91);
        for (;;) pause();
      }
      processes_.push_back(pid);
    }
    close(ends[1]);
    for (int i = 0; i < n; ++i) {
      char said = 0;
      EXPECT_EQ(read(ends[0], &said, 1), 1);
      EXPECT_EQ(said, 'k');
    }
    close(ends[0]);
  }
  ~Job() {
    for (const pid_t pid : processes_) kill(pid, SIGKILL);
    for (const pid_t pid : processes_) waitpid(pid, nullptr, 0);
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  void signal(int rank, int number) {
    const pid_t pid = processes_[static_cast<size_t>(rank)];
    EXPECT_EQ(kill(pid, number), 0);
    int status = 0;
    EXPECT_EQ(waitpid(pid, &status, WUNTRACED), pid);
    if (number == SIGKILL) processes_.erase(processes_.begin() + rank);
  }

 private:
  std::vector<pid_t> processes_;
};

CommandResult trace() {
  return weir::test::run_command(WEIR_TRACE, {"--stuck-after-ms", "1", folder().path()});
}

// Asks until `expected` is said: a call is to be a millisecond old.
void expect_said(const std::vector<std::string>& expected) {
  CommandResult result = trace();
  for (int time = 0; time < 100 && result.status == 0; ++time) {
    usleep(20'000);
    result = trace();
  }
  EXPECT_EQ(result.status, 1) << result.out << result.err;
  for (const std::string& words : expected) {
    EXPECT_NE(result.out.find(words), std::string::npos) << words << " is not in:\n" << result.out;
  }
}

void all_reduces(ncclComm_t comm, int times, size_t count) {
  std::vector<int> data(count);
  for (int time = 0; time < times; ++time) {
    EXPECT_NCCL(ncclAllReduce(data.data(), data.data(), count, ncclInt, ncclSum, comm, nullptr));
  }
}

class NcclRecorded : public testing::Test {
 protected:
  void SetUp() override {
    (void)folder();
    if (std::getenv("WEIR_RECORDER_NCCL") == nullptr) {
      GTEST_SKIP() << "runs with WEIR_RECORDER_NCCL=1";
    }
  }
};

TEST_F(NcclRecorded, TheRankThatCalledAnotherCountIsNamed) {
  const Job job(3, [](int rank, ncclComm_t comm) {
    all_reduces(comm, 30, 4);
    all_reduces(comm, 1, rank == 1 ? 5 : 4);
    all_reduces(comm, 2, 7);
  });
  expect_said({"transport the real NCCL", "called otherwise",
               "rank 1 called all_reduce(int32, sum, count 5) as operation 31",
               "where ranks 0, 2 called all_reduce(int32, sum, count 4): another count"});
}

TEST_F(NcclRecorded, TheRankThatCalledAnotherOperationIsNamed) {
  const Job job(4, [](int rank, ncclComm_t comm) {
    all_reduces(comm, 3, 4);
    int data[4] = {};
    EXPECT_NCCL(rank == 2 ? ncclBroadcast(data, data, 4, ncclInt, 1, comm, nullptr)
                          : ncclAllGather(data, data, 1, ncclInt, comm, nullptr));
  });
  expect_said({"called otherwise", "rank 2 called broadcast(int32, count 4, root 1) as operation 4",
               "all_gather(int32, count 1)", "another operation"});
}

TEST_F(NcclRecorded, TheRankThatCalledAnotherReductionOrTypeIsNamed) {
  const Job job(3, [](int rank, ncclComm_t comm) {
    float data[4] = {};
    const ncclRedOp_t op = rank == 0 ? ncclAvg : ncclMax;
    EXPECT_NCCL(ncclReduceScatter(data, data, 1, ncclFloat, op, comm, nullptr));
  });
  expect_said({"rank 0 called reduce_scatter(float32, avg, count 1) as operation 1",
               "reduce_scatter(float32, max, count 1): another reduction"});
}

TEST_F(NcclRecorded, TheRankThatMadeACallLessIsNamed) {
  const Job job(3, [](int rank, ncclComm_t comm) { all_reduces(comm, rank == 2 ? 8 : 10, 4); });
  expect_said({"never called", "rank 2 never called operation 9",
               "its latest is operation 8, all_reduce(int32, sum, count 4)",
               "ranks 0, 1 called operation 9, all_reduce(int32, sum, count 4),"});
}

TEST_F(NcclRecorded, TheRankThatDiedBeforeItsCallIsNamed) {
  Job job(3, [](int rank, ncclComm_t comm) { all_reduces(comm, rank == 1 ? 2 : 3, 4); });
  job.signal(1, SIGKILL);
  expect_said({"died", "rank 1 died before operation 3"});
}

TEST_F(NcclRecorded, TheRankThatIsStoppedBeforeItsCallIsNamed) {
  Job job(2, [](int rank, ncclComm_t comm) { all_reduces(comm, rank == 0 ? 2 : 3, 4); });
  job.signal(0, SIGSTOP);
  expect_said({"stopped", "rank 0 stopped before operation 3"});
}

TEST_F(NcclRecorded, ACommunicatorThatIsSplitFromOneIsRecordedToo) {
  const Job job(3, [](int rank, ncclComm_t comm) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.commName = "the split one";
    ncclComm_t child = nullptr;
    ASSERT_NCCL(ncclCommSplit(comm, 0, -rank, &child, &config));
    all_reduces(comm, 3, 4);
    all_reduces(child, 1, rank == 2 ? 9 : 8);
  });
  expect_said({"begin with communicator 'the split one': called otherwise", "rank 0 called",
               "count 9) as operation 1"});
}

TEST_F(NcclRecorded, ACallThatIsRefusedIsNoCall) {
  const Job job(2, [](int rank, ncclComm_t comm) {
    float data[4] = {};
    all_reduces(comm, 2, 4);
    // The library that plays NCCL takes ints only.
    if (rank == 1) {
      EXPECT_EQ(ncclAllReduce(data, data, 4, ncclFloat, ncclSum, comm, nullptr),
                ncclInvalidArgument);
    }
    all_reduces(comm, 2, 6);
  });
  const CommandResult result = trace();
  EXPECT_EQ(result.status, 0) << result.out;
  EXPECT_NE(result.out.find("every rank made the same calls"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("4 all_reduce(int32, sum, count 6)"), std::string::npos) << result.out;
}

TEST_F(NcclRecorded, OperationsOfAGroupHaveReturnedWhenItsOutermostLevelHas) {
  const Job job(2, [](int rank, ncclComm_t comm) {
    int data[4] = {};
    EXPECT_NCCL(ncclGroupStart());
    EXPECT_NCCL(ncclGroupStart());
    EXPECT_NCCL(ncclAllReduce(data, data, 1, ncclInt, ncclSum, comm, nullptr));
    EXPECT_NCCL(ncclSend(data, 2, ncclInt, 1 - rank, comm, nullptr));
    EXPECT_NCCL(ncclRecv(data, 2, ncclInt, 1 - rank, comm, nullptr));
    EXPECT_NCCL(ncclAllReduce(data, data, 2, ncclInt, ncclSum, comm, nullptr));
    EXPECT_NCCL(ncclGroupEnd());
    if (rank == 1) return;
    EXPECT_NCCL(ncclGroupEnd());
  });
  CommandResult result = trace();
  EXPECT_NE(result.out.find("2 all_reduce(int32, sum, count 2)"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("operation 2, all_reduce(int32, sum, count 2), is begun"),
            std::string::npos)
      << result.out;
  expect_said(
      {"stuck inside", "rank 1 did not come back from the real NCCL's call of operation 2"});
}

TEST_F(NcclRecorded, OneSidedOperationsStandAmongTheMessages) {
  const Job job(2, [](int rank, ncclComm_t comm) {
    char data[12] = {};
    ncclWaitSignalDesc_t three[] = {{1, 1 - rank, 0, 0}, {2, 1 - rank, 1, 0}};
    EXPECT_NCCL(ncclPutSignal(data, 3, ncclInt, 1 - rank, nullptr, 77, 0, 0, 0, comm, nullptr));
    EXPECT_NCCL(ncclSignal(1 - rank, 5, 0, 0, comm, nullptr));
    EXPECT_NCCL(ncclWaitSignal(2, three, comm, nullptr));
    EXPECT_NCCL(ncclGroupStart());
    EXPECT_NCCL(ncclPutSignal(data, 2, ncclInt, 1 - rank, nullptr, 0, 0, 0, 0, comm, nullptr));
  });
  const CommandResult result = weir::test::run_command(WEIR_TRACE, {"--json", folder().path()});
  const auto json = nlohmann::json::parse(result.out);
  for (const auto& rank : json["communicators"][0]["ranks"]) {
    const auto& messages = rank["messages"];
    ASSERT_EQ(messages.size(), 4u) << rank.dump(1);
    const int peer = 1 - rank["rank"].get<int>();
    EXPECT_EQ(messages[0]["kind"], "put with signal");
    EXPECT_EQ(messages[0]["bytes"], 12);
    EXPECT_EQ(messages[1]["kind"], "signal");
    EXPECT_EQ(messages[2]["kind"], "wait for signals");
    EXPECT_EQ(messages[2]["signals"], 3);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(messages[i]["peer"], peer) << i;
      EXPECT_EQ(messages[i]["completed"], i < 3) << i << ": the group has not ended";
    }
    EXPECT_EQ(rank["activity"],
              "put of 8 bytes with a signal to rank " + std::to_string(peer) + " is begun");
  }
}

TEST_F(NcclRecorded, AnOrderlyEndLeavesNothingAndAnAbortLeavesTheRecord) {
  const Job job(2, [](int rank, ncclComm_t comm) {
    all_reduces(comm, 300, 2);
    if (rank == 0) {
      EXPECT_NCCL(ncclCommDestroy(comm));
    } else {
      EXPECT_NCCL(ncclCommAbort(comm));
    }
  });
  EXPECT_EQ(record_count(), 1u);
  const CommandResult result = trace();
  EXPECT_EQ(result.status, 2) << result.out;
  EXPECT_NE(result.out.find("rank 1 aborted the communicator"), std::string::npos) << result.out;
}

// Without being asked to, a forwarded communicator leaves no record.
TEST(NcclNotRecorded, ForwardedCallsAreNotWrittenDown) {
  if (std::getenv("WEIR_RECORDER_NCCL") != nullptr) GTEST_SKIP() << "runs without the setting";
  const Job job(2, [](int, ncclComm_t comm) { all_reduces(comm, 3, 4); });
  EXPECT_EQ(record_count(), 0u);
}

}  // namespace
}  // namespace weir::nccl::test
