// SPDX-License-Identifier: Apache-2.0
#include "core/graph/rings.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "core/graph/forests.h"
#include "unit/graph/graph_support.h"

namespace weir::graph {
namespace {

Rings in_order(uint32_t ranks) {
  std::vector<Rank> order(ranks);
  std::iota(order.begin(), order.end(), 0);
  return rings_of({std::move(order)});
}

uint32_t crossings_of(const LinkGraph& graph, const std::vector<Rank>& order) {
  std::vector<uint32_t> hosts;
  for (const Rank rank : order) hosts.push_back(graph.host_of(rank));
  return crossings(hosts);
}

TEST(Rings, UseMostOfTheLinksOfAFullMesh) {
  const LinkGraph graph = full_mesh(8, 25'000'000);
  Routes routes(graph);
  const auto rings = find_rings(graph, &routes);
  ASSERT_TRUE(rings.ok()) << rings.status().text();
  EXPECT_EQ(flaw_of(rings.value().orders, 8), "");
  // Seven links go out of each rank.
  EXPECT_GE(rings.value().orders.size(), 6u);
  std::set<std::pair<Rank, Rank>> hops;
  for (const auto& order : rings.value().orders) {
    for (size_t i = 0; i < order.size(); ++i) {
      EXPECT_TRUE(hops.insert({order[i], order[(i + 1) % order.size()]}).second);
    }
  }
}

TEST(Rings, TakeOnlyLinksThatExist) {
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    std::mt19937 random(seed);
    std::vector<Rank> order(16);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    LinkGraph graph(16);
    for (Rank rank = 0; rank < 16; ++rank) graph.set_rank(rank, 0, "rank");
    for (Rank a = 0; a < 16; ++a) {
      graph.add_links(order[a], order[(a + 1) % 16], 25'000'000, 500);
      for (Rank b = a + 2; b < 16; ++b) {
        if (random() % 3 == 0) graph.add_links(order[a], order[b], 50'000'000, 500);
      }
    }
    ASSERT_TRUE(graph.finish().ok());
    Routes routes(graph);
    const auto rings = find_rings(graph, &routes);
    ASSERT_TRUE(rings.ok()) << "seed " << seed << ": " << rings.status().text();
    EXPECT_EQ(flaw_of(rings.value().orders, 16), "");
    for (const auto& ring : rings.value().orders) {
      for (size_t i = 0; i < ring.size(); ++i) {
        EXPECT_NE(graph.find_link(ring[i], ring[(i + 1) % 16]), kNone) << "seed " << seed;
      }
    }
    EXPECT_GE(rings.value().orders.size(), 2u) << "seed " << seed;
  }
}

// One card for each GPU: every ring goes through another of them, whatever the order of the ranks.
TEST(Rings, TakeTurnsOnTheNetworkCards) {
  const std::vector<topo::Topology> kinds = {recorded("made-nvswitch-8-cards.nccl.xml")};
  for (const uint32_t seed : {0u, 1u, 2u}) {
    std::vector<RankPlace> places;
    for (uint32_t host = 0; host < 4; ++host) {
      for (const topo::NodeId gpu : kinds[0].all(topo::NodeKind::kGpu)) {
        places.push_back({host, gpu, {}});
      }
    }
    if (seed != 0) std::shuffle(places.begin(), places.end(), std::mt19937(seed));
    const std::vector<uint32_t> kind_of_host(4, 0);
    const auto graph = machine_graph({kinds, kind_of_host, places});
    ASSERT_TRUE(graph.ok());
    Routes routes(graph.value());
    const auto rings = find_rings(graph.value(), &routes);
    ASSERT_TRUE(rings.ok()) << rings.status().text();
    EXPECT_EQ(rings.value().orders.size(), 8u);
    for (const auto& order : rings.value().orders)
      EXPECT_EQ(crossings_of(graph.value(), order), 4u);
    // As fast as one ring would be over eight times the card; seven cards' worth would be 1/7.
    const double all = ring_ns_per_byte(graph.value(), rings.value(), &routes);
    const double one =
        ring_ns_per_byte(graph.value(), rings_of({rings.value().orders[0]}), &routes);
    EXPECT_NEAR(one / all, 8, 0.1);
  }
}

TEST(Rings, AreFoundWithinTheStepsForManyHosts) {
  const auto graph = graph_of_gpus("azure-ndv4-topo.nccl.xml", 64);
  ASSERT_TRUE(graph.ok());
  Routes routes(graph.value());
  const auto rings = find_rings(graph.value(), &routes);
  ASSERT_TRUE(rings.ok()) << rings.status().text();
  EXPECT_EQ(flaw_of(rings.value().orders, graph.value().rank_count()), "");
  EXPECT_EQ(crossings_of(graph.value(), rings.value().orders[0]), 64u);
}

TEST(Rings, AreNotFoundWhereThereAreNone) {
  // A star of links: whoever is in the middle would be passed twice.
  LinkGraph graph(4);
  for (Rank rank = 0; rank < 4; ++rank) graph.set_rank(rank, 0, "rank");
  for (Rank rank = 1; rank < 4; ++rank) graph.add_links(0, rank, 1'000'000, 500);
  ASSERT_TRUE(graph.finish().ok());
  Routes routes(graph);
  const auto rings = find_rings(graph, &routes);
  ASSERT_FALSE(rings.ok());
  EXPECT_NE(rings.status().text().find("no ring through all 4 ranks"), std::string::npos);
}

TEST(Rings, AreOfferedOnlyWhereTheyAreBetterThanTheOrderOfRanks) {
  EXPECT_EQ(Forests(star({50'000, 50'000, 50'000, 50'000})).rings(), nullptr);
  // Ranks that take turns on two hosts.
  const std::vector<uint32_t> hosts = {0, 1, 0, 1, 0, 1};
  const std::vector<KilobytesPerSecond> bandwidths = {50'000, 50'000};
  Forests turns(host_star(hosts, bandwidths, 5'000'000));
  ASSERT_NE(turns.rings(), nullptr);
  Routes routes(turns.graph());
  EXPECT_NEAR(ring_ns_per_byte(turns.graph(), in_order(6), &routes),
              3 * ring_ns_per_byte(turns.graph(), *turns.rings(), &routes), 1e-9);
}

TEST(Rings, ByHostCrossOnceAHost) {
  const std::vector<uint32_t> hosts = {1, 0, 2, 0, 1, 2, 2};
  const Rings rings = ring_by_host(hosts);
  EXPECT_EQ(rings.orders, (std::vector<std::vector<Rank>>{{1, 3, 0, 4, 2, 5, 6}}));
  EXPECT_EQ(crossings(hosts), 6u);
  for (Rank rank = 0; rank < 7; ++rank) {
    EXPECT_EQ(rings.orders[0][rings.positions[0][rank]], rank);
  }
}

TEST(Rings, FlawsAreNamed) {
  EXPECT_EQ(flaw_of({{0, 1, 2}}, 3), "");
  EXPECT_NE(flaw_of({}, 3), "");
  EXPECT_NE(flaw_of({{0, 1}}, 3).find("has 2 of 3"), std::string::npos);
  EXPECT_NE(flaw_of({{0, 1, 2}, {0, 1, 1}}, 3).find("ring 1 passes rank 1 twice"),
            std::string::npos);
  EXPECT_NE(flaw_of({{0, 1, 7}}, 3).find("rank 7"), std::string::npos);
}

}  // namespace
}  // namespace weir::graph
