// SPDX-License-Identifier: Apache-2.0
// Every perf program over every type, reduction and root, at sizes on both sides of each protocol
// change.
#include <gtest/gtest.h>

#include "perf/command.h"

namespace weir::test {
namespace {

class PerfSweep : public testing::TestWithParam<const char*> {};

TEST_P(PerfSweep, NoElementIsWrongForAnyTypeReductionAndRoot) {
  for (const char* ranks : {"2", "3", "5"}) {
    for (const char* registration : {"0", "2"}) {
      const CommandResult run = run_tool(
          GetParam(), {"--ranks", ranks, "-b", "56", "-e", "300K", "-f", "7.3", "-n", "2", "-o",
                       "all", "-d", "all", "-r", "all", "-R", registration, "--fixed-buffers"});
      EXPECT_EQ(run.status, 0) << ranks << " ranks, -R " << registration << "\n"
                               << run.out.substr(run.out.size() > 2000 ? run.out.size() - 2000 : 0)
                               << run.err;
    }
  }
}

TEST_P(PerfSweep, LargeRotatingMessagesAreRight) {
  const CommandResult run = run_tool(GetParam(), {"--ranks", "2", "-b", "1000001", "-e", "20M",
                                                  "-f", "4.5", "-n", "5", "-c", "2"});
  EXPECT_EQ(run.status, 0) << run.out << run.err;
}

INSTANTIATE_TEST_SUITE_P(All, PerfSweep,
                         testing::Values("all_reduce_perf", "all_gather_perf",
                                         "reduce_scatter_perf", "alltoall_perf", "alltoallv_perf",
                                         "broadcast_perf", "reduce_perf", "gather_perf",
                                         "scatter_perf", "sendrecv_perf", "tag_sendrecv_perf"));

}  // namespace
}  // namespace weir::test
