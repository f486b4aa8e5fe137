// SPDX-License-Identifier: Apache-2.0
// What is chosen on one host of several packages: the simulator over the machine's links, where the
// links between packages and the memory of ranks are shared, judges the predictions.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/cost/memory_ports.h"
#include "core/cost/router.h"
#include "core/graph/machine_graph.h"
#include "core/sim/simulator.h"
#include "core/topo/cpu_place.h"
#include "core/topo/cpus.h"
#include "core/topo/discover.h"

namespace weir::sim {
namespace {

// `rank_count` ranks on the cores of a machine, as far apart as possible.
class Seated {
 public:
  Seated(const std::string& file, Rank rank_count) {
    auto read = topo::read_file(WEIR_FIXTURES "/topologies/" + file);
    EXPECT_TRUE(read.ok()) << read.status().text();
    const std::vector<topo::Topology> kinds = {read.take()};
    const std::vector<topo::NodeId> cores = kinds[0].all(topo::NodeKind::kCore);
    std::vector<graph::RankPlace> places;
    std::vector<topo::CpuSet> cpus;
    for (Rank rank = 0; rank < rank_count; ++rank) {
      cpus.push_back(kinds[0].node(cores[rank * cores.size() / rank_count]).cpus);
      places.push_back({0, topo::kNoNode, cpus.back()});
      packages_.push_back(topo::place_of(cpus.back(), kinds[0]).package);
    }
    const std::vector<uint32_t> kind_of_host = {0};
    auto graph = graph::machine_graph({kinds, kind_of_host, places});
    EXPECT_TRUE(graph.ok()) << graph.status().text();
    links_ = graph.take();
    uint32_t level = 0;
    for (const topo::Node& node : kinds[0].nodes()) {
      if (node.cache) level = std::max(level, node.cache->level);
    }
    caches_ = topo::cache_groups(kinds[0], cpus, level);
    nodes_ = topo::numa_groups(kinds[0], cpus);
    links_shared_ = cost::usual_memory_links(topo::package_link_mbs(kinds[0]));
  }

  cost::Request request(Collective collective, uint64_t bytes) const {
    cost::Request request;
    cost::Workload& work = request.work;
    work.problem.collective = collective;
    work.problem.rank_count = static_cast<Rank>(packages_.size());
    work.problem.mapped = true;
    work.problem.cache_of_rank = caches_;
    work.problem.numa_of_rank = nodes_;
    work.bytes = bytes;
    work.slicing = {.slice_bytes = 64 << 10, .in_flight = 4};
    work.layout.socket_of_rank = packages_;
    work.layout.cache_of_rank = caches_;
    work.layout.numa_of_rank = nodes_;
    work.layout.memory_links = links_shared_;
    return request;
  }

  double simulated_ns(const cost::Request& request, const algo::Algorithm& algorithm) const {
    Options options;
    options.links = &links_;
    options.slicing = request.work.slicing;
    const auto report = simulate(algorithm, request.work.problem, request.work.bytes, options);
    EXPECT_TRUE(report.ok() && report.value().complete) << algorithm.name;
    return report.ok() ? static_cast<double>(report.value().total_ps) / 1000 : 1;
  }

 private:
  graph::LinkGraph links_{1};
  std::vector<uint32_t> packages_, caches_, nodes_;
  cost::MemoryLinks links_shared_;
};

constexpr Collective kMutual[] = {Collective::kAllReduce, Collective::kReduceScatter,
                                  Collective::kAllGather};

// How often one form, by groups or flat, is clearly faster than the other, and the choice has the
// slower one; and the regrets.
struct Verdict {
  int clear = 0;
  int wrong = 0;
  std::vector<double> regrets;
};

void judge(const Seated& seated, const cost::Request& request, Verdict* verdict) {
  const auto candidates = cost::candidates_for(algo::all_algorithms(), request.work.problem);
  const auto decision = cost::choose(request, candidates, cost::built_in_table(), nullptr);
  ASSERT_TRUE(decision.ok()) << decision.status().text();
  constexpr double kNone = 1e18;
  double best[2] = {kNone, kNone};  // flat, by groups
  double chosen = 0;
  for (const cost::Candidate& candidate : decision.value().candidates) {
    if (candidate.excluded != nullptr) continue;
    const double ns = seated.simulated_ns(request, *candidate.algorithm);
    double& of_form = best[candidate.algorithm->groups != nullptr];
    of_form = std::min(of_form, ns);
    if (candidate.algorithm == decision.value().algorithm) chosen = ns;
  }
  verdict->regrets.push_back(chosen / std::min(best[0], best[1]));
  if (std::max(best[0], best[1]) == kNone) return;
  const bool by_groups = decision.value().algorithm->groups != nullptr;
  const double other_over_own = best[!by_groups] / best[by_groups];
  constexpr double kClearly = 1.25;
  verdict->clear += other_over_own > kClearly || other_over_own < 1 / kClearly ? 1 : 0;
  verdict->wrong += other_over_own < 1 / kClearly ? 1 : 0;
}

Verdict judge_all() {
  Verdict verdict;
  for (const char* file :
       {"dgx2.hwloc.xml", "made-eight-numa.hwloc.xml", "made-four-numa.hwloc3.xml"}) {
    for (const Rank n : {4u, 16u, 48u}) {
      const Seated seated(file, n);
      for (const Collective collective : kMutual) {
        for (const uint64_t bytes : {4u << 10, 64u << 10, 1u << 20, 16u << 20}) {
          judge(seated, seated.request(collective, bytes), &verdict);
        }
      }
    }
  }
  std::sort(verdict.regrets.begin(), verdict.regrets.end());
  return verdict;
}

TEST(GroupsOfAHost, AreTakenWhereTheyAreFasterOnTheLinksOfTheMachine) {
  const Verdict verdict = judge_all();
  EXPECT_GE(verdict.clear, 20);
  EXPECT_LE(verdict.wrong, 4) << "of " << verdict.clear;
  const size_t count = verdict.regrets.size();
  EXPECT_LE(verdict.regrets[count * 9 / 10], 1.2);
  EXPECT_LE(verdict.regrets.back(), 1.4);
}

const char* choice(const Seated& seated, Collective collective, uint64_t bytes) {
  const cost::Request request = seated.request(collective, bytes);
  const auto candidates = cost::candidates_for(algo::all_algorithms(), request.work.problem);
  return cost::choose(request, candidates, cost::built_in_table(), nullptr).value().algorithm->name;
}

// Two packages of 24 cores: with all of them in use what passes between packages is what counts.
TEST(GroupsOfAHost, OfARecordedMachineOfTwoPackagesBothFormsAreTaken) {
  const Seated full("dgx2.hwloc.xml", 48);
  EXPECT_STREQ(choice(full, Collective::kAllGather, 16 << 20), "by_cache");
  EXPECT_STREQ(choice(full, Collective::kBroadcast, 16 << 20), "by_cache");
  EXPECT_STREQ(choice(full, Collective::kReduce, 64 << 10), "direct_two_phase");
  const Seated few("dgx2.hwloc.xml", 4);
  EXPECT_STREQ(choice(few, Collective::kAllGather, 4 << 10), "direct");
  EXPECT_STREQ(choice(few, Collective::kReduceScatter, 1 << 20), "by_cache");
}

}  // namespace
}  // namespace weir::sim
