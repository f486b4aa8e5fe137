// SPDX-License-Identifier: Apache-2.0
// What a choice leaves out of predictions does not change it.
#include "core/cost/prediction.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "core/cost/router.h"
#include "sim/sim_support.h"

namespace weir::cost {
namespace {

// Calls `visit` for calls of every collective, on hosts that are alike and on ones that are not.
void for_each_request(const std::function<void(const Request&)>& visit) {
  for (const auto& [n, per_host] : {std::pair<Rank, Rank>{8, 8}, {16, 4}, {21, 8}, {100, 24}}) {
    const std::vector<uint32_t> hosts =
        n == per_host ? std::vector<uint32_t>() : sim::even_nodes(n, per_host);
    for (uint32_t i = 0; i < static_cast<uint32_t>(Collective::kSendRecv); ++i) {
      for (const uint64_t bytes :
           {uint64_t{4096}, uint64_t{300'000}, uint64_t{5} << 20, uint64_t{200} << 20}) {
        Request r;
        r.work.problem.collective = static_cast<Collective>(i);
        r.work.problem.rank_count = n;
        r.work.problem.mapped = hosts.empty();
        r.work.problem.node_of_rank = hosts;
        r.work.bytes = r.work.problem.collective == Collective::kBarrier ? 0 : bytes;
        r.work.slicing = {128 * 1024, 4};
        r.work.layout.host_of_rank = hosts;
        visit(r);
      }
    }
  }
}

std::string text_of(const Request& r) {
  const algo::Problem& p = r.work.problem;
  return std::string(name_of(p.collective)) + " of " + std::to_string(r.work.bytes) + " bytes on " +
         std::to_string(p.rank_count) + " ranks";
}

TEST(Prediction, ItsBoundIsNotAboveItAndALimitOnlyEndsItSooner) {
  const Table table = built_in_table();
  uint32_t sooner = 0;
  for_each_request([&](const Request& r) {
    for (const algo::Algorithm* a : candidates_for(algo::all_algorithms(), r.work.problem)) {
      if (why_excluded(*a, r) != nullptr) continue;
      const Workload work = work_of(*a, r);
      const std::string where = std::string(a->name) + ", " + text_of(r);
      const Predicted whole = Prediction(*a, work, table).made();
      EXPECT_FALSE(whole.at_least) << where;
      Prediction one(*a, work, table);
      EXPECT_GT(one.bound_ns(), 0) << where;
      EXPECT_LE(one.bound_ns(), whole.ns) << where;
      const Predicted above = one.made(whole.ns * 1.001);
      EXPECT_FALSE(above.at_least) << where;
      EXPECT_EQ(above.ns, whole.ns) << where;
      for (const double factor : {0.1, 0.7, 0.999}) {
        const Predicted below = Prediction(*a, work, table).made(whole.ns * factor);
        EXPECT_TRUE(below.at_least) << where;
        EXPECT_GT(below.ns, whole.ns * factor) << where;
        EXPECT_LE(below.ns, whole.ns * 1.000001) << where;
        sooner += below.operations < whole.operations ? 1 : 0;
      }
    }
  });
  EXPECT_GT(sooner, 500u);
}

// First a ring between hosts, in which cores idle; then they have most of their work to do.
TEST(Prediction, EndsWhenACoreHasIdledForTooLong) {
  const Table table = built_in_table();
  const std::vector<uint32_t> hosts = sim::even_nodes(100, 8);
  Request r;
  r.work.problem.collective = Collective::kAllGather;
  r.work.problem.rank_count = 100;
  r.work.problem.node_of_rank = hosts;
  r.work.layout.host_of_rank = hosts;
  r.work.bytes = uint64_t{64} << 20;
  r.work.slicing = {128 * 1024, 4};
  const algo::Algorithm& algorithm = sim::algorithm(Collective::kAllGather, "hierarchical");
  const Predicted whole = Prediction(algorithm, work_of(algorithm, r), table).made();
  const Predicted some = Prediction(algorithm, work_of(algorithm, r), table).made(whole.ns * 0.9);
  EXPECT_TRUE(some.at_least);
  EXPECT_LT(some.operations, whole.operations / 2);
}

TEST(Prediction, WhatIsNotPredictedToItsEndDoesNotChangeTheChoice) {
  const Table table = built_in_table();
  uint32_t at_least = 0;
  for_each_request([&](Request r) {
    if (r.work.problem.mapped) return;  // there the number of signals counts, too
    const auto candidates = candidates_for(algo::all_algorithms(), r.work.problem);
    const algo::Algorithm* best = nullptr;
    double best_ns = 0;
    for (const algo::Algorithm* a : candidates) {
      if (why_excluded(*a, r) != nullptr) continue;
      const double ns = predict_anew(*a, work_of(*a, r), table).ns;
      if (best == nullptr || ns < best_ns) {
        best = a;
        best_ns = ns;
      }
    }
    for (const bool explores : {false, true}) {
      r.explores = explores;
      const Result<Decision> decision = choose(r, candidates, table, nullptr);
      ASSERT_TRUE(decision.ok());
      EXPECT_EQ(decision.value().algorithm, best) << text_of(r);
      EXPECT_EQ(decision.value().predicted_ns, best_ns) << text_of(r);
      for (const Candidate& candidate : decision.value().candidates) {
        if (!candidate.at_least) continue;
        ++at_least;
        // Of a long program that is not followed: its bound.
        EXPECT_GT(candidate.predicted_ns, best_ns * (explores ? kExploredFactorMax : 0.98));
      }
    }
  });
  EXPECT_GT(at_least, 100u);
}

// Ranks may have kept other predictions before, and must choose alike all the same.
TEST(Prediction, WhatIsKeptDoesNotChangeTheChoice) {
  const Table table = built_in_table();
  const std::vector<uint32_t> hosts = sim::even_nodes(96, 1);
  std::vector<double> wires;
  for (Rank host = 0; host < 96; ++host) wires.push_back(host % 4 == 3 ? 160 : 20 + host % 3);
  uint32_t left_out = 0;
  for (uint32_t i = 0; i < static_cast<uint32_t>(Collective::kBarrier); ++i) {
    for (const uint64_t bytes : {uint64_t{64} << 10, uint64_t{1} << 20, uint64_t{64} << 20}) {
      Request r;
      r.work.problem.collective = static_cast<Collective>(i);
      r.work.problem.rank_count = 96;
      r.work.problem.node_of_rank = hosts;
      r.work.bytes = bytes;
      r.work.slicing = {128 * 1024, 4};
      r.work.layout.host_of_rank = hosts;
      r.work.layout.wire_of_host = wires;
      const auto candidates = candidates_for(algo::all_algorithms(), r.work.problem);
      const Result<Decision> first = choose(r, candidates, table, nullptr);
      ASSERT_TRUE(first.ok());
      double best_ns = first.value().predicted_ns;
      for (const Candidate& candidate : first.value().candidates) {
        if (candidate.excluded != nullptr) continue;
        const Workload work = work_of(*candidate.algorithm, r);
        const double ns = predict(*candidate.algorithm, work, table);  // kept from now on
        best_ns = std::min(best_ns, ns);
        if (candidate.at_least) {
          EXPECT_LE(candidate.predicted_ns, ns * 1.000001)
              << candidate.algorithm->name << ", " << text_of(r);
          left_out += ns < first.value().predicted_ns * 1.02 ? 1 : 0;
        }
      }
      EXPECT_LE(first.value().predicted_ns * 0.98, best_ns) << text_of(r);
      const Result<Decision> again = choose(r, candidates, table, nullptr);
      ASSERT_TRUE(again.ok());
      EXPECT_EQ(again.value().algorithm, first.value().algorithm) << text_of(r);
      EXPECT_EQ(again.value().predicted_ns, first.value().predicted_ns) << text_of(r);
    }
  }
  EXPECT_GT(left_out, 0u);
}

// A forced algorithm has its whole prediction, however slow it is.
TEST(Prediction, OfAForcedAlgorithmIsWhole) {
  const Table table = built_in_table();
  const std::vector<uint32_t> hosts = sim::even_nodes(24, 8);
  Request r;
  r.work.problem.collective = Collective::kAllReduce;
  r.work.problem.rank_count = 24;
  r.work.problem.node_of_rank = hosts;
  r.work.layout.host_of_rank = hosts;
  r.work.bytes = 8;
  r.forced = "ring";
  const Result<Decision> decision = choose(r, {}, table, nullptr);
  ASSERT_TRUE(decision.ok());
  const algo::Algorithm& ring = sim::algorithm(Collective::kAllReduce, "ring");
  EXPECT_EQ(decision.value().predicted_ns, predict_anew(ring, work_of(ring, r), table).ns);
  for (const Candidate& candidate : decision.value().candidates) {
    if (candidate.algorithm == &ring) {
      EXPECT_FALSE(candidate.at_least);
    }
  }
}

}  // namespace
}  // namespace weir::cost
