// SPDX-License-Identifier: Apache-2.0
#include "core/graph/device_ways.h"

#include <cmath>

#include "unit/graph/graph_support.h"

namespace weir::graph {
namespace {

DeviceWays ways_of(const std::string& file) {
  const auto graph = graph_of_gpus(file, 1);
  EXPECT_TRUE(graph.ok()) << graph.status().text();
  return device_ways(graph.value());
}

// Where each GPU has links to some others only, or the way between two sockets is shared by all
// pairs, a ring passes the narrow links once.
TEST(DeviceWays, RingsAreFasterWherePairsShareLinks) {
  for (const char* file : {"rccl-8p-rome-n4.nccl.xml", "azure-ndv4-topo.nccl.xml"}) {
    const DeviceWays ways = ways_of(file);
    EXPECT_GT(ways.straight_ns_per_byte, 1.7 * ways.rings_ns_per_byte) << file;
    EXPECT_TRUE(ways.rings_are_faster()) << file;
    EXPECT_EQ(flaw_of(ways.rings.orders, 8), "") << file;
  }
}

TEST(DeviceWays, StraightIsAsFastBehindASwitchAndFasterInAFullMesh) {
  const DeviceWays behind_switch = ways_of("made-nvswitch-8-cards.nccl.xml");
  EXPECT_DOUBLE_EQ(behind_switch.straight_ns_per_byte, behind_switch.rings_ns_per_byte);
  EXPECT_FALSE(behind_switch.rings_are_faster());
  const DeviceWays mesh = ways_of("made-8-fully-linked.nccl.xml");
  EXPECT_LT(mesh.straight_ns_per_byte, mesh.rings_ns_per_byte);
}

TEST(DeviceWays, SayWhatTheLinksAllow) {
  // Each of four ranks receives three blocks, each over a link of its own, of 4 ns for 100 bytes.
  const DeviceWays ways = device_ways(full_mesh(4, 25'000'000));
  EXPECT_NEAR(ways.straight_ns_per_byte, 0.04 / 4, 1e-4);
}

TEST(DeviceWays, WithoutALinkThereIsNoWay) {
  LinkGraph graph(3);
  for (Rank rank = 0; rank < 3; ++rank) graph.set_rank(rank, 0, "rank");
  graph.add_links(0, 1, 1'000'000, 500);
  graph.add_links(1, 2, 1'000'000, 500);
  ASSERT_TRUE(graph.finish().ok());
  const DeviceWays ways = device_ways(graph);
  EXPECT_TRUE(std::isinf(ways.straight_ns_per_byte));
  EXPECT_TRUE(std::isinf(ways.rings_ns_per_byte));
  EXPECT_TRUE(ways.rings.orders.empty());
  EXPECT_FALSE(ways.rings_are_faster());
}

}  // namespace
}  // namespace weir::graph
