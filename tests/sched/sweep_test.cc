// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <set>

#include "core/algo/check.h"
#include "sched/problems.h"

namespace weir::algo {
namespace {

void expect_correct(const Algorithm& algorithm, const TestProblem& test, uint32_t credit) {
  const sched::Verdict verdict = verify(algorithm, test.get(), credit);
  EXPECT_TRUE(verdict.ok()) << test.text << ": " << sched::name_of(verdict.flaw.kind) << ": "
                            << verdict.flaw.text;
  if (algorithm.rank_order) {
    EXPECT_TRUE(verdict.rank_order) << test.text << " claims rank order";
  }
}

TEST(Algorithms, EveryOneIsCorrectTo16RanksFromAllRootsInPlaceAndNot) {
  for (const Algorithm* algorithm : all_algorithms()) {
    for (Rank n = 1; n <= 16; ++n) {
      for_each_problem(*algorithm, n, all_roots(n), [&](const TestProblem& test) {
        if (!HasFailure()) expect_correct(*algorithm, test, 4);
      });
    }
  }
}

TEST(Algorithms, EveryOneIsCorrectOnSomeOddRankCounts) {
  for (const Algorithm* algorithm : all_algorithms()) {
    for (Rank n : {17u, 23u, 33u, 48u, 63u, 65u}) {
      for_each_problem(*algorithm, n, some_roots(n), [&](const TestProblem& test) {
        if (!HasFailure()) expect_correct(*algorithm, test, 1);
      });
    }
  }
}

TEST(Algorithms, OnlyThoseThatSaySoFoldInRankOrder) {
  for (const Algorithm* algorithm : all_algorithms()) {
    bool is_reduction = false;
    bool always = true;
    for (Rank n : {4u, 6u, 7u}) {
      for_each_problem(*algorithm, n, {0, 2}, [&](const TestProblem& test) {
        const sched::Verdict verdict = verify(*algorithm, test.get());
        ASSERT_TRUE(verdict.ok()) << test.text << ": " << verdict.flaw.text;
        is_reduction = true;
        always = always && verdict.rank_order;
      });
    }
    if (is_reduction) {
      EXPECT_EQ(always, algorithm->rank_order)
          << name_of(algorithm->collective) << "/" << algorithm->name;
    }
  }
}

// What no algorithm emits cannot be right or wrong, and has no place in the representation.
TEST(Algorithms, EmitEveryOperationThatThereIs) {
  std::set<sched::OpCode> emitted;
  for (const Algorithm* algorithm : all_algorithms()) {
    for_each_problem(*algorithm, 5, {1}, [&](const TestProblem& test) {
      for (const sched::Op& op : compile(*algorithm, test.get(), 0).ops) emitted.insert(op.code);
    });
  }
  EXPECT_EQ(emitted.size(), sched::kOpCodeCount);
}

TEST(Algorithms, NamesAreUniqueWithinACollectiveAndCanBeFound) {
  std::set<std::pair<Collective, std::string>> seen;
  for (const Algorithm* algorithm : all_algorithms()) {
    EXPECT_TRUE(seen.emplace(algorithm->collective, algorithm->name).second) << algorithm->name;
    EXPECT_EQ(find_algorithm(algorithm->collective, algorithm->name), algorithm);
    EXPECT_NE(algorithm->summary[0], '\0');
  }
  EXPECT_EQ(find_algorithm(Collective::kAllReduce, "no such"), nullptr);
}

// A program may be made a step at a time, in any order of ranks, and is always the same.
TEST(Algorithms, StepsArePureFunctions) {
  for (const Algorithm* algorithm : all_algorithms()) {
    for_each_problem(*algorithm, 6, {1}, [&](const TestProblem& test) {
      const Problem problem = test.get();
      for (Rank rank = 0; rank < 6; ++rank) {
        const sched::Program whole = compile(*algorithm, problem, rank);
        std::vector<sched::Op> ops;
        std::vector<sched::Ref> operands;
        sched::Builder builder(rank, &ops, &operands);
        size_t op_count = 0;
        for (uint32_t s = 0; s < algorithm->step_count(problem, rank); ++s) {
          builder.lane(0);
          algorithm->step(problem, rank, s, builder);
          op_count = ops.size();
          for (size_t i = 0; i < ops.size(); ++i) ASSERT_LT(i, whole.ops.size());
        }
        EXPECT_EQ(op_count, whole.ops.size()) << test.text;
        EXPECT_EQ(operands.size(), whole.operands.size()) << test.text;
      }
    });
  }
}

}  // namespace
}  // namespace weir::algo
