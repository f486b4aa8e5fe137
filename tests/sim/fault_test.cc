// SPDX-License-Identifier: Apache-2.0
// Slow ranks, dead ranks, blame, determinism, and bad requests.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/sim/diagnosis.h"
#include "sim/sim_support.h"

namespace weir::sim {
namespace {

TEST(SlowRank, OnARingCostsItsShareOfEveryStep) {
  const Rank n = 8;
  const uint64_t bytes = n * 8192;
  const algo::Algorithm& ring = algorithm(Collective::kAllReduce, "ring");
  const algo::Problem p = problem(Collective::kAllReduce, n);
  Options options = uniform_options();
  options.slow = {{3, 4.0}};
  const Report slow = run(ring, p, bytes, options);
  // A receive overhead, a reduction and a send overhead of the slow rank are in a row at each of
  // its steps, and its port is not faster than 4 times the transfer: it sets the pace.
  const double transfer = 8192 * kLevel.ns_per_byte;
  const double pace = std::max(4 * transfer, 0.0);
  EXPECT_GE(total_ns(slow), 2 * (n - 1) * pace);
  const double step = 4 * (100 + 150) + 1000 + 4 * transfer + 4 * 8192 * kReduceNsPerByte;
  EXPECT_LE(total_ns(slow), 2 * (n - 1) * step);
  options.slow.clear();
  EXPECT_GT(total_ns(slow), total_ns(run(ring, p, bytes, options)));
}

TEST(SlowRank, LeafOfAChainMovesTheFinishByExactlyItsOwnSlowness) {
  const Rank n = 6;
  const uint64_t bytes = 4096;
  const algo::Algorithm& chain = algorithm(Collective::kBroadcast, "chain");
  const algo::Problem p = problem(Collective::kBroadcast, n);
  Options options = uniform_options();
  const double normal = total_ns(run(chain, p, bytes, options));
  options.slow = {{n - 1, 3.0}};
  const double slow = total_ns(run(chain, p, bytes, options));
  // The last rank receives: its ingress port and its receive overhead take three times as long.
  EXPECT_NEAR(slow - normal, 2 * (4096 * kLevel.ns_per_byte + kLevel.recv_overhead_ns), 1e-6);
}

TEST(DeadRank, IsNamedAsTheCulpritOfEveryoneWhoWaits) {
  for (const char* name : {"ring", "recursive_doubling", "double_binary_tree", "direct",
                           "hierarchical", "recursive_halving_doubling", "ordered"}) {
    const Rank n = 24;
    const std::vector<uint32_t> nodes = even_nodes(n, 4);
    algo::Problem p = problem(Collective::kAllReduce, n);
    p.node_of_rank = nodes;
    Options options;
    options.dead = {{13, 2000}};
    const Report report = run(algorithm(Collective::kAllReduce, name), p, 1 << 20, options);
    EXPECT_FALSE(report.complete) << name;
    EXPECT_EQ(report.dead, std::vector<Rank>{13}) << name;
    ASSERT_EQ(report.culprits.size(), 1u) << name;
    EXPECT_EQ(report.culprits[0].kind, Culprit::Kind::kDead) << name;
    EXPECT_EQ(report.culprits[0].ranks, std::vector<Rank>{13}) << name;
    EXPECT_GT(report.culprits[0].victim_count, 0u) << name;
    EXPECT_LT(report.culprits[0].victim_count, n) << name;
    EXPECT_TRUE(std::any_of(report.blocked.begin(), report.blocked.end(), [](const Blocked& b) {
      return b.waits_for == 13;
    })) << name;
    EXPECT_EQ(report.finish_ps[13], 2'000'000u) << name;
  }
}

TEST(DeadRank, ThatDiesAfterItsWorkHurtsNobody) {
  const algo::Problem p = problem(Collective::kAllReduce, 8);
  Options options = uniform_options();
  options.dead = {{2, 1e9}};
  const Report report = run(algorithm(Collective::kAllReduce, "ring"), p, 4096, options);
  EXPECT_TRUE(report.complete);
  EXPECT_TRUE(report.dead.empty());
}

TEST(DeadRank, TwoDeadRanksShareTheirVictims) {
  const algo::Problem p = problem(Collective::kBroadcast, 16);
  Options options = uniform_options();
  options.dead = {{8, 0}, {4, 0}};
  const Report report = run(algorithm(Collective::kBroadcast, "binomial"), p, 4096, options);
  ASSERT_EQ(report.culprits.size(), 2u);
  EXPECT_EQ(report.culprits[0].ranks, std::vector<Rank>{8});
  EXPECT_EQ(report.culprits[0].victim_count, 7u);  // 9 .. 15
  EXPECT_EQ(report.culprits[1].ranks, std::vector<Rank>{4});
  EXPECT_EQ(report.culprits[1].victim_count, 3u);  // 5 .. 7
  EXPECT_EQ(report.blocked.size(), 10u);
}

// Two ranks that both receive before they send.
uint32_t one_step(const algo::Problem&, Rank) { return 1; }
sched::Shape two_chunks(const algo::Problem&) { return {.chunk_count = 2}; }
bool any(const algo::Problem&) { return true; }
const algo::Algorithm kDeadlock{
    .name = "deadlock",
    .summary = "",
    .collective = Collective::kAllGather,
    .needs_mapped = false,
    .needs_user_windows = false,
    .rank_order = false,
    .supports = any,
    .shape = two_chunks,
    .step_count = one_step,
    .step =
        [](const algo::Problem&, Rank rank, uint32_t, sched::Builder& b) {
          b.recv(1 - rank, b.output(1 - rank));
          b.send(1 - rank, b.input(rank));
        },
};

TEST(Deadlock, IsReportedAsACycle) {
  const Report report = run(kDeadlock, problem(Collective::kAllGather, 2), 128, uniform_options());
  EXPECT_FALSE(report.complete);
  ASSERT_EQ(report.culprits.size(), 1u);
  EXPECT_EQ(report.culprits[0].kind, Culprit::Kind::kCycle);
  EXPECT_EQ(report.culprits[0].ranks, (std::vector<Rank>{0, 1}));
}

TEST(Blame, GoesToTheDeadBeforeACycle) {
  // 0 -> 1 -> 0 in one lane, and 1 -> 2 (dead) in the other; 4 -> 3 which has finished.
  const std::vector<Blocked> blocked = {
      {0, 0, 1, false, 0}, {1, 0, 0, false, 0}, {1, 1, 2, false, 0}, {4, 0, 3, false, 0}};
  const std::vector<Culprit> culprits = find_culprits(blocked, {2}, 5);
  ASSERT_EQ(culprits.size(), 2u);
  EXPECT_EQ(culprits[0].ranks, std::vector<Rank>{2});
  EXPECT_EQ(culprits[0].victim_count, 2u);
  EXPECT_EQ(culprits[1].kind, Culprit::Kind::kFinished);
  EXPECT_EQ(culprits[1].ranks, std::vector<Rank>{3});
}

TEST(Determinism, SameInputsGiveTheSameTrace) {
  const std::vector<uint32_t> nodes = even_nodes(96, 8);
  for (const algo::Algorithm* a : algo::all_algorithms()) {
    algo::Problem p = problem(a->collective, 96);
    p.node_of_rank = nodes;
    if (!a->supports(p)) continue;
    Options options;
    options.slow = {{5, 1.5}};
    options.slicing = {16384, 2};
    const Report first = run(*a, p, 300'000, options);
    const Report second = run(*a, p, 300'000, options);
    EXPECT_EQ(first.trace_hash, second.trace_hash) << a->name;
    EXPECT_EQ(first.finish_ps, second.finish_ps) << a->name;
    options.slow = {{5, 1.6}};
    if (first.messages > 0) {
      EXPECT_NE(run(*a, p, 300'000, options).trace_hash, first.trace_hash) << a->name;
    }
  }
}

TEST(BadRequest, IsAnErrorThatNamesTheValue) {
  const algo::Algorithm& ring = algorithm(Collective::kAllReduce, "ring");
  const algo::Problem p = problem(Collective::kAllReduce, 4);
  const auto text_of = [&](const algo::Algorithm& a, const algo::Problem& q, const Options& o) {
    const Result<Report> report = simulate(a, q, 1024, o);
    EXPECT_FALSE(report.ok());
    return report.ok() ? std::string() : report.status().text();
  };
  Options options;
  options.slow = {{4, 2}};
  EXPECT_EQ(text_of(ring, p, options), "slow rank 4 is not below the 4 ranks");
  options.slow = {{0, 0}};
  EXPECT_NE(text_of(ring, p, options).find("factor 0"), std::string::npos);
  options.slow.clear();
  options.dead = {{9, 0}};
  EXPECT_EQ(text_of(ring, p, options), "dead rank 9 is not below the 4 ranks");
  options.dead = {{1, -1}};
  EXPECT_NE(text_of(ring, p, options).find("-1 ns is not a time"), std::string::npos);
  options = Options{};
  options.network.nic.rails = 0;
  EXPECT_NE(text_of(ring, p, options).find("nic.rails is 0"), std::string::npos);
  options = Options{};
  options.slicing.in_flight = 1000;
  EXPECT_NE(text_of(ring, p, options).find("1000 slices in flight"), std::string::npos);
  EXPECT_NE(text_of(ring, problem(Collective::kBroadcast, 4), Options{}).find("is for all_reduce"),
            std::string::npos);
  algo::Problem unmapped = p;
  unmapped.mapped = false;
  EXPECT_NE(text_of(algorithm(Collective::kAllReduce, "direct"), unmapped, Options{})
                .find("without mapped staging"),
            std::string::npos);
  const std::vector<uint32_t> nodes = {0, 1};
  algo::Problem short_nodes = p;
  short_nodes.node_of_rank = nodes;
  EXPECT_NE(text_of(ring, short_nodes, Options{}).find("2 entries for 4 ranks"), std::string::npos);
}

TEST(Bounds, OfMemoryEndTheSimulationWithAnError) {
  Options options = uniform_options();
  options.messages_in_flight_max = 10;
  const Result<Report> report = simulate(algorithm(Collective::kGather, "linear"),
                                         problem(Collective::kGather, 64), 64 * 64, options);
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.status().code(), Code::kNoMemory);
}

// A send to nobody; and a second lane that is used only by the last of many steps.
TEST(WrongProgram, IsAnErrorAndNotACrash) {
  algo::Algorithm wrong = kDeadlock;
  wrong.step = [](const algo::Problem&, Rank, uint32_t, sched::Builder& b) {
    b.send(7, b.input(0));
  };
  const Result<Report> report =
      simulate(wrong, problem(Collective::kAllGather, 2), 128, uniform_options());
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.status().code(), Code::kInternal);
  EXPECT_NE(report.status().text().find("peer 7"), std::string::npos) << report.status().text();
}

TEST(Bounds, OfLanesThatAreFarApartAreKept) {
  algo::Algorithm uneven = kDeadlock;
  uneven.shape = [](const algo::Problem&) {
    return sched::Shape{.chunk_count = 2, .lane_count = 2};
  };
  uneven.step_count = [](const algo::Problem&, Rank) -> uint32_t { return 10'000; };
  uneven.step = [](const algo::Problem&, Rank rank, uint32_t step, sched::Builder& b) {
    b.lane(step == 9'999 ? 1 : 0);
    b.send(1 - rank, b.input(rank));
    b.recv(1 - rank, b.output(1 - rank));
  };
  Options options = uniform_options();
  const algo::Problem p = problem(Collective::kAllGather, 2);
  EXPECT_TRUE(run(uneven, p, 128, options).complete);
  options.operations_pending_max = 5'000;
  const Result<Report> report = simulate(uneven, p, 128, options);
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.status().code(), Code::kNoMemory);
  EXPECT_NE(report.status().text().find("lanes too far apart"), std::string::npos);
}

TEST(ProgressCallback, CanStopTheSimulation) {
  Options options = uniform_options();
  uint32_t calls = 0;
  options.progress = [&](const Progress& progress) {
    ++calls;
    EXPECT_LE(progress.steps_done, progress.steps_total);
    return false;
  };
  const Result<Report> report = simulate(algorithm(Collective::kAllReduce, "ring"),
                                         problem(Collective::kAllReduce, 1024), 1 << 20, options);
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.status().code(), Code::kAborted);
  EXPECT_EQ(calls, 1u);
}

}  // namespace
}  // namespace weir::sim
