// SPDX-License-Identifier: Apache-2.0
// Messages over the links of a graph, against times computed by hand.
#include <gtest/gtest.h>

#include "core/graph/cut_bound.h"
#include "sim/sim_support.h"
#include "unit/graph/graph_support.h"

namespace weir::sim {
namespace {

using graph::KilobytesPerSecond;
using graph::kUnlimited;
using graph::LinkGraph;
using graph::LinkId;
using graph::VertexId;
using graph::VertexKind;

constexpr KilobytesPerSecond kGigabyte = 1'000'000;  // a second

// No overheads, no copies: the time of links alone.
Network links_only() { return uniform_network(Level{}, 0, 0); }

Options over(const LinkGraph& graph, const Network& network) {
  Options options;
  options.network = network;
  options.links = &graph;
  return options;
}

Report run_over(const LinkGraph& graph, Collective collective, const char* name, uint64_t bytes,
                const Network& network = links_only()) {
  return run(algorithm(collective, name), problem(collective, graph.rank_count()), bytes,
             over(graph, network));
}

// Of the message that each rank gets, which a test chooses: rank 0 alone sends.
double broadcast_ns(const LinkGraph& graph, uint64_t bytes, const Network& network = links_only()) {
  return total_ns(run_over(graph, Collective::kBroadcast, "linear", bytes, network));
}

TEST(Links, CutThroughCostsTheSlowestLinkAndAllLatencies) {
  LinkGraph graph(2);
  graph.set_rank(0, 0, "a");
  graph.set_rank(1, 0, "b");
  const VertexId first = graph.add_vertex(VertexKind::kSwitch, 0, "first");
  const VertexId second = graph.add_vertex(VertexKind::kSwitch, 0, "second");
  graph.add_links(0, first, 10 * kGigabyte, 100);
  graph.add_links(first, second, 2 * kGigabyte, 30);
  graph.add_links(second, 1, kUnlimited, 7);
  ASSERT_TRUE(graph.finish().ok());
  const Report report = run_over(graph, Collective::kBroadcast, "linear", 1'000'000);
  EXPECT_DOUBLE_EQ(total_ns(report), 500'000 + 137);
  EXPECT_EQ(report.critical_path.transfer_ps, 500'000'000u);
  EXPECT_EQ(report.critical_path.latency_ps, 137'000u);
  EXPECT_EQ(report.critical_path.contention_ps, 0u);
  ASSERT_EQ(report.links.size(), graph.links().size());
  const auto use = [&](VertexId from, VertexId to) {
    return report.links[graph.find_link(from, to)];
  };
  EXPECT_EQ(use(0, first).busy_ps, 100'000'000u);
  EXPECT_EQ(use(first, second).busy_ps, 500'000'000u);
  EXPECT_EQ(use(second, 1).busy_ps, 0u);
  EXPECT_EQ(use(second, 1).bytes, 1'000'000u);
  EXPECT_EQ(use(second, 1).messages, 1u);
  EXPECT_EQ(use(1, second).messages, 0u);
  EXPECT_TRUE(report.rank_ports.empty());

  // Overheads are those of the network.
  EXPECT_DOUBLE_EQ(broadcast_ns(graph, 1'000'000, uniform_options().network),
                   500'000 + 137 + 100 + 150);
}

TEST(Links, OfAFullMeshCarryARingAtTheirBandwidth) {
  const Rank n = 8;
  const LinkGraph graph = graph::full_mesh(n, 25 * kGigabyte);
  const uint64_t chunk = 1'000'000;
  const Report report = run_over(graph, Collective::kAllReduce, "ring", n * chunk);
  // 14 steps of a chunk over 25 GB/s and 500 ns.
  EXPECT_DOUBLE_EQ(total_ns(report), 14 * (40'000 + 500));
  EXPECT_EQ(report.critical_path.contention_ps, 0u);
  for (Rank a = 0; a < n; ++a) {
    for (Rank b = 0; b < n; ++b) {
      if (a == b) continue;
      const LinkUse& use = report.links[graph.find_link(a, b)];
      const bool in_ring = b == (a + 1) % n;
      EXPECT_EQ(use.bytes, in_ring ? 14 * chunk : 0) << a << " to " << b;
      EXPECT_EQ(use.busy_ps, in_ring ? 14u * 40'000'000 : 0);
    }
  }
}

// A rank with a link to each other rank sends over all at the same time.
TEST(Links, OfOneRankCarryMessagesAtTheSameTime) {
  const LinkGraph mesh = graph::full_mesh(8, 25 * kGigabyte);
  EXPECT_DOUBLE_EQ(broadcast_ns(mesh, 1'000'000), 40'000 + 500);
  const LinkGraph star = graph::star(std::vector<KilobytesPerSecond>(8, 25 * kGigabyte));
  EXPECT_DOUBLE_EQ(broadcast_ns(star, 1'000'000), 7 * 40'000 + 2000);
}

TEST(Links, OfAStarCarryARingAtTheirBandwidth) {
  const Rank n = 8;
  const LinkGraph graph = graph::star(std::vector<KilobytesPerSecond>(n, 25 * kGigabyte));
  const uint64_t bytes = n * 1'000'000;
  const Report report = run_over(graph, Collective::kAllReduce, "ring", bytes);
  EXPECT_DOUBLE_EQ(total_ns(report), 14 * (40'000 + 2 * 1000));
  const double bound = graph::least_ns(graph, Collective::kAllReduce, 0, bytes);
  EXPECT_DOUBLE_EQ(bound, 14 * 40'000);
  for (const LinkUse& use : report.links) EXPECT_EQ(use.busy_ps, 14u * 40'000'000);
}

// Ranks 0 and 1 send over one uplink to ranks 2 and 3; rank 0 to 2 alone has it for itself.
TEST(Links, ThatTwoMessagesShareHalveTheRate) {
  LinkGraph graph(4);
  const VertexId left = graph.add_vertex(VertexKind::kSwitch, 0, "left");
  const VertexId right = graph.add_vertex(VertexKind::kSwitch, 1, "right");
  for (Rank rank = 0; rank < 4; ++rank) {
    graph.set_rank(rank, rank / 2, "rank" + std::to_string(rank));
    graph.add_links(rank, rank < 2 ? left : right, 10 * kGigabyte, 0);
  }
  graph.add_links(left, right, 10 * kGigabyte, 0);
  ASSERT_TRUE(graph.finish().ok());
  // The exchange with the rank two further is the second round; the first stays on each side.
  const Report report = run_over(graph, Collective::kAllReduce, "recursive_doubling", 1'000'000);
  EXPECT_DOUBLE_EQ(total_ns(report), 100'000 + 2 * 100'000);
  EXPECT_EQ(report.critical_path.contention_ps, 100'000'000u);
  EXPECT_EQ(report.links[graph.find_link(left, right)].busy_ps, 200'000'000u);
  EXPECT_EQ(report.links[graph.find_link(right, left)].busy_ps, 200'000'000u);
}

// Three hosts with 400 Mbit/s and one with 50.
TEST(Links, ThatAreUnequalCarryARingAsFastAsTheSlowestOne) {
  const KilobytesPerSecond fast = 50'000;
  const KilobytesPerSecond slow = 6'250;
  const LinkGraph graph = graph::star({fast, fast, fast, slow});
  const uint64_t bytes = 4'000'000;
  const Report ring = run_over(graph, Collective::kAllGather, "ring", bytes);
  // Each step passes the slow link once: 3 steps of 1 MB over 6.25 MB/s, and the latency of the
  // ways. What leaves rank 3 is slow in every step; what rank 2 sends to it queues there.
  EXPECT_NEAR(total_ns(ring), 3 * 160e6, 3 * 2000.0 + 1);
  const double bound = graph::least_ns(graph, Collective::kAllGather, 0, bytes);
  EXPECT_NEAR(bound, 3 * 160e6, 1);
  EXPECT_GE(total_ns(ring), bound);
}

TEST(Links, OfASlowRankAreSlow) {
  const LinkGraph graph = graph::star(std::vector<KilobytesPerSecond>(3, 10 * kGigabyte));
  Options options = over(graph, links_only());
  options.slow = {{2, 3.0}};
  const Report report = run(algorithm(Collective::kBroadcast, "chain"),
                            problem(Collective::kBroadcast, 3), 1'000'000, options);
  EXPECT_DOUBLE_EQ(total_ns(report), 100'000 + 2000 + 300'000 + 2000);
}

// Rank 1 is simulated first and sends late; the link to rank 0 is free for rank 2 before.
TEST(Links, AreTakenInTheOrderOfTime) {
  const LinkGraph graph = graph::star(std::vector<KilobytesPerSecond>(3, 10 * kGigabyte));
  Options options = over(graph, uniform_network({.send_overhead_ns = 100}, 0, 0));
  options.slow = {{1, 1000}};
  options.lanes_of = 0;
  const Report report = run(algorithm(Collective::kGather, "linear"),
                            problem(Collective::kGather, 3), 3 * 10'000, options);
  std::vector<Transfer> in;
  for (const Transfer& transfer : report.transfers) {
    if (!transfer.out) in.push_back(transfer);
  }
  ASSERT_EQ(in.size(), 2u);
  EXPECT_EQ(in[0].peer, 2u);
  EXPECT_EQ(in[0].begin_ps, 100'000u);
  EXPECT_EQ(in[0].end_ps, 100'000u + 1'000'000u);
  EXPECT_EQ(in[1].peer, 1u);
  EXPECT_EQ(in[1].begin_ps, 100'000'000u);
}

TEST(Links, WithALimitKeepTheGapBetweenMessages) {
  const Rank n = 5;
  LinkGraph graph(n);
  const VertexId hub = graph.add_vertex(VertexKind::kSwitch, 0, "hub");
  for (Rank rank = 0; rank < n; ++rank) {
    graph.set_rank(rank, 0, "rank" + std::to_string(rank));
    graph.add_links(rank, hub, rank == 0 ? 10 * kGigabyte : kUnlimited, 0);
  }
  ASSERT_TRUE(graph.finish().ok());
  Level level;
  level.gap_ns = 5000;
  const Report report =
      run_over(graph, Collective::kBroadcast, "linear", 10'000, uniform_network(level, 0, 0));
  EXPECT_DOUBLE_EQ(total_ns(report), 3 * 5000 + 1000);
  EXPECT_EQ(report.links[graph.find_link(0, hub)].busy_ps, 4u * 5'000'000);
  EXPECT_EQ(report.links[graph.find_link(hub, 1)].busy_ps, 0u);
}

TEST(Links, CarrySignalsAndReadsOfPeers) {
  const LinkGraph graph = graph::full_mesh(2, 10 * kGigabyte);  // 500 ns
  Level level;
  level.signal_ns = 50;
  const Network network = uniform_network(level, 0.001, 0.002);
  const uint64_t bytes = 1'000'000;
  const Report report = run_over(graph, Collective::kAllReduce, "direct", bytes, network);
  // Each rank copies its input to the other's view, and folds both: a read of the peer.
  EXPECT_DOUBLE_EQ(total_ns(report), 1'000 + 50 + 500 + 2'000 + 100'000);
  EXPECT_EQ(report.messages, 0u);
}

// Three ranks behind a slow uplink read what the fourth has staged: one after the other.
TEST(Links, AreTakenByReadsOfPeers) {
  LinkGraph graph(4);
  const graph::VertexId near = graph.add_vertex(graph::VertexKind::kMemory, 0, "near");
  const graph::VertexId far = graph.add_vertex(graph::VertexKind::kMemory, 0, "far");
  for (Rank rank = 0; rank < 4; ++rank) {
    graph.set_rank(rank, 0, "rank");
    graph.add_links(rank, rank == 0 ? near : far, 100 * kGigabyte, 0);
  }
  graph.add_links(near, far, 10 * kGigabyte, 0);
  ASSERT_TRUE(graph.finish().ok());
  const Network network = uniform_network(Level{}, 0, 0);
  const Report report = run_over(graph, Collective::kBroadcast, "direct", 1'000'000, network);
  EXPECT_DOUBLE_EQ(total_ns(report), 3 * 100'000);
  EXPECT_EQ(report.links[graph.find_link(near, far)].bytes, 3'000'000u);
  EXPECT_EQ(report.links[graph.find_link(far, near)].bytes, 0u);
}

TEST(Links, GiveTheSameTraceEachTimeAndAccountForTheTime) {
  const Result<LinkGraph> graph = graph::graph_of_gpus("azure-ndv4-topo.nccl.xml", 3);
  ASSERT_TRUE(graph.ok());
  std::vector<uint32_t> nodes;
  for (Rank rank = 0; rank < graph.value().rank_count(); ++rank) {
    nodes.push_back(graph.value().host_of(rank));
  }
  for (const algo::Algorithm* a : algo::all_algorithms()) {
    algo::Problem p = problem(a->collective, graph.value().rank_count());
    p.node_of_rank = nodes;
    if (!a->supports(p)) continue;
    Options options = over(graph.value(), Network{});
    options.slicing = {65536, 2};
    const Report first = run(*a, p, 3'000'000, options);
    const Report second = run(*a, p, 3'000'000, options);
    EXPECT_TRUE(first.complete) << a->name;
    EXPECT_EQ(first.trace_hash, second.trace_hash) << a->name;
    EXPECT_EQ(first.finish_ps, second.finish_ps) << a->name;
    const CriticalPath& c = first.critical_path;
    const uint64_t parts = c.overhead_ps + c.latency_ps + c.transfer_ps + c.compute_ps;
    EXPECT_LE(parts, first.total_ps) << a->name;
    for (const LinkUse& use : first.links) EXPECT_LE(use.busy_ps, first.total_ps) << a->name;
    const Collective collective = a->collective;
    const bool is_bounded = collective == Collective::kAllGather ||
                            collective == Collective::kReduceScatter ||
                            collective == Collective::kAllReduce;
    if (!is_bounded) continue;
    EXPECT_GE(total_ns(first), graph::least_ns(graph.value(), collective, 0, 3'000'000)) << a->name;
  }
}

TEST(Links, OfAThousandRanksAreSimulated) {
  const Result<LinkGraph> graph = graph::graph_of_gpus("azure-ndv4-topo.nccl.xml", 128);
  ASSERT_TRUE(graph.ok());
  std::vector<uint32_t> nodes;
  for (Rank rank = 0; rank < 1024; ++rank) nodes.push_back(rank / 8);
  algo::Problem p = problem(Collective::kAllReduce, 1024);
  p.node_of_rank = nodes;
  const Report report = run(algorithm(Collective::kAllReduce, "recursive_halving_doubling"), p,
                            1 << 26, over(graph.value(), Network{}));
  EXPECT_TRUE(report.complete);
  EXPECT_EQ(report.links.size(), graph.value().links().size());
}

TEST(Links, OfAnotherNumberOfRanksAreRefused) {
  const LinkGraph graph = graph::full_mesh(4, kGigabyte);
  const Result<Report> report =
      simulate(algorithm(Collective::kAllReduce, "ring"), problem(Collective::kAllReduce, 5), 1024,
               over(graph, Network{}));
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.status().text(), "the link graph has 4 ranks, the problem has 5");
}

}  // namespace
}  // namespace weir::sim
