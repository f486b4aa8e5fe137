// SPDX-License-Identifier: Apache-2.0
#include "core/algo/support.h"

#include <gtest/gtest.h>

#include "core/algo/recursive_group.h"

namespace weir::algo {
namespace {

TEST(Support, PowersAndLogarithms) {
  for (uint32_t n = 1; n <= 5000; ++n) {
    const uint32_t power = floor_power_of_two(n);
    EXPECT_EQ(power & (power - 1), 0u);
    EXPECT_LE(power, n);
    EXPECT_GT(uint64_t{power} * 2, n);
    EXPECT_GE(uint64_t{1} << ceil_log2(n), n);
    EXPECT_TRUE(n == 1 || uint64_t{1} << (ceil_log2(n) - 1) < n);
  }
  EXPECT_EQ(floor_power_of_two(0xffffffffu), 0x80000000u);
}

TEST(Support, SegmentsCoverARangeThatWraps) {
  for (uint32_t n = 1; n <= 9; ++n) {
    for (uint32_t first = 0; first < n; ++first) {
      for (uint32_t count = 0; count <= n; ++count) {
        uint32_t covered = 0;
        for_each_segment(first, count, n, [&](uint32_t start, uint32_t length, uint32_t offset) {
          EXPECT_EQ(offset, covered);
          EXPECT_EQ(start, (first + offset) % n);
          EXPECT_LE(start + length, n);
          covered += length;
        });
        EXPECT_EQ(covered, count);
      }
    }
  }
}

TEST(RecursiveGroup, MembersStandForAllRanksInOrder) {
  for (Rank n = 1; n <= 70; ++n) {
    std::vector<int> work(n, 0);
    for (Rank rank = 0; rank < n; ++rank) {
      const RecursiveGroup group(n, rank);
      if (group.hands_over()) {
        EXPECT_FALSE(RecursiveGroup(n, group.partner()).hands_over());
        continue;
      }
      EXPECT_EQ(group.rank_of_member(group.member()), rank);
      for (Rank r = group.first_rank(group.member()); r < group.first_rank(group.member() + 1);
           ++r) {
        ++work[r];
      }
    }
    EXPECT_EQ(work, std::vector<int>(n, 1));
  }
}

TEST(Compile, IsRefusedNothingThatItSupports) {
  Problem problem;
  problem.rank_count = 4;
  for (const Algorithm* algorithm : all_algorithms()) {
    problem.collective = algorithm->collective;
    problem.lengths = algorithm->lengths;
    EXPECT_EQ(algorithm->supports(problem), !algorithm->needs_mapped &&
                                                !algorithm->needs_user_windows &&
                                                !algorithm->uses_forest && !algorithm->uses_rings)
        << algorithm->name;
  }
}

// A step costs what it emits: one rank of many is compiled without making the others.
TEST(Compile, OneRankOfTenThousandIsCheap) {
  Problem problem;
  problem.rank_count = 10240;
  for (const Algorithm* algorithm : all_algorithms()) {
    problem.collective = algorithm->collective;
    if (!algorithm->supports(problem)) continue;
    const sched::Program program = compile(*algorithm, problem, 4711);
    EXPECT_LE(program.ops.size(), size_t{14} * problem.rank_count) << algorithm->name;
  }
}

}  // namespace
}  // namespace weir::algo
