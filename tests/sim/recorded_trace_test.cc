// SPDX-License-Identifier: Apache-2.0
// Traces of the two-level network that were recorded once: a change of the simulator must not move
// a single event. A change of an algorithm's program may; then record its line again.
#include <gtest/gtest.h>

#include "sim/sim_support.h"

namespace weir::sim {
namespace {

struct Recorded {
  Collective collective;
  const char* algorithm;
  uint64_t one_node;    // digests
  uint64_t own_rails;   // three nodes, a rail for each rank
  uint64_t shared_nic;  // three nodes, two rails each; a slow rank, a dead rank, slices
};

constexpr Recorded kRecorded[] = {
    {Collective::kAllReduce, "ring", 0xacc8abe5f22f4a29, 0xd5c8600070264006, 0xbf6a6ae1c4724311},
    {Collective::kAllReduce, "recursive_doubling", 0xd7cdfe88628dbdc5, 0x5792da222465d3d8,
     0xf026d4ae980aa423},
    {Collective::kAllReduce, "recursive_halving_doubling", 0x4dec63ad50f1ca98, 0xb9939434882598de,
     0xb31b3dd95214003d},
    {Collective::kAllReduce, "double_binary_tree", 0x4de382733a3cc47d, 0x418c6ea33db139e4,
     0xb5367ae395d9c2c8},
    {Collective::kAllReduce, "hierarchical", 0, 0x55e998bce89bb701, 0x6656ee8a0e3c1e77},
    {Collective::kAllReduce, "direct", 0xc2642d68fc3ec972, 0xa13d95fa52a6091e, 0xaaad02044a0c7875},
    {Collective::kAllReduce, "direct_two_phase", 0x5945d07f27a39507, 0x5d361dcc9e62e647,
     0x2c0180a001ab4fe1},
    {Collective::kAllToAll, "pairwise", 0x1589c268f9928bee, 0x387bf83ae3836a22, 0xc7fe8d1896115747},
    {Collective::kAllToAll, "hierarchical", 0, 0xebc31e62c22960e4, 0xa7ea936c870146c1},
    {Collective::kGather, "linear", 0xe0fc0244fc813b5e, 0xad735c2c911f34f1, 0x950e699ba595e6ce},
    {Collective::kBroadcast, "chain", 0x710f67e1b8f59594, 0xd87d59a47730eca1, 0xea00e28aba3636f8},
    {Collective::kBarrier, "dissemination", 0xa8dd28f58d81af1c, 0x20835d59a7d0ef88,
     0x2775a8123a90cdb1},
};

// Of the events, of where the time went, and of what ports were taken for.
uint64_t digest(const Report& report) {
  uint64_t hash = report.trace_hash;
  const auto mix = [&hash](uint64_t value) { hash = (hash ^ value) * 0x9fb21c651e98df25u; };
  const CriticalPath& path = report.critical_path;
  for (const uint64_t part : {path.hops, path.overhead_ps, path.latency_ps, path.transfer_ps,
                              path.compute_ps, path.contention_ps}) {
    mix(part);
  }
  for (const auto* ports : {&report.rank_ports, &report.nic_ports}) {
    for (const PortUse& port : *ports) mix(port.egress_ps), mix(port.ingress_ps);
  }
  return hash;
}

TEST(RecordedTrace, OfTheTwoLevelNetworkIsTheSameToTheBit) {
  const Rank n = 21;
  const std::vector<uint32_t> nodes = even_nodes(n, 7);
  for (const Recorded& recorded : kRecorded) {
    const algo::Algorithm& a = algorithm(recorded.collective, recorded.algorithm);
    algo::Problem p = problem(recorded.collective, n);
    p.root = 4;
    Options options;
    const uint64_t one_node =
        a.uses_nodes ? 0 : digest(run(a, p, 300'000, options));  // some need several nodes
    p.node_of_rank = nodes;
    options.network.nic.rails = 7;
    const uint64_t own_rails = digest(run(a, p, 300'000, options));
    options.network.nic.rails = 2;
    options.slow = {{5, 1.5}};
    options.dead = {{9, 150}};
    options.slicing = {8192, 3};
    const uint64_t shared_nic = digest(run(a, p, 300'000, options));
    EXPECT_EQ(one_node, recorded.one_node) << recorded.algorithm;
    EXPECT_EQ(own_rails, recorded.own_rails) << recorded.algorithm;
    EXPECT_EQ(shared_nic, recorded.shared_nic) << recorded.algorithm;
  }
}

}  // namespace
}  // namespace weir::sim
