// SPDX-License-Identifier: Apache-2.0
#include "core/graph/routes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "unit/graph/graph_support.h"

namespace weir::graph {
namespace {

// The names of the vertices that the way goes through, its ends excluded.
std::vector<std::string> between(const LinkGraph& graph, const Way& way) {
  std::vector<std::string> names;
  for (const LinkId id : way.links) names.push_back(graph.vertices()[graph.links()[id].to].name);
  names.pop_back();
  return names;
}

// Links follow each other from `from` to `to`, and pass no third rank.
void expect_way(const LinkGraph& graph, const Way& way, Rank from, Rank to) {
  VertexId at = from;
  for (const LinkId id : way.links) {
    const Link& link = graph.links()[id];
    ASSERT_EQ(link.from, at);
    ASSERT_TRUE(at == from || !graph.is_rank(at)) << "through rank " << at;
    at = link.to;
  }
  EXPECT_EQ(at, to);
}

using Names = std::vector<std::string>;

TEST(Routes, TakeTheWidestThenTheShortestThenTheQuickestWay) {
  LinkGraph graph(2);
  graph.set_rank(0, 0, "a");
  graph.set_rank(1, 0, "b");
  const auto join = [&](const char* name, KilobytesPerSecond bandwidth, double latency_ns) {
    const VertexId vertex = graph.add_vertex(VertexKind::kSwitch, 0, name);
    graph.add_links(0, vertex, bandwidth, latency_ns);
    graph.add_links(vertex, 1, bandwidth, latency_ns);
    return vertex;
  };
  graph.add_links(0, 1, 100, 1);
  ASSERT_TRUE(graph.finish().ok());
  EXPECT_EQ(Routes(graph).way(0, 1).links.size(), 1u);
  EXPECT_EQ(Routes(graph).way(0, 1).bandwidth, 100);

  join("wide", 200, 50);
  EXPECT_EQ(between(graph, Routes(graph).way(0, 1)), Names{"wide"});
  EXPECT_EQ(Routes(graph).way(0, 1).latency_ns, 100);

  join("as wide and quicker", 200, 40);
  EXPECT_EQ(between(graph, Routes(graph).way(0, 1)), Names{"as wide and quicker"});

  // Longer, so not chosen whatever its latency.
  const VertexId first = graph.add_vertex(VertexKind::kSwitch, 0, "first");
  const VertexId second = graph.add_vertex(VertexKind::kSwitch, 0, "second");
  graph.add_links(0, first, 200, 0);
  graph.add_links(first, second, 200, 0);
  graph.add_links(second, 1, 200, 0);
  EXPECT_EQ(between(graph, Routes(graph).way(0, 1)), Names{"as wide and quicker"});

  join("no limit", kUnlimited, 1000);
  EXPECT_EQ(between(graph, Routes(graph).way(1, 0)), Names{"no limit"});
  EXPECT_EQ(Routes(graph).way(1, 0).bandwidth, kUnlimited);
}

// A way that is as wide as its narrowest link may begin with any link as wide as that.
TEST(Routes, AreShortWhereALaterLinkIsTheNarrowest) {
  LinkGraph graph(2);
  graph.set_rank(0, 0, "a");
  graph.set_rank(1, 0, "b");
  const VertexId hub = graph.add_vertex(VertexKind::kSwitch, 0, "hub");
  const VertexId detour = graph.add_vertex(VertexKind::kSwitch, 0, "detour");
  graph.add_links(0, hub, 20, 0);
  graph.add_links(0, detour, 90, 0);
  graph.add_links(detour, hub, 90, 0);
  graph.add_links(hub, 1, 10, 0);
  ASSERT_TRUE(graph.finish().ok());
  EXPECT_EQ(between(graph, Routes(graph).way(0, 1)), Names{"hub"});
}

TEST(Routes, GoThroughNoThirdRank) {
  LinkGraph graph(3);
  for (Rank rank = 0; rank < 3; ++rank) graph.set_rank(rank, 0, std::to_string(rank));
  graph.add_links(0, 1, 1000, 0);
  graph.add_links(1, 2, 1000, 0);
  const VertexId slow = graph.add_vertex(VertexKind::kPci, 0, "slow");
  graph.add_links(0, slow, 1, 0);
  graph.add_links(slow, 2, 1, 0);
  ASSERT_TRUE(graph.finish().ok());
  Routes routes(graph);
  EXPECT_EQ(between(graph, routes.way(0, 2)), Names{"slow"});
  EXPECT_TRUE(routes.way(1, 1).links.empty());
  EXPECT_EQ(routes.way(1, 1).latency_ns, 0);
}

// Two hosts of four ranks, each with a link to both cards of its host.
TEST(Routes, SpreadOverCardsSuchThatEqualRanksOfTwoHostsUseTheSame) {
  LinkGraph graph(8);
  const VertexId network = graph.add_vertex(VertexKind::kNetwork, kNone, "network");
  for (uint32_t host = 0; host < 2; ++host) {
    for (const char* card : {"even", "odd"}) {
      const VertexId out = graph.add_vertex(VertexKind::kCard, host, std::string(card) + " out");
      const VertexId in = graph.add_vertex(VertexKind::kCard, host, std::string(card) + " in");
      graph.add_link({out, network, 100, 500});
      graph.add_link({network, in, 100, 500});
      for (Rank rank = 4 * host; rank < 4 * host + 4; ++rank) {
        graph.add_link({rank, out, 100, 100});
        graph.add_link({in, rank, 100, 100});
      }
    }
    for (Rank rank = 4 * host; rank < 4 * host + 4; ++rank) {
      graph.set_rank(rank, host, "rank" + std::to_string(rank));
      for (Rank other = 4 * host; other < rank; ++other) graph.add_links(rank, other, 1000, 0);
    }
  }
  ASSERT_TRUE(graph.finish().ok());
  Routes routes(graph);
  for (Rank from = 0; from < 8; ++from) {
    for (Rank to = 0; to < 8; ++to) {
      if (from / 4 == to / 4) continue;
      const Names expected = from % 2 == 0 ? Names{"even out", "network", "even in"}
                                           : Names{"odd out", "network", "odd in"};
      EXPECT_EQ(between(graph, routes.way(from, to)), expected) << from << " to " << to;
      EXPECT_EQ(routes.way(from, to).latency_ns, 1200);
    }
  }
}

TEST(Routes, OfRecordedMachinesReachAllRanksAndAreTheSameInAnyOrder) {
  for (const char* file : {"dgx2.hwloc.xml", "azure-ndv4-topo.nccl.xml", "azure-ncv4-topo.nccl.xml",
                           "rccl-8p-rome-n4.nccl.xml"}) {
    for (const uint32_t hosts : {1u, 3u}) {
      const Result<LinkGraph> graph = graph_of_gpus(file, hosts);
      ASSERT_TRUE(graph.ok()) << graph.status().text();
      const Rank n = graph.value().rank_count();
      Routes forwards(graph.value());
      Routes backwards(graph.value());
      for (Rank i = 0; i < n * n; ++i) backwards.way((n * n - 1 - i) / n, (n * n - 1 - i) % n);
      for (Rank from = 0; from < n; ++from) {
        for (Rank to = 0; to < n; ++to) {
          const Way way = forwards.way(from, to);
          expect_way(graph.value(), way, from, to);
          const Way again = backwards.way(from, to);
          EXPECT_TRUE(std::equal(way.links.begin(), way.links.end(), again.links.begin(),
                                 again.links.end()));
        }
      }
    }
  }
}

// The eight cards of the machine all take part.
TEST(Routes, OfRanksWithTheSameNumberUseEveryCard) {
  const Result<LinkGraph> graph = graph_of_gpus("azure-ndv4-topo.nccl.xml", 2);
  ASSERT_TRUE(graph.ok());
  Routes routes(graph.value());
  std::set<std::string> cards;
  for (Rank rank = 0; rank < 8; ++rank) {
    for (const std::string& name : between(graph.value(), routes.way(rank, rank + 8))) {
      if (name.starts_with("NIC")) cards.insert(name);
    }
  }
  EXPECT_EQ(cards.size(), 8u);
}

// Takes a fraction of a second.
TEST(Routes, BetweenAThousandRanksAreFound) {
  const Result<LinkGraph> graph = graph_of_gpus("azure-ndv4-topo.nccl.xml", 128);
  ASSERT_TRUE(graph.ok());
  ASSERT_EQ(graph.value().rank_count(), 1024u);
  Routes routes(graph.value());
  size_t links = 0;
  for (Rank from = 0; from < 1024; ++from) {
    for (Rank to = 0; to < 1024; ++to) links += routes.way(from, to).links.size();
  }
  EXPECT_GT(links, 4u * 1024 * 1016);
}

}  // namespace
}  // namespace weir::graph
