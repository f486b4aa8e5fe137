// SPDX-License-Identifier: Apache-2.0
// Runs a test body on n ranks: threads of this process, or forked processes. A body gets its rank
// and a communicator of all ranks; in forked ranks a failed expectation makes the rank's exit
// status 1, and an environment can be set for all of them.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "weir/weir.h"

namespace weir::test {

using Body = std::function<void(int rank, weir_comm_t comm)>;
using Environment = std::vector<std::pair<std::string, std::string>>;
using EnvironmentOf = std::function<Environment(int rank)>;

inline weir_unique_id_t make_id() {
  weir_unique_id_t id;
  EXPECT_EQ(weir_get_unique_id(&id), WEIR_OK) << weir_last_error(nullptr);
  return id;
}

inline void run_rank(int n, int rank, const weir_unique_id_t& id, const Body& body,
                     const weir_comm_config_t& config) {
  weir_comm_t comm = nullptr;
  ASSERT_EQ(weir_comm_create(&comm, n, &id, rank, &config), WEIR_OK) << weir_last_error(nullptr);
  body(rank, comm);
  EXPECT_EQ(weir_comm_destroy(comm), WEIR_OK);
}

inline void run_threads(int n, const Body& body,
                        weir_comm_config_t config = WEIR_COMM_CONFIG_INIT) {
  const weir_unique_id_t id = make_id();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank) {
    threads.emplace_back([&, rank] { run_rank(n, rank, id, body, config); });
  }
  for (std::thread& thread : threads) thread.join();
}

// Exit status of each rank; 128 + signal when one killed it.
inline std::vector<int> run_processes_each(int n, const Body& body,
                                           const EnvironmentOf& environment_of,
                                           weir_comm_config_t config = WEIR_COMM_CONFIG_INIT) {
  const weir_unique_id_t id = make_id();
  std::vector<pid_t> children;
  std::fflush(nullptr);
  for (int rank = 0; rank < n; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (const auto& [name, value] : environment_of(rank)) {
        setenv(name.c_str(), value.c_str(), 1);
      }
      run_rank(n, rank, id, body, config);
      std::fflush(nullptr);
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

inline std::vector<int> run_processes_status(int n, const Body& body,
                                             const Environment& environment = {},
                                             weir_comm_config_t config = WEIR_COMM_CONFIG_INIT) {
  return run_processes_each(
      n, body, [&](int) { return environment; }, config);
}

inline void run_processes(int n, const Body& body, const Environment& environment = {},
                          weir_comm_config_t config = WEIR_COMM_CONFIG_INIT) {
  const std::vector<int> statuses = run_processes_status(n, body, environment, config);
  for (int rank = 0; rank < n; ++rank) {
    EXPECT_EQ(statuses[static_cast<size_t>(rank)], 0) << "rank " << rank << " of " << n;
  }
}

}  // namespace weir::test
