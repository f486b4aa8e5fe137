// SPDX-License-Identifier: Apache-2.0
// Every algorithm on every rank count to 64, and from every root to 32 ranks. Above 64 ranks on the
// multiples of 32 and their neighbours, or on every one to 256 where WEIR_SWEEP_ALL is defined.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>

#include "core/algo/check.h"
#include "sched/problems.h"

namespace weir::algo {
namespace {

std::string name_for(const Algorithm& algorithm) {
  std::string name = fmt::format("{}_{}", name_of(algorithm.collective), algorithm.name);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

bool is_taken(Rank n) {
#ifdef WEIR_SWEEP_ALL
  return n <= 256;
#else
  return n <= 64 || (n + 1) % 32 <= 2;
#endif
}

class EveryAlgorithm : public testing::TestWithParam<const Algorithm*> {};

TEST_P(EveryAlgorithm, IsCorrectTo256RanksInPlaceAndNot) {
  const Algorithm& algorithm = *GetParam();
  for (Rank n = 1; n <= 256; ++n) {
    if (!is_taken(n)) continue;
    // Their programs grow with the cube of the ranks, or have several rings.
    const bool is_large = algorithm.uses_forest || algorithm.uses_rings;
    if (is_large && n > 64 && n % 32 != 0) continue;
    // The generator is that of by_cache, which takes the same layouts.
    if (algorithm.name == std::string_view("by_numa") && n > 32) break;
    const std::vector<Rank> roots = n <= 32 ? all_roots(n) : std::vector<Rank>{n / 2};
    for_each_problem(algorithm, n, roots, [&](const TestProblem& test) {
      // Where nothing is kept takes as long again.
      const sched::Verdict verdict = verify(algorithm, test.get(), 1, n <= 64);
      ASSERT_TRUE(verdict.ok()) << test.text << ": " << sched::name_of(verdict.flaw.kind) << ": "
                                << verdict.flaw.text;
      ASSERT_GE(verdict.rank_order, algorithm.rank_order) << test.text;
    });
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Sweep, EveryAlgorithm,
                         testing::ValuesIn(all_algorithms().begin(), all_algorithms().end()),
                         [](const auto& tested) { return name_for(*tested.param); });

}  // namespace
}  // namespace weir::algo
