// SPDX-License-Identifier: Apache-2.0
#include "core/sched/print.h"

#include <gtest/gtest.h>

#include "core/algo/algorithm.h"

namespace weir::sched {
namespace {

TEST(Print, ShowsEveryOperationOfARing) {
  algo::Problem problem;
  problem.rank_count = 3;
  const Program program =
      algo::compile(*algo::find_algorithm(Collective::kAllReduce, "ring"), problem, 1);
  EXPECT_EQ(print(program),
            "rank 1 of 3, all_reduce: 3 chunks, 1 scratch slot, 1 lane\n"
            "    0  lane 0  send    in[1] -> rank 2\n"
            "    1  lane 0  recv    scratch[0] <- rank 0\n"
            "    2  lane 0  reduce  out[0] <- scratch[0] + in[0]\n"
            "    3  lane 0  send    out[0] -> rank 2\n"
            "    4  lane 0  recv    scratch[0] <- rank 0\n"
            "    5  lane 0  reduce  out[2] <- scratch[0] + in[2]\n"
            "    6  lane 0  send    out[2] -> rank 2\n"
            "    7  lane 0  recv    out[1] <- rank 0\n"
            "    8  lane 0  send    out[1] -> rank 2\n"
            "    9  lane 0  recv    out[0] <- rank 0\n");
}

TEST(Print, DescribesEachKindOfOperation) {
  Program program;
  program.rank = 2;
  program.rank_count = 4;
  Builder b(2, &program.ops, &program.operands);
  b.copy(b.output(1), Builder::staging_at(3, 0), 2);
  b.copy(Builder::output_at(1, 5), b.scratch(0));
  b.signal(kAllRanks, 1);
  b.wait(0, 1, 7);
  const char* expected[] = {"copy out[1..2] <- staging[0..1]@3", "copy out[5]@1 <- scratch[0]",
                            "signal #1 -> all", "wait #1 of rank 0 >= 7"};
  for (size_t i = 0; i < program.ops.size(); ++i) {
    EXPECT_EQ(describe(program, program.ops[i]), expected[i]);
  }
  EXPECT_EQ(locate(program, 3), "rank 2 op 3 (lane 0: wait #1 of rank 0 >= 7)");
  EXPECT_EQ(locate(program, 99), "rank 2");
}

}  // namespace
}  // namespace weir::sched
