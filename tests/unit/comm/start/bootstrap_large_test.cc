// SPDX-License-Identifier: Apache-2.0
// The bootstrap at the size of a large machine.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>

#include "unit/comm/start/bootstrap_support.h"

namespace weir::comm {
namespace {

TEST(BootstrapLarge, Joins512ThreadsAndGathersRepeatedly) {
  rlimit files{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  files.rlim_cur = files.rlim_max;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
  // All ranks are threads: two ends of a connection and a door for each.
  if (files.rlim_cur < 2048) GTEST_SKIP() << "needs 2048 open files";
  const auto outcomes = play_all(fresh_secret(), all_ranks(512), 5, 1000);
  const auto expected = expected_blobs(512, 5, 1000);
  double seconds = 0;
  for (const Outcome& outcome : outcomes) {
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.text();
    EXPECT_TRUE(outcome.blobs == expected);
    seconds = std::max(seconds, outcome.seconds);
  }
  std::printf("512 ranks joined and gathered 5 times in %.2f s\n", seconds);
}

}  // namespace
}  // namespace weir::comm
