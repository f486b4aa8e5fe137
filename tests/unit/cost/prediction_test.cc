// SPDX-License-Identifier: Apache-2.0
// What a choice leaves out of predictions does not change it.
#include "core/cost/prediction.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "core/cost/chunk_bytes.h"
#include "core/cost/router.h"
#include "core/cost/run_ahead.h"
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

// Of all slices at once, and of some first.
TEST(CriticalPath, InPartsIsThatOfEachPart) {
  const Table table = built_in_table();
  uint32_t fewer = 0;
  uint32_t count = 0;
  for_each_request([&](const Request& r) {
    for (const algo::Algorithm* a : candidates_for(algo::all_algorithms(), r.work.problem)) {
      if (why_excluded(*a, r) != nullptr || a->uses_rings || a->uses_forest) continue;
      const Workload work = work_of(*a, r);
      const uint64_t in_flight = work.slicing.in_flight;
      const uint64_t slices =
          ChunkBytes(work.problem.collective, work.problem.rank_count, work.bytes,
                     a->shape(work.problem).chunk_count, work.slicing.slice_bytes)
              .slice_count();
      if (slices < 3 * in_flight || work.problem.rank_count > 64) continue;
      const TaskCosts costs(work, table);
      const Fold fold(*a, work);
      Part part;
      part.slices_max = 2 * in_flight;
      const PathTime some = critical_path(*a, work, costs, fold, part);
      part.slices_max = 3 * in_flight;
      const PathTime more = critical_path(*a, work, costs, fold, part);
      PathInParts path(*a, work, costs, fold, part);
      const PathTime first = path.first(2 * in_flight, Limit());
      const PathTime all = path.all(Limit());
      const std::string where = std::string(a->name) + ", " + text_of(r);
      EXPECT_EQ(first.ns, some.ns) << where;
      EXPECT_EQ(first.busy_ns, some.busy_ns) << where;
      EXPECT_EQ(first.operations, some.operations) << where;
      EXPECT_EQ(all.ns, more.ns) << where;
      EXPECT_EQ(all.busy_ns, more.busy_ns) << where;
      EXPECT_EQ(all.lane_ns, more.lane_ns) << where;
      EXPECT_LE(all.operations, more.operations) << where;
      fewer += all.operations < more.operations ? 1 : 0;
      ++count;
    }
  });
  EXPECT_GT(count, 50u);
  EXPECT_GT(fewer, count / 2);
}

// Most slices are alike, and looked at once.
TEST(RunAhead, OfManySlicesIsTheWorkInAllOfThem) {
  const Table table = built_in_table();
  for (const uint64_t bytes : {uint64_t{4096}, uint64_t{1'000'003}, uint64_t{30} << 20}) {
    for (const Rank n : {2u, 7u, 32u}) {
      for (const algo::Algorithm* a : algo::all_algorithms()) {
        Workload work;
        work.problem.collective = a->collective;
        work.problem.rank_count = n;
        work.problem.mapped = true;
        work.bytes = bytes;
        work.slicing = {64 * 1024, 4};
        if (!a->supports(work.problem)) continue;
        uint64_t looked_at = 0;
        const auto ahead = run_ahead_ns(*a, work, table, &looked_at);
        if (!ahead) continue;
        const TaskCosts costs(work, table);
        OpStream stream(*a, work.problem, bytes, work.slicing, costs, 1'000'000);
        std::vector<Rank> ranks(n);
        std::iota(ranks.begin(), ranks.end(), 0u);
        const Loads loads = loads_of(&stream, ranks, work, costs);
        EXPECT_EQ(*ahead, costs.call_ns() + static_cast<double>(loads.busiest()) / 1000)
            << a->name << " of " << bytes << " bytes on " << n << " ranks";
        EXPECT_LE(looked_at, stream.operations());
        if (stream.slice_count() > 50) {
          EXPECT_LT(looked_at, stream.operations() / 10);
        }
      }
    }
  }
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
