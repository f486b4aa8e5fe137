// SPDX-License-Identifier: Apache-2.0
#include "core/cost/router.h"

#include <gtest/gtest.h>

#include "core/algo/catalog.h"
#include "core/cost/decision_log.h"
#include "core/cost/run_ahead.h"

namespace weir::cost {
namespace {

Request request(Collective collective, Rank n, uint64_t bytes, bool mapped = true) {
  Request r;
  r.work.problem.collective = collective;
  r.work.problem.rank_count = n;
  r.work.problem.mapped = mapped;
  r.work.bytes = bytes;
  return r;
}

std::string chosen(const Request& r, const Rules* rules = nullptr) {
  const Result<Decision> decision = choose(r, {}, built_in_table(), rules);
  EXPECT_TRUE(decision.ok()) << decision.status().text();
  return decision.ok() ? decision.value().algorithm->name : "";
}

// What a person who knows the algorithms would choose with the built-in figures.
TEST(Router, GoldenChoices) {
  // Shared memory: one synchronization for small data, no copy twice for large.
  for (Rank n : {2u, 4u, 8u}) {
    EXPECT_EQ(chosen(request(Collective::kAllReduce, n, 8)), "direct") << n;
    EXPECT_EQ(chosen(request(Collective::kBarrier, n, 0)), "direct") << n;
    EXPECT_EQ(chosen(request(Collective::kBroadcast, n, 1024)), "direct") << n;
  }
  EXPECT_EQ(chosen(request(Collective::kAllReduce, 8, 16 << 20)), "direct_two_phase");
  // Messages: few rounds for small data, few bytes for large.
  std::vector<uint32_t> hosts(64);
  for (uint32_t i = 0; i < hosts.size(); ++i) hosts[i] = i;
  const auto spread = [&](Collective collective, uint64_t bytes) {
    Request r = request(collective, static_cast<Rank>(hosts.size()), bytes, false);
    r.work.layout.host_of_rank = hosts;
    return chosen(r);
  };
  EXPECT_EQ(spread(Collective::kAllReduce, 8), "recursive_doubling");
  const std::string large = spread(Collective::kAllReduce, 64 << 20);
  EXPECT_TRUE(large == "ring" || large == "recursive_halving_doubling" || large == "ordered")
      << large;  // each moves the least bytes
  EXPECT_EQ(spread(Collective::kAllToAll, 1024), "bruck");
  EXPECT_EQ(spread(Collective::kAllToAll, 64 << 20), "pairwise");
  EXPECT_EQ(spread(Collective::kBarrier, 0), "dissemination");
  EXPECT_EQ(spread(Collective::kBroadcast, 8), "binomial");
}

// What the probe finds where two cores share a cache, and where they do not: two phases move the
// same bytes, and keep both ranks waiting for each other.
TEST(Router, TwoRanksReduceInOnePhaseWhereverTheirCoresAre) {
  const std::vector<const algo::Algorithm*> reduce = {&algo::kDirectTwoPhaseReduce,
                                                      &algo::kDirectReduce};
  const std::vector<const algo::Algorithm*> all_reduce = {&algo::kDirectTwoPhaseAllReduce,
                                                          &algo::kDirectAllReduce};
  for (const double signal_ns : {50.0, 250.0, 400.0}) {
    for (const double window : {0.025, 0.07, 0.15, 0.31}) {
      Table table = built_in_table();
      table.times.copy_ns_per_byte = {0.009, 0.022, 0.022};
      table.times.reduce_ns_per_byte[0] = {0.014, 0.022, 0.024};
      LinkTimes& link = table.times.link(Link::kShmSharedCache);
      link.signal_ns = signal_ns;
      link.window_ns_per_byte = {window, window, window};
      for (uint64_t bytes = 8; bytes <= 64 << 20; bytes *= 2) {
        for (const auto& both : {reduce, all_reduce}) {
          const Request r = request(both[0]->collective, 2, bytes);
          const auto decision = choose(r, both, table, nullptr);
          ASSERT_TRUE(decision.ok());
          EXPECT_STREQ(decision.value().algorithm->name, "direct")
              << bytes << ' ' << signal_ns << ' ' << window;
        }
      }
    }
  }
}

TEST(Router, OfAboutTheSameTimesTheOneWithFewerSignalsIsTaken) {
  // Two that differ in their signals only.
  algo::Algorithm slow = algo::kDirectBarrier;
  slow.name = "two_signals";
  slow.shape = [](const algo::Problem&) { return sched::Shape{.signal_count = 2}; };
  const std::vector<const algo::Algorithm*> both = {&slow, &algo::kDirectBarrier};
  const auto decision =
      choose(request(Collective::kBarrier, 2, 0), both, built_in_table(), nullptr);
  ASSERT_TRUE(decision.ok());
  EXPECT_STREQ(decision.value().algorithm->name, "direct");
  EXPECT_EQ(decision.value().candidates[0].predicted_ns,
            decision.value().candidates[1].predicted_ns);
}

// Messages through slots that both cores share, or staging: what is predicted to be faster.
TEST(Router, WhereMemoryIsMappedMessagesAreChosenOnlyIfTheyArePredictedToBeFaster) {
  for (const Collective collective :
       {Collective::kBroadcast, Collective::kGather, Collective::kScatter}) {
    for (const double message : {0.02, 0.2}) {
      Table table = built_in_table();
      LinkTimes& link = table.times.link(Link::kShmSharedCache);
      link.window_ns_per_byte = {0.1, 0.1, 0.1};
      link.slot_in_ns_per_byte = link.slot_out_ns_per_byte = {message, message, message};
      table.times.copy_ns_per_byte = {0.02, 0.02, 0.02};
      Request r = request(collective, 2, 16 << 20);
      r.work.slicing = {.slice_bytes = 128 << 10, .in_flight = 4};
      const auto candidates = candidates_for(algo::all_algorithms(), r.work.problem);
      const auto decision = choose(r, candidates, table, nullptr);
      ASSERT_TRUE(decision.ok());
      EXPECT_EQ(algo::uses_messages(*decision.value().algorithm), message < 0.1)
          << decision.value().algorithm->name << ' ' << message;
      // Small data, and about the same time, need none.
      r.work.bytes = 8;
      const auto small = choose(r, candidates, table, nullptr);
      ASSERT_TRUE(small.ok());
      EXPECT_FALSE(algo::uses_messages(*small.value().algorithm));
    }
  }
}

// Both signal twice then: an agreement on windows comes before either.
TEST(Router, WhereAllBuffersLieInWindowsTwoRanksUseThemWhereverTheirCoresAre) {
  for (const Collective collective : {Collective::kAllReduce, Collective::kReduceScatter,
                                      Collective::kAllGather, Collective::kAllToAll}) {
    for (const double signal_ns : {50.0, 250.0, 400.0}) {
      for (const double window : {0.025, 0.07, 0.15}) {
        Table table = built_in_table();
        table.times.copy_ns_per_byte = {0.009, 0.022, 0.022};
        table.times.reduce_ns_per_byte[0] = {0.014, 0.022, 0.024};
        LinkTimes& link = table.times.link(Link::kShmSharedCache);
        link.signal_ns = signal_ns;
        link.window_ns_per_byte = {window, window, window};
        // Messages copy twice.
        link.slot_in_ns_per_byte = link.slot_out_ns_per_byte = link.window_ns_per_byte;
        for (uint64_t bytes = 16 << 10; bytes <= 64 << 20; bytes *= 4) {
          Request r = request(collective, 2, bytes);
          r.work.problem.inputs_mapped = r.work.problem.outputs_mapped = true;
          r.work.slicing = {.slice_bytes = 128 << 10, .in_flight = 4};
          const auto decision =
              choose(r, candidates_for(algo::all_algorithms(), r.work.problem), table, nullptr);
          ASSERT_TRUE(decision.ok());
          EXPECT_STREQ(decision.value().algorithm->name, "window")
              << algo::name_of(collective, algo::BlockLengths::kEqual) << ' ' << bytes << ' '
              << signal_ns << ' ' << window;
        }
      }
    }
  }
}

// Where the ranks tell in the call where their buffers lie, what uses no windows is not slower.
TEST(Router, AnAgreementOnWindowsCostsASignalOnlyWhereThereIsOne) {
  Table table = built_in_table();
  table.times.link(Link::kShmSharedCache).signal_ns = 300;
  const std::vector<const algo::Algorithm*> both = {&algo::kDirectAllGather,
                                                    &algo::kWindowAllGather};
  double ns[2][2];
  for (const bool agreed : {false, true}) {
    Request r = request(Collective::kAllGather, 2, 64 << 10);
    r.work.problem.inputs_mapped = r.work.problem.outputs_mapped = true;
    r.agreed = agreed;
    r.explores = true;  // both are predicted to their end
    const auto decision = choose(r, both, table, nullptr);
    ASSERT_TRUE(decision.ok());
    for (size_t i = 0; i < 2; ++i) {
      ns[agreed ? 1 : 0][i] = decision.value().candidates[i].predicted_ns;
    }
  }
  EXPECT_GT(ns[1][0], ns[0][0] + 100);
  EXPECT_EQ(ns[1][1], ns[0][1]);
}

// The rank that only sends works ahead; the root's core is what a call takes.
TEST(RunAhead, ACallTakesTheTimeOfTheBusiestRank) {
  const Table table = built_in_table();
  const Request r = request(Collective::kReduce, 2, 1 << 20);
  const auto ahead = run_ahead_ns(algo::kDirectReduce, r.work, table);
  ASSERT_TRUE(ahead.has_value());
  EXPECT_LT(*ahead, predict(algo::kDirectReduce, r.work, table));
  // Of the root: a fold of its own input and of what its peer has staged.
  const LinkTimes& link = table.times.link(Link::kShmSharedCache);
  const auto regime = static_cast<size_t>(Regime::kL3);
  const double per_byte = table.times.reduce_of(2, Regime::kL3) + link.window_ns_per_byte[regime] -
                          table.times.copy_ns_per_byte[regime];
  EXPECT_NEAR(*ahead, per_byte * (1 << 20), 0.1 * *ahead);
}

TEST(RunAhead, NoneWhereRanksMeet) {
  const Table table = built_in_table();
  EXPECT_FALSE(run_ahead_ns(algo::kDirectTwoPhaseReduce,
                            request(Collective::kReduce, 2, 1 << 20).work, table));
  EXPECT_FALSE(
      run_ahead_ns(algo::kDirectAllReduce, request(Collective::kAllReduce, 4, 64).work, table));
  EXPECT_FALSE(
      run_ahead_ns(algo::kRingAllReduce, request(Collective::kAllReduce, 4, 64).work, table));
  Request in_windows = request(Collective::kBroadcast, 2, 1 << 20);
  EXPECT_TRUE(run_ahead_ns(algo::kDirectBroadcast, in_windows.work, table));
  in_windows.work.problem.inputs_mapped = true;
  EXPECT_FALSE(run_ahead_ns(algo::kDirectBroadcast, in_windows.work, table));
}

TEST(Router, DeterministicModeTakesOnlyRankOrder) {
  for (bool mapped : {false, true}) {
    for (Collective collective :
         {Collective::kAllReduce, Collective::kReduce, Collective::kReduceScatter}) {
      for (uint64_t bytes : {uint64_t{8}, uint64_t{1} << 16, uint64_t{1} << 26}) {
        Request r = request(collective, 6, bytes, mapped);
        r.deterministic = true;
        const Result<Decision> decision = choose(r, {}, built_in_table(), nullptr);
        ASSERT_TRUE(decision.ok()) << decision.status().text();
        EXPECT_TRUE(decision.value().algorithm->rank_order);
      }
    }
  }
  // Where nothing is reduced, nothing is restricted.
  Request r = request(Collective::kBroadcast, 6, 8, false);
  r.deterministic = true;
  EXPECT_NE(chosen(r), "");
}

TEST(Router, ForcedWinsOverRuleWinsOverPrediction) {
  const Rules rules =
      parse_rules(
          "[[rule]]\ncollective = \"all_reduce\"\nalgorithm = \"ring\"\nslice_bytes = 4096\n",
          "r.toml")
          .take();
  Request r = request(Collective::kAllReduce, 4, 8);
  EXPECT_EQ(chosen(r), "direct");
  const Result<Decision> by_rule = choose(r, {}, built_in_table(), &rules);
  ASSERT_TRUE(by_rule.ok());
  EXPECT_STREQ(by_rule.value().algorithm->name, "ring");
  EXPECT_EQ(by_rule.value().by, Decision::By::kRule);
  EXPECT_EQ(by_rule.value().slice_bytes, 4096u);
  EXPECT_EQ(by_rule.value().reason, "rule of r.toml:1");
  r.forced = "direct_two_phase";
  const Result<Decision> forced = choose(r, {}, built_in_table(), &rules);
  ASSERT_TRUE(forced.ok());
  EXPECT_STREQ(forced.value().algorithm->name, "direct_two_phase");
  EXPECT_EQ(forced.value().by, Decision::By::kForced);
}

TEST(Router, ARuleThatCannotBeFollowedIsPassedOverWithAReason) {
  const Rules rules =
      parse_rules("[[rule]]\ncollective = \"all_reduce\"\nalgorithm = \"direct\"\n", "r.toml")
          .take();
  const Result<Decision> decision =
      choose(request(Collective::kAllReduce, 4, 8, false), {}, built_in_table(), &rules);
  ASSERT_TRUE(decision.ok());
  EXPECT_EQ(decision.value().by, Decision::By::kPrediction);
  EXPECT_NE(decision.value().reason.find("r.toml:1 is ignored: 'direct' needs mapped"),
            std::string::npos)
      << decision.value().reason;
}

TEST(Router, AForcedAlgorithmThatGoesByGroupsSaysWhichGroupsItNeeds) {
  const std::pair<const char*, const char*> cases[] = {
      {"by_cache", "needs ranks in two or more groups by last-level cache"},
      {"by_numa", "needs ranks in two or more groups by NUMA node"}};
  for (const auto& [name, expected] : cases) {
    Request asked = request(Collective::kAllReduce, 8, 1 << 20, true);
    asked.forced = name;
    const auto forced = choose(asked, {}, built_in_table(), nullptr);
    ASSERT_FALSE(forced.ok());
    EXPECT_NE(forced.status().text().find(expected), std::string::npos) << forced.status().text();
  }
}

TEST(Router, AProgramOfMessagesNeedsItsLanes) {
  Request asked = request(Collective::kBroadcast, 8, 1 << 20, false);
  const algo::Algorithm* wide = algo::find_algorithm(Collective::kBroadcast, "double_binary_tree");
  const algo::Algorithm* narrow = algo::find_algorithm(Collective::kBroadcast, "chain");
  ASSERT_TRUE(wide != nullptr && narrow != nullptr);
  ASSERT_GT(wide->shape(asked.work.problem).lane_count, 1u);
  asked.lane_count_max = 1;
  const auto chosen = choose(asked, std::vector{wide, narrow}, built_in_table(), nullptr);
  ASSERT_TRUE(chosen.ok()) << chosen.status().text();
  EXPECT_EQ(chosen.value().algorithm, narrow);
  asked.forced = "double_binary_tree";
  const auto forced = choose(asked, {}, built_in_table(), nullptr);
  ASSERT_FALSE(forced.ok());
  EXPECT_NE(forced.status().text().find("needs more lanes than the transport has"),
            std::string::npos)
      << forced.status().text();
}

TEST(Router, SlicesInFlightAreThoseThatTheLanesOfTheTransportLeave) {
  Request asked = request(Collective::kBroadcast, 8, 8 << 20, false);
  asked.work.slicing = {.slice_bytes = 128 << 10, .in_flight = 4};
  const algo::Algorithm* wide = algo::find_algorithm(Collective::kBroadcast, "double_binary_tree");
  ASSERT_NE(wide, nullptr);
  ASSERT_EQ(wide->shape(asked.work.problem).lane_count, 2u);
  for (const auto& [lanes, in_flight] : {std::pair{2u, 1u}, {4u, 2u}, {5u, 2u}, {64u, 4u}}) {
    asked.lane_count_max = lanes;
    const auto chosen = choose(asked, std::vector{wide}, built_in_table(), nullptr);
    ASSERT_TRUE(chosen.ok()) << chosen.status().text();
    Workload work = asked.work;
    work.slicing.in_flight = in_flight;
    EXPECT_DOUBLE_EQ(chosen.value().predicted_ns, predict(*wide, work, built_in_table())) << lanes;
  }
}

TEST(Router, WhatCannotBeForcedIsAnError) {
  Request r = request(Collective::kAllReduce, 4, 8, false);
  r.forced = "rign";
  Result<Decision> decision = choose(r, {}, built_in_table(), nullptr);
  ASSERT_FALSE(decision.ok());
  EXPECT_EQ(decision.status().code(), Code::kInvalidArgument);
  EXPECT_NE(decision.status().text().find("'rign' is not an algorithm of all_reduce"),
            std::string::npos);
  r.forced = "direct";
  decision = choose(r, {}, built_in_table(), nullptr);
  ASSERT_FALSE(decision.ok());
  EXPECT_EQ(decision.status().code(), Code::kUnsupported);
  r.forced = "ring";
  r.deterministic = true;
  EXPECT_EQ(choose(r, {}, built_in_table(), nullptr).status().code(), Code::kUnsupported);
}

TEST(Router, GivenCandidatesAreTheOnlyOnes) {
  const algo::Algorithm* ring = algo::find_algorithm(Collective::kAllReduce, "ring");
  const algo::Algorithm* only[] = {ring};
  const Result<Decision> decision =
      choose(request(Collective::kAllReduce, 4, 8), only, built_in_table(), nullptr);
  ASSERT_TRUE(decision.ok());
  EXPECT_EQ(decision.value().algorithm, ring);
  EXPECT_EQ(decision.value().reason, "the only one that can be used");
}

TEST(Router, TheSameRequestHasTheSameAnswer) {
  for (uint64_t bytes = 1; bytes <= uint64_t{1} << 26; bytes *= 16) {
    const Request r = request(Collective::kAllReduce, 7, bytes);
    const Decision a = choose(r, {}, built_in_table(), nullptr).take();
    const Decision b = choose(r, {}, built_in_table(), nullptr).take();
    EXPECT_EQ(a.algorithm, b.algorithm);
    EXPECT_EQ(a.predicted_ns, b.predicted_ns);
  }
}

// By it ranks look up what earlier runs measured, and only the root knows whether it is in place.
TEST(Router, TheShapeOfACallWithARootIsTheSameOnAllRanks) {
  Request r;
  r.work.bytes = 4000;
  for (const Collective collective :
       {Collective::kBroadcast, Collective::kReduce, Collective::kGather, Collective::kScatter}) {
    r.work.problem.collective = collective;
    r.work.problem.in_place = false;
    const CallShape of_others = shape_of(r);
    r.work.problem.in_place = true;
    EXPECT_EQ(shape_of(r), of_others) << name_of(collective);
  }
  r.work.problem.collective = Collective::kAllReduce;
  EXPECT_TRUE(shape_of(r).in_place);
}

TEST(DecisionLog, IsBoundedAndKeepsMeasurements) {
  DecisionLog log(3);
  const Request r = request(Collective::kAllReduce, 4, 65536);
  const Decision decision = choose(r, {}, built_in_table(), nullptr).take();
  for (uint64_t i = 1; i <= 5; ++i) EXPECT_EQ(log.add(r, decision), i);
  EXPECT_EQ(log.records().size(), 3u);
  EXPECT_EQ(log.dropped_count(), 2u);
  EXPECT_EQ(log.find(2), nullptr);
  log.measured(2, 1);  // has left
  log.measured(9, 1);  // never was
  log.measured(5, 3000);
  log.measured(5, 1000);
  const DecisionRecord* record = log.find(5);
  ASSERT_NE(record, nullptr);
  EXPECT_EQ(record->measured.count, 2u);
  EXPECT_EQ(record->measured.first_ns, 3000);
  EXPECT_EQ(record->measured.least_ns, 1000);
}

// Decisions, each with calls that took a multiple of the predicted time.
struct Timed {
  double factor;
  int calls;
};
std::optional<Disagreement> disagreement_of(const std::vector<Timed>& decisions,
                                            double predicted_ns = 1000) {
  DecisionLog log;
  for (const Timed& timed : decisions) {
    Decision decision;
    decision.predicted_ns = predicted_ns;
    const uint64_t id = log.add(request(Collective::kAllReduce, 4, 64), decision);
    for (int i = 0; i < timed.calls; ++i) log.measured(id, timed.factor * predicted_ns);
  }
  return disagreement(log);
}

TEST(Disagreement, IsAMedianBeyondAFactorOfThreeEitherWay) {
  const auto slower = disagreement_of({{1, 20}, {4, 20}, {5, 20}});
  ASSERT_TRUE(slower);
  EXPECT_DOUBLE_EQ(slower->measured_over_predicted, 4);
  EXPECT_EQ(slower->decision_count, 3u);
  EXPECT_EQ(slower->call_count, 60u);
  const auto faster = disagreement_of({{1, 20}, {0.01, 20}, {0.02, 20}});
  ASSERT_TRUE(faster);
  EXPECT_DOUBLE_EQ(faster->measured_over_predicted, 0.02);
  EXPECT_FALSE(disagreement_of({{2.9, 20}, {2.9, 20}, {100, 20}}));
  EXPECT_FALSE(disagreement_of({{0.35, 20}, {0.35, 20}, {0.01, 20}}));
}

TEST(Disagreement, NeedsManyCallsOfSeveralDecisions) {
  EXPECT_FALSE(disagreement_of({}));
  EXPECT_FALSE(disagreement_of({{10, 1000}, {10, 1000}}));
  EXPECT_FALSE(disagreement_of({{10, 16}, {10, 16}, {10, 16}}));
  EXPECT_FALSE(disagreement_of({{10, 100}, {10, 100}, {10, 4}}));
  EXPECT_FALSE(disagreement_of({{10, 100}, {10, 100}, {10, 100}}, 0)) << "nothing was predicted";
  EXPECT_TRUE(disagreement_of({{10, 17}, {10, 17}, {10, 16}}));
}

TEST(Disagreement, RanksThatComeLateAreNone) {
  DecisionLog log;
  for (int i = 0; i < 3; ++i) {
    Decision decision;
    decision.predicted_ns = 1000;
    const uint64_t id = log.add(request(Collective::kAllReduce, 4, 64), decision);
    for (int call = 0; call < 40; ++call) log.measured(id, call % 8 == 7 ? 1500 : 1e6);
  }
  EXPECT_FALSE(disagreement(log));
}

TEST(Explain, ShowsCandidatesReasonAndMeasuredTime) {
  DecisionLog log;
  Request r = request(Collective::kAllReduce, 4, 65536);
  r.deterministic = true;
  const uint64_t id = log.add(r, choose(r, {}, built_in_table(), nullptr).take());
  const std::string before = explain(*log.find(id));
  EXPECT_NE(before.find("all_reduce of 64 KiB float32 on 4 ranks: "), std::string::npos) << before;
  EXPECT_NE(before.find("least predicted time"), std::string::npos) << before;
  EXPECT_NE(before.find("> "), std::string::npos) << before;
  EXPECT_NE(before.find("does not fold in rank order"), std::string::npos) << before;
  EXPECT_EQ(before.find("measured"), std::string::npos) << before;
  log.measured(id, 12'345);
  const std::string after = explain(*log.find(id));
  EXPECT_NE(after.find("measured 12.3"), std::string::npos) << after;
}

// ---- What earlier runs measured -----------------------------------------------------------------

// Ring is the candidate of the least predicted time here.
Request learned_request(const std::vector<AlgorithmTime>* learned) {
  Request r = request(Collective::kAllReduce, 4, 16 << 20);
  r.learned = learned;
  return r;
}
std::vector<AlgorithmTime> learned_times(std::string first, double first_ns, uint64_t first_count,
                                         std::string second, double second_ns,
                                         uint64_t second_count) {
  std::vector<AlgorithmTime> times(2);
  times[0].algorithm = std::move(first);
  times[0].middle_ns = first_ns;
  times[0].count = first_count;
  times[1].algorithm = std::move(second);
  times[1].middle_ns = second_ns;
  times[1].count = second_count;
  return times;
}

class Measured : public testing::Test {
 protected:
  Decision choose_with(const std::vector<AlgorithmTime>* learned, const Rules* rules = nullptr) {
    return choose(learned_request(learned), candidates_, built_in_table(), rules).take();
  }
  // By prediction alone.
  std::string predicted() { return choose_with(nullptr).algorithm->name; }
  std::string other() { return predicted() == "ring" ? "double_binary_tree" : "ring"; }

  std::vector<const algo::Algorithm*> candidates_ = {
      algo::find_algorithm(Collective::kAllReduce, "ring"),
      algo::find_algorithm(Collective::kAllReduce, "double_binary_tree")};
};

TEST_F(Measured, TheFasterOneIsTakenAndSaysWhy) {
  const auto times = learned_times(predicted(), 2e6, 40, other(), 1e6, 30);
  const Decision decision = choose_with(&times);
  EXPECT_EQ(decision.algorithm->name, other());
  EXPECT_EQ(decision.by, Decision::By::kMeasured);
  EXPECT_EQ(decision.reason, "measured faster: 1.00 ms against 2.00 ms of " + predicted() +
                                 ", which is predicted to be the best (30 and 40 calls of earlier "
                                 "runs)");
}

TEST_F(Measured, WhatIsHardlyFasterOrHardlyMeasuredChangesNothing) {
  for (const auto& times : {learned_times(predicted(), 1.04e6, 40, other(), 1e6, 40),
                            learned_times(predicted(), 2e6, 40, other(), 1e6, 7),
                            learned_times(predicted(), 2e6, 7, other(), 1e6, 40),
                            learned_times(predicted(), 1e6, 40, other(), 2e6, 40),
                            learned_times(predicted(), 2e6, 40, "unheard_of", 1e6, 40)}) {
    const Decision decision = choose_with(&times);
    EXPECT_EQ(decision.algorithm->name, predicted());
    EXPECT_EQ(decision.reason, "least predicted time");
  }
  const auto enough = learned_times(predicted(), 1.06e6, 8, other(), 1e6, 8);
  EXPECT_EQ(choose_with(&enough).algorithm->name, other());
}

TEST_F(Measured, ForcedPreferredAndRulesStayAbove) {
  const auto times = learned_times(predicted(), 2e6, 40, other(), 1e6, 40);
  Request r = learned_request(&times);
  const std::string best = predicted();
  r.forced = best;
  EXPECT_EQ(choose(r, candidates_, built_in_table(), nullptr).value().by, Decision::By::kForced);
  r.forced = "";
  r.preferred = algo::find_algorithm(Collective::kAllReduce, best);
  EXPECT_EQ(choose(r, candidates_, built_in_table(), nullptr).value().by, Decision::By::kPreferred);
  Rules rules;
  Rule rule;
  rule.collective = Collective::kAllReduce;
  rule.algorithm = r.preferred;
  rules.rules.push_back(rule);
  EXPECT_EQ(choose_with(&times, &rules).by, Decision::By::kRule);
  EXPECT_EQ(choose_with(&times, &rules).algorithm->name, best);
}

TEST_F(Measured, InDeterministicModeWhatCannotBeUsedIsNotTaken) {
  const auto all = learned_times("ordered", 2e6, 40, "ring", 1e6, 40);
  Request r = learned_request(&all);
  r.deterministic = true;
  const Decision decision = choose(r, {}, built_in_table(), nullptr).take();
  EXPECT_TRUE(decision.algorithm->rank_order);
}

TEST(Exploration, RunsWhatMayBeNearlyAsFastAndNothingWhereAUserHasDecided) {
  const std::vector<algo::Algorithm> a(6, *algo::find_algorithm(Collective::kAllReduce, "ring"));
  Decision decision;
  const double predicted[] = {100, 120, 199, 201, 150, 130};
  for (size_t i = 0; i < 6; ++i) {
    decision.candidates.push_back({&a[i], predicted[i]});
  }
  decision.algorithm = &a[0];
  using List = std::vector<const algo::Algorithm*>;
  EXPECT_EQ(worth_exploring(decision), (List{&a[0], &a[1], &a[5], &a[4]}));
  decision.candidates[1].excluded = "cannot";
  EXPECT_EQ(worth_exploring(decision), (List{&a[0], &a[5], &a[4], &a[2]}));
  // What was measured counts instead of what was predicted, where it is known of both.
  decision.candidates[0].learned_count = decision.candidates[3].learned_count = 20;
  decision.candidates[4].learned_count = 20;
  decision.candidates[0].learned_ns = 1000;
  decision.candidates[3].learned_ns = 900;
  decision.candidates[4].learned_ns = 2500;
  EXPECT_EQ(worth_exploring(decision), (List{&a[0], &a[3], &a[5], &a[2]}));
  for (const auto by : {Decision::By::kForced, Decision::By::kPreferred, Decision::By::kRule}) {
    decision.by = by;
    EXPECT_EQ(worth_exploring(decision), List{});
  }
  decision.by = Decision::By::kMeasured;
  EXPECT_EQ(worth_exploring(decision).size(), 4u);
  decision.candidates.resize(1);
  EXPECT_EQ(worth_exploring(decision), List{}) << "there is no other one";
}

TEST(Explain, ShowsAllRanksBesideThisOneAndWhatWasExplored) {
  DecisionLog log;
  Request r = request(Collective::kAllReduce, 4, 65536);
  r.call_key = 7;
  Decision decision = choose(r, {}, built_in_table(), nullptr).take();
  decision.explored = worth_exploring(decision);
  ASSERT_GE(decision.explored.size(), 2u);
  const algo::Algorithm* other = decision.explored[1];
  const uint64_t id = log.add(r, decision);
  log.measured(id, 9000);
  log.measured(id, 5000, decision.algorithm);
  log.measured(id, 6000, other);
  const DecisionRecord& record = *log.find(id);
  EXPECT_EQ(record.measured.count, 2u);
  ASSERT_NE(record.explored_of(decision.algorithm), nullptr);
  EXPECT_EQ(record.explored_of(decision.algorithm)->count, 1u);
  ASSERT_NE(record.explored_of(other), nullptr);
  EXPECT_EQ(record.explored_of(other)->sum_ns, 6000);
  EXPECT_NE(explain(record).find(std::string("  explored in turn: ") + decision.algorithm->name +
                                 ", " + other->name),
            std::string::npos)
      << explain(record);
  RanksTimes all;
  all.add(2, 5000, 14000, 7000);
  all.add(3, 4000, 16000, 5000);
  EXPECT_EQ(all.middle_ns, 6000);
  EXPECT_EQ(all.latest_ns, 7000);
  const std::string total = explain_total(record, nullptr, &all);
  EXPECT_NE(total.find("measured 9.00 us at first, 5.00 us at best, 7.00 us on average of 2; "
                       "2 of 4 ranks: 4.00 us at best, 6.00 us on average of 5"),
            std::string::npos)
      << total;
  const std::string turn = explain_total(record, &record.explored.back(), nullptr);
  EXPECT_NE(turn.find(std::string(other->name) + ", in its turns, predicted "), std::string::npos)
      << turn;
  EXPECT_NE(times_key(record, nullptr), times_key(record, other));
}

}  // namespace
}  // namespace weir::cost
