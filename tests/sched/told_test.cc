// SPDX-License-Identifier: Apache-2.0
// Programs for told buffers, for every kind of buffers that the ranks may have.
#include "core/sched/told.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "core/algo/algorithm.h"
#include "core/algo/check.h"
#include "core/algo/window_told.h"
#include "core/sched/print.h"
#include "core/sched/verify.h"
#include "sched/problems.h"

namespace weir::algo {
namespace {

using sched::OpCode;
using sched::Program;
using sched::When;

Problem told_problem(const Algorithm& algorithm, Rank rank_count, Rank root, bool in_place) {
  Problem problem;
  problem.collective = algorithm.collective;
  problem.rank_count = rank_count;
  problem.root = root;
  problem.mapped = problem.inputs_mapped = problem.outputs_mapped = problem.told = true;
  problem.in_place = in_place;
  // An all_to_all_v is not told.
  if (algorithm.lengths != BlockLengths::kKnownToEnds) problem.lengths = algorithm.lengths;
  return problem;
}

std::vector<const Algorithm*> on_told_buffers() {
  std::vector<const Algorithm*> found;
  for (const Algorithm* algorithm : all_algorithms()) {
    if (algorithm->needs_user_windows && told::serves(algorithm->collective)) {
      found.push_back(algorithm);
    }
  }
  return found;
}

sched::Verdict verify_with(const std::vector<Program>& programs, const std::vector<bool>& open,
                           const Problem& problem) {
  std::vector<Program> plain;
  plain.reserve(programs.size());
  for (const Program& program : programs) plain.push_back(sched::with_inputs(program, open));
  return sched::verify(plain, {.access = access_of(problem)});
}

// By rank, whether its Input is open: all, none, all but one, one, and at random.
std::vector<std::vector<bool>> kinds_of_inputs(const Problem& problem, std::mt19937_64& random) {
  const Rank n = problem.rank_count;
  if (problem.collective == Collective::kAllToAll && problem.in_place) {
    return {std::vector<bool>(n, false)};
  }
  std::vector<std::vector<bool>> kinds;
  for (const bool open : {false, true}) {
    kinds.emplace_back(n, open);
    for (Rank odd = 0; odd < n; ++odd) {
      kinds.emplace_back(n, open);
      kinds.back()[odd] = !open;
    }
  }
  for (int i = 0; i < 20; ++i) {
    kinds.emplace_back();
    for (Rank r = 0; r < n; ++r) kinds.back().push_back(random() % 2 == 0);
  }
  return kinds;
}

std::string text_of(const std::vector<bool>& open) {
  std::string text;
  for (const bool one : open) text += one ? 'o' : 'c';
  return text;
}

uint64_t test_seed() {
  const char* text = std::getenv("WEIR_TEST_SEED");
  return text != nullptr ? std::strtoull(text, nullptr, 0) : std::random_device{}();
}

TEST(ToldPrograms, AreCorrectWhicheverBuffersAreOpen) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("WEIR_TEST_SEED={}", seed));
  std::mt19937_64 random(seed);
  ASSERT_EQ(on_told_buffers().size(), 6u);
  for (const Algorithm* algorithm : on_told_buffers()) {
    for (const Rank n : {1u, 2u, 3u, 4u, 5u, 8u}) {
      const std::vector<Rank> roots =
          is_rooted(algorithm->collective) ? some_roots(n) : std::vector<Rank>{0};
      for (const Rank root : roots) {
        for (const bool in_place : {false, true}) {
          const Problem problem = told_problem(*algorithm, n, root, in_place);
          const auto programs = compile_all(*algorithm, problem);
          for (const std::vector<bool>& open : kinds_of_inputs(problem, random)) {
            const sched::Verdict verdict = verify_with(programs, open, problem);
            ASSERT_TRUE(verdict.ok()) << weir::name_of(algorithm->collective) << " n=" << n
                                      << " root=" << root << (in_place ? " in place" : "")
                                      << " inputs " << text_of(open) << ": " << verdict.flaw.text;
            if (algorithm->rank_order) {
              EXPECT_TRUE(verdict.rank_order);
            }
          }
        }
      }
    }
  }
}

// A rank that has failed may free its memory although others have not noticed it yet.
TEST(ToldPrograms, WriteNoMemoryOfPeers) {
  for (const Algorithm* algorithm : on_told_buffers()) {
    for (const Rank n : {2u, 3u, 8u}) {
      for (const Program& program :
           compile_all(*algorithm, told_problem(*algorithm, n, 1, false))) {
        for (const sched::Op& op : program.ops) {
          if (op.code != OpCode::kCopy && op.code != OpCode::kReduce) continue;
          EXPECT_EQ(op.dst.rank, program.rank) << sched::describe(program, op);
        }
      }
    }
  }
}

TEST(ToldPrograms, ReadNoClosedBufferOfAPeer) {
  for (const Algorithm* algorithm : on_told_buffers()) {
    const Problem problem = told_problem(*algorithm, 4, 1, false);
    const std::vector<bool> none(4, false);
    for (const Program& program : compile_all(*algorithm, problem)) {
      const Program plain = sched::with_inputs(program, none);
      std::vector<sched::Ref> refs = plain.operands;
      for (const sched::Op& op : plain.ops) {
        if (op.code == OpCode::kCopy) refs.push_back(op.src);
      }
      for (const sched::Ref& ref : refs) {
        if (ref.rank != program.rank) {
          EXPECT_EQ(ref.space, sched::Space::kStaging);
        }
      }
    }
  }
}

// No operation with a condition can be left out: some buffers need it.
TEST(ToldPrograms, NeedEachOfTheirConditionalOperations) {
  constexpr Rank kRanks = 3;
  for (const Algorithm* algorithm : on_told_buffers()) {
    const Problem problem = told_problem(*algorithm, kRanks, 1, false);
    const auto programs = compile_all(*algorithm, problem);
    for (Rank rank = 0; rank < kRanks; ++rank) {
      for (size_t i = 0; i < programs[rank].ops.size(); ++i) {
        const When when = programs[rank].ops[i].when;
        if (when == When::kAlways) continue;
        auto mutated = programs;
        mutated[rank].ops.erase(mutated[rank].ops.begin() + static_cast<std::ptrdiff_t>(i));
        const std::vector<bool> all(kRanks, when == When::kInputOpen);
        EXPECT_FALSE(verify_with(mutated, all, problem).ok())
            << weir::name_of(algorithm->collective) << " without "
            << sched::locate(programs[rank], static_cast<uint32_t>(i));
      }
    }
  }
}

// The least: what a rank receives is read once and written once; what it folds is read once.
TEST(ToldPrograms, TouchTheLeastBytesWhereAllBuffersAreOpen) {
  for (const Rank n : {2u, 3u, 8u}) {
    for (const bool in_place : {false, true}) {
      const auto touched = [&](Collective collective, bool open) {
        const Algorithm* algorithm = find_algorithm(collective, "window");
        const std::vector<bool> all(n, open);
        const Problem problem = told_problem(*algorithm, n, 0, in_place);
        return sched::touched_chunks(sched::with_inputs(compile(*algorithm, problem, 1), all),
                                     in_place);
      };
      const uint64_t gathered = 2 * (n - (in_place ? 1 : 0));
      EXPECT_EQ(touched(Collective::kAllGather, true), gathered);
      EXPECT_EQ(touched(Collective::kReduceScatter, true), n + 1);
      EXPECT_GT(touched(Collective::kAllGather, false), gathered);
      EXPECT_GT(touched(Collective::kReduceScatter, false), n + 1);
    }
  }
}

TEST(ToldPrograms, SayTheirConditionsWhenPrinted) {
  const Algorithm* algorithm = find_algorithm(Collective::kAllGather, "window");
  const std::string text =
      sched::print(compile(*algorithm, told_problem(*algorithm, 2, 0, false), 0));
  EXPECT_NE(text.find("staging[0] <- in[0] if in is closed"), std::string::npos) << text;
  EXPECT_NE(text.find("out[1] <- in[1]@1 or staging[0]@1"), std::string::npos) << text;
}

}  // namespace
}  // namespace weir::algo
