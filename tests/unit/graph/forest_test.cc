// SPDX-License-Identifier: Apache-2.0
#include "core/graph/forest.h"

#include <algorithm>
#include <map>
#include <random>

#include "unit/graph/graph_support.h"

namespace weir::graph {
namespace {

uint32_t depth_of(const Forest& forest) {
  uint32_t depth = 0;
  for (const Tree& tree : forest.trees) {
    for (const TreeLink& link : tree.links) depth = std::max(depth, link.depth);
  }
  return depth;
}

// Trees between each two ranks.
std::map<std::pair<Rank, Rank>, int64_t> load_of(const Forest& forest) {
  std::map<std::pair<Rank, Rank>, int64_t> load;
  for (const Tree& tree : forest.trees) {
    for (const TreeLink& link : tree.links) load[{link.from, link.to}] += tree.count;
  }
  return load;
}

// Of a graph of ranks only.
void expect_no_link_overloaded(const LinkGraph& graph, const Forest& forest) {
  const double tree_gbs = forest.block_gbs / forest.trees_per_root;
  for (const auto& [pair, trees] : load_of(forest)) {
    const LinkId id = graph.find_link(pair.first, pair.second);
    ASSERT_NE(id, kNone) << "only links that exist: " << pair.first << " to " << pair.second;
    const Link& link = graph.links()[id];
    if (link.bandwidth == kUnlimited) continue;
    EXPECT_LE(static_cast<double>(trees) * tree_gbs * 1e6,
              static_cast<double>(link.bandwidth) * (1 + 1e-9));
  }
}

TEST(Forest, OfAMeshSendsStraight) {
  const LinkGraph graph = full_mesh(8, 25'000'000);
  const auto forest = find_forest(graph);
  ASSERT_TRUE(forest.ok()) << forest.status().text();
  EXPECT_EQ(flaw_of(forest.value()), "");
  EXPECT_EQ(forest.value().trees.size(), 8u);
  EXPECT_EQ(depth_of(forest.value()), 1u);
  EXPECT_DOUBLE_EQ(forest.value().block_gbs, 25);
  expect_no_link_overloaded(graph, forest.value());
}

TEST(Forest, OfARingGoesBothWays) {
  LinkGraph graph(6);
  for (Rank rank = 0; rank < 6; ++rank) graph.set_rank(rank, 0, std::to_string(rank));
  for (Rank rank = 0; rank < 6; ++rank) graph.add_links(rank, (rank + 1) % 6, 10'000, 1);
  ASSERT_TRUE(graph.finish().ok());
  const auto forest = find_forest(graph);
  ASSERT_TRUE(forest.ok()) << forest.status().text();
  EXPECT_GE(forest.value().block_gbs, 0.97 * forest.value().bound_gbs);
  EXPECT_DOUBLE_EQ(forest.value().bound_gbs, 2 * 0.01 / 5);
  expect_no_link_overloaded(graph, forest.value());
}

// Sixteen ranks, links of one to three, some missing.
TEST(Forest, OfUnevenLinksUsesThoseThatExist) {
  for (uint32_t seed = 1; seed <= 5; ++seed) {
    std::mt19937 random(seed);
    LinkGraph graph(16);
    for (Rank rank = 0; rank < 16; ++rank) graph.set_rank(rank, 0, std::to_string(rank));
    for (Rank a = 0; a < 16; ++a) {
      graph.add_links(a, (a + 1) % 16, 25'000'000, 500);
      for (Rank b = a + 2; b < 16; ++b) {
        if (random() % 3 == 0) graph.add_links(a, b, 25'000'000 * (1 + random() % 3), 500);
      }
    }
    ASSERT_TRUE(graph.finish().ok());
    const auto forest = find_forest(graph);
    ASSERT_TRUE(forest.ok()) << forest.status().text();
    EXPECT_EQ(flaw_of(forest.value()), "");
    EXPECT_GE(forest.value().block_gbs, 0.9 * forest.value().bound_gbs) << "seed " << seed;
    expect_no_link_overloaded(graph, forest.value());
  }
}

TEST(Forest, OfRecordedMachinesReachesTheCutBound) {
  for (const char* file : {"dgx2.hwloc.xml", "azure-ndv4-topo.nccl.xml", "azure-ncv4-topo.nccl.xml",
                           "rccl-8p-rome-n4.nccl.xml"}) {
    for (const uint32_t hosts : {1u, 2u}) {
      const auto graph = graph_of_gpus(file, hosts);
      ASSERT_TRUE(graph.ok()) << file << ": " << graph.status().text();
      const auto forest = find_forest(graph.value());
      ASSERT_TRUE(forest.ok()) << file << ": " << forest.status().text();
      EXPECT_EQ(flaw_of(forest.value()), "") << file;
      // Where PCIe runs beside xGMI, or cards hang from the same PCIe switches, a part of the trees
      // meets on one of several ways.
      EXPECT_GE(forest.value().block_gbs, 0.78 * forest.value().bound_gbs) << file << " " << hosts;
      EXPECT_LE(forest.value().block_gbs, forest.value().bound_gbs * (1 + 1e-9)) << file;
    }
  }
}

TEST(Forest, OfSixteenGpusBehindSwitchesIsFoundInFewSteps) {
  const auto graph = graph_of_gpus("dgx2.hwloc.xml", 1);
  ASSERT_TRUE(graph.ok()) << graph.status().text();
  const auto forest = find_forest(graph.value());
  ASSERT_TRUE(forest.ok()) << forest.status().text();
  EXPECT_LE(forest.value().steps, 10'000u);
  const auto again = find_forest(graph.value());
  EXPECT_EQ(forest.value().trees, again.value().trees) << "the same answer each time";
}

TEST(Forest, EndsWhenItHasNoStepsLeft) {
  const auto forest = find_forest(full_mesh(8, 25'000'000), {.steps_max = 20});
  ASSERT_FALSE(forest.ok());
  EXPECT_EQ(forest.status().code(), Code::kUnsupported);
}

TEST(Forest, OfOneRootHasItsTreesOnly) {
  const LinkGraph graph = full_mesh(5, 10'000'000);
  for (Rank root = 0; root < 5; ++root) {
    const auto forest = find_trees(graph, std::span(&root, 1));
    ASSERT_TRUE(forest.ok()) << forest.status().text();
    EXPECT_EQ(flaw_of(forest.value()), "");
    EXPECT_GE(forest.value().block_gbs, 0.97 * 40) << "all four links of the root";
    for (const Tree& tree : forest.value().trees) EXPECT_EQ(tree.root, root);
    expect_no_link_overloaded(graph, forest.value());
  }
}

// The graph with its ranks renamed.
TEST(Forest, IsAsGoodWhateverTheOrderOfRanks) {
  const std::vector<KilobytesPerSecond> line = {10'000, 20'000, 30'000, 20'000, 10'000};
  std::vector<Rank> order = {0, 1, 2, 3, 4, 5};
  double first = 0;
  std::mt19937 random(3);
  for (int round = 0; round < 10; ++round) {
    LinkGraph graph(6);
    for (Rank rank = 0; rank < 6; ++rank) graph.set_rank(rank, 0, std::to_string(rank));
    for (size_t i = 0; i < line.size(); ++i) graph.add_links(order[i], order[i + 1], line[i], 1);
    ASSERT_TRUE(graph.finish().ok());
    const auto forest = find_forest(graph);
    ASSERT_TRUE(forest.ok()) << forest.status().text();
    if (round == 0) first = forest.value().block_gbs;
    EXPECT_DOUBLE_EQ(forest.value().block_gbs, first);
    std::shuffle(order.begin(), order.end(), random);
  }
}

TEST(Forest, FromElsewhereIsChecked) {
  const auto found = find_forest(full_mesh(4, 10'000));
  ASSERT_TRUE(found.ok());
  const auto flaw = [&](auto change) {
    Forest forest = found.value();
    change(&forest);
    return flaw_of(forest);
  };
  EXPECT_EQ(flaw([](Forest*) {}), "");
  EXPECT_NE(flaw([](Forest* it) { it->trees[1].root = 9; }), "");
  EXPECT_NE(flaw([](Forest* it) { it->trees[1].links[0].to = 9; }), "");
  EXPECT_NE(flaw([](Forest* it) { it->trees[1].links[0].to = it->trees[1].root; }), "");
  EXPECT_NE(flaw([](Forest* it) { it->trees[1].links.pop_back(); }), "");
  EXPECT_NE(flaw([](Forest* it) { it->trees[1].links[1].depth = 7; }), "");
  EXPECT_NE(flaw([](Forest* it) { it->trees.clear(); }), "");
  EXPECT_NE(flaw([](Forest* it) { it->trees[2].count = 0; }), "");
  EXPECT_NE(flaw([](Forest* it) { it->trees_per_root = 3; }), "");
}

}  // namespace
}  // namespace weir::graph
