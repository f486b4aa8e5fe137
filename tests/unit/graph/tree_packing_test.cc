// SPDX-License-Identifier: Apache-2.0
#include "core/graph/tree_packing.h"

#include <algorithm>
#include <random>
#include <vector>

#include "core/graph/cut_bound.h"
#include "core/graph/forest_load.h"
#include "unit/graph/graph_support.h"

namespace weir::graph {
namespace {

// The bound over what the trees need, both ways at the same time.
double share_of_bound(const LinkGraph& graph) {
  Routes routes(graph);
  const auto packed = pack_trees(graph, &routes);
  EXPECT_TRUE(packed.ok()) << packed.status().text();
  if (!packed.ok()) return 0;
  EXPECT_EQ(flaw_of(packed.value()), "");
  return all_reduce_ns_per_byte(graph) /
         both_ns_per_byte(graph, load_of(graph, packed.value(), &routes));
}

TEST(TreePacking, OfARankWithASlowLinkPassesItOnce) {
  const LinkGraph graph = star({400'000, 400'000, 400'000, 50'000});
  EXPECT_NEAR(share_of_bound(graph), 1, 1e-9);
  Routes routes(graph);
  const auto packed = pack_trees(graph, &routes);
  ASSERT_TRUE(packed.ok());
  for (const Tree& tree : packed.value().trees) {
    int of_slow = 0;
    for (const TreeLink& link : tree.links) of_slow += link.from == 3 || link.to == 3 ? 1 : 0;
    EXPECT_EQ(of_slow, 1);
  }
}

TEST(TreePacking, NeverNeedsLessThanTheBoundAndOftenNotMore) {
  int exact = 0;
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    LinkGraph graph(12);
    for (Rank rank = 0; rank < 12; ++rank) graph.set_rank(rank, 0, std::to_string(rank));
    for (Rank a = 0; a < 12; ++a) {
      graph.add_links(a, (a + 1) % 12, 25'000'000, 500);
      for (Rank b = a + 2; b < 12; ++b) {
        if (random() % 3 == 0) graph.add_links(a, b, 25'000'000 * (1 + random() % 3), 500);
      }
    }
    ASSERT_TRUE(graph.finish().ok());
    const double share = share_of_bound(graph);
    EXPECT_LE(share, 1 + 1e-9) << "a bound is one: seed " << seed;
    EXPECT_GE(share, 0.6) << "seed " << seed;
    exact += share > 0.99 ? 1 : 0;
  }
  EXPECT_GE(exact, 5);
}

// Each of eight fully linked ranks could be the hub of a tree, whose messages all others wait for.
TEST(TreePacking, GivesRanksAlikeAboutAsManyMessages) {
  for (const uint32_t ranks : {6u, 8u, 12u, 16u}) {
    const LinkGraph graph = full_mesh(ranks, 25'000'000);
    Routes routes(graph);
    const auto packed = pack_trees(graph, &routes);
    ASSERT_TRUE(packed.ok()) << packed.status().text();
    std::vector<uint32_t> messages(ranks, 0);
    for (const Tree& tree : packed.value().trees) {
      for (const TreeLink& link : tree.links) {
        ++messages[link.from];
        ++messages[link.to];
      }
    }
    const auto trees = static_cast<double>(packed.value().trees.size());
    EXPECT_LE(*std::max_element(messages.begin(), messages.end()),
              1.5 * 2 * trees * (ranks - 1) / ranks)
        << ranks;
    EXPECT_GE(share_of_bound(graph), 0.8) << ranks;
  }
}

TEST(TreePacking, IsRefusedWhereLinksLeadOneWayOnly) {
  LinkGraph graph(3);
  for (Rank rank = 0; rank < 3; ++rank) {
    graph.set_rank(rank, 0, std::to_string(rank));
    graph.add_link({rank, (rank + 1) % 3, 1000, 1});
  }
  ASSERT_TRUE(graph.finish().ok());
  Routes routes(graph);
  EXPECT_FALSE(pack_trees(graph, &routes).ok());
}

}  // namespace
}  // namespace weir::graph
