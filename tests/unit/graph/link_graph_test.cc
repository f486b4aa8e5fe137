// SPDX-License-Identifier: Apache-2.0
#include "core/graph/link_graph.h"

#include "unit/graph/graph_support.h"

namespace weir::graph {
namespace {

TEST(LinkGraph, LinksOfTheSameEndsAddUp) {
  LinkGraph graph(2);
  graph.set_rank(0, 0, "a");
  graph.set_rank(1, 0, "b");
  graph.add_links(0, 1, 10, 500);
  graph.add_links(0, 1, 15, 300);
  ASSERT_TRUE(graph.finish().ok());
  ASSERT_EQ(graph.links().size(), 2u);
  EXPECT_EQ(graph.links()[0].bandwidth, 25);
  EXPECT_EQ(graph.links()[0].latency_ns, 300);
  graph.add_link({0, 1, kUnlimited, 500});
  EXPECT_EQ(graph.links()[graph.find_link(0, 1)].bandwidth, kUnlimited);
  EXPECT_EQ(graph.links()[graph.find_link(1, 0)].bandwidth, 25);
}

TEST(LinkGraph, RanksThatCannotReachEachOtherAreNamed) {
  LinkGraph graph(3);
  for (Rank rank = 0; rank < 3; ++rank) graph.set_rank(rank, 0, "gpu" + std::to_string(rank));
  graph.add_links(0, 1, 10, 500);
  graph.add_link({0, 2, 10, 500});  // one way only
  const Status status = graph.finish();
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.text().find("0 (gpu0) and 2 (gpu2)"), std::string::npos) << status.text();
}

TEST(LinkGraph, ARankWithoutAHostIsNamed) {
  LinkGraph graph(2);
  graph.set_rank(0, 0, "a");
  graph.add_links(0, 1, 10, 500);
  EXPECT_NE(graph.finish().text().find("rank 1 is on no host"), std::string::npos);
}

TEST(LinkGraph, TheHashIsOfWhatDecidesAndNotOfNames) {
  const auto make = [](const char* name, KilobytesPerSecond bandwidth) {
    LinkGraph graph(2);
    graph.set_rank(0, 0, name);
    graph.set_rank(1, 0, "b");
    graph.add_links(0, 1, bandwidth, 500);
    return graph.hash();
  };
  EXPECT_EQ(make("a", 10), make("c", 10));
  EXPECT_NE(make("a", 10), make("a", 11));
}

}  // namespace
}  // namespace weir::graph
