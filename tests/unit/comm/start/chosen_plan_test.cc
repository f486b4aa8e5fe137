// SPDX-License-Identifier: Apache-2.0
// What a communicator would do with ranks on the GPUs of recorded machines, and how near that is to
// what the links allow: the trees that are offered, the planner's choice with the lanes of real
// transports, for memory of the host and for buffers on the GPUs, and that plan simulated over the
// links. docs/topology.md has the figures.
#include <gtest/gtest.h>

#include <cstdio>

#include "core/comm/start/tree_search.h"
#include "core/cost/message_ways.h"
#include "core/engine/planner.h"
#include "core/graph/cut_bound.h"
#include "core/graph/forests.h"
#include "core/sim/network.h"
#include "core/sim/simulator.h"
#include "unit/graph/graph_support.h"

namespace weir::comm {
namespace {

// What a transport leaves for programs.
constexpr uint32_t kTcpLanes = 4, kUcxLanes = 7, kShmLanes = 14;

constexpr uint64_t kMiB = 1 << 20;

// Of a tuning file; empty: predictions decide.
struct Rule {
  std::string algorithm;
  uint64_t slice_bytes = 0;
};

struct Chosen {
  std::string algorithm;
  uint32_t lanes = 0;  // of the program
  uint32_t in_flight = 0;
  uint64_t slice_bytes = 0;
  std::string reason;
  double predicted_ns = 0;
  double simulated_ns = 0;
  double share = 0;  // of the bound, simulated
};

class Machine {
 public:
  Machine(const std::string& file, uint32_t hosts)
      : links_(graph::graph_of_gpus(file, hosts).value()), found_(search_trees(links_, "")) {
    for (Rank rank = 0; rank < links_.rank_count(); ++rank) nodes_.push_back(links_.host_of(rank));
    if (hosts == 1) nodes_.clear();
  }

  // An all_reduce. `on_devices`: of buffers that lie on the GPUs.
  Chosen choose(uint32_t lanes, const Rule& rule, bool on_devices = false,
                uint64_t bytes = 256 * kMiB) {
    weir_transport_functions_t functions{};
    functions.name = "none";
    functions.caps.lane_count = lanes + 2;
    engine::Context context;
    context.rank_count = links_.rank_count();
    context.transport = &functions;
    engine::PlannerOptions options;
    options.table = on_devices ? cost::device_table() : cost::built_in_table();
    if (on_devices) options.ways = ways_;
    options.node_of_rank = nodes_;
    if (found_.offered) {
      options.forests = std::make_shared<graph::Forests>(links_, found_.searches);
    }
    graph::Forests* const forests = options.forests.get();
    if (!rule.algorithm.empty()) {
      const std::string text = "[[rule]]\ncollective = \"all_reduce\"\nalgorithm = \"" +
                               rule.algorithm +
                               "\"\nslice_bytes = " + std::to_string(rule.slice_bytes) + "\n";
      options.rules = cost::parse_rules(text, "rules").value();
    }
    engine::Planner planner(context, std::move(options));
    engine::Call call;
    call.collective = Collective::kAllReduce;
    call.type = DataType::kFloat32;
    call.count = bytes / 4;
    const auto plan = planner.plan_for(call, false);
    EXPECT_TRUE(plan.ok()) << plan.status().text();
    if (!plan.ok()) return {};
    const engine::LanePlan& bound = *plan.value()->lanes;
    const cost::DecisionRecord* record = planner.decisions().find(plan.value()->decision);
    Chosen chosen{plan.value()->algorithm->name,
                  bound.lane_count(),
                  bound.in_flight(),
                  bound.slice_bytes(),
                  record->decision.reason,
                  record->decision.predicted_ns,
                  0,
                  0};
    algo::Problem problem;
    problem.collective = Collective::kAllReduce;
    problem.rank_count = links_.rank_count();
    problem.node_of_rank = nodes_;
    if (forests != nullptr) {
      problem.forest = forests->of(Collective::kAllReduce, 0);
      problem.rings = forests->rings();
    }
    problem.lanes_max = chosen.lanes;
    sim::Options simulated;
    simulated.network = sim::accelerator_network();
    simulated.links = &links_;
    simulated.slicing = {.slice_bytes = bound.slice_bytes(), .in_flight = bound.in_flight()};
    const auto report = simulate(*plan.value()->algorithm, problem, bytes, simulated);
    EXPECT_TRUE(report.ok() && report.value().complete);
    if (report.ok()) {
      chosen.simulated_ns = static_cast<double>(report.value().total_ps) / 1000;
      chosen.share = graph::least_ns(links_, Collective::kAllReduce, 0, bytes) * 1000 /
                     static_cast<double>(report.value().total_ps);
    }
    return chosen;
  }

 private:
  graph::LinkGraph links_;
  std::shared_ptr<cost::MessageWays> ways_ = std::make_shared<cost::MessageWays>(links_);
  TreeSearch found_;
  std::vector<uint32_t> nodes_;
};

// The bars are 0.9 of two hosts with a card for each GPU, and 0.85 of linked GPUs. The lanes of the
// transport become slices in flight, over one lane each.
TEST(ChosenPlan, AlongTreesMeetsTheBarsWithFewLanesAndLongSlices) {
  Machine hosts("made-nvswitch-8-cards.nccl.xml", 2);
  Machine linked("made-8-fully-linked.nccl.xml", 1);
  for (const uint32_t lanes : {kTcpLanes, kUcxLanes, kShmLanes}) {
    for (Machine* machine : {&hosts, &linked}) {
      const uint64_t slice_bytes = lanes == kTcpLanes ? 3 * kMiB / 2 : kMiB;
      const Chosen chosen =
          machine->choose(lanes, {.algorithm = "forest", .slice_bytes = slice_bytes});
      EXPECT_EQ(chosen.algorithm, "forest") << "offered there";
      EXPECT_EQ(chosen.lanes, 1u);
      EXPECT_EQ(chosen.in_flight, lanes);
      // Of shm no two hosts have one.
      const double bar = machine == &linked ? 0.95 : lanes == kShmLanes ? 0.82 : 0.9;
      EXPECT_GE(chosen.share, bar) << lanes;
    }
  }
}

// Messages of a communicator carry memory of the host, so predictions count the time of processors,
// and slices are as long as their caches like: what is left of the bound of the GPUs' links, if the
// same plan were used there.
TEST(ChosenPlan, ByPredictionIsForMemoryOfTheHost) {
  Machine hosts("made-nvswitch-8-cards.nccl.xml", 2);
  Machine linked("made-8-fully-linked.nccl.xml", 1);
  Machine one_card("made-nvswitch-1-card.nccl.xml", 2);
  for (const uint32_t lanes : {kTcpLanes, kUcxLanes, kShmLanes}) {
    EXPECT_GE(hosts.choose(lanes, {}).share, 0.45) << lanes;
    EXPECT_GE(linked.choose(lanes, {}).share, 0.24) << lanes;
    EXPECT_GE(one_card.choose(lanes, {}).share, 0.95) << lanes;
  }
}

// The same bars, without a rule: the planner predicts messages over the links of the GPUs. No two
// hosts share shm.
TEST(ChosenPlan, ForBuffersOnDevicesMeetsTheBarsByPrediction) {
  Machine hosts("made-nvswitch-8-cards.nccl.xml", 2);
  Machine linked("made-8-fully-linked.nccl.xml", 1);
  Machine one_card("made-nvswitch-1-card.nccl.xml", 2);
  struct Case {
    const char* name;
    Machine* machine;
    const char* algorithm;
    double bar;
  };
  for (const Case& it : {Case{"2 x 8 GPUs, 8 cards", &hosts, "forest", 0.9},
                         Case{"8 linked GPUs", &linked, "forest", 0.95},
                         Case{"2 x 8 GPUs, 1 card", &one_card, "hierarchical", 0.95}}) {
    for (const uint32_t lanes : {kTcpLanes, kUcxLanes, kShmLanes}) {
      const Chosen chosen = it.machine->choose(lanes, {}, true);
      std::printf("%s, %u lanes: %s over %u lanes, %u slices of %u KiB in flight: %.3f\n", it.name,
                  lanes, chosen.algorithm.c_str(), chosen.lanes, chosen.in_flight,
                  static_cast<unsigned>(chosen.slice_bytes >> 10), chosen.share);
      EXPECT_EQ(chosen.algorithm, it.algorithm) << it.name;
      EXPECT_EQ(chosen.reason, "least predicted time");
      EXPECT_GE(chosen.share, lanes == kShmLanes && it.machine == &hosts ? 0.87 : it.bar)
          << it.name << ", " << lanes;
      EXPECT_NEAR(chosen.predicted_ns / chosen.simulated_ns, 1, 0.06) << it.name << ", " << lanes;
    }
  }
  // What costs the least messages, where their number counts.
  EXPECT_EQ(linked.choose(kUcxLanes, {}, true, 1024).algorithm, "recursive_doubling");
}

// A planner for memory of the host is not concerned.
TEST(ChosenPlan, ForMemoryOfTheHostKeepsTheSlicesOfCaches) {
  Machine linked("made-8-fully-linked.nccl.xml", 1);
  const Chosen chosen = linked.choose(kTcpLanes, {});
  EXPECT_EQ(chosen.algorithm, "ordered");
  EXPECT_LE(chosen.slice_bytes, 128u << 10);
}

}  // namespace
}  // namespace weir::comm
