// SPDX-License-Identifier: Apache-2.0
// Ranks of libnccl.so.2 as processes that die or stop. A program of its own: nothing here starts a
// thread before it forks.
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <vector>

#include "nccl/support.h"

namespace weir::nccl::test {
namespace {

// One process a rank; the exit status of each, or 128 + signal.
std::vector<int> run_processes(int n, const Body& body) {
  const ncclUniqueId id = make_id();
  std::vector<pid_t> children;
  for (int rank = 0; rank < n; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      ncclComm_t comm = nullptr;
      if (ncclCommInitRank(&comm, n, id, rank) != ncclSuccess) _exit(90);
      body(rank, comm);
      _exit(testing::Test::HasFailure() ? 1 : 0);
    }
    children.push_back(pid);
  }
  std::vector<int> statuses;
  for (const pid_t pid : children) {
    int status = 0;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    statuses.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
  }
  return statuses;
}

TEST(NcclProcesses, TheRestShrinksAndGoesOnWhenARankIsKilled) {
  const std::vector<int> statuses = run_processes(3, [](int rank, ncclComm_t comm) {
    int sum = 0;
    EXPECT_NCCL(sum_of_ranks(comm, rank, &sum));
    if (rank == 1) kill(getpid(), SIGKILL);
    EXPECT_EQ(sum_of_ranks(comm, rank, &sum), ncclRemoteError);
    expect_error_with({"ncclAllReduce", "rank"});
    ncclResult_t error = ncclSuccess;
    EXPECT_NCCL(ncclCommGetAsyncError(comm, &error));
    EXPECT_EQ(error, ncclRemoteError);
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

}  // namespace
}  // namespace weir::nccl::test
