// SPDX-License-Identifier: Apache-2.0
// How near all-reduce comes to what the links of a machine allow, simulated: along the trees that
// are found for it, whatever the order of its ranks. The bars are those of docs/simulator.md.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "core/algo/check.h"
#include "core/graph/cut_bound.h"
#include "core/graph/forests.h"
#include "core/graph/machine_graph.h"
#include "core/sim/network.h"
#include "core/sim/simulator.h"
#include "core/topo/cpus.h"
#include "core/topo/discover.h"

namespace weir::sim {
namespace {

constexpr uint64_t kBytes = uint64_t{256} << 20;

// The lanes that a program may use, and how many slices are in flight.
struct Lanes {
  uint32_t of_program = 16;
  uint32_t in_flight = 16;
};

// The host of each rank, numbered in the order of ranks, as communicators number them.
std::vector<uint32_t> nodes_of(const graph::LinkGraph& links) {
  std::vector<uint32_t> hosts;
  std::vector<uint32_t> nodes;
  for (Rank rank = 0; rank < links.rank_count(); ++rank) {
    const auto found = std::find(hosts.begin(), hosts.end(), links.host_of(rank));
    nodes.push_back(static_cast<uint32_t>(found - hosts.begin()));
    if (found == hosts.end()) hosts.push_back(links.host_of(rank));
  }
  return nodes;
}

// The cut bound over the simulated time.
double share_of_bound(const graph::LinkGraph& links, const char* algorithm,
                      uint64_t slice_bytes = 1 << 20,
                      Collective collective = Collective::kAllReduce, Rank root = 0,
                      Lanes lanes = {}) {
  graph::Forests forests(links);
  algo::Problem problem;
  problem.collective = collective;
  problem.root = root;
  problem.rank_count = links.rank_count();
  problem.forest = forests.of(collective, root);
  problem.rings = forests.rings();
  problem.lanes_max = lanes.of_program;
  const std::vector<uint32_t> nodes = nodes_of(links);
  problem.node_of_rank = nodes;
  EXPECT_NE(problem.forest, nullptr);
  if (problem.forest == nullptr) return 0;
  const algo::Algorithm& used = *algo::find_algorithm(collective, algorithm);
  if (used.uses_rings && problem.rings == nullptr) return 0;
  Options options;
  options.network = accelerator_network();
  options.links = &links;
  options.slicing = {.slice_bytes = slice_bytes, .in_flight = lanes.in_flight};
  const auto report = simulate(used, problem, kBytes, options);
  EXPECT_TRUE(report.ok() && report.value().complete);
  if (!report.ok()) return 0;
  return graph::least_ns(links, collective, root, kBytes) * 1000 /
         static_cast<double>(report.value().total_ps);
}

// `hosts` machines of the file; ranks are on their GPUs in an order that `seed` shuffles, 0: none.
graph::LinkGraph machines(const std::string& file, uint32_t hosts, uint32_t seed) {
  auto topology = topo::read_file(WEIR_FIXTURES "/topologies/" + file);
  EXPECT_TRUE(topology.ok()) << topology.status().text();
  const std::vector<topo::Topology> kinds = {topology.take()};
  std::vector<graph::RankPlace> places;
  for (uint32_t host = 0; host < hosts; ++host) {
    for (const topo::NodeId gpu : kinds[0].all(topo::NodeKind::kGpu)) {
      places.push_back({host, gpu, {}});
    }
  }
  if (seed != 0) std::shuffle(places.begin(), places.end(), std::mt19937(seed));
  const std::vector<uint32_t> kind_of_host(hosts, 0);
  auto graph = graph::machine_graph({kinds, kind_of_host, places});
  EXPECT_TRUE(graph.ok()) << graph.status().text();
  return graph.take();
}

TEST(Machines, TwoHostsWithNvSwitchAndACardForEachGpu) {
  for (const uint32_t seed : {0u, 1u, 2u}) {
    const auto links = machines("made-nvswitch-8-cards.nccl.xml", 2, seed);
    EXPECT_GE(share_of_bound(links, "forest"), 0.9) << seed;
    EXPECT_LE(share_of_bound(links, "ring"), 0.2) << "one card of each host works";
  }
}

TEST(Machines, EightGpusThatAreFullyLinked) {
  const auto links = machines("made-8-fully-linked.nccl.xml", 1, 0);
  EXPECT_GE(share_of_bound(links, "forest"), 0.85);
  EXPECT_LE(share_of_bound(links, "ring"), 0.15) << "one of seven links works";
}

TEST(Machines, TwoHostsWithOneCardEach) {
  for (const uint32_t seed : {0u, 1u, 2u}) {
    const auto links = machines("made-nvswitch-1-card.nccl.xml", 2, seed);
    EXPECT_GE(share_of_bound(links, "forest"), 0.95) << seed;
    EXPECT_GE(share_of_bound(links, "hierarchical", 512 << 10), 0.95) << seed;
  }
}

// A rank that waited for its own tree before it sent to the others would leave links idle: 0.56 and
// 0.36 of the bound.
TEST(Machines, NeedFewLanesSinceRanksSendWhatWaitsForNothingFirst) {
  const auto share = [](const graph::LinkGraph& links, Collective collective) {
    return share_of_bound(links, "forest", 1 << 20, collective, 0,
                          {.of_program = 1, .in_flight = 4});
  };
  for (const uint32_t seed : {0u, 1u, 2u}) {
    const auto hosts = machines("made-nvswitch-8-cards.nccl.xml", 2, seed);
    EXPECT_GE(share(hosts, Collective::kAllReduce), 0.85) << seed;
    EXPECT_GE(share(hosts, Collective::kAllGather), 0.95) << seed;
    EXPECT_GE(share(hosts, Collective::kReduceScatter), 0.85) << seed;
    const auto linked = machines("made-8-fully-linked.nccl.xml", 1, seed);
    EXPECT_GE(share(linked, Collective::kAllReduce), 0.95) << seed;
    EXPECT_GE(share(linked, Collective::kAllGather), 0.95) << seed;
  }
}

// What is found for real machines is proved like any program, also where a sender may be only one
// message ahead of its receiver.
TEST(Machines, HaveTreesAndRingsThatHold) {
  struct Case {
    const char* file;
    uint32_t hosts;
  };
  for (const Case& it :
       {Case{"made-nvswitch-8-cards.nccl.xml", 2}, Case{"made-8-fully-linked.nccl.xml", 1},
        Case{"made-nvswitch-1-card.nccl.xml", 3}, Case{"azure-ndv4-topo.nccl.xml", 2},
        Case{"rccl-8p-rome-n4.nccl.xml", 2}, Case{"dgx2.hwloc.xml", 1}}) {
    const auto links = machines(it.file, it.hosts, 1);
    graph::Forests forests(links);
    uint32_t proved = 0;
    for (const algo::Algorithm* algorithm : algo::all_algorithms()) {
      if (!algorithm->uses_forest && !algorithm->uses_rings) continue;
      algo::Problem problem;
      problem.collective = algorithm->collective;
      problem.rank_count = links.rank_count();
      problem.root = is_rooted(algorithm->collective) ? 3 : 0;
      problem.forest = forests.of(problem.collective, problem.root);
      problem.rings = forests.rings();
      for (const uint32_t lanes : {1u, 4u, 16u}) {
        problem.lanes_max = lanes;
        if (!algorithm->supports(problem)) continue;
        const sched::Verdict verdict = algo::verify(*algorithm, problem, 1);
        EXPECT_TRUE(verdict.ok()) << it.file << ": " << algorithm->name << ", " << lanes << ": "
                                  << verdict.flaw.text;
        ++proved;
      }
    }
    EXPECT_GE(proved, 15u) << it.file;
  }
}

TEST(Machines, SixteenGpusWithUnevenLinksAndGaps) {
  int near = 0;
  for (uint32_t seed = 1; seed <= 5; ++seed) {
    std::mt19937 random(seed);
    std::vector<Rank> order(16);
    for (Rank rank = 0; rank < 16; ++rank) order[rank] = rank;
    std::shuffle(order.begin(), order.end(), random);
    graph::LinkGraph links(16);
    for (Rank rank = 0; rank < 16; ++rank) links.set_rank(rank, 0, fmt::format("GPU{}", rank));
    for (Rank a = 0; a < 16; ++a) {
      links.add_links(order[a], order[(a + 1) % 16], 25'000'000, 500);
      for (Rank b = a + 2; b < 16; ++b) {
        const auto width = static_cast<int64_t>(1 + random() % 3);
        if (random() % 3 == 0) links.add_links(order[a], order[b], 25'000'000 * width, 500);
      }
    }
    ASSERT_TRUE(links.finish().ok());
    // What is missing is due to whole trees, to messages, each of which takes 1 us of two ranks,
    // and to the hops of the first and the last slice.
    double best = 0;
    for (const uint64_t kilobytes : {384u, 512u, 640u}) {
      best = std::max(best, share_of_bound(links, "forest", kilobytes << 10));
    }
    EXPECT_GE(best, 0.72) << "seed " << seed;
    near += best >= 0.83 ? 1 : 0;
  }
  EXPECT_GE(near, 4);
}

// The first `counts[h]` GPUs of the h-th host.
graph::LinkGraph uneven_hosts(const std::string& file, const std::vector<size_t>& counts) {
  auto topology = topo::read_file(WEIR_FIXTURES "/topologies/" + file);
  EXPECT_TRUE(topology.ok()) << topology.status().text();
  const std::vector<topo::Topology> kinds = {topology.take()};
  const std::vector<topo::NodeId> gpus = kinds[0].all(topo::NodeKind::kGpu);
  std::vector<graph::RankPlace> places;
  for (uint32_t host = 0; host < counts.size(); ++host) {
    for (size_t i = 0; i < counts[host]; ++i) places.push_back({host, gpus[i], {}});
  }
  const std::vector<uint32_t> kind_of_host(counts.size(), 0);
  auto graph = graph::machine_graph({kinds, kind_of_host, places});
  EXPECT_TRUE(graph.ok()) << graph.status().text();
  return graph.take();
}

// Trees of one root, and of hosts with different numbers of ranks, above 16 ranks.
TEST(Machines, OfManyHostsUseAllCardsAlongTrees) {
  const std::string file = "made-nvswitch-8-cards.nccl.xml";
  const auto even = uneven_hosts(file, {8, 8, 8, 8});
  for (const Rank root : {Rank{0}, Rank{19}}) {
    const auto share = [&](const char* algorithm) {
      return share_of_bound(even, algorithm, 1 << 20, Collective::kBroadcast, root);
    };
    EXPECT_GE(share("forest"), 0.8) << root;
    EXPECT_LE(share("hierarchical"), 0.5) << root;
    EXPECT_GE(share_of_bound(even, "forest", 1 << 20, Collective::kReduce, root), 0.6) << root;
    EXPECT_LE(share_of_bound(even, "chain", 1 << 20, Collective::kReduce, root), 0.15) << root;
  }
  const auto uneven = uneven_hosts(file, {8, 7, 3, 2});
  EXPECT_GE(share_of_bound(uneven, "forest", 1 << 20, Collective::kBroadcast, 5), 0.9);
  EXPECT_GE(share_of_bound(uneven, "forest", 1 << 20, Collective::kReduceScatter), 0.85);
  EXPECT_GE(share_of_bound(uneven, "forest"), 0.7);
  EXPECT_LE(share_of_bound(uneven, "hierarchical"), 0.5);
}

// Slices of ranks at the ends that arrive long before they are wanted take the links before those
// that have been folded on their way.
TEST(Machines, AReduceAlongTreesIsNearTheBoundIfTheEndsAreHeldBack) {
  const auto share = [](const graph::LinkGraph& links, uint32_t credit) {
    graph::Forests forests(links);
    algo::Problem problem;
    problem.collective = Collective::kReduce;
    problem.rank_count = links.rank_count();
    problem.forest = forests.of(Collective::kReduce, 0);
    problem.lanes_max = 16;
    std::vector<uint32_t> nodes;
    for (Rank rank = 0; rank < links.rank_count(); ++rank) nodes.push_back(links.host_of(rank));
    problem.node_of_rank = nodes;
    Options options;
    options.network = accelerator_network();
    options.links = &links;
    options.slicing = {.slice_bytes = 512 << 10, .in_flight = 1};
    options.credit = credit;
    const auto report =
        simulate(*algo::find_algorithm(Collective::kReduce, "forest"), problem, kBytes, options);
    EXPECT_TRUE(report.ok() && report.value().complete);
    return report.ok() ? graph::least_ns(links, Collective::kReduce, 0, kBytes) * 1000 /
                             static_cast<double>(report.value().total_ps)
                       : 0;
  };
  struct Case {
    const char* file;
    double held_back;
  };
  for (const Case& it :
       {Case{"made-nvswitch-8-cards.nccl.xml", 0.85}, Case{"made-nvswitch-1-card.nccl.xml", 0.95},
        Case{"azure-ndv4-topo.nccl.xml", 0.78}, Case{"rccl-8p-rome-n4.nccl.xml", 0.95}}) {
    const auto links = uneven_hosts(it.file, {8, 8, 8, 8});
    EXPECT_GE(share(links, 1), it.held_back) << it.file;
    EXPECT_LE(share(links, 0), 0.7) << it.file;
  }
}

TEST(Machines, RecordedOnesDifferInWhatIsBest) {
  const auto best = [](const graph::LinkGraph& links) {
    std::string name;
    double most = 0;
    for (const char* algorithm : {"ring", "hierarchical", "forest", "double_binary_tree"}) {
      const double share = share_of_bound(links, algorithm);
      if (share <= most) continue;
      most = share;
      name = algorithm;
    }
    return name;
  };
  EXPECT_EQ(best(machines("dgx2.hwloc.xml", 1, 0)), "ring") << "NVSwitches join all GPUs alike";
  EXPECT_EQ(best(machines("rccl-8p-rome-n4.nccl.xml", 1, 0)), "forest") << "xGMI joins some GPUs";
}

// Different machines, different plans: the best of what there is with the four lanes of tcp, which
// are lanes of the program or slices in flight.
TEST(Machines, OfGpusEachHaveAPlanThatIsBestForThem) {
  const auto share = [](const graph::LinkGraph& links, const std::string& name) {
    // One lane of `rings` is one ring.
    const Lanes lanes = name == "rings" ? Lanes{.of_program = 4, .in_flight = 1}
                                        : Lanes{.of_program = 1, .in_flight = 4};
    return share_of_bound(links, name.c_str(), 1 << 20, Collective::kAllReduce, 0, lanes);
  };
  struct Row {
    const char* file;
    uint32_t hosts;
    const char* best;
    double least;  // of the bound
    double others;
    const char* why;
  };
  const std::vector<Row> rows = {
      {"made-nvswitch-8-cards.nccl.xml", 2, "forest", 0.88, 0.75,
       "NVLink and eight cards work at the same time"},
      {"made-8-fully-linked.nccl.xml", 1, "forest", 0.95, 0.6, "all seven links of a GPU work"},
      {"azure-ndv4-topo.nccl.xml", 2, "rings", 0.98, 0.85,
       "each ring goes through PCIe and another card, and no link is passed twice"},
      {"rccl-8p-rome-n4.nccl.xml", 1, "rings", 0.72, 0.71, "xGMI joins some GPUs, in cycles"},
      {"dgx2.hwloc.xml", 1, "ring", 0.95, 0.92, "NVSwitches join all alike: a GPU has one port"},
  };
  for (const Row& row : rows) {
    const auto links = machines(row.file, row.hosts, 0);
    for (const char* name : {"ring", "rings", "hierarchical", "forest", "double_binary_tree"}) {
      const double its = share(links, name);
      if (std::string(name) == row.best) {
        EXPECT_GE(its, row.least) << row.file << ": " << name << ": " << row.why;
      } else {
        EXPECT_LE(its, row.others) << row.file << ": " << name << ": " << row.why;
      }
    }
  }
}

// Ranks on all cores of a machine without accelerators.
TEST(Machines, OfSeveralNumaNodesGainByGroups) {
  auto topology = topo::read_file(WEIR_FIXTURES "/topologies/made-eight-numa.hwloc.xml");
  ASSERT_TRUE(topology.ok()) << topology.status().text();
  const std::vector<topo::Topology> kinds = {topology.take()};
  std::vector<graph::RankPlace> places;
  std::vector<topo::CpuSet> cpus;
  for (const topo::NodeId core : kinds[0].all(topo::NodeKind::kCore)) {
    cpus.push_back(kinds[0].node(core).cpus);
    places.push_back({0, topo::kNoNode, cpus.back()});
  }
  ASSERT_EQ(cpus.size(), 64u);
  const std::vector<uint32_t> kind_of_host = {0};
  const auto links = graph::machine_graph({kinds, kind_of_host, places});
  ASSERT_TRUE(links.ok()) << links.status().text();
  const std::vector<uint32_t> caches = topo::cache_groups(kinds[0], cpus, 3);
  const std::vector<uint32_t> nodes = topo::numa_groups(kinds[0], cpus);
  const auto time = [&](Collective collective, const char* name) {
    algo::Problem problem;
    problem.collective = collective;
    problem.rank_count = 64;
    problem.mapped = true;
    problem.cache_of_rank = caches;
    problem.numa_of_rank = nodes;
    Options options;
    options.links = &links.value();
    options.slicing = {.slice_bytes = 64 << 10, .in_flight = 4};
    const auto report =
        simulate(*algo::find_algorithm(collective, name), problem, 16 << 20, options);
    EXPECT_TRUE(report.ok() && report.value().complete);
    return report.ok() ? static_cast<double>(report.value().total_ps) : 0;
  };
  EXPECT_GE(time(Collective::kAllReduce, "direct_two_phase"),
            2 * time(Collective::kAllReduce, "by_numa"));
  for (const Collective collective : {Collective::kReduceScatter, Collective::kAllGather}) {
    EXPECT_GE(time(collective, "direct"), 2 * time(collective, "by_numa")) << name_of(collective);
  }
  EXPECT_GE(time(Collective::kReduce, "direct_two_phase"),
            1.3 * time(Collective::kReduce, "by_numa"));
}

TEST(Machines, AllToAllByRailsIsNearTheBound) {
  for (const uint32_t hosts : {2u, 4u}) {
    const auto links = machines("made-nvswitch-8-cards.nccl.xml", hosts, 0);
    std::vector<uint32_t> nodes;
    for (Rank rank = 0; rank < links.rank_count(); ++rank) nodes.push_back(links.host_of(rank));
    algo::Problem problem;
    problem.collective = Collective::kAllToAll;
    problem.rank_count = links.rank_count();
    problem.node_of_rank = nodes;
    Options options;
    options.network = accelerator_network();
    options.links = &links;
    options.slicing = {.slice_bytes = 256 << 10, .in_flight = 16};
    const auto time = [&](const char* name) {
      const auto report =
          simulate(*algo::find_algorithm(Collective::kAllToAll, name), problem, kBytes, options);
      EXPECT_TRUE(report.ok() && report.value().complete);
      return report.ok() ? static_cast<double>(report.value().total_ps) / 1000 : 1;
    };
    const double least = graph::least_ns(links, Collective::kAllToAll, 0, kBytes);
    EXPECT_GE(least / time("hierarchical"), 0.9) << hosts;
    // Blocks of ranks leave a host in the same rounds, so that it comes as near.
    EXPECT_GE(least / time("pairwise"), 0.95) << hosts;
  }
}

}  // namespace
}  // namespace weir::sim
