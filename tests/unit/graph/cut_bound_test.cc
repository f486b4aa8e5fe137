// SPDX-License-Identifier: Apache-2.0
#include "core/graph/cut_bound.h"

#include <algorithm>
#include <random>

#include "unit/graph/graph_support.h"

namespace weir::graph {
namespace {

TEST(CutBound, OfAMeshIsWhatEntersOneRank) {
  const CutBound bound = cut_bound(full_mesh(8, 25'000'000));
  EXPECT_EQ(bound.ranks, 7);
  EXPECT_EQ(bound.bandwidth, 7 * 25'000'000);
  EXPECT_DOUBLE_EQ(bound.block_gbs(), 25);
}

TEST(CutBound, OfUnequalLinksIsSetByTheSlowest) {
  const CutBound bound = cut_bound(star({50'000, 50'000, 50'000, 6'250}));
  EXPECT_EQ(bound.ranks, 3) << "all but the slow one, which they send to";
  EXPECT_EQ(bound.bandwidth, 6'250);
}

TEST(CutBound, OfTwoHostsIsTheirUplink) {
  // Two hosts of four; 100 within, 30 between.
  LinkGraph graph(8);
  const VertexId a = graph.add_vertex(VertexKind::kSwitch, 0, "a");
  const VertexId b = graph.add_vertex(VertexKind::kSwitch, 1, "b");
  for (Rank rank = 0; rank < 8; ++rank) {
    graph.set_rank(rank, rank / 4, "r" + std::to_string(rank));
    graph.add_links(rank, rank < 4 ? a : b, 100, 1);
  }
  graph.add_links(a, b, 30, 1);
  ASSERT_TRUE(graph.finish().ok());
  const CutBound bound = cut_bound(graph);
  EXPECT_EQ(bound.ranks, 4);
  EXPECT_EQ(bound.bandwidth, 30);
  EXPECT_TRUE(bound.side[0] == bound.side[3] && bound.side[0] != bound.side[4]);
}

TEST(CutBound, OfBroadcastIsTheSmallestCutOfTheRoot) {
  const LinkGraph graph = star({50'000, 20'000, 50'000});
  EXPECT_EQ(broadcast_bound(graph, 0).bandwidth, 20'000);
  EXPECT_EQ(broadcast_bound(graph, 1).bandwidth, 20'000);
}

TEST(CutBound, WithoutLimitsThereIsNone) {
  LinkGraph graph(2);
  graph.set_rank(0, 0, "a");
  graph.set_rank(1, 0, "b");
  graph.add_links(0, 1, kUnlimited, 1);
  ASSERT_TRUE(graph.finish().ok());
  EXPECT_EQ(cut_bound(graph).bandwidth, kUnlimited);
  EXPECT_EQ(broadcast_bound(graph, 1).bandwidth, kUnlimited);
  EXPECT_EQ(least_ns(graph, Collective::kAllReduce, 0, 1 << 20), 0);
}

TEST(CutBound, SetsTheLeastTimeOfEachCollective) {
  const LinkGraph graph = full_mesh(4, 10'000'000);  // 10 GB/s a link, 10 bytes a nanosecond
  EXPECT_DOUBLE_EQ(least_ns(graph, Collective::kAllGather, 0, 4000), 100);
  EXPECT_DOUBLE_EQ(least_ns(graph, Collective::kReduceScatter, 0, 4000), 100);
  EXPECT_DOUBLE_EQ(least_ns(graph, Collective::kAllReduce, 0, 4000), 200);
  EXPECT_DOUBLE_EQ(least_ns(graph, Collective::kBroadcast, 1, 3000), 100);
  EXPECT_DOUBLE_EQ(least_ns(graph, Collective::kAllToAll, 0, 4000), 100);
}

// Two hosts of two ranks with links of 10 GB/s, joined by one of 4 GB/s: of 4,000 bytes each rank
// has 2,000 for the other host.
TEST(CutBound, OfAllToAllIsThatOfAHostWhereItsNetworkIsSlow) {
  LinkGraph graph(4);
  const VertexId switches[] = {graph.add_vertex(VertexKind::kSwitch, 0, "a"),
                               graph.add_vertex(VertexKind::kSwitch, 1, "b")};
  for (Rank rank = 0; rank < 4; ++rank) {
    graph.set_rank(rank, rank / 2, "rank");
    graph.add_links(rank, switches[rank / 2], 10'000'000, 0);
  }
  graph.add_links(switches[0], switches[1], 4'000'000, 0);
  ASSERT_TRUE(graph.finish().ok());
  EXPECT_DOUBLE_EQ(least_ns(graph, Collective::kAllToAll, 0, 4000), 1000);
}

// The most of ranks / bandwidth over all sets of vertices.
double by_all_cuts(const LinkGraph& graph) {
  double most = 0;
  for (uint32_t set = 1; set < 1u << graph.vertices().size(); ++set) {
    uint32_t ranks = 0;
    for (Rank rank = 0; rank < graph.rank_count(); ++rank) ranks += set >> rank & 1;
    if (ranks == 0 || ranks == graph.rank_count()) continue;
    int64_t out = 0;
    for (const Link& link : graph.links()) {
      if ((set >> link.from & 1) != 0 && (set >> link.to & 1) == 0) out += link.bandwidth;
    }
    most = std::max(most, ranks / static_cast<double>(out));
  }
  return most;
}

TEST(CutBound, IsThatOfTheWorstOfAllCuts) {
  std::mt19937 random(2);
  for (int round = 0; round < 200; ++round) {
    const Rank n = 2 + random() % 5;
    LinkGraph graph(n);
    for (Rank rank = 0; rank < n; ++rank) graph.set_rank(rank, 0, std::to_string(rank));
    const uint32_t switches = random() % 3;
    for (uint32_t i = 0; i < switches; ++i) graph.add_vertex(VertexKind::kSwitch, 0, "s");
    for (VertexId a = 1; a < n + switches; ++a) {
      graph.add_links(a, random() % a, 1 + random() % 20, 1);
      if (random() % 2 == 0) graph.add_links(a, random() % a, 1 + random() % 20, 1);
    }
    if (!graph.finish().ok()) continue;
    const CutBound bound = cut_bound(graph);
    EXPECT_DOUBLE_EQ(static_cast<double>(bound.ranks) / static_cast<double>(bound.bandwidth),
                     by_all_cuts(graph))
        << graph.text();
  }
}

}  // namespace
}  // namespace weir::graph
