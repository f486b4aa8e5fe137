// SPDX-License-Identifier: Apache-2.0
// Ranks of libnccl.so.2 as processes. Nothing may start a thread before it forks.
#pragma once

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <vector>

#include "nccl/support.h"

namespace weir::nccl::test {

// One process a rank; the exit status of each, or 128 + signal. `prepare` runs in each before its
// communicator is made.
inline std::vector<int> run_processes(int n, const Body& body,
                                      const std::function<void(int rank)>& prepare = {}) {
  const ncclUniqueId id = make_id();
  std::vector<pid_t> children;
  for (int rank = 0; rank < n; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (prepare) prepare(rank);
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

}  // namespace weir::nccl::test
