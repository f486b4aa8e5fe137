// SPDX-License-Identifier: Apache-2.0
#include "core/cost/memory_ports.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "core/cost/critical_path.h"
#include "core/cost/router.h"
#include "sim/sim_support.h"

namespace weir::cost {
namespace {

const std::vector<uint32_t> kPackages = {0, 0, 0, 0, 1, 1, 1, 1};
const std::vector<uint32_t> kNodes = {0, 0, 1, 1, 2, 2, 3, 3};
constexpr MemoryLinks kLinks = {
    .package_ns_per_byte = 0.05, .node_ns_per_byte = 0.02, .memory_ns_per_byte = 0.0125};

RankLayout layout_of(const std::vector<uint32_t>& packages, const std::vector<uint32_t>& nodes,
                     const MemoryLinks& links) {
  RankLayout layout;
  layout.socket_of_rank = packages;
  layout.numa_of_rank = nodes;
  layout.memory_links = links;
  return layout;
}

// Picoseconds of each port.
std::map<uint32_t, Picoseconds> taken(const MemoryPorts& ports, Rank self, Rank owner,
                                      bool writes) {
  std::map<uint32_t, Picoseconds> all;
  ports.for_each(self, owner, writes, 1000,
                 [&](uint32_t port, Picoseconds time) { all[port] += time; });
  return all;
}

TEST(MemoryPorts, OfANodeItsLinksAndThoseOfItsPackage) {
  const MemoryPorts ports(layout_of(kPackages, kNodes, kLinks), 8);
  ASSERT_FALSE(ports.empty());
  EXPECT_EQ(ports.memory_of(3), 2u);
  EXPECT_EQ(taken(ports, 0, 1, false).size(), 1u) << "of one node, its memory";
  EXPECT_EQ(taken(ports, 0, 2, false).size(), 3u) << "of one package, both nodes' links";
  const auto across = taken(ports, 0, 6, false);
  ASSERT_EQ(across.size(), 5u);
  Picoseconds sum = 0;
  for (const auto& [port, time] : across) {
    EXPECT_LT(port, ports.count());
    sum += time;
  }
  EXPECT_EQ(sum, 12'500u + 2 * 20'000u + 2 * 50'000u);
  // What one rank reads from another takes the way of what that one writes, but for the memory.
  auto read = taken(ports, 0, 6, false);
  auto written = taken(ports, 6, 0, true);
  std::erase_if(read, [](const auto& it) { return it.second == 12'500; });
  std::erase_if(written, [](const auto& it) { return it.second == 12'500; });
  EXPECT_EQ(read, written);
  EXPECT_NE(taken(ports, 0, 6, true), taken(ports, 0, 6, false)) << "each direction is another";
}

TEST(MemoryPorts, AreNoneWhereAllShareOneNodeOrNothingIsKnown) {
  EXPECT_TRUE(MemoryPorts(layout_of({}, {}, kLinks), 8).empty());
  EXPECT_TRUE(MemoryPorts(layout_of(kPackages, kNodes, {}), 8).empty());
  const std::vector<uint32_t> hosts = {0, 0, 0, 0, 1, 1, 1, 1};
  RankLayout layout = layout_of(kPackages, kNodes, kLinks);
  layout.host_of_rank = hosts;
  EXPECT_TRUE(MemoryPorts(layout, 8).empty()) << "ranks of other hosts share no memory";
  EXPECT_EQ(usual_memory_links(0).package_ns_per_byte, 0);
  EXPECT_DOUBLE_EQ(usual_memory_links(40'000).package_ns_per_byte, 0.025);
}

Workload workload(const algo::Algorithm& a, uint64_t bytes) {
  Workload work{sim::problem(a.collective, 8), bytes, {65536, 4}, {}};
  work.problem.inputs_mapped = work.problem.outputs_mapped = false;
  work.problem.cache_of_rank = work.problem.numa_of_rank = kNodes;
  work.layout = layout_of(kPackages, kNodes, kLinks);
  work.layout.cache_of_rank = kNodes;
  return work;
}

// Everybody reads half of what it reads over the link between packages.
TEST(MemoryPorts, LinksThatAreSharedSlowWhatPassesThem) {
  const Table table = built_in_table();
  const algo::Algorithm& direct = sim::algorithm(Collective::kAllGather, "direct");
  Workload work = workload(direct, 8 << 20);
  work.layout.memory_links.package_ns_per_byte = 0.15;
  const double shared_ns = predict(direct, work, table);
  // Four ranks of a package read four blocks each from the other one.
  const double link_ns = 16.0 * (1 << 20) * 0.15;
  EXPECT_GE(shared_ns, link_ns);
  work.layout.memory_links = {};
  EXPECT_LT(predict(direct, work, table), shared_ns);
}

TEST(MemoryPorts, PredictionsAreWhatTheSimulatorSays) {
  const Table table = built_in_table();
  uint32_t compared = 0;
  for (const algo::Algorithm* a : algo::all_algorithms()) {
    const Workload work = workload(*a, 3 << 20);
    if (algo::uses_messages(*a) || !a->supports(work.problem)) continue;
    const TaskCosts costs(work, table);
    const PathTime path = critical_path(*a, work, costs, Fold(8));
    sim::Options options;
    options.tasks = &costs;
    options.slicing = work.slicing;
    const auto report = sim::simulate(*a, work.problem, work.bytes, options);
    ASSERT_TRUE(report.ok() && report.value().complete) << a->name;
    const double simulated = static_cast<double>(report.value().total_ps) / 1000;
    EXPECT_NEAR(path.ns, simulated, 0.02 * simulated)
        << a->name << " of " << name_of(a->collective);
    ++compared;
  }
  EXPECT_GT(compared, 12u);
}

TEST(MemoryPorts, TheReasonSaysWhatTheChoiceTakesOfThem) {
  Request request;
  request.work = workload(sim::algorithm(Collective::kAllReduce, "by_numa"), 16 << 20);
  request.work.layout.memory_links.package_ns_per_byte = 0.2;
  const auto candidates = candidates_for(algo::all_algorithms(), request.work.problem);
  const auto decision = choose(request, candidates, built_in_table(), nullptr);
  ASSERT_TRUE(decision.ok()) << decision.status().text();
  EXPECT_NE(decision.value().algorithm->groups, nullptr);
  const std::string text = decision.value().reason;
  EXPECT_NE(text.find("it takes the busiest memory or link between nodes for "), std::string::npos)
      << text;
  EXPECT_NE(text.find(", direct"), std::string::npos) << text;
}

}  // namespace
}  // namespace weir::cost
