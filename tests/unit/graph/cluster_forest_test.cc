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

TEST(ClusterForest, OfHostsWithDifferentNumbersOfRanksIsRefused) {
  const std::vector<uint32_t> hosts = {0, 0, 1};
  const std::vector<KilobytesPerSecond> bandwidths = {50'000, 50'000};
  const auto forest = cluster_forest(host_star(hosts, bandwidths, 5'000'000));
  ASSERT_FALSE(forest.ok());
  EXPECT_NE(forest.status().text().find("2 and 1 ranks"), std::string::npos);
  EXPECT_TRUE(best_forest(host_star(hosts, bandwidths, 5'000'000)).ok()) << "all at once";
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
