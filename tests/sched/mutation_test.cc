// SPDX-License-Identifier: Apache-2.0
// The verifier rejects every mutant that is wrong. A mutant that it accepts must be right by the
// independent oracle under several interleavings and credits, and must compute the very same
// expressions as the original; then it is a different way to write the same program (two
// independent operations exchanged, a copy of a place to itself left out).
#include "sched/mutation.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "core/algo/check.h"
#include "core/sched/print.h"
#include "sched/oracle.h"
#include "sched/problems.h"

namespace weir::algo {
namespace {

using sched::Mutant;
using sched::MutationKind;

constexpr Rank kRankCounts[] = {WEIR_MUTATED_RANK_COUNTS};
constexpr int kInterleavings = 3;

uint64_t test_seed() {
  static const uint64_t seed = [] {
    const char* text = std::getenv("WEIR_TEST_SEED");
    const uint64_t value = text != nullptr ? std::strtoull(text, nullptr, 10) : 20240611;
    fmt::print("WEIR_TEST_SEED={}\n", value);
    return value;
  }();
  return seed;
}

// Operations that have no effect on one problem and cannot be left out by a rule that is worth its
// words: of two ranks that swap in place, the one that lets the other swap waits without need.
bool is_known_redundant(const Algorithm& algorithm, const TestProblem& test, const sched::Op& op) {
  return &algorithm == find_algorithm(Collective::kAllToAll, "window") && test.problem.in_place &&
         test.problem.rank_count == 2 && op.code == sched::OpCode::kWait;
}

struct Tally {
  uint64_t mutants = 0;
  uint64_t rejected = 0;
  std::map<MutationKind, uint64_t> accepted;
};

void check_mutants(const Algorithm& algorithm, const TestProblem& test, Tally* tally) {
  const std::vector<sched::Program> original = compile_all(algorithm, test.get());
  const sched::Access access = access_of(test.get());
  const sched::Verdict expected = sched::verify(original, {.access = access});
  ASSERT_TRUE(expected.ok()) << test.text << ": " << expected.flaw.text;
  const Rank n = test.problem.rank_count;
  std::vector<Rank> ranks{0, test.problem.root, n / 2, n - 1};
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  sched::for_each_mutant(original, ranks, [&](const Mutant& mutant) {
    ++tally->mutants;
    const sched::Verdict verdict = sched::verify(*mutant.programs, {.access = access});
    if (!verdict.ok()) {
      ++tally->rejected;
      EXPECT_FALSE(verdict.flaw.text.empty());
      return;
    }
    ++tally->accepted[mutant.kind];
    EXPECT_EQ(verdict.result_hash, expected.result_hash)
        << test.text << ": " << mutant.text << " is accepted but computes something else";
    for (int i = 0; i < kInterleavings; ++i) {
      const auto result = sched::run_oracle(
          *mutant.programs,
          {.access = access, .credit = static_cast<uint32_t>(1 + i % 3), .seed = test_seed() + i});
      ASSERT_EQ(result.error, "") << test.text << ": " << mutant.text << " is accepted";
    }
    // Only what has no effect may be left out or changed.
    if (mutant.kind == MutationKind::kSwap) return;
    const sched::Op& op = original[mutant.rank].ops[mutant.op_index];
    const sched::Layout layout(algorithm.collective, n, test.problem.root, original[0].shape,
                               test.problem.in_place);
    const bool is_copy_to_itself = op.code == sched::OpCode::kCopy &&
                                   layout.find(op.src, op.count) == layout.find(op.dst, op.count);
    if (mutant.kind == MutationKind::kDrop) {
      EXPECT_TRUE(is_copy_to_itself || is_known_redundant(algorithm, test, op))
          << test.text << ": " << mutant.text << " is accepted";
    } else if (std::getenv("WEIR_TEST_SHOW_ACCEPTED") != nullptr) {
      fmt::print("{}: {}\n", test.text, mutant.text);
    }
  });
}

TEST(Mutation, EveryMutantThatChangesAProgramIsRejected) {
  Tally tally;
  for (const Algorithm* algorithm : all_algorithms()) {
    for (const Rank n : kRankCounts) {
      for_each_problem(*algorithm, n, {n > 2 ? 1u : 0u}, [&](const TestProblem& test) {
        if (!HasFailure()) check_mutants(*algorithm, test, &tally);
      });
    }
  }
  fmt::print("{} mutants: {} rejected; equivalent: {} drops, {} swaps, {} changes\n", tally.mutants,
             tally.rejected, tally.accepted[MutationKind::kDrop],
             tally.accepted[MutationKind::kSwap], tally.accepted[MutationKind::kRetarget]);
  EXPECT_GT(tally.rejected, tally.mutants * 3 / 4);
}

// The oracle is worth something only if it finds what it should: unmutated programs pass, under
// every interleaving, and agree with the verifier on the order of folds.
TEST(Oracle, AgreesThatEveryAlgorithmIsCorrect) {
  for (const Algorithm* algorithm : all_algorithms()) {
    for (const Rank n : kRankCounts) {
      for_each_problem(*algorithm, n, {n - 1}, [&](const TestProblem& test) {
        const auto programs = compile_all(*algorithm, test.get());
        for (int i = 0; i < kInterleavings; ++i) {
          const auto result = sched::run_oracle(programs, {.access = access_of(test.get()),
                                                           .credit = static_cast<uint32_t>(1 + i),
                                                           .seed = test_seed() + i});
          ASSERT_EQ(result.error, "") << test.text;
          if (!algorithm->rank_order) continue;
          std::string fold = "(0";
          for (Rank rank = 1; rank < n; ++rank) fold += fmt::format("+{}", rank);
          for (const auto& [where, text] : result.outputs) ASSERT_EQ(text, fold + ")") << test.text;
        }
      });
    }
  }
}

}  // namespace
}  // namespace weir::algo
