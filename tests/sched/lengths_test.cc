// SPDX-License-Identifier: Apache-2.0
// Algorithm::lengths, held against the programs: what blocks that differ in length need.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "core/algo/check.h"
#include "core/sched/moved_chunks.h"
#include "sched/problems.h"

namespace weir::algo {
namespace {

using sched::Op;
using sched::OpCode;
using sched::Program;
using sched::Ref;
using sched::Space;

bool is_users(const Ref& ref) { return ref.space == Space::kInput || ref.space == Space::kOutput; }

TEST(BlockLengths, WhereAllKnowThemEveryMessageTellsItsChunks) {
  for (const Algorithm* algorithm : all_algorithms()) {
    if (algorithm->lengths == BlockLengths::kEqual || !uses_messages(*algorithm)) continue;
    for (Rank n = 1; n <= 17; ++n) {
      for_each_problem(*algorithm, n, {0}, [&](const TestProblem& test) {
        for (Rank rank = 0; rank < n; ++rank) {
          const Program program = compile(*algorithm, test.get(), rank);
          EXPECT_TRUE(sched::MovedChunks(program).all_messages_known()) << test.text;
        }
      });
    }
  }
}

// The block of the grid that an operation moves is sent or received by the rank itself.
void expect_own_blocks(const Program& program, const std::string& text) {
  const Rank n = program.rank_count;
  for (const Op& op : program.ops) {
    if (op.code == OpCode::kSignal || op.code == OpCode::kWait) continue;
    ASSERT_NE(op.code, OpCode::kReduce) << text;
    const bool by_src = op.code != OpCode::kRecv && is_users(op.src) && op.src.rank == program.rank;
    const Ref& ref = by_src ? op.src : op.dst;
    ASSERT_TRUE(is_users(ref) && ref.rank == program.rank) << text << ": a slot names no length";
    for (uint32_t block = ref.chunk; block < ref.chunk + op.count; ++block) {
      EXPECT_TRUE(block / n == program.rank || block % n == program.rank) << text;
    }
  }
}

TEST(BlockLengths, WhereOnlyTheEndsKnowThemARankMovesItsOwnBlocks) {
  for (const Algorithm* algorithm : all_algorithms()) {
    if (algorithm->lengths != BlockLengths::kKnownToEnds) continue;
    EXPECT_EQ(algorithm->collective, Collective::kAllToAll);
    for (Rank n = 1; n <= 17; ++n) {
      for_each_problem(*algorithm, n, {0}, [&](const TestProblem& test) {
        if (test.problem.lengths == BlockLengths::kEqual) return;
        ASSERT_EQ(algorithm->shape(test.get()).chunk_count, n * n) << test.text;
        for (Rank rank = 0; rank < n; ++rank) {
          expect_own_blocks(compile(*algorithm, test.get(), rank), test.text);
        }
      });
    }
  }
}

// Messages whose lengths only the ends know: the ranks choose by what each of them knows.
class Mixes : public testing::Test {
 protected:
  Mixes() {
    for (const Algorithm* algorithm : all_algorithms()) {
      if (algorithm->lengths != BlockLengths::kKnownToEnds || !uses_messages(*algorithm)) continue;
      algorithms_.push_back(algorithm);
    }
  }

  void expect_correct(const std::vector<const Algorithm*>& by_rank) {
    Problem problem;
    problem.collective = Collective::kAllToAll;
    problem.rank_count = static_cast<Rank>(by_rank.size());
    problem.lengths = BlockLengths::kKnownToEnds;
    std::vector<Program> programs;
    std::string text;
    for (Rank rank = 0; rank < by_rank.size(); ++rank) {
      programs.push_back(compile(*by_rank[rank], problem, rank));
      text += fmt::format(" {}", by_rank[rank]->name);
    }
    const sched::Verdict verdict = sched::verify(programs, {.access = {}, .credit = 1});
    EXPECT_TRUE(verdict.ok()) << text << ": " << verdict.flaw.text;
  }

  std::vector<const Algorithm*> algorithms_;
};

TEST_F(Mixes, EveryOneIsCorrectTo8Ranks) {
  ASSERT_GE(algorithms_.size(), 2u);
  for (Rank n = 2; n <= 8; ++n) {
    size_t mix_count = 1;
    for (Rank rank = 0; rank < n; ++rank) mix_count *= algorithms_.size();
    for (size_t mix = 0; mix < mix_count && !HasFailure(); ++mix) {
      std::vector<const Algorithm*> by_rank;
      for (size_t rest = mix; by_rank.size() < n; rest /= algorithms_.size()) {
        by_rank.push_back(algorithms_[rest % algorithms_.size()]);
      }
      expect_correct(by_rank);
    }
  }
}

TEST_F(Mixes, RandomOnesAreCorrectTo100Ranks) {
  const char* given = std::getenv("WEIR_TEST_SEED");
  const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 1;
  SCOPED_TRACE(fmt::format("WEIR_TEST_SEED={}", seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 100 && !HasFailure(); ++round) {
    std::vector<const Algorithm*> by_rank(2 + random() % 99);
    for (const Algorithm*& algorithm : by_rank)
      algorithm = algorithms_[random() % algorithms_.size()];
    expect_correct(by_rank);
  }
}

TEST(BlockLengths, NamesOfVariantsAreReadBack) {
  for (uint32_t i = 0; i < kCollectiveCount; ++i) {
    const auto collective = static_cast<Collective>(i);
    for (const BlockLengths lengths : {BlockLengths::kEqual, lengths_of_variant(collective)}) {
      const auto named = collective_named(name_of(collective, lengths));
      ASSERT_TRUE(named);
      EXPECT_EQ(named->collective, collective);
      EXPECT_EQ(named->lengths, lengths);
    }
  }
  EXPECT_STREQ(name_of(Collective::kAllToAll, BlockLengths::kKnownToEnds), "all_to_all_v");
  EXPECT_FALSE(collective_named("broadcast_v"));
}

}  // namespace
}  // namespace weir::algo
