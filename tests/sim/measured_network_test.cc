// SPDX-License-Identifier: Apache-2.0
// What a measured table says in the words of the simulated network.
#include "core/sim/measured_network.h"

#include <gtest/gtest.h>

#include "sim/sim_support.h"

namespace weir::sim {
namespace {

cost::Table some_table() {
  cost::Table table = cost::built_in_table();
  cost::LinkTimes& link = table.times.link(cost::Link::kTcp);
  link.message_ns = 5000;
  link.send_ns = 700;
  link.recv_ns = 300;
  link.signal_ns = 5000;
  link.slot_in_ns_per_byte = {0.1, 0.2, 0.3};
  link.slot_out_ns_per_byte = {0.2, 0.1, 0.4};
  link.window_ns_per_byte = link.slot_out_ns_per_byte;
  link.wire_ns_per_byte = 8;
  table.times.copy_ns_per_byte = {0.01, 0.02, 0.04};
  for (auto& figures : table.times.reduce_ns_per_byte) figures = {0.03, 0.06, 0.12};
  table.times.operation_ns = 50;
  table.times.l2_bytes = 1 << 20;
  table.times.l3_bytes = 1 << 25;
  return table;
}

TEST(MeasuredNetwork, AMessageTakesWhatItTookWhenItWasMeasured) {
  const Network network = measured_network(some_table(), 1024);
  ASSERT_TRUE(validate(network).ok());
  const Level& level = network.inter_node;
  EXPECT_DOUBLE_EQ(level.send_overhead_ns, 700 + 50);
  EXPECT_DOUBLE_EQ(level.recv_overhead_ns, 300 + 50);
  EXPECT_DOUBLE_EQ(level.send_overhead_ns + level.latency_ns + level.recv_overhead_ns,
                   5000 + 2 * 50);
  EXPECT_DOUBLE_EQ(level.ns_per_byte, 0.2);
  EXPECT_DOUBLE_EQ(network.nic.ns_per_byte, 8);
  EXPECT_EQ(network.nic.rails, 1u);
}

TEST(MeasuredNetwork, SizeChoosesTheRegime) {
  const cost::Table table = some_table();
  EXPECT_DOUBLE_EQ(measured_network(table, 1 << 19).reduce_ns_per_byte, 0.03);
  EXPECT_DOUBLE_EQ(measured_network(table, 1 << 20).reduce_ns_per_byte, 0.06);
  EXPECT_DOUBLE_EQ(measured_network(table, 1 << 25).reduce_ns_per_byte, 0.12);
  EXPECT_DOUBLE_EQ(measured_network(table, 1 << 25).copy_ns_per_byte, 0.04);
  EXPECT_DOUBLE_EQ(measured_network(table, 1 << 25).inter_node.ns_per_byte, 0.4);
}

TEST(MeasuredNetwork, EveryNodeHasOneWireThatItsRanksShare) {
  // Two ranks on each of two nodes exchange with the other node: their bytes queue for one wire.
  const algo::Algorithm& ring = algorithm(Collective::kAllGather, "ring");
  const uint64_t bytes = 4 << 20;
  Options options;
  options.network = measured_network(some_table(), bytes);
  algo::Problem p = problem(Collective::kAllGather, 4);
  const std::vector<uint32_t> apart = {0, 1, 0, 1};
  p.node_of_rank = apart;
  const double shared = total_ns(run(ring, p, bytes, options));
  const std::vector<uint32_t> alone = {0, 1, 2, 3};
  p.node_of_rank = alone;
  const double own = total_ns(run(ring, p, bytes, options));
  EXPECT_NEAR(own, 3.0 * (1 << 20) * 8, 3.0 * (1 << 20) * 0.4);
  EXPECT_NEAR(shared, 2 * own, 0.1 * own);
}

}  // namespace
}  // namespace weir::sim
