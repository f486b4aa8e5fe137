// SPDX-License-Identifier: Apache-2.0
#include "core/sched/peephole.h"

#include <gtest/gtest.h>

#include <array>

#include "core/algo/check.h"
#include "sched/oracle.h"
#include "sched/problems.h"

namespace weir::sched {
namespace {

Program empty(uint32_t scratch_slots, uint32_t lane_count = 1) {
  Program program;
  program.collective = Collective::kAllReduce;
  program.rank_count = 2;
  program.shape = {.chunk_count = 2, .scratch_slots = scratch_slots, .lane_count = lane_count};
  return program;
}

std::string marks(Program program) {
  mark_fused(&program);
  EXPECT_EQ(check_marks(program), "");
  std::string text;
  for (const Op& op : program.ops) text += (op.flags & kFusedWithNext) != 0 ? '+' : '.';
  return text;
}

TEST(Peephole, MarksReceiveFoldForward) {
  Program program = empty(1);
  Builder b(0, &program.ops, &program.operands);
  b.recv(1, b.scratch(0));
  b.reduce(b.output(0), std::array{b.scratch(0), b.input(0)});
  b.send(1, b.output(0));
  EXPECT_EQ(marks(program), "++.");
}

TEST(Peephole, LeavesASlotThatIsReadAgain) {
  Program program = empty(1);
  Builder b(0, &program.ops, &program.operands);
  b.recv(1, b.scratch(0));
  b.reduce(b.output(0), std::array{b.scratch(0), b.input(0)});
  b.copy(b.output(1), b.input(1));
  b.send(1, b.scratch(0));
  EXPECT_EQ(marks(program), "....");
}

TEST(Peephole, MarksASlotThatIsOverwrittenBeforeItIsReadAgain) {
  Program program = empty(1);
  Builder b(0, &program.ops, &program.operands);
  b.recv(1, b.scratch(0));
  b.reduce(b.scratch(0), std::array{b.scratch(0), b.input(0)});
  b.send(1, b.scratch(0));
  b.recv(1, b.scratch(0));
  b.reduce(b.output(0), std::array{b.scratch(0), b.input(0)});
  EXPECT_EQ(marks(program), "++.+.");
}

TEST(Peephole, LeavesASlotThatIsAnOperandTwiceOrInPart) {
  Program twice = empty(2);
  Builder b(0, &twice.ops, &twice.operands);
  b.recv(1, b.scratch(0));
  b.reduce(b.output(0), std::array{b.scratch(0), b.scratch(0)});
  EXPECT_EQ(marks(twice), "..");
  Program part = empty(3);
  Builder c(0, &part.ops, &part.operands);
  c.recv(1, c.scratch(0), 2);
  c.reduce(c.output(0), std::array{c.scratch(0), c.scratch(1)}, 2);
  EXPECT_EQ(marks(part), "..");
}

TEST(Peephole, LeavesASlotThatAnotherLaneTouches) {
  Program program = empty(1, 2);
  Builder b(0, &program.ops, &program.operands);
  b.recv(1, b.scratch(0));
  b.reduce(b.output(0), std::array{b.scratch(0), b.input(0)});
  b.lane(1);
  b.send(1, b.scratch(0));
  EXPECT_EQ(marks(program), "...");
}

TEST(Peephole, LooksAtNeighboursInTheLane) {
  Program program = empty(1, 2);
  Builder b(0, &program.ops, &program.operands);
  b.recv(1, b.scratch(0));
  b.lane(1);
  b.recv(1, b.output(1));
  b.lane(0);
  b.reduce(b.output(0), std::array{b.scratch(0), b.input(0)});
  EXPECT_EQ(marks(program), "+..");
}

TEST(Peephole, LeavesDifferentCountsAndPlaces) {
  Program program = empty(2);
  Builder b(0, &program.ops, &program.operands);
  b.recv(1, b.scratch(0), 2);
  b.send(1, b.scratch(0));
  b.recv(1, b.scratch(1));
  b.send(1, b.scratch(0));
  EXPECT_EQ(marks(program), "....");
}

TEST(Peephole, ReportsAMarkThatIsNotAllowed) {
  Program program = empty(1);
  Builder b(0, &program.ops, &program.operands);
  b.copy(b.output(0), b.input(0));
  b.send(1, b.output(0));
  program.ops[0].flags = kFusedWithNext;
  EXPECT_EQ(
      check_marks(program),
      "rank 0 op 0 (lane 0: copy out[0] <- in[0]) must not be fused with the next operation of "
      "its lane");
  EXPECT_EQ(mark_fused(&program), 0u);
  EXPECT_EQ(check_marks(program), "");
}

// Executing marked pairs as one (the received slot poisoned) gives the results of plain execution.
TEST(Peephole, MarksNeverChangeTheResultOfAnAlgorithm) {
  uint32_t mark_count = 0;
  for (const algo::Algorithm* algorithm : algo::all_algorithms()) {
    for (Rank n : {2u, 3u, 4u, 5u, 7u}) {
      algo::for_each_problem(*algorithm, n, {n - 1}, [&](const algo::TestProblem& test) {
        std::vector<Program> programs = algo::compile_all(*algorithm, test.get());
        OracleOptions options{.access = algo::access_of(test.get()), .credit = 1, .seed = n};
        const OracleResult plain = run_oracle(programs, options);
        for (Program& program : programs) mark_count += mark_fused(&program);
        options.use_marks = true;
        const OracleResult fused = run_oracle(programs, options);
        EXPECT_EQ(plain.error, "") << test.text;
        EXPECT_EQ(fused.error, "") << test.text;
        EXPECT_EQ(fused.outputs, plain.outputs) << test.text;
        EXPECT_TRUE(verify(programs, {.access = options.access}).ok()) << test.text;
      });
    }
  }
  EXPECT_GT(mark_count, 1000u);
}

}  // namespace
}  // namespace weir::sched
