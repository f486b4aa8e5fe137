// SPDX-License-Identifier: Apache-2.0
// Simulation against algebra, on like links without contention.
#include <gtest/gtest.h>

#include "sim/sim_support.h"

namespace weir::sim {
namespace {

constexpr uint64_t kEvenBytes = uint64_t{64} * 3 * 5 * 7 * 1024;

TEST(ClosedForm, IsWhatTheSimulationGivesWhereItIsExact) {
  uint32_t exact_count = 0;
  for (const algo::Algorithm* a : algo::all_algorithms()) {
    for (Rank n : {2u, 3u, 4u, 5u, 7u, 8u, 16u, 32u, 64u}) {
      const algo::Problem p = problem(a->collective, n);
      if (!a->supports(p)) continue;
      for (uint64_t bytes : {uint64_t{0}, kEvenBytes}) {
        const auto form = cost::closed_form(*a, p, bytes, uniform_figures());
        if (!form || !form->exact) continue;
        ++exact_count;
        const Report report = run(*a, p, bytes, uniform_options());
        // Every copy and reduction is rounded to a picosecond.
        EXPECT_NEAR(total_ns(report), form->ns, 1e-3 * (2 * n + 8))
            << a->name << " of " << name_of(a->collective) << ", " << n << " ranks, " << bytes
            << " bytes: " << form->formula;
      }
    }
  }
  EXPECT_GT(exact_count, 200u);
}

TEST(ClosedForm, IsAnEstimateWithinAFactorOfTwoElsewhere) {
  for (const algo::Algorithm* a : algo::all_algorithms()) {
    for (Rank n : {3u, 6u, 10u, 16u, 33u}) {
      const algo::Problem p = problem(a->collective, n);
      if (!a->supports(p)) continue;
      for (uint64_t bytes : {uint64_t{1000}, uint64_t{100'000}, uint64_t{10'000'000}}) {
        const auto form = cost::closed_form(*a, p, bytes, uniform_figures());
        if (!form) continue;
        const double simulated = total_ns(run(*a, p, bytes, uniform_options()));
        EXPECT_LT(simulated, 2.1 * form->ns)
            << a->name << " " << name_of(a->collective) << " " << n;
        EXPECT_GT(simulated, form->ns / 2.1)
            << a->name << " " << name_of(a->collective) << " " << n;
      }
    }
  }
}

TEST(ClosedForm, RingIsTwoTimesTheStepsTimesAlphaPlusBeta) {
  const Rank n = 16;
  const uint64_t bytes = n * 4096;
  const double alpha = 1250;
  const double expected = 2 * (n - 1) * (alpha + 4096 * 0.125) + (n - 1) * 4096 * 0.0625;
  const Report report = run(algorithm(Collective::kAllReduce, "ring"),
                            problem(Collective::kAllReduce, n), bytes, uniform_options());
  EXPECT_DOUBLE_EQ(total_ns(report), expected);
  EXPECT_EQ(report.messages, 2u * (n - 1) * n);
  EXPECT_EQ(report.message_bytes_intra_node, 2u * (n - 1) * bytes);
}

// Every collective of every algorithm ends, and time on the critical path is all accounted for.
TEST(Simulation, OfEveryAlgorithmEndsAndAccountsForItsTime) {
  for (const algo::Algorithm* a : algo::all_algorithms()) {
    for (Rank n : {1u, 2u, 5u, 12u, 24u}) {
      const std::vector<uint32_t> nodes = even_nodes(n, 5);
      for (bool hierarchy : {false, true}) {
        algo::Problem p = problem(a->collective, n);
        p.root = n / 2;
        if (hierarchy) p.node_of_rank = nodes;
        if (!a->supports(p)) continue;
        for (const cost::Slicing& slicing : {cost::Slicing{}, cost::Slicing{4096, 3}}) {
          Options options;  // contended
          options.slicing = slicing;
          const Report r = run(*a, p, 100'000, options);
          EXPECT_TRUE(r.complete) << a->name << " " << name_of(a->collective) << " " << n;
          EXPECT_TRUE(r.blocked.empty());
          EXPECT_TRUE(r.culprits.empty());
          const CriticalPath& c = r.critical_path;
          const uint64_t parts = c.overhead_ps + c.latency_ps + c.transfer_ps + c.compute_ps;
          EXPECT_LE(parts, r.total_ps) << a->name;
          EXPECT_EQ(parts + c.contention_ps, r.total_ps);
        }
      }
    }
  }
}

}  // namespace
}  // namespace weir::sim
