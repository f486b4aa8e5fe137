// SPDX-License-Identifier: Apache-2.0
// Folds over leaves: the verifier proves that every element of every result is the balanced tree
// over all leaves, rounded once, whatever the number of ranks; and it rejects programs that differ
// from it.
#include "core/base/leaves.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "core/algo/check.h"
#include "core/sched/print.h"
#include "sched/mutation.h"
#include "sched/problems.h"

namespace weir::algo {
namespace {

struct Case {
  const Algorithm& algorithm;
  Rank rank_count;
  uint32_t leaf_count;
  Rank root = 0;
  bool in_place = false;

  Problem problem() const {
    Problem problem;
    problem.collective = algorithm.collective;
    problem.rank_count = rank_count;
    problem.root = root;
    problem.mapped = algorithm.needs_mapped;
    problem.in_place = in_place;
    problem.leaf_count = leaf_count;
    return problem;
  }
  std::string text() const {
    return fmt::format("{}/{} n={} leaves={} root={}{}", name_of(algorithm.collective),
                       algorithm.name, rank_count, leaf_count, root, in_place ? " in place" : "");
  }
};

template <typename Visit>
void for_each_case(Rank n, const std::set<uint32_t>& leaf_counts, const std::vector<Rank>& roots,
                   Visit&& visit) {
  for (const Algorithm* algorithm : leaf_algorithms()) {
    const std::vector<Rank> own_roots =
        is_rooted(algorithm->collective) ? roots : std::vector<Rank>{0};
    for (const uint32_t leaf_count : leaf_counts) {
      for (const Rank root : own_roots) {
        for (const bool in_place : {false, true}) {
          const Case one{*algorithm, n, leaf_count, root, in_place};
          if (algorithm->supports(one.problem())) visit(one);
        }
      }
    }
  }
}

void expect_right(const Case& one, bool keeps_nothing) {
  const sched::Verdict verdict = verify(one.algorithm, one.problem(), 1, keeps_nothing);
  ASSERT_TRUE(verdict.ok()) << one.text() << ": " << sched::name_of(verdict.flaw.kind) << ": "
                            << verdict.flaw.text;
}

#ifdef WEIR_LEAVES_ALL
TEST(LeafPrograms, AreTheTreeTo256Ranks) {
  for (Rank n = 1; n <= 256; ++n) {
    std::set<uint32_t> leaf_counts{256};
    if (n <= 48 || n % 32 < 2) leaf_counts.insert({(n + 1) / 2, n, 3 * n / 2 + 1});
    if (n % 64 < 2) leaf_counts.insert(4096);
    for_each_case(n, leaf_counts, {n / 2}, [&](const Case& one) {
      if (one.in_place && n > 48 && n % 32 > 1) return;
      if (!testing::Test::HasFatalFailure()) expect_right(one, n <= 32);
    });
    if (HasFatalFailure()) return;
  }
}
#else
TEST(LeafPrograms, AreTheTreeOnFewRanks) {
  uint32_t case_count = 0;
  for (Rank n = 1; n <= 17; ++n) {
    const std::set<uint32_t> leaf_counts{1, 2, 3, 5, 8, 16, 24, 64, n, 2 * n, 3 * n, 8 * n};
    for_each_case(n, leaf_counts, some_roots(n), [&](const Case& one) {
      ++case_count;
      if (!testing::Test::HasFatalFailure()) expect_right(one, true);
    });
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(case_count, 2000u);
}

TEST(LeafPrograms, AreTheTreeOfThousandsOfLeaves) {
  for (const Rank n : {3u, 8u, 20u}) {
    for_each_case(n, {1000, 4096}, {1}, [&](const Case& one) {
      if (!testing::Test::HasFatalFailure()) expect_right(one, true);
    });
  }
}

// One more tree: on a power of two of ranks, siblings meet in every round.
TEST(LeafPrograms, RecursiveDoublingServesPowersOfTwo) {
  const Algorithm& doubling =
      *find_algorithm(Collective::kAllReduce, "recursive_doubling", leaf_algorithms());
  EXPECT_TRUE(doubling.supports(Case{doubling, 8, 64}.problem()));
  EXPECT_FALSE(doubling.supports(Case{doubling, 8, 24}.problem()));
  EXPECT_FALSE(doubling.supports(Case{doubling, 6, 12}.problem()));
  EXPECT_FALSE(doubling.supports(Case{doubling, 8, 4}.problem()));
}

std::vector<sched::Program> compiled(const Case& one) {
  return compile_all(one.algorithm, one.problem());
}

bool is_accepted(const std::vector<sched::Program>& programs, const Case& one) {
  return sched::verify(programs, {.access = access_of(one.problem())}).ok();
}

// Every change to how operands are folded, or to which nodes they are.
TEST(LeafMutation, EveryOtherTreeIsRejected) {
  uint64_t mutant_count = 0;
  const auto expect_rejected = [&](const std::vector<sched::Program>& programs, const Case& one,
                                   const std::string& what) {
    ++mutant_count;
    EXPECT_FALSE(is_accepted(programs, one)) << one.text() << ": " << what << " is accepted";
  };
  for (const Rank n : {1u, 2u, 3u, 4u}) {
    for_each_case(n, {n, 8, 10}, {n - 1}, [&](const Case& one) {
      const std::vector<sched::Program> original = compiled(one);
      for (Rank rank = 0; rank < n; ++rank) {
        for (size_t k = 0; k < original[rank].operands.size(); ++k) {
          std::vector<sched::Program> changed = original;
          sched::Ref& operand = changed[rank].operands[k];
          const std::string at = fmt::format("rank {} operand {}", rank, k);
          ++operand.folds;
          expect_rejected(changed, one, at + " with one more fold");
          operand.folds -= 2;
          if (original[rank].operands[k].folds > 0) {
            expect_rejected(changed, one, at + " with one fold less");
          }
          changed = original;
          if (operand.space == sched::Space::kInput) {
            ++changed[rank].operands[k].node;
            expect_rejected(changed, one, at + " of another node");
          }
        }
        for (const sched::Op& op : original[rank].ops) {
          const auto index = static_cast<size_t>(&op - original[rank].ops.data());
          std::vector<sched::Program> changed = original;
          changed[rank].ops.erase(changed[rank].ops.begin() + static_cast<std::ptrdiff_t>(index));
          expect_rejected(changed, one,
                          "without " + sched::locate(original[rank], static_cast<uint32_t>(index)));
          if (op.code != sched::OpCode::kReduce || op.operand_count < 2) continue;
          changed = original;
          sched::Ref* operands = changed[rank].operands.data() + op.first_operand;
          std::swap(operands[0], operands[1]);
          std::swap(operands[0].folds, operands[1].folds);
          expect_rejected(changed, one, "two operands in the other order");
          changed = original;
          changed[rank].ops[index].tree = false;
          expect_rejected(changed, one, "a fold from left to right");
        }
      }
    });
  }
  EXPECT_GT(mutant_count, 1000u);
}

// Those of other programs, too: what is accepted computes the same and leaves nothing out.
TEST(LeafMutation, EveryMutantThatIsAcceptedComputesTheTree) {
  uint64_t mutant_count = 0;
  uint64_t rejected_count = 0;
  for (const Rank n : {2u, 3u, 4u}) {
    for_each_case(n, {n, 7}, {n > 2 ? 1u : 0u}, [&](const Case& one) {
      const std::vector<sched::Program> original = compiled(one);
      const sched::Access access = access_of(one.problem());
      const uint64_t expected = sched::verify(original, {.access = access}).result_hash;
      sched::for_each_mutant(original, {0, n - 1}, [&](const sched::Mutant& mutant) {
        ++mutant_count;
        const sched::Verdict verdict = sched::verify(*mutant.programs, {.access = access});
        if (!verdict.ok()) {
          ++rejected_count;
          return;
        }
        EXPECT_EQ(verdict.result_hash, expected) << one.text() << ": " << mutant.text;
        EXPECT_NE(mutant.kind, sched::MutationKind::kDrop) << one.text() << ": " << mutant.text;
      });
    });
  }
  fmt::print("{} mutants, {} rejected\n", mutant_count, rejected_count);
  EXPECT_GT(rejected_count, mutant_count * 3 / 4);
}

// A rounded result among partial ones, or the reverse, would have another length.
TEST(LeafMutation, ARoundedResultIsNotTakenForAPartialOne) {
  const Algorithm& ordered = *find_algorithm(Collective::kAllReduce, "ordered", leaf_algorithms());
  const Case one{ordered, 2, 2};
  std::vector<sched::Program> programs = compiled(one);
  ASSERT_TRUE(is_accepted(programs, one));
  // The results that ranks send to each other: received into scratch instead.
  sched::Op& received = programs[0].ops.back();
  ASSERT_EQ(received.code, sched::OpCode::kRecv);
  received.dst = {.chunk = 0, .rank = 0, .space = sched::Space::kScratch};
  const sched::Verdict verdict = sched::verify(programs, {.access = access_of(one.problem())});
  EXPECT_EQ(verdict.flaw.kind, sched::Flaw::Kind::kValue);
  EXPECT_NE(verdict.flaw.text.find("receives a rounded result"), std::string::npos)
      << verdict.flaw.text;

  programs = compiled(one);
  programs[0].ops.push_back({.code = sched::OpCode::kCopy,
                             .dst = {.chunk = 0, .rank = 0, .space = sched::Space::kScratch},
                             .src = {.chunk = 0, .rank = 0, .space = sched::Space::kOutput}});
  EXPECT_FALSE(is_accepted(programs, one));
}
#endif

}  // namespace
}  // namespace weir::algo
