// SPDX-License-Identifier: Apache-2.0
// Ranks of libnccl.so.2 as processes that die or stop. A program of its own: nothing here starts a
// thread before it forks.
#include "nccl/processes.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <vector>

#include "support/shared_counter.h"

namespace weir::nccl::test {
namespace {

TEST(NcclProcesses, TheRestShrinksAndGoesOnWhenARankIsKilled) {
  const weir::test::SharedCounter here;
  const std::vector<int> statuses = run_processes(3, [&](int rank, ncclComm_t comm) {
    int sum = 0;
    EXPECT_NCCL(sum_of_ranks(comm, rank, &sum));
    here.meet(3);
    if (rank == 1) kill(getpid(), SIGKILL);
    EXPECT_EQ(sum_of_ranks(comm, rank, &sum), ncclRemoteError);
    expect_error_with({"ncclAllReduce", "rank 1 died", "exclude it with ncclCommShrink"});
    ncclResult_t error = ncclSuccess;
    EXPECT_NCCL(ncclCommGetAsyncError(comm, &error));
    EXPECT_EQ(error, ncclRemoteError);
    for (const ncclComm_t asked : {comm, ncclComm_t{nullptr}}) {
      const std::string text = ncclGetLastError(asked);
      EXPECT_EQ(text.find("weir_comm_"), std::string::npos) << text;
    }
    ncclComm_t rest = nullptr;
    int lost[] = {1};
    ASSERT_NCCL(ncclCommShrink(comm, lost, 1, &rest, nullptr, NCCL_SHRINK_ABORT));
    EXPECT_NCCL(sum_of_ranks(rest, rank, &sum));
    EXPECT_EQ(sum, 4);
    EXPECT_NCCL(ncclCommDestroy(rest));
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 128 + SIGKILL, 0}));
}

// A stopped rank is no dead one: nothing tells its peer, which waits until it is aborted.
TEST(NcclProcesses, AbortFromAnotherThreadEndsACallWhosePeerIsStopped) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const std::vector<int> statuses = run_processes(2, [&](int rank, ncclComm_t comm) {
    int sum = 0;
    EXPECT_NCCL(sum_of_ranks(comm, rank, &sum));
    if (rank == 1) {
      const pid_t self = getpid();
      EXPECT_EQ(write(ready[1], &self, sizeof self), static_cast<ssize_t>(sizeof self));
      raise(SIGSTOP);
      return;
    }
    pid_t peer = 0;
    ASSERT_EQ(read(ready[0], &peer, sizeof peer), static_cast<ssize_t>(sizeof peer));
    std::atomic<bool> calls{false};
    std::thread stuck([&] {
      int value = 0;
      calls = true;
      EXPECT_NE(sum_of_ranks(comm, rank, &value), ncclSuccess);
    });
    while (!calls) std::this_thread::yield();
    EXPECT_NCCL(ncclCommAbort(comm));
    stuck.join();
    kill(peer, SIGKILL);
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 128 + SIGKILL}));
  close(ready[0]);
  close(ready[1]);
}

// Processes that share memory, and such that do not.
TEST(NcclProcesses, TheOthersAreToldThatARankHasRevokedNotAborted) {
  for (const bool one_host : {true, false}) {
    const std::vector<int> statuses = run_processes(
        2,
        [](int rank, ncclComm_t comm) {
          if (rank == 1) {
            EXPECT_NCCL(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT));
            usleep(100'000);
            EXPECT_NCCL(ncclCommDestroy(comm));
            usleep(500'000);
            return;
          }
          int value = 1;
          EXPECT_EQ(ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, comm, nullptr),
                    ncclRemoteError);
          expect_error_with({"rank 1 called ncclCommRevoke on communicator"});
        },
        [one_host](int rank) {
          if (!one_host) setenv("WEIR_HOST_ID", rank == 0 ? "a" : "b", 1);
        });
    EXPECT_EQ(statuses, std::vector<int>(2, 0)) << (one_host ? "one host" : "two hosts");
  }
}

}  // namespace
}  // namespace weir::nccl::test
