// SPDX-License-Identifier: Apache-2.0
// Each rank's cards on recorded machines, as a table.
#include "core/topo/near_ports.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "unit/topo/topo_support.h"

namespace weir::topo {
namespace {

using Names = std::vector<std::string>;

std::vector<PortName> all_ports(const Topology& topology) {
  std::vector<PortName> ports;
  for (const NodeId id : topology.all(NodeKind::kNic)) {
    const Node& nic = topology.node(id);
    const bool named = !nic.nic->ports.empty();
    ports.push_back({named ? nic.nic->ports[0].name : topology.label(id), ""});
  }
  return ports;
}

std::string joined(const Names& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ",") + name;
  return text;
}

// What each of these ranks of one host takes: "place: cards, why".
std::string table(const Topology& topology, const std::vector<RankPlace>& ranks) {
  std::vector<NearPorts> near;
  std::map<Names, size_t> sharers;
  for (const RankPlace& rank : ranks) {
    near.push_back(nearest_ports(topology, rank, all_ports(topology)));
    ++sharers[near.back().names];
  }
  std::string text;
  std::map<Names, size_t> turns;
  for (const NearPorts& one : near) {
    const size_t turn = turns[one.names]++;
    text += fmt::format("{}; {}\n", joined(share_of_ports(one.names, turn, sharers[one.names])),
                        one.describe());
  }
  return text;
}

std::vector<RankPlace> on_gpus(size_t count) {
  std::vector<RankPlace> ranks;
  for (size_t i = 0; i < count; ++i) ranks.push_back({fmt::format("GPU{}", i), {}});
  return ranks;
}

// `per_node` ranks confined to each NUMA node.
std::vector<RankPlace> on_nodes(const Topology& topology, size_t per_node) {
  std::vector<RankPlace> ranks;
  for (const NodeId id : topology.all(NodeKind::kNuma)) {
    for (size_t i = 0; i < per_node; ++i) ranks.push_back({"", topology.node(id).cpus});
  }
  return ranks;
}

TEST(NearPorts, EachOfEightRanksOnGpusHasACardOfItsOwnBehindItsSwitch) {
  const Topology machine = fixture("made-nvswitch-8-cards.nccl.xml");
  EXPECT_EQ(table(machine, on_gpus(8)),
            "mlx5_0; same PCIe switch as GPU0 (PIX)\n"
            "mlx5_1; same PCIe switch as GPU1 (PIX)\n"
            "mlx5_2; same PCIe switch as GPU2 (PIX)\n"
            "mlx5_3; same PCIe switch as GPU3 (PIX)\n"
            "mlx5_4; same PCIe switch as GPU4 (PIX)\n"
            "mlx5_5; same PCIe switch as GPU5 (PIX)\n"
            "mlx5_6; same PCIe switch as GPU6 (PIX)\n"
            "mlx5_7; same PCIe switch as GPU7 (PIX)\n");
}

TEST(NearPorts, ARecordedMachineOfAzureGivesEachOfEightRanksAnother) {
  const Topology machine = fixture("azure-ndv4-topo.nccl.xml");
  std::map<std::string, int> used;
  const std::string text = table(machine, on_gpus(8));
  for (size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) {
    ++used[text.substr(at, text.find(';', at) - at)];
    EXPECT_NE(text.substr(at, text.find('\n', at) - at).find("(PIX)"), std::string::npos) << text;
  }
  EXPECT_EQ(used.size(), 8u) << text;
}

TEST(NearPorts, RanksWithoutDevicesTakeThoseOfTheirNode) {
  const Topology machine = fixture("made-nvswitch-8-cards.nccl.xml");
  EXPECT_EQ(table(machine, on_nodes(machine, 1)),
            "mlx5_0,mlx5_1; same host bridge as NUMA0 (PHB)\n"
            "mlx5_2,mlx5_3; same host bridge as NUMA1 (PHB)\n"
            "mlx5_4,mlx5_5; same host bridge as NUMA2 (PHB)\n"
            "mlx5_6,mlx5_7; same host bridge as NUMA3 (PHB)\n");
  EXPECT_EQ(table(machine, on_nodes(machine, 3)).substr(0, 149),
            "mlx5_0; same host bridge as NUMA0 (PHB)\n"
            "mlx5_1; same host bridge as NUMA0 (PHB)\n"
            "mlx5_0; same host bridge as NUMA0 (PHB)\n"
            "mlx5_2; same host bridge as N");
  // Ranks that may run anywhere share out all cards.
  RankPlace anywhere;
  for (const NodeId id : machine.all(NodeKind::kNuma)) anywhere.cpus.add(machine.node(id).cpus);
  EXPECT_EQ(table(machine, std::vector<RankPlace>(3, anywhere)),
            "mlx5_0,mlx5_3,mlx5_6; same host bridge as NUMA0 to NUMA3 (PHB)\n"
            "mlx5_1,mlx5_4,mlx5_7; same host bridge as NUMA0 to NUMA3 (PHB)\n"
            "mlx5_2,mlx5_5; same host bridge as NUMA0 to NUMA3 (PHB)\n");
}

TEST(NearPorts, OneCardIsEveryRanksAndItsDistanceIsTold) {
  const Topology machine = fixture("made-nvswitch-1-card.nccl.xml");
  const std::string text = table(machine, on_gpus(8));
  EXPECT_EQ(text.substr(0, text.find('\n')), "mlx5_0; same PCIe switch as GPU0 (PIX)");
  EXPECT_NE(text.find("mlx5_0; other NUMA node than GPU7 (SYS)\n"), std::string::npos) << text;
}

TEST(NearPorts, OnGraceTheCardsOfTheCpuAreNear) {
  const Topology machine = fixture("made-gb200.nccl.xml");
  EXPECT_EQ(table(machine, on_gpus(4)),
            "mlx5_0; same host bridge as GPU0 (PHB)\n"
            "mlx5_1; same host bridge as GPU1 (PHB)\n"
            "mlx5_2; same host bridge as GPU2 (PHB)\n"
            "mlx5_3; same host bridge as GPU3 (PHB)\n");
}

TEST(NearPorts, RomeAndTheOthersGiveEachRankACard) {
  for (const char* name : {"rccl-8p-rome-n4.nccl.xml", "made-pex.nccl.xml", "dgx2.hwloc.xml",
                           "made-power-nvlink.hwloc.xml", "made-four-numa.hwloc3.xml"}) {
    const Topology machine = fixture(name);
    const size_t gpus = machine.count(NodeKind::kGpu);
    if (all_ports(machine).empty()) continue;
    for (size_t i = 0; i < gpus; ++i) {
      const NearPorts near = nearest_ports(machine, on_gpus(gpus)[i], all_ports(machine));
      // No card is nearer than those that were taken.
      for (const PortName& port : all_ports(machine)) {
        const PathClass here = path(machine, fmt::format("GPU{}", i), port.name).path_class;
        const bool taken =
            std::find(near.names.begin(), near.names.end(), port.name) != near.names.end();
        EXPECT_EQ(taken, here == near.path_class) << name << " GPU" << i << " " << port.name;
        EXPECT_GE(here, near.path_class) << name;
      }
    }
  }
}

TEST(NearPorts, ACardMuchSlowerThanOthersIsNotTakenThoughItIsNearer) {
  const Topology machine = from_nccl(R"(<system version="1"><cpu numaid="0" affinity="3"
 arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85">
<pci busid="0000:01:00.0" class="0x060400" link_speed="16 GT/s" link_width="16">
<pci busid="0000:02:00.0" class="0x030200" link_speed="16 GT/s" link_width="16"><gpu dev="0" sm="80"/></pci>
<pci busid="0000:03:00.0" class="0x020000" link_speed="8 GT/s" link_width="8"><nic>
<net name="eth0" dev="0" speed="25000" port="1"/></nic></pci></pci>
<pci busid="0000:04:00.0" class="0x020700" link_speed="16 GT/s" link_width="16"><nic>
<net name="mlx5_0" dev="1" speed="200000" port="1"/></nic></pci>
</cpu></system>)");
  const NearPorts near = nearest_ports(machine, {"GPU0", {}}, {{"eth0", ""}, {"mlx5_0", ""}});
  EXPECT_EQ(near.names, Names{"mlx5_0"});
  EXPECT_EQ(nearest_ports(machine, {"GPU0", {}}, {{"eth0", ""}}).names, Names{"eth0"});
}

TEST(NearPorts, WhatTheTopologyDoesNotHaveIsEquallyNear) {
  const Topology machine = fixture("made-nvswitch-8-cards.nccl.xml");
  const NearPorts near = nearest_ports(machine, {"GPU0", {}}, {{"hfi1_0", ""}, {"hfi1_1", ""}});
  EXPECT_EQ(near.names, (Names{"hfi1_0", "hfi1_1"}));
  EXPECT_EQ(near.describe(), "");
  // By the card's address, where the topology has another name for it or none.
  EXPECT_EQ(nearest_ports(machine, {"GPU2", {}},
                          {{"a", "0103:00:00.0"}, {"b", "0101:00:00.0"}, {"c", "0108:00:00.0"}})
                .names,
            Names{"b"});
  EXPECT_EQ(nearest_ports(Topology(), {}, {}).names, Names{});
}

TEST(NearPorts, ASharerTakesEachPortOnce) {
  const Names names = {"a", "b", "c", "d", "e"};
  for (size_t sharers = 1; sharers <= 12; ++sharers) {
    std::map<std::string, size_t> taken;
    for (size_t turn = 0; turn < sharers; ++turn) {
      const Names mine = share_of_ports(names, turn, sharers);
      EXPECT_FALSE(mine.empty());
      for (const std::string& name : mine) ++taken[name];
    }
    EXPECT_EQ(taken.size(), 5u);
    for (const auto& [name, count] : taken) {
      EXPECT_GE(count, sharers / 5) << name;
      EXPECT_LE(count, std::max<size_t>(1, (sharers + 4) / 5)) << name;
    }
  }
  EXPECT_TRUE(share_of_ports({}, 0, 1).empty());
}

}  // namespace
}  // namespace weir::topo
