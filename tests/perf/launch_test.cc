// SPDX-License-Identifier: Apache-2.0
#include "perf/harness/launch.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>

namespace weir::perf {
namespace {

TEST(RunProcesses, AllWellIsZero) {
  EXPECT_EQ(run_processes(3, "test", [](int) { return 0; }), 0);
}

TEST(RunProcesses, TheFailingStatusComesThrough) {
  EXPECT_EQ(run_processes(3, "test", [](int index) { return index == 1 ? 7 : 0; }), 7);
}

TEST(RunProcesses, AKilledProcessIsReportedAsItsSignal) {
  const auto body = [](int index) {
    if (index == 0) raise(SIGKILL);
    return 0;
  };
  EXPECT_EQ(run_processes(2, "test", body), 128 + SIGKILL);
}

TEST(RunProcesses, NoRankOutlivesItsParent) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t parent = fork();
  if (parent == 0) {
    close(ends[0]);
    _exit(run_processes(2, "test", [](int) {
      pause();  // holds the writing end open
      return 0;
    }));
  }
  close(ends[1]);
  usleep(100'000);  // until the ranks are there; the property holds however far they have come
  kill(parent, SIGKILL);
  waitpid(parent, nullptr, 0);
  char byte = 0;
  // End of file comes when the last holder is gone; a survivor would block this for ever.
  EXPECT_EQ(read(ends[0], &byte, 1), 0);
  close(ends[0]);
}

TEST(RunProcesses, ASignalToTheParentEndsTheRanks) {
  const pid_t parent = fork();
  if (parent == 0) {
    _exit(run_processes(2, "test", [](int) {
      pause();
      return 0;
    }));
  }
  usleep(100'000);
  kill(parent, SIGTERM);
  int state = 0;
  waitpid(parent, &state, 0);
  // Before it was ready the signal simply ends it; afterwards it passes it on.
  EXPECT_TRUE(WIFSIGNALED(state) || WEXITSTATUS(state) == 128 + SIGTERM);
}

TEST(RunThreads, TheLargestStatusComesThrough) {
  std::atomic<int> count = 0;
  EXPECT_EQ(run_threads(4,
                        [&count](int index) {
                          ++count;
                          return index == 2 ? 3 : 1;
                        }),
            3);
  EXPECT_EQ(count, 4);
}

}  // namespace
}  // namespace weir::perf
