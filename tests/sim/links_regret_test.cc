// SPDX-License-Identifier: Apache-2.0
// How good choices are over the links of the recorded machines, judged by simulating them
// (sim::Options::links): of buffers on devices where a machine has GPUs, else in memory of the
// host. And how near predictions over links are to the simulation.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "core/cost/prediction.h"
#include "core/graph/cut_bound.h"
#include "core/sim/network.h"
#include "core/sim/regret.h"
#include "core/sim/simulator.h"
#include "weir_sched/regret_machine.h"

namespace weir::sim {
namespace {

using sched_tool::RegretHosts;
using sched_tool::RegretMachine;

constexpr uint64_t kEventsMax = 60'000'000;
constexpr std::array<const char*, 10> kWithGpus = {
    "azure-ncv4-topo.nccl.xml",       "azure-ndv4-topo.nccl.xml", "dgx2.hwloc.xml",
    "made-8-fully-linked.nccl.xml",   "made-gb200.nccl.xml",      "made-nvswitch-1-card.nccl.xml",
    "made-nvswitch-8-cards.nccl.xml", "made-pex.nccl.xml",        "made-power-nvlink.hwloc.xml",
    "rccl-8p-rome-n4.nccl.xml"};
constexpr std::array<const char*, 2> kWithoutGpus = {"made-eight-numa.hwloc.xml",
                                                     "made-four-numa.hwloc3.xml"};

RegretMachine machine_of(const char* file) {
  auto machine = sched_tool::read_regret_machine(std::string(WEIR_FIXTURES "/topologies/") + file,
                                                 cost::built_in_table(), true);
  EXPECT_TRUE(machine.ok()) << machine.status().text();
  return machine.take();
}

std::vector<uint64_t> sizes_of(Collective collective) {
  if (collective == Collective::kBarrier) return {0};
  if (collective == Collective::kAllReduce) return {8, 64 << 10, 1 << 20, 256 << 20};
  return {64 << 10, 1 << 20, 16 << 20};
}

bool has_blocks(Collective collective) { return cost::block_count(collective, 2) > 1; }

struct Judged {
  double regret = 0;
  std::string text;
};

// All collectives on so many hosts of the machine.
void judge(const char* file, uint32_t host_count, std::vector<Judged>* judged) {
  const RegretMachine machine = machine_of(file);
  const Rank n = host_count * machine.ranks_per_host;
  if (n < 2) return;
  const RegretHosts hosts(machine, n);
  ASSERT_TRUE(hosts.status().ok()) << hosts.status().text();
  for (uint32_t i = 0; i < static_cast<uint32_t>(Collective::kSendRecv); ++i) {
    const auto collective = static_cast<Collective>(i);
    for (const uint64_t bytes : sizes_of(collective)) {
      if (has_blocks(collective) && bytes < 4 * uint64_t{n}) continue;
      const cost::Request request = hosts.request(collective, bytes);
      const auto candidates = cost::candidates_for(algo::all_algorithms(), request.work.problem);
      const auto decision = cost::choose(request, candidates, machine.table, nullptr);
      ASSERT_TRUE(decision.ok()) << decision.status().text();
      const auto regret =
          sim::regret(request, decision.value(), machine.table, kEventsMax, {}, hosts.links());
      ASSERT_TRUE(regret.ok()) << file << ' ' << name_of(collective) << ' ' << bytes << ' '
                               << decision.value().algorithm->name << regret.status().text();
      const auto cut = [](uint64_t slice_bytes, uint32_t lanes) {
        return slice_bytes == 0 ? std::string()
                                : fmt::format(" ({} KiB, {} lanes)", slice_bytes >> 10, lanes);
      };
      const Regret& of = regret.value();
      judged->push_back(
          {of.value(),
           fmt::format("{:.2f}: {} x {}, {} of {} bytes: {}{} is predicted to take {:.1f} us and "
                       "takes {:.1f}; best is {}{}, {:.1f}",
                       of.value(), host_count, file, name_of(collective), bytes,
                       decision.value().algorithm->name,
                       cut(decision.value().slice_bytes, decision.value().tree_lanes),
                       decision.value().predicted_ns / 1000, of.chosen_ns / 1000, of.best->name,
                       cut(of.best_cut.slice_bytes, of.best_cut.tree_lanes), of.best_ns / 1000)});
    }
  }
}

// The worst first.
void sort(std::vector<Judged>* judged) {
  std::sort(judged->begin(), judged->end(),
            [](const Judged& a, const Judged& b) { return a.regret > b.regret; });
}

void print_worst(const std::vector<Judged>& judged) {
  fmt::print("{} calls, nine of ten at most {:.2f}; the worst:\n", judged.size(),
             judged[judged.size() / 10].regret);
  for (size_t i = 0; i < std::min<size_t>(judged.size(), 12); ++i) {
    fmt::print("  {}\n", judged[i].text);
  }
}

TEST(RegretOverLinks, OfBuffersOnDevicesIsSmall) {
  std::vector<Judged> judged;
  for (const char* file : kWithGpus) {
    for (const uint32_t host_count : {1u, 2u}) judge(file, host_count, &judged);
  }
  sort(&judged);
  ASSERT_GE(judged.size(), 400u);
  print_worst(judged);
  EXPECT_LE(judged[judged.size() / 10].regret, 1.1);
  EXPECT_LE(judged[0].regret, 1.3) << judged[0].text;
}

TEST(RegretOverLinks, OfBuffersInMemoryOfTheHostIsSmall) {
  std::vector<Judged> judged;
  for (const char* file : kWithoutGpus) {
    for (const uint32_t host_count : {1u, 2u}) judge(file, host_count, &judged);
  }
  sort(&judged);
  ASSERT_GE(judged.size(), 40u);
  print_worst(judged);
  EXPECT_LE(judged[judged.size() / 10].regret, 1.1);
  EXPECT_LE(judged[0].regret, 1.3) << judged[0].text;
}

// The bars of docs/topology.md: what is chosen without a rule, with seven lanes.
TEST(ChoicesOverLinks, OfBuffersOnDevicesMeetTheBars) {
  struct Case {
    const char* file;
    uint32_t host_count;
    const char* algorithm;
    double bar;
  };
  for (const Case& it : {Case{"made-nvswitch-8-cards.nccl.xml", 2, "forest", 0.9},
                         Case{"made-8-fully-linked.nccl.xml", 1, "forest", 0.85},
                         Case{"made-nvswitch-1-card.nccl.xml", 2, "hierarchical", 0.95}}) {
    constexpr uint64_t kBytes = 256 << 20;
    const RegretMachine machine = machine_of(it.file);
    const RegretHosts hosts(machine, it.host_count * machine.ranks_per_host);
    const cost::Request request = hosts.request(Collective::kAllReduce, kBytes);
    const auto candidates = cost::candidates_for(algo::all_algorithms(), request.work.problem);
    const auto decision = cost::choose(request, candidates, machine.table, nullptr);
    ASSERT_TRUE(decision.ok()) << decision.status().text();
    const cost::Decision& made = decision.value();
    const cost::Workload work =
        cost::work_of(*made.algorithm, request, {made.slice_bytes, made.tree_lanes});
    Options options;
    options.network = accelerator_network();
    options.links = hosts.links();
    options.slicing = work.slicing;
    const auto report = simulate(*made.algorithm, work.problem, kBytes, options);
    ASSERT_TRUE(report.ok() && report.value().complete) << report.status().text();
    const double share = graph::least_ns(*hosts.links(), Collective::kAllReduce, 0, kBytes) * 1000 /
                         static_cast<double>(report.value().total_ps);
    fmt::print("{} x {}: {}, {} lanes, {} slices of {} KiB in flight: {:.3f} of the bound\n",
               it.host_count, it.file, made.algorithm->name, made.tree_lanes,
               work.slicing.in_flight, made.slice_bytes >> 10, share);
    EXPECT_STREQ(made.algorithm->name, it.algorithm) << it.file;
    EXPECT_GE(share, it.bar) << it.file;
  }
}

TEST(PredictionsOverLinks, AreWhatTheSimulationSays) {
  std::vector<Judged> errors;
  for (const char* file : {"made-nvswitch-8-cards.nccl.xml", "made-8-fully-linked.nccl.xml",
                           "rccl-8p-rome-n4.nccl.xml", "azure-ndv4-topo.nccl.xml"}) {
    const RegretMachine machine = machine_of(file);
    const RegretHosts hosts(machine, 16);
    for (const auto& [collective, bytes] : {std::pair{Collective::kAllReduce, uint64_t{64} << 20},
                                            {Collective::kAllReduce, uint64_t{64} << 10},
                                            {Collective::kReduceScatter, uint64_t{16} << 20},
                                            {Collective::kBroadcast, uint64_t{16} << 20},
                                            {Collective::kAllToAll, uint64_t{16} << 20}}) {
      const cost::Request request = hosts.request(collective, bytes);
      for (const algo::Algorithm* algorithm :
           cost::candidates_for(algo::all_algorithms(), request.work.problem)) {
        for (const cost::Cut& cut : cost::cuts_of(*algorithm, request)) {
          const cost::Workload work = cost::work_of(*algorithm, request, cut);
          cost::Prediction prediction(*algorithm, work, machine.table);
          if (prediction.has_no_way()) continue;
          const double predicted_ns = prediction.made().ns;
          EXPECT_LE(prediction.bound_ns(), predicted_ns * 1.0001) << algorithm->name;
          Options options;
          options.network = accelerator_network();
          options.links = hosts.links();
          options.slicing = work.slicing;
          const auto report = simulate(*algorithm, work.problem, bytes, options);
          ASSERT_TRUE(report.ok() && report.value().complete) << report.status().text();
          const double simulated_ns = static_cast<double>(report.value().total_ps) / 1000;
          errors.push_back(
              {std::abs(predicted_ns / simulated_ns - 1),
               fmt::format("{}: {} of {} bytes, {}, slices of {}, {} lanes: {:.3f}", file,
                           name_of(collective), bytes, algorithm->name, cut.slice_bytes,
                           cut.tree_lanes, predicted_ns / simulated_ns)});
        }
      }
    }
  }
  sort(&errors);
  ASSERT_GE(errors.size(), 400u);
  print_worst(errors);
  EXPECT_LE(errors[errors.size() / 10].regret, 0.05);
  EXPECT_LE(errors[0].regret, 0.25) << errors[0].text;
}

}  // namespace
}  // namespace weir::sim
