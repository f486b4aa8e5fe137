// SPDX-License-Identifier: Apache-2.0
// What the planner offers to the router: it asks an algorithm for its properties, never for its
// name.
#include "core/engine/planner.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "core/algo/catalog.h"
#include "core/algo/check.h"
#include "core/cost/message_ways.h"
#include "core/engine/slicing.h"

namespace weir::engine {
namespace {

// A copy of a real one under a name that nothing has heard of, with figures that win.
algo::Algorithm made_up(const algo::Algorithm& like) {
  algo::Algorithm algorithm = like;
  algorithm.name = "made_up";
  return algorithm;
}

// Ranks that exchange messages.
class Planning : public testing::Test {
 protected:
  Planning() {
    functions_.name = "none";
    functions_.caps.lane_count = 8;
    context_.rank = 1;
    context_.transport = &functions_;
  }

  // The algorithms that were weighed for the call; empty where there is no plan.
  std::vector<std::string> offered(const Call& call, Rank rank_count,
                                   std::vector<const algo::Algorithm*> algorithms) {
    context_.rank_count = rank_count;
    PlannerOptions options;
    options.algorithms = algorithms;
    options.table = cost::built_in_table();
    options.forced = forced_;
    Planner planner(context_, options);
    const auto plan = planner.plan_for(call, false);
    chosen_ = plan.ok() ? plan.value()->algorithm : nullptr;
    std::vector<std::string> names;
    if (!plan.ok()) return names;
    reason_ = planner.decisions().records().back().decision.reason;
    for (const cost::Candidate& candidate :
         planner.decisions().records().back().decision.candidates) {
      if (candidate.excluded == nullptr) names.emplace_back(candidate.algorithm->name);
    }
    return names;
  }

  weir_transport_functions_t functions_{};
  Context context_;
  std::vector<ForcedAlgorithm> forced_;
  const algo::Algorithm* chosen_ = nullptr;
  std::string reason_;
};

// A set of programs from elsewhere for 4 ranks that exchange messages.
std::shared_ptr<const algo::Imported> imported(const algo::Algorithm& like, const char* name) {
  algo::Problem problem;
  problem.collective = like.collective;
  problem.rank_count = 4;
  return algo::Imported::make({{}, algo::compile_all(like, problem)}, name).value();
}

using Names = std::vector<std::string>;

constexpr size_t kCounts[] = {5, 0, 9, 1};

Call uneven(Collective collective) {
  Call call;
  call.collective = collective;
  call.type = DataType::kFloat32;
  call.block_counts = kCounts;
  if (collective == Collective::kAllToAll) {
    call.recv_counts = kCounts;
  } else {
    call.count = 15;
  }
  return call;
}

TEST_F(Planning, AnAlgorithmThatNobodyKnowsByNameIsOfferedWhatItSaysThatItCanDo) {
  algo::Algorithm any_lengths = made_up(algo::kRingAllGather);
  algo::Algorithm equal_only = made_up(algo::kRingAllGather);
  equal_only.name = "made_up_for_equal_blocks";
  equal_only.lengths = algo::BlockLengths::kEqual;
  Call even;
  even.collective = Collective::kAllGather;
  even.count = 16;
  EXPECT_EQ(offered(even, 4, {&any_lengths, &equal_only}),
            (Names{"made_up", "made_up_for_equal_blocks"}));
  EXPECT_EQ(offered(uneven(Collective::kAllGather), 4, {&any_lengths, &equal_only}),
            Names{"made_up"});
  EXPECT_EQ(chosen_, &any_lengths);
  EXPECT_EQ(offered(uneven(Collective::kAllGather), 4, {&equal_only}), Names{});
}

TEST_F(Planning, TwoRanksAreOfferedEachAlgorithmOverMappedMemoryAndOfMessages) {
  const auto all = algo::all_algorithms();
  Call call;
  call.collective = Collective::kReduce;
  call.count = 1 << 16;
  unsigned char segment[64];  // a plan that is bound touches none of it
  context_.segment_base = segment;
  context_.staging_bytes = 2 << 20;
  EXPECT_EQ(
      offered(call, 2, {all.begin(), all.end()}),
      (Names{"direct", "direct_two_phase", "chain", "binomial", "double_binary_tree", "ordered"}));
}

TEST_F(Planning, RanksThatShareSlowLinksArePredictedToWaitForThem) {
  graph::LinkGraph graph(4);
  const graph::VertexId hub = graph.add_vertex(graph::VertexKind::kNetwork, graph::kNone, "hub");
  for (Rank rank = 0; rank < 4; ++rank) {
    graph.set_rank(rank, 0, "rank" + std::to_string(rank));
    graph.add_links(rank, hub, 1'000'000, 100);  // 1 GB/s
  }
  ASSERT_TRUE(graph.finish().ok());
  unsigned char segment[64];  // a plan that is bound touches none of it
  context_.segment_base = segment;
  context_.staging_bytes = 2 << 20;
  context_.rank_count = 4;
  Call call;
  call.collective = Collective::kAllReduce;
  call.type = DataType::kFloat32;
  call.count = 256 << 10;
  const auto predicted_us = [&](std::shared_ptr<const cost::MessageWays> ways) {
    PlannerOptions options;
    options.table = cost::built_in_table();
    options.memory_ways = std::move(ways);
    Planner planner(context_, options);
    const auto plan = planner.plan_for(call, false);
    EXPECT_TRUE(plan.ok()) << plan.status().text();
    return planner.decisions().records().back().decision.predicted_ns / 1000;
  };
  // Each rank must take in and give out at least three quarters of a MiB twice.
  EXPECT_GE(predicted_us(std::make_shared<cost::MessageWays>(graph)), 2 * 0.75 * 1048.576 * 0.99);
  EXPECT_LT(predicted_us(nullptr), 800);
}

TEST_F(Planning, AnAllToAllVIsChosenByCostAmongAllThatTakeItsLengths) {
  const auto all = algo::all_algorithms();
  EXPECT_EQ(offered(uneven(Collective::kAllToAll), 4, {all.begin(), all.end()}),
            (Names{"pairwise", "linear"}));
  algo::Algorithm another = made_up(algo::kPairwiseAllToAll);
  EXPECT_EQ(offered(uneven(Collective::kAllToAll), 4, {&another}), Names{"made_up"});
}

TEST_F(Planning, WhatIsForcedForEqualBlocksIsPassedOverForOthersWhereItMust) {
  const auto all = algo::all_algorithms();
  const std::vector<const algo::Algorithm*> known(all.begin(), all.end());
  forced_ = {{Collective::kAllGather, algo::BlockLengths::kEqual, &algo::kBruckAllGather}};
  offered(uneven(Collective::kAllGather), 4, known);
  ASSERT_NE(chosen_, nullptr);
  EXPECT_STREQ(chosen_->name, "ring");
  EXPECT_NE(reason_.find("'bruck' is ignored, because it supports blocks of equal length only"),
            std::string::npos)
      << reason_;
  forced_ = {{Collective::kAllToAll, algo::BlockLengths::kEqual, &algo::kBruckAllToAll},
             {Collective::kAllToAll, algo::BlockLengths::kKnownToEnds, &algo::kPairwiseAllToAll}};
  offered(uneven(Collective::kAllToAll), 4, known);
  EXPECT_EQ(chosen_, &algo::kPairwiseAllToAll);
  EXPECT_EQ(reason_, "forced by WEIR_ALGORITHM");
}

TEST_F(Planning, AVVariantIsDecidedOnceForAllLengthsOfOneOrderOfMagnitude) {
  context_.rank_count = 4;
  PlannerOptions options;
  options.table = cost::built_in_table();
  Planner planner(context_, options);
  size_t counts[] = {5, 0, 9, 1};
  Call call = uneven(Collective::kAllToAll);
  call.block_counts = call.recv_counts = counts;
  const Plan* first = planner.plan_for(call, false).take();
  EXPECT_EQ(planner.plan_for(call, false).take(), first) << "bound again for the same lengths";
  counts[0] = 6;
  ASSERT_TRUE(planner.plan_for(call, false).ok());
  EXPECT_EQ(planner.decisions().records().size(), 1u);
  counts[0] = 6000;
  ASSERT_TRUE(planner.plan_for(call, false).ok());
  EXPECT_EQ(planner.decisions().records().size(), 2u);
}

TEST_F(Planning, RanksWithACardEachSendAtOnce) {
  context_.rank_count = 8;
  const auto decided = [&](const std::vector<uint32_t>& cards) {
    PlannerOptions options;
    options.table = cost::built_in_table();
    options.table.times.link(cost::Link::kTcp) = options.table.times.link(cost::Link::kFabric);
    options.node_of_rank = {0, 0, 0, 0, 1, 1, 1, 1};
    options.card_of_rank = cards;
    Planner planner(context_, options);
    Call call;
    call.collective = Collective::kAllReduce;
    call.type = DataType::kFloat32;
    call.count = 16'384;
    EXPECT_TRUE(planner.plan_for(call, false).ok());
    return planner.decisions().records().back().decision;
  };
  const cost::Decision shared = decided({});
  const cost::Decision own = decided({0, 1, 2, 3, 4, 5, 6, 7});
  // One card of each host carries least if the ranks of the host fold first.
  EXPECT_STREQ(shared.algorithm->name, "hierarchical");
  EXPECT_STRNE(own.algorithm->name, "hierarchical");
  EXPECT_LT(own.predicted_ns, shared.predicted_ns);
}

// A slice of 128 KiB takes 21 ms on the slow link, which is idle while it travels the others.
TEST_F(Planning, OverASlowNetworkSlicesAreShorterSoThatItIsNeverIdle) {
  context_.rank_count = 4;
  const auto decided = [&](const std::vector<double>& wires, uint64_t* slice_bytes) {
    PlannerOptions options;
    options.table = cost::built_in_table();
    options.table.times.link(cost::Link::kTcp).wire_ns_per_byte = 20;
    options.node_of_rank = {0, 1, 2, 3};
    options.wire_of_node = wires;
    options.forced = {{Collective::kAllReduce, algo::BlockLengths::kEqual,
                       algo::find_algorithm(Collective::kAllReduce, "double_binary_tree")}};
    Planner planner(context_, options);
    Call call;
    call.collective = Collective::kAllReduce;
    call.type = DataType::kFloat32;
    call.count = 65'536;
    const auto plan = planner.plan_for(call, false);
    EXPECT_TRUE(plan.ok()) << plan.status().text();
    constexpr uint64_t kSlots = 4;
    if (plan.ok()) *slice_bytes = plan.value()->lanes->scratch_bytes() / kSlots;
    return planner.decisions().records().back().decision.predicted_ns;
  };
  uint64_t slice_bytes = 0;
  const double bound_ns = 262'144 * 160;
  EXPECT_LT(decided({20, 20, 20, 160}, &slice_bytes), 1.1 * bound_ns);
  EXPECT_EQ(slice_bytes, 32'768u);
  (void)decided({20, 20, 20, 80}, &slice_bytes);
  EXPECT_EQ(slice_bytes, 65'536u);
  (void)decided({}, &slice_bytes);
  EXPECT_EQ(slice_bytes, 131'072u) << "2.6 ms";
}

// Roots that take turns, calls in place and not, and counts that differ by one.
TEST_F(Planning, CallsThatAlternateKeepTheirPlans) {
  context_.rank_count = 8;
  PlannerOptions options;
  options.table = cost::built_in_table();
  Planner planner(context_, options);
  std::vector<Call> calls;
  for (const bool in_place : {false, true}) {
    for (Rank root = 0; root < 8; ++root) {
      Call call;
      call.collective = Collective::kBroadcast;
      call.count = 100;
      call.root = root;
      call.in_place = in_place;
      calls.push_back(call);
    }
    for (size_t count = 100; count < 104; ++count) {
      Call call;
      call.count = count;
      call.in_place = in_place;
      calls.push_back(call);
    }
  }
  std::vector<const Plan*> plans;
  for (const Call& call : calls) plans.push_back(planner.plan_for(call, false).take());
  EXPECT_EQ(std::set<const Plan*>(plans.begin(), plans.end()).size(), calls.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    EXPECT_EQ(planner.plan_for(calls[i], false).take(), plans[i]) << describe(calls[i]);
  }
}

// `latest` leaves no trace, and needs none: what it finds was also the last to be searched for.
TEST_F(Planning, ThePlanThatIsUsedBetweenAllOthersIsKept) {
  context_.rank_count = 4;
  PlannerOptions options;
  options.table = cost::built_in_table();
  Planner planner(context_, options);
  Call often;
  often.count = 1;
  Call once;
  const Plan* const kept = planner.plan_for(often, false).take();
  for (once.count = 2; once.count < 2000; ++once.count) {
    ASSERT_TRUE(planner.plan_for(once, false).ok());
    ASSERT_EQ(planner.latest(often), nullptr);
    ASSERT_EQ(planner.plan_for(often, false).take(), kept) << "after " << once.count;
    for (int i = 0; i < 4; ++i) ASSERT_EQ(planner.latest(often), kept);
  }
}

// More calls than there is room for: each plan is made anew, its decision is the one there was.
TEST_F(Planning, APlanThatIsMadeAnewHasTheSameDecision) {
  context_.rank_count = 4;
  PlannerOptions options;
  options.table = cost::built_in_table();
  Planner planner(context_, options);
  Call call;
  call.count = 1;
  const uint64_t decision = planner.plan_for(call, false).take()->decision;
  for (size_t count = 2; count < 200; ++count) {
    call.count = count;
    ASSERT_TRUE(planner.plan_for(call, false).ok());
  }
  const size_t record_count = planner.decisions().records().size();
  EXPECT_EQ(record_count, 199u);
  for (size_t count = 1; count < 200; ++count) {
    call.count = count;
    const Plan* plan = planner.plan_for(call, false).take();
    if (count == 1) {
      EXPECT_EQ(plan->decision, decision);
    }
  }
  EXPECT_EQ(planner.decisions().records().size(), record_count);
}

TEST(MessageSlices, GetShorterWithTheTimeOnTheWire) {
  EXPECT_EQ(message_slice_bytes(Collective::kAllReduce, 4), 128u << 10);
  EXPECT_EQ(message_slice_bytes(Collective::kAllReduce, 4, 0.8), 128u << 10);
  EXPECT_EQ(message_slice_bytes(Collective::kAllReduce, 4, 80), 64u << 10);
  EXPECT_EQ(message_slice_bytes(Collective::kAllReduce, 4, 1e9), 32u << 10);
  EXPECT_EQ(message_slice_bytes(Collective::kAllReduce, 129, 1e9), 128u << 10);
  // Nothing overlaps there.
  EXPECT_EQ(message_slice_bytes(Collective::kAllGather, 2, 80),
            message_slice_bytes(Collective::kAllGather, 2));
}

TEST(ForcedAlgorithms, AreReadByCollectiveAndVariant) {
  const auto forced = parse_forced_algorithms("all_reduce=ring,all_to_all_v=linear");
  ASSERT_TRUE(forced.ok()) << forced.status().text();
  ASSERT_EQ(forced.value().size(), 2u);
  EXPECT_EQ(forced.value()[1].collective, Collective::kAllToAll);
  EXPECT_EQ(forced.value()[1].lengths, algo::BlockLengths::kKnownToEnds);
  EXPECT_EQ(forced.value()[1].algorithm, &algo::kLinearAllToAll);
  const auto wrong = parse_forced_algorithms("all_to_all_v=bruck");
  ASSERT_FALSE(wrong.ok());
  EXPECT_EQ(wrong.status().text(),
            "WEIR_ALGORITHM: 'bruck' is not an algorithm of all_to_all_v; known: direct window "
            "pairwise linear");
  EXPECT_FALSE(parse_forced_algorithms("broadcast_v=linear").ok());
  const std::string unknown = parse_forced_algorithms("allreduce=ring").status().text();
  EXPECT_EQ(unknown.rfind("WEIR_ALGORITHM: 'allreduce' is not a collective; known are all_", 0), 0u)
      << unknown;
  EXPECT_NE(unknown.find("all_to_all_v"), std::string::npos);
  EXPECT_EQ(
      parse_forced_algorithms("all_reduce=ring,broadcast=chain,all_reduce=chain").status().text(),
      "WEIR_ALGORITHM: all_reduce is named twice; leave one of its algorithms out");
  EXPECT_EQ(parse_forced_algorithms("ring").status().text(),
            "WEIR_ALGORITHM: 'ring' is not of the form collective=algorithm, such as "
            "all_reduce=ring");
}

TEST_F(Planning, ProgramsFromElsewhereAreCandidatesForTheirNumberOfRanks) {
  Call call;
  call.collective = Collective::kAllReduce;
  call.type = DataType::kFloat32;
  call.count = 1000;
  context_.rank_count = 4;
  PlannerOptions options;
  options.table = cost::built_in_table();
  options.programs.push_back(imported(algo::kRingAllReduce, "mine"));
  const auto is_weighed = [](const Planner& planner) {
    for (const cost::Candidate& one : planner.decisions().records().back().decision.candidates) {
      if (std::string(one.algorithm->name) == "mine") return one.predicted_ns > 0;
    }
    return false;
  };
  Planner planner(context_, options);
  ASSERT_TRUE(planner.plan_for(call, false).ok());
  EXPECT_TRUE(is_weighed(planner));
  EXPECT_NE(std::string(planner.plan_for(call, false).value()->algorithm->name), "mine");
  context_.rank_count = 5;
  Planner of_five(context_, options);
  ASSERT_TRUE(of_five.plan_for(call, false).ok());
  EXPECT_FALSE(is_weighed(of_five));
  options.forced = parse_forced_algorithms("all_reduce=mine", of_five.algorithms()).value();
  Planner forced(context_, options);
  const auto refused = forced.plan_for(call, false);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().text(),
            "WEIR_ALGORITHM: all_reduce=mine cannot be used on 5 ranks: it was made for "
            "another number of ranks");
  EXPECT_FALSE(parse_forced_algorithms("all_reduce=mine").ok());
}

TEST_F(Planning, AddedProgramsArePlannedWithAndPreferredOnRequest) {
  Call call;
  call.collective = Collective::kAllReduce;
  call.type = DataType::kFloat32;
  call.count = 1000;
  context_.rank_count = 4;
  PlannerOptions options;
  options.table = cost::built_in_table();
  Planner planner(context_, options);
  const auto chosen = [&]() -> std::string {
    const auto plan = planner.plan_for(call, false);
    return plan.ok() ? plan.value()->algorithm->name : plan.status().text();
  };
  const std::string before = chosen();
  planner.add(imported(algo::kRingAllReduce, "a_ring"), false);
  EXPECT_EQ(chosen(), before);
  planner.add(imported(algo::kRingAllReduce, "my_ring"), true);
  EXPECT_EQ(chosen(), "my_ring") << "a plan of before is not kept";
  EXPECT_EQ(planner.decisions().records().back().decision.reason, "preferred by the program");
  call.collective = Collective::kAllGather;
  EXPECT_NE(chosen(), "my_ring");

  options.deterministic = true;
  Planner in_order(context_, options);
  in_order.add(imported(algo::kRingAllReduce, "my_ring"), true);
  call.collective = Collective::kAllReduce;
  const auto plan = in_order.plan_for(call, false);
  ASSERT_TRUE(plan.ok());
  EXPECT_TRUE(plan.value()->algorithm->rank_order);
  EXPECT_NE(in_order.decisions().records().back().decision.reason.find(
                "'my_ring', which the program prefers, is ignored: it does not fold in rank order"),
            std::string::npos);
}

// The line protocol's slots carry flags, which needs more than a program says.
TEST_F(Planning, ProgramsFromElsewhereDoNotUseTheLineProtocol) {
  algo::Problem problem;
  problem.rank_count = 4;
  problem.mapped = true;
  const auto made = algo::Imported::make(
      {algo::access_of(problem), algo::compile_all(algo::kDirectAllReduce, problem)}, "mine");
  ASSERT_TRUE(made.ok()) << made.status().text();
  EXPECT_TRUE(made.value()->algorithm().needs_mapped);
  context_.rank_count = 4;
  std::vector<unsigned char> segment(4 << 20);
  context_.segment_base = segment.data();
  context_.segment_stride_bytes = 1 << 20;
  context_.staging_bytes = (1 << 20) - kStagingOffset;
  ASSERT_TRUE(context_.mapped());
  Call call;
  call.collective = Collective::kAllReduce;
  call.count = 4;
  PlannerOptions options;
  options.table = cost::built_in_table();
  Planner planner(context_, options);
  EXPECT_EQ(planner.plan_for(call, false).value()->protocol, Protocol::kLine);
  planner.add(made.value(), true);
  EXPECT_EQ(planner.plan_for(call, false).value()->protocol, Protocol::kSlots);
}

// ---- Exploration --------------------------------------------------------------------------------

Call all_reduce_of(size_t count) {
  Call call;
  call.collective = Collective::kAllReduce;
  call.type = DataType::kFloat32;
  call.count = count;
  return call;
}

PlannerOptions learning() {
  PlannerOptions options;
  options.table = cost::built_in_table();
  options.learns = true;
  return options;
}

// What the call with each number runs, from 1 on; "" where it does not explore.
Names turns(const Context& context, const PlannerOptions& options, const Call& call,
            uint64_t count) {
  Planner planner(context, options);
  Names names;
  for (uint64_t sequence = 1; sequence <= count; ++sequence) {
    if (!planner.explores(sequence)) {
      names.emplace_back("");
      continue;
    }
    const auto plan = planner.plan_to_explore(call, false, sequence);
    names.emplace_back(plan.ok() ? plan.value()->algorithm->name : plan.status().text());
  }
  return names;
}

TEST_F(Planning, EveryRankExploresTheSameAtTheSameCallsWhateverItCalledBefore) {
  context_.rank_count = 4;
  algo::Algorithm twin = made_up(algo::kRingAllGather);
  const algo::Algorithm* const twins[] = {&algo::kRingAllGather, &twin};
  for (const Call& call :
       {all_reduce_of(1000), all_reduce_of(100'000), uneven(Collective::kAllGather)}) {
    PlannerOptions options = learning();
    if (call.block_counts != nullptr) options.algorithms = twins;
    context_.rank = 0;
    const Names expected = turns(context_, options, call, 2000);
    for (const Rank rank : {1u, 2u, 3u}) {
      context_.rank = rank;
      EXPECT_EQ(turns(context_, options, call, 2000), expected);
    }
    std::map<std::string, size_t> counts;
    for (const std::string& name : expected) ++counts[name];
    // One call in eight, evenly over two to four algorithms.
    const size_t explored = 2000 - counts[""];
    EXPECT_NEAR(static_cast<double>(explored), 250, 50);
    counts.erase("");
    EXPECT_GE(counts.size(), 2u) << describe(call);
    EXPECT_LE(counts.size(), 4u);
    for (const auto& [name, count] : counts) {
      EXPECT_GT(count, explored / counts.size() / 2) << name;
    }
  }
}

// One that repeated its draws might never measure the choice.
TEST_F(Planning, ManyShortRunsMeasureEveryAlgorithmWithTheirSeeds) {
  context_.rank_count = 4;
  for (const uint64_t calls : {5u, 20u, 100u}) {
    std::map<std::string, size_t> counts;
    size_t explored = 0;
    for (uint64_t run = 0; run < 4000 / calls; ++run) {
      PlannerOptions options = learning();
      options.learn_seed = (run + 1) * 0xd1342543de82ef95u;
      for (const std::string& name : turns(context_, options, all_reduce_of(1000), calls)) {
        if (name.empty()) continue;
        ++counts[name];
        ++explored;
      }
    }
    EXPECT_NEAR(static_cast<double>(explored), 500, 100) << calls << " calls";
    ASSERT_GE(counts.size(), 2u) << calls << " calls";
    for (const auto& [name, count] : counts) {
      EXPECT_GT(count, explored / counts.size() / 2) << name << ", " << calls << " calls";
    }
  }
}

TEST_F(Planning, CallsOfEveryPatternAreExplored) {
  const Planner planner(context_, learning());
  for (uint64_t period = 1; period <= 64; ++period) {
    for (uint64_t at = 0; at < period; ++at) {
      uint64_t count = 0;
      for (uint64_t i = 0; i < 1000; ++i) count += planner.explores(at + i * period) ? 1 : 0;
      EXPECT_GT(count, 60u) << "call " << at << " of each " << period;
    }
  }
}

TEST_F(Planning, WhoDoesNotLearnExploresNothing) {
  PlannerOptions options = learning();
  options.learns = false;
  const Planner planner(context_, options);
  for (uint64_t sequence = 0; sequence < 1000; ++sequence) {
    ASSERT_FALSE(planner.explores(sequence));
    ASSERT_FALSE(planner.diverts(sequence));
  }
}

TEST_F(Planning, AnAllToAllVExploresNothingSinceARankKnowsOnlyItsOwnLengths) {
  context_.rank_count = 4;
  const Names names = turns(context_, learning(), uneven(Collective::kAllToAll), 500);
  EXPECT_EQ((std::set<std::string>(names.begin(), names.end()).size()), 2u) << "and the choice";
}

TEST_F(Planning, AForcedAlgorithmIsNotExploredAway) {
  context_.rank_count = 4;
  PlannerOptions options = learning();
  options.forced = parse_forced_algorithms("all_reduce=ring").value();
  for (const std::string& name : turns(context_, options, all_reduce_of(1000), 500)) {
    EXPECT_TRUE(name.empty() || name == "ring") << name;
  }
}

TEST_F(Planning, ExploredPlansAreMeasuredByThemselvesAndTheLatestPlanStaysTheChoice) {
  context_.rank_count = 4;
  PlannerOptions options = learning();
  std::vector<std::pair<std::string, uint64_t>> told;
  options.on_measured = [&](const cost::DecisionRecord& record,
                            const cost::ExploredTimes* explored) {
    told.emplace_back(explored == nullptr ? "" : explored->algorithm->name,
                      explored == nullptr ? record.measured.count : explored->times.count);
  };
  Planner planner(context_, options);
  const Call call = all_reduce_of(1000);
  const Plan* choice = planner.plan_for(call, false).value();
  uint64_t sequence = 1;
  const Plan* other = choice;
  for (; other == choice; ++sequence) {
    if (planner.explores(sequence)) {
      other = planner.plan_to_explore(call, false, sequence).value();
    }
  }
  EXPECT_NE(other->algorithm, choice->algorithm);
  EXPECT_EQ(planner.latest(call), choice);
  EXPECT_EQ(planner.decisions().records().size(), 1u);
  planner.measured(*choice, 100);
  planner.measured(*other, 300, true);
  planner.measured(*choice, 200, true);
  const cost::DecisionRecord& record = planner.decisions().records()[0];
  EXPECT_EQ(record.measured.count, 2u);
  EXPECT_EQ(record.explored_of(other->algorithm)->sum_ns, 300);
  EXPECT_EQ(record.explored_of(choice->algorithm)->sum_ns, 200);
  const std::vector<std::pair<std::string, uint64_t>> expected = {
      {"", 1}, {"", 1}, {other->algorithm->name, 1}, {"", 2}, {choice->algorithm->name, 1}};
  EXPECT_EQ(told, expected);
}

TEST_F(Planning, WhatEarlierRunsMeasuredDecidesOnAllRanks) {
  context_.rank_count = 4;
  PlannerOptions options = learning();
  options.learns = false;
  const Call call = all_reduce_of(1000);
  const std::string predicted =
      Planner(context_, options).plan_for(call, false).value()->algorithm->name;
  const std::string other = predicted == "ring" ? "double_binary_tree" : "ring";
  cost::LearnedCall learned;
  learned.shape.bytes = 4000;
  learned.times = {{predicted, 1, 40, 1e6, 2e6, 2e6}, {other, 1, 40, 1e6, 1e6, 1e6}};
  options.learned = cost::LearnedTimes({learned});
  for (const Rank rank : {0u, 1u, 2u, 3u}) {
    context_.rank = rank;
    Planner planner(context_, options);
    EXPECT_EQ(planner.plan_for(call, false).value()->algorithm->name, other);
    EXPECT_EQ(planner.plan_for(all_reduce_of(1001), false).value()->algorithm->name, predicted)
        << "nothing is known of other sizes";
  }
}

TEST_F(Planning, ExplainNamesWhatWasNotOfferedWithItsReason) {
  context_.rank_count = 2;
  context_.rank = 1;  // prints nothing
  PlannerOptions options;
  options.table = cost::built_in_table();
  options.explain = true;
  options.programs.push_back(imported(algo::kRingAllReduce, "of_four"));
  const auto reason_of = [&](const Call& call, const std::string& name) -> std::string {
    Planner planner(context_, options);
    if (!planner.plan_for(call, false).ok()) return "there is no plan";
    for (const auto& one : planner.decisions().records().back().decision.candidates) {
      if (name == one.algorithm->name) return one.excluded == nullptr ? "" : one.excluded;
    }
    return "is not named";
  };
  const Call even = all_reduce_of(1000);
  EXPECT_EQ(reason_of(even, "of_four"), "was made for another number of ranks");
  EXPECT_EQ(reason_of(even, "forest"),
            "has no trees here: they were not offered at the start, where WEIR_EXPLAIN=1 says why");
  EXPECT_EQ(reason_of(even, "direct"), "needs mapped staging memory");
  EXPECT_EQ(reason_of(even, "recursive_doubling"), "");
  context_.rank_count = 4;
  EXPECT_EQ(reason_of(uneven(Collective::kAllGather), "recursive_doubling"),
            "takes blocks of equal length only");
  EXPECT_EQ(reason_of(uneven(Collective::kAllToAll), "bruck"), "takes blocks of equal length only");
}

// A chunk is a fourth of the vector here.
TEST(TreeLanes, AreAsFewAsLeaveFourRoundsOfSlices) {
  graph::Forest forest;
  forest.rank_count = 4;
  forest.trees_per_root = 4;
  forest.trees.push_back(
      {.root = 0, .first = 0, .count = 4, .links = {{0, 1, 1}, {1, 2, 2}, {2, 3, 3}}});
  algo::Problem problem;
  problem.collective = Collective::kAllReduce;
  problem.rank_count = 4;
  const auto lanes = [&](uint64_t slices, uint32_t of_transport) {
    problem.lanes_max = of_transport;
    return cost::tree_lanes(problem, slices * 4 * 32768, 32768);
  };
  EXPECT_EQ(lanes(100, 4), 0u) << "without trees";
  problem.forest = &forest;
  EXPECT_EQ(lanes(1, 4), 4u);
  EXPECT_EQ(lanes(7, 4), 4u);
  EXPECT_EQ(lanes(8, 4), 2u) << "2 slices in flight, 4 rounds";
  EXPECT_EQ(lanes(15, 4), 2u);
  EXPECT_EQ(lanes(16, 4), 1u) << "4 slices in flight, 4 rounds";
  EXPECT_EQ(lanes(27, 7), 3u);
  EXPECT_EQ(lanes(28, 7), 1u);
  EXPECT_EQ(lanes(28, 14), 3u) << "4 slices in flight; 14 would leave 2 rounds";
  EXPECT_EQ(lanes(1'000'000, 14), 1u);
  EXPECT_EQ(lanes(1'000'000, 1), 1u);
  EXPECT_EQ(cost::tree_lanes(problem, 1 << 20, 0), 1u) << "of one lane";
}

}  // namespace
}  // namespace weir::engine
