// SPDX-License-Identifier: Apache-2.0
// Version 3 of hwloc's XML. What changed: osdev_type is a set of bits, facts about the whole
// topology are beside the objects, and objects have an id besides gp_index.
#include "core/topo/hwloc_xml.h"
#include "unit/topo/topo_support.h"

namespace weir::topo {
namespace {

TEST(Hwloc3, EveryPartIsRead) {
  const Topology machine = fixture("made-four-numa.hwloc3.xml");
  EXPECT_EQ(machine.node(0).name, "Made for tests");
  EXPECT_EQ(machine.count(NodeKind::kPackage), 2u);
  EXPECT_EQ(machine.count(NodeKind::kNuma), 4u);
  EXPECT_EQ(machine.count(NodeKind::kGpu), 3u);
  EXPECT_EQ(machine.count(NodeKind::kNic), 1u) << "storage and memory devices are no adapters";
  EXPECT_TRUE(machine.notes().empty()) << machine.notes()[0].text;
  const CpuInfo& cpu = *machine.node(machine.all(NodeKind::kPackage)[0]).cpu;
  EXPECT_EQ(cpu.arch, "x86_64") << "a fact about the topology, not the machine";
  EXPECT_EQ(cpu.model_id, 143);
  EXPECT_EQ(machine.node(find(machine, "GPU2")).pci->address.domain, 0x10000u);
  EXPECT_EQ(machine.node(find(machine, "GPU0")).name, "A GPU");
}

TEST(Hwloc3, NetworkDevicesAreKnownByBits) {
  const Topology machine = fixture("made-four-numa.hwloc3.xml");
  const NicInfo& nic = *machine.node(find(machine, "NIC0")).nic;
  ASSERT_EQ(nic.ports.size(), 2u);
  EXPECT_EQ(nic.ports[0].name, "eth0");
  EXPECT_FALSE(nic.ports[0].infiniband);
  EXPECT_EQ(nic.ports[1].name, "mlx5_0");
  EXPECT_TRUE(nic.ports[1].infiniband);
  EXPECT_EQ(nic.ports[1].guid, "0200:0000:0000:0001");
}

TEST(Hwloc3, MatricesNameObjectsByEitherNumber) {
  const Topology machine = fixture("made-four-numa.hwloc3.xml");
  // GPU1 has an id only.
  EXPECT_EQ(label(machine, "GPU0", "GPU1"), "NV4");
  EXPECT_EQ(machine.links().size(), 1u);
}

TEST(Hwloc3, PathsAreThoseOfTheTree) {
  const Topology machine = fixture("made-four-numa.hwloc3.xml");
  EXPECT_EQ(label(machine, "GPU0", "mlx5_0"), "PIX");
  EXPECT_EQ(label(machine, "GPU0", "GPU2"), "SYS");
  EXPECT_EQ(label(machine, "GPU2", "NUMA2"), "PHB");
  EXPECT_EQ(machine.numa_of(find(machine, "GPU0")), -1) << "near no memory of its package";
}

TEST(Hwloc3, BothVersionsOfOneMachineAreTheSame) {
  const auto machine = [](const char* version, int network, int verbs) {
    const std::string arch = R"(<info name="Architecture" value="x86_64"/>)";
    const bool newer = version[0] == '3';
    const std::string text =
        std::string("<topology version=\"") + version + "\"><object type=\"Machine\" " +
        R"(cpuset="0x1">)" + (newer ? "" : arch) +
        R"(<object type="Package" os_index="0" cpuset="0x1"><object type="NUMANode" os_index="0"/>
<object type="Bridge" bridge_type="0-1" bridge_pci="0000:[00-01]"><object type="PCIDev"
 pci_busid="0000:01:00.0" pci_type="0200 [15b3:101d] [15b3:0016] 00 00"><object type="OSDev"
 name="eth0" osdev_type=")" +
        std::to_string(network) + R"("/><object type="OSDev" name="mlx5_0" osdev_type=")" +
        std::to_string(verbs) + R"("/></object></object></object></object>)" + (newer ? arch : "") +
        "</topology>";
    Result<Topology> topology = parse_hwloc_xml(text, "test.xml");
    EXPECT_TRUE(topology.ok()) << topology.status().text();
    return topology.take();
  };
  const Topology old = machine("2.0", 2, 3);
  const Topology now = machine("3.0", 16, 48);
  EXPECT_EQ(old.hash(), now.hash());
  EXPECT_EQ(find(old, "eth0"), find(now, "eth0"));
  EXPECT_TRUE(now.node(find(now, "mlx5_0")).nic->ports[1].infiniband);
}

TEST(Hwloc3, OtherVersionsAreRefusedWithWhatHelps) {
  const auto refusal = [](const std::string& version) {
    const Result<Topology> topology =
        parse_hwloc_xml("<topology version=\"" + version + "\"/>", "f.xml");
    return topology.ok() ? "" : topology.status().text();
  };
  EXPECT_NE(refusal("4.0").find("lstopo --export-xml-flags v2"), std::string::npos);
  EXPECT_NE(refusal("1.2").find("lstopo of hwloc 2"), std::string::npos);
  for (const char* odd : {"", "x", "3x", "30", "-3", "99999999999"}) {
    EXPECT_NE(refusal(odd).find("is not read"), std::string::npos) << odd;
  }
}

}  // namespace
}  // namespace weir::topo
