// SPDX-License-Identifier: Apache-2.0
#include "core/graph/cluster_forest.h"

#include <algorithm>

#include "core/graph/forest_load.h"
#include "core/graph/forests.h"
#include "unit/graph/graph_support.h"

namespace weir::graph {
namespace {

TEST(ClusterForest, ReachesTheBoundOfAnyNumberOfHosts) {
  for (const char* file : {"dgx2.hwloc.xml", "azure-ndv4-topo.nccl.xml", "azure-ncv4-topo.nccl.xml",
                           "rccl-8p-rome-n4.nccl.xml"}) {
    for (const uint32_t hosts : {2u, 3u, 16u}) {
      const auto graph = graph_of_gpus(file, hosts);
      ASSERT_TRUE(graph.ok()) << graph.status().text();
      const auto forest = cluster_forest(graph.value());
      ASSERT_TRUE(forest.ok()) << file << ": " << forest.status().text();
      EXPECT_EQ(flaw_of(forest.value()), "") << file << " " << hosts;
      EXPECT_GE(forest.value().block_gbs, 0.97 * forest.value().bound_gbs) << file << " " << hosts;
      EXPECT_LE(forest.value().block_gbs, forest.value().bound_gbs * (1 + 1e-9)) << file;
    }
  }
}

TEST(ClusterForest, OfThreeUnequalHostsIsThatOfTheSlowest) {
  const std::vector<uint32_t> hosts = {0, 0, 1, 1, 2, 2};
  const std::vector<KilobytesPerSecond> bandwidths = {50'000, 50'000, 6'250};
  const LinkGraph graph = host_star(hosts, bandwidths, 5'000'000);
  const auto forest = cluster_forest(graph);
  ASSERT_TRUE(forest.ok()) << forest.status().text();
  EXPECT_EQ(flaw_of(forest.value()), "");
  // Four blocks enter the slow host.
  EXPECT_NEAR(forest.value().block_gbs, 0.00625 / 4, 1e-9);
}

// `counts[h]` ranks on GPUs of the h-th host; ranks are dealt out to hosts in turns.
LinkGraph uneven_hosts(const char* file, const std::vector<uint32_t>& counts) {
  const std::vector<topo::Topology> kinds = {recorded(file)};
  const std::vector<topo::NodeId> gpus = kinds[0].all(topo::NodeKind::kGpu);
  std::vector<RankPlace> places;
  for (uint32_t i = 0; i < gpus.size(); ++i) {
    for (uint32_t host = 0; host < counts.size(); ++host) {
      if (i < counts[host]) places.push_back({host, gpus[i], {}});
    }
  }
  // Hosts are numbered by their first ranks.
  const std::vector<uint32_t> kind_of_host(counts.size(), 0);
  auto graph = machine_graph({kinds, kind_of_host, places});
  EXPECT_TRUE(graph.ok()) << graph.status().text();
  return graph.take();
}

TEST(ClusterForest, OfHostsWithDifferentNumbersOfRanksIsNearTheBound) {
  for (const char* file : {"made-nvswitch-8-cards.nccl.xml", "azure-ndv4-topo.nccl.xml",
                           "rccl-8p-rome-n4.nccl.xml", "made-nvswitch-1-card.nccl.xml"}) {
    for (const std::vector<uint32_t>& counts :
         {std::vector<uint32_t>{8, 8, 4}, {8, 7, 3, 2}, {8, 8, 1}, {4, 4, 4, 3, 3}, {8, 1, 8, 1}}) {
      const LinkGraph graph = uneven_hosts(file, counts);
      const auto forest = cluster_forest(graph);
      ASSERT_TRUE(forest.ok()) << file << ": " << forest.status().text();
      EXPECT_EQ(flaw_of(forest.value()), "") << file;
      EXPECT_GE(forest.value().block_gbs, 0.7 * forest.value().bound_gbs)
          << file << " " << testing::PrintToString(counts);
      EXPECT_LE(forest.value().block_gbs, forest.value().bound_gbs * (1 + 1e-9)) << file;
    }
  }
}

TEST(ClusterForest, OfOneRootIsNearTheBound) {
  for (const char* file :
       {"made-nvswitch-8-cards.nccl.xml", "azure-ndv4-topo.nccl.xml", "rccl-8p-rome-n4.nccl.xml",
        "made-nvswitch-1-card.nccl.xml", "dgx2.hwloc.xml"}) {
    for (const std::vector<uint32_t>& counts : {std::vector<uint32_t>{8, 8, 8},
                                                {8, 8, 8, 8},
                                                {8, 7, 3, 2},
                                                {8, 8, 1},
                                                {8, 1, 8, 8, 8, 8}}) {
      const LinkGraph graph = uneven_hosts(file, counts);
      for (const Rank root : {Rank{0}, graph.rank_count() / 2, graph.rank_count() - 1}) {
        const auto trees = cluster_trees(graph, root);
        ASSERT_TRUE(trees.ok()) << file << ": " << trees.status().text();
        EXPECT_EQ(flaw_of(trees.value()), "") << file;
        EXPECT_EQ(roots_of(trees.value()), std::vector<Rank>{root});
        EXPECT_GE(trees.value().block_gbs, 0.6 * trees.value().bound_gbs)
            << file << " " << testing::PrintToString(counts) << " root " << root;
        EXPECT_LE(trees.value().block_gbs, trees.value().bound_gbs * (1 + 1e-9)) << file;
      }
    }
  }
}

// Of four hosts only the slow one passes nothing on.
TEST(ClusterForest, PassesASlowNetworkAsSeldomAsPossible) {
  const std::vector<uint32_t> hosts = {0, 0, 0, 1, 1, 1, 2, 2, 3};
  const std::vector<KilobytesPerSecond> bandwidths = {50'000, 50'000, 50'000, 2'000};
  const LinkGraph graph = host_star(hosts, bandwidths, 5'000'000);
  const auto forest = cluster_forest(graph);
  ASSERT_TRUE(forest.ok()) << forest.status().text();
  for (const Tree& tree : forest.value().trees) {
    for (const TreeLink& link : tree.links) EXPECT_TRUE(link.from != 8 || tree.root == 8);
  }
  EXPECT_NEAR(forest.value().block_gbs, forest.value().bound_gbs, 1e-9);
  for (Rank root = 0; root < 9; ++root) {
    const auto trees = cluster_trees(graph, root);
    ASSERT_TRUE(trees.ok()) << trees.status().text();
    EXPECT_NEAR(trees.value().block_gbs, trees.value().bound_gbs, 1e-9) << root;
  }
}

TEST(ClusterForest, OfOneHostIsRefused) {
  EXPECT_FALSE(cluster_forest(full_mesh(4, 1'000'000)).ok());
  EXPECT_FALSE(cluster_trees(full_mesh(4, 1'000'000), 1).ok());
}

TEST(Forests, OfManyRanksHaveTreesOfEachRoot) {
  Forests forests(uneven_hosts("made-nvswitch-8-cards.nccl.xml", {8, 8, 4}));
  for (const Rank root : {0u, 7u, 19u}) {
    const Forest* trees = forests.of(Collective::kBroadcast, root);
    ASSERT_NE(trees, nullptr) << root;
    EXPECT_EQ(roots_of(*trees), std::vector<Rank>{root});
    EXPECT_EQ(forests.of(Collective::kReduce, root), trees);
  }
  EXPECT_NE(forests.of(Collective::kAllReduce, 0), nullptr);
}

TEST(ClusterForest, OfATooLargeClusterIsRefused) {
  const auto graph = graph_of_gpus("azure-ncv4-topo.nccl.xml", 8);
  ASSERT_TRUE(graph.ok());
  EXPECT_FALSE(cluster_forest(graph.value(), {.host = {}, .links_max = 100}).ok());
}

// A rank behind a slow link sends its part out once and takes the result in once, at the same time:
// twice its buffer, and not three times.
TEST(Forests, AllReducePassesASlowLinkOnceEachWay) {
  const LinkGraph graph = star({50'000, 50'000, 50'000, 6'250});
  Forests forests(graph);
  const Forest* forest = forests.of(Collective::kAllReduce, 0);
  ASSERT_NE(forest, nullptr);
  Routes routes(graph);
  EXPECT_NEAR(both_ns_per_byte(graph, load_of(graph, *forest, &routes)), 1e6 / 6'250, 1e-6);
  // The others need trees of all ranks, or of their root.
  EXPECT_TRUE(std::any_of(forests.of(Collective::kAllGather, 0)->trees.begin(),
                          forests.of(Collective::kAllGather, 0)->trees.end(),
                          [](const Tree& tree) { return tree.root == 3; }));
  EXPECT_EQ(forests.of(Collective::kBroadcast, 2)->trees[0].root, 2u);
  EXPECT_EQ(forests.of(Collective::kAllToAll, 0), nullptr);
  EXPECT_EQ(forests.of(Collective::kReduce, 1), forests.of(Collective::kBroadcast, 1));
}

TEST(Forests, OfEqualRanksFoldAtAll) {
  Forests forests(full_mesh(4, 10'000'000));
  const Forest* forest = forests.of(Collective::kAllReduce, 0);
  ASSERT_NE(forest, nullptr);
  EXPECT_EQ(forest->trees.size(), 4u);
}

}  // namespace
}  // namespace weir::graph
