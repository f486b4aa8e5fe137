// SPDX-License-Identifier: Apache-2.0
// Ports, contention, slices and the network file.
#include "core/sim/network.h"

#include <gtest/gtest.h>

#include "sim/sim_support.h"

namespace weir::sim {
namespace {

// Every rank sends its block to the root at once.
TEST(Contention, IncastTakesAtLeastTheBytesOverTheIngressBandwidth) {
  const Rank n = 33;
  const uint64_t block = 65536;
  const Report report = run(algorithm(Collective::kGather, "linear"),
                            problem(Collective::kGather, n), n * block, uniform_options());
  const double wire_ns = (n - 1) * static_cast<double>(block) * kLevel.ns_per_byte;
  EXPECT_GE(total_ns(report), wire_ns);
  EXPECT_LT(total_ns(report), 1.02 * wire_ns + 2000);
  EXPECT_EQ(report.rank_ports[0].ingress_ps, static_cast<uint64_t>(wire_ns * 1000));
  EXPECT_GT(report.critical_path.contention_ps, report.total_ps / 2);
}

TEST(Contention, RanksOfANodeShareItsRails) {
  // Two nodes of eight; every rank talks to its twin on the other node in the exchange of
  // distance 8.
  const Rank n = 16;
  const std::vector<uint32_t> nodes = even_nodes(n, 8);
  algo::Problem p = problem(Collective::kAllReduce, n);
  p.node_of_rank = nodes;
  Options options = uniform_options();
  options.network.nic = {.rails = 8, .gap_ns = 0, .ns_per_byte = kLevel.ns_per_byte};
  const algo::Algorithm& doubling = algorithm(Collective::kAllReduce, "recursive_doubling");
  const uint64_t bytes = 1 << 20;
  const double own_rail = total_ns(run(doubling, p, bytes, options));
  options.network.nic.rails = 2;  // four ranks on each
  const Report shared = run(doubling, p, bytes, options);
  const double message_ns = static_cast<double>(bytes) * kLevel.ns_per_byte;
  EXPECT_NEAR(total_ns(shared) - own_rail, 3 * message_ns, 1);
  EXPECT_EQ(shared.nic_ports.size(), 4u);
  for (const PortUse& port : shared.nic_ports) {
    EXPECT_EQ(port.egress_ps, static_cast<uint64_t>(4 * message_ns * 1000));
    EXPECT_EQ(port.ingress_ps, port.egress_ps);
  }
}

// Of two messages the one that leaves the slow node, or goes to it, takes as long as its NIC.
TEST(Contention, ANodeWithASlowNicSlowsWhatItSendsAndReceives) {
  const std::vector<uint32_t> nodes = {0, 1, 2};
  algo::Problem p = problem(Collective::kBroadcast, 3);
  p.node_of_rank = nodes;
  Options options = uniform_options();
  const algo::Algorithm& chain = algorithm(Collective::kBroadcast, "chain");
  const uint64_t bytes = 1 << 20;
  options.network.nic = {.rails = 1, .gap_ns = 0, .ns_per_byte = 0.125};
  const double alike = total_ns(run(chain, p, bytes, options));
  options.nic_ns_per_byte_of_node = {0.125, 0.125, 0.125};
  EXPECT_DOUBLE_EQ(total_ns(run(chain, p, bytes, options)), alike);
  for (size_t slow = 0; slow < 3; ++slow) {
    options.nic_ns_per_byte_of_node = {0.125, 0.125, 0.125};
    options.nic_ns_per_byte_of_node[slow] = 1;
    // The node in the middle receives and sends.
    const double messages = slow == 1 ? 2 : 1;
    const Report report = run(chain, p, bytes, options);
    EXPECT_DOUBLE_EQ(total_ns(report), alike + messages * static_cast<double>(bytes) * 0.875);
    const CriticalPath& path = report.critical_path;
    EXPECT_EQ(path.transfer_ps, static_cast<uint64_t>((2 * 0.125 + messages * 0.875) * 1000 *
                                                      static_cast<double>(bytes)));
  }
  options.nic_ns_per_byte_of_node = {1, 1};
  EXPECT_FALSE(simulate(chain, p, bytes, options).ok());
  options.nic_ns_per_byte_of_node = {1, 1, -1};
  EXPECT_FALSE(simulate(chain, p, bytes, options).ok());
}

TEST(Contention, GapBoundsTheMessageRate) {
  Options options = uniform_options();
  options.network.intra_node.gap_ns = 5000;
  const Rank n = 17;
  const Report report = run(algorithm(Collective::kBroadcast, "linear"),
                            problem(Collective::kBroadcast, n), 8, options);
  EXPECT_DOUBLE_EQ(total_ns(report), 100 + (n - 2) * 5000.0 + 1000 + 8 * 0.125 + 150);
}

TEST(Slices, FillTheChain) {
  const Rank n = 9;
  const algo::Algorithm& chain = algorithm(Collective::kBroadcast, "chain");
  const algo::Problem p = problem(Collective::kBroadcast, n);
  const uint64_t bytes = 1 << 20;
  const uint64_t slice = bytes / 32;
  Options options = uniform_options();
  const double whole = total_ns(run(chain, p, bytes, options));
  options.slicing = {slice, 32};
  const double sliced = total_ns(run(chain, p, bytes, options));
  const double slice_ns = static_cast<double>(slice) * kLevel.ns_per_byte;
  EXPECT_LT(sliced, whole / 4);
  // The wire of one hop for all slices, and the latency of the others for one.
  EXPECT_GE(sliced, (32 + n - 2) * slice_ns);
  EXPECT_LT(sliced, (32 + n - 2) * slice_ns + (n - 1) * 1250 + 32 * 250);
}

TEST(Slices, MoveTheSameBytes) {
  for (const char* name : {"ring", "recursive_halving_doubling", "double_binary_tree", "ordered"}) {
    const algo::Algorithm& a = algorithm(Collective::kAllReduce, name);
    const algo::Problem p = problem(Collective::kAllReduce, 11);
    Options options = uniform_options();
    const uint64_t bytes = uint64_t{11} * 8 * 5120;
    const Report whole = run(a, p, bytes, options);
    options.slicing = {1024, 4};
    const Report sliced = run(a, p, bytes, options);
    EXPECT_EQ(whole.message_bytes_intra_node, sliced.message_bytes_intra_node) << name;
    EXPECT_EQ(whole.copied_bytes, sliced.copied_bytes) << name;
    EXPECT_GT(sliced.messages, whole.messages) << name;
  }
}

TEST(NetworkFile, ChangesOnlyWhatItSays) {
  const Result<Network> network = parse_network(
      "reduce_ns_per_byte = 1\n[intra_node]\nlatency_ns = 7\n[nic]\nrails = 3\n", "n.toml");
  ASSERT_TRUE(network.ok()) << network.status().text();
  EXPECT_EQ(network.value().reduce_ns_per_byte, 1);
  EXPECT_EQ(network.value().intra_node.latency_ns, 7);
  EXPECT_EQ(network.value().nic.rails, 3u);
  EXPECT_EQ(network.value().inter_node.latency_ns, Network{}.inter_node.latency_ns);
}

TEST(NetworkFile, ChangesTheFiguresOfAccelerators) {
  const Network accelerators = accelerator_network();
  EXPECT_TRUE(validate(accelerators).ok());
  const Result<Network> network =
      parse_network("[intra_node]\nsend_overhead_ns = 7\n", "n.toml", accelerators);
  ASSERT_TRUE(network.ok()) << network.status().text();
  EXPECT_EQ(network.value().intra_node.send_overhead_ns, 7);
  EXPECT_EQ(network.value().copy_ns_per_byte, accelerators.copy_ns_per_byte);
  EXPECT_LT(network.value().copy_ns_per_byte, Network{}.copy_ns_per_byte);
}

struct BadFile {
  const char* text;
  const char* error;
};

TEST(NetworkFile, MistakesAreNamedWithTheirLine) {
  for (const BadFile& bad : std::initializer_list<BadFile>{
           {"[intra_node]\nlatency = 7\n", "n.toml:2: unknown key 'latency' in [intra_node]"},
           {"\nspeed = 1\n", "n.toml:2: unknown key 'speed'"},
           {"[nic]\nrails = 0\n", "n.toml:2: 'rails' needs an integer from 1 to 1024"},
           {"[nic]\nrails = 1.5\n", "n.toml:2: 'rails' needs an integer"},
           {"[inter_node]\n\nlatency_ns = -1\n", "n.toml:3: 'latency_ns' is -1; allowed is 0 to"},
           {"[inter_node]\nlatency_ns = \"1\"\n", "n.toml:2: 'latency_ns' needs a number"},
           {"[inter_node]\nlatency_ns = nan\n", "n.toml:2: 'latency_ns' is nan"},
           {"nic = 4\n", "n.toml:1: 'nic' needs a table: [nic]"},
           {"a = = 1\n", "n.toml:1: "},
       }) {
    const Result<Network> network = parse_network(bad.text, "n.toml");
    ASSERT_FALSE(network.ok()) << bad.text;
    EXPECT_EQ(network.status().text().rfind(bad.error, 0), 0u) << network.status().text();
  }
  EXPECT_EQ(load_network("/nonexistent/net.toml").status().code(), Code::kSystem);
}

// What is verified at a credit of one ends at it, and no more is under way.
TEST(Credit, EveryAlgorithmOfMessagesEndsAtACreditOfOne) {
  uint32_t held_back = 0;
  for (const algo::Algorithm* a : algo::all_algorithms()) {
    algo::Problem p = problem(a->collective, 8);
    p.mapped = p.inputs_mapped = p.outputs_mapped = false;
    const std::vector<uint32_t> nodes = even_nodes(8, 2);
    if (a->uses_nodes) p.node_of_rank = nodes;
    if (!algo::uses_messages(*a) || !a->supports(p)) continue;
    Options options = uniform_options();
    options.slicing = {.slice_bytes = 4096, .in_flight = 1};
    const Report free = run(*a, p, 1 << 20, options);
    options.credit = 1;
    const Report held = run(*a, p, 1 << 20, options);
    EXPECT_TRUE(held.complete) << a->name << " of " << name_of(a->collective);
    EXPECT_EQ(held.messages, free.messages);
    EXPECT_LE(held.messages_in_flight_peak, free.messages_in_flight_peak) << a->name;
    held_back += held.messages_in_flight_peak < free.messages_in_flight_peak ? 1 : 0;
  }
  EXPECT_GE(held_back, 5u);
}

}  // namespace
}  // namespace weir::sim
