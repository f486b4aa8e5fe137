// SPDX-License-Identifier: Apache-2.0
// NVLink and C2C between a GPU and a CPU are part of the paths to everything behind that CPU.
#include "core/topo/cluster.h"
#include "core/topo/hwloc_xml.h"
#include "unit/topo/topo_support.h"

namespace weir::topo {
namespace {

std::vector<std::string> labels(const Topology& topology, const Path& path) {
  std::vector<std::string> names;
  for (const NodeId id : path.way) names.push_back(topology.label(id));
  return names;
}

TEST(CpuLinks, AGpuReachesItsMemoryByNvlink) {
  const Topology power = fixture("made-power-nvlink.hwloc.xml");
  const Path way = path(power, "GPU0", "NUMA0");
  EXPECT_EQ(way.label(), "NV2");
  EXPECT_DOUBLE_EQ(way.bandwidth_gbs, 40);
  EXPECT_FALSE(way.estimated);
  EXPECT_EQ(labels(power, way), (std::vector<std::string>{"GPU0", "NUMA0"}));
  const Path pcie = path(power, "GPU0", "NUMA0", {.accelerator_links = false});
  EXPECT_EQ(pcie.label(), "PHB");
  EXPECT_NEAR(pcie.bandwidth_gbs, 15.754, 1e-3);
}

TEST(CpuLinks, GpusOfTwoPackagesMeetThroughTheirCpus) {
  const Topology power = fixture("made-power-nvlink.hwloc.xml");
  const Path way = path(power, "GPU0", "GPU2");
  EXPECT_EQ(way.path_class, PathClass::kSystem);
  EXPECT_DOUBLE_EQ(way.bandwidth_gbs, 40) << "the X bus is wider";
  EXPECT_TRUE(way.estimated) << "nothing states the X bus";
  EXPECT_EQ(labels(power, way), (std::vector<std::string>{"GPU0", "NUMA0", "package 0", "machine",
                                                          "package 1", "NUMA1", "GPU2"}));
  EXPECT_DOUBLE_EQ(path(power, "GPU0", "NUMA1").bandwidth_gbs, 40);
  EXPECT_EQ(path(power, "GPU0", "GPU1").label(), "NV2") << "a direct link is nearer";
  EXPECT_NEAR(path(power, "GPU0", "GPU2", {.accelerator_links = false}).bandwidth_gbs, 15.754,
              1e-3);
}

TEST(CpuLinks, WithoutALinkBetweenThemTwoGpusOfOneCpuUseItsLinks) {
  const Topology machine = from_nccl(R"(<system version="1"><cpu numaid="0" affinity="f">
<pci busid="0000:01:00.0" class="0x030200" link_speed="8 GT/s" link_width="16" weir_root="a">
<gpu dev="0" sm="70"><nvlink target="0000:10:00.0" count="3" tclass="0x068001"/></gpu></pci>
<pci busid="0000:02:00.0" class="0x030200" link_speed="8 GT/s" link_width="16" weir_root="b">
<gpu dev="1" sm="70"><nvlink target="0000:10:00.1" count="2" tclass="0x068001"/></gpu></pci>
<pci busid="0000:03:00.0" class="0x020000" link_speed="16 GT/s" link_width="16" weir_root="c">
<nic><net name="eth0" speed="100000"/></nic></pci></cpu></system>)");
  const Path way = path(machine, "GPU0", "GPU1");
  EXPECT_EQ(way.path_class, PathClass::kNode);
  EXPECT_DOUBLE_EQ(way.bandwidth_gbs, 50) << "the two links of GPU1";
  EXPECT_EQ(labels(machine, way), (std::vector<std::string>{"GPU0", "NUMA0", "GPU1"}));
  const Path to_nic = path(machine, "NIC0", "GPU0");
  EXPECT_EQ(to_nic.path_class, PathClass::kNode);
  EXPECT_NEAR(to_nic.bandwidth_gbs, 31.508, 1e-3) << "PCIe of the NIC, not that of the GPU";
  // And so to another machine.
  const Topology parts[] = {machine, machine};
  const Result<Topology> both = join(parts);
  ASSERT_TRUE(both.ok());
  EXPECT_DOUBLE_EQ(path(both.value(), "M0.GPU0", "M1.GPU0").bandwidth_gbs, 12.5);
  EXPECT_EQ(labels(both.value(), path(both.value(), "M0.GPU0", "M1.GPU0"))[1], "M0.NUMA0");
}

TEST(CpuLinks, AGpuThatIsNearNoMemoryIsLinkedToThePackagesOnlyMemory) {
  const auto one_package = [](const std::string& memory) {
    return R"(<topology version="2.0"><object type="Machine" cpuset="0xf">
<object type="Package" os_index="0" cpuset="0xf" gp_index="2">)" +
           memory + R"(</object>
<object type="Bridge" bridge_type="0-1" bridge_pci="0000:[00-01]">
<object type="PCIDev" pci_busid="0000:01:00.0" pci_type="0302 [10de:15f9] [10de:116b] a1"
 gp_index="9"/></object></object>
<distances2hetero nbobjs="2" kind="25" name="NVLinkBandwidth">
<indexes>PCIDev:9 Package:2 </indexes><u64values>0 40000 40000 0 </u64values>
</distances2hetero></topology>)";
  };
  const auto far_end = [&](const std::string& memory) {
    const Result<Topology> machine = parse_hwloc_xml(one_package(memory), "test.xml");
    if (!machine.ok()) return machine.status().text();
    if (machine.value().links().size() != 1) return std::string("no link");
    return machine.value().label(machine.value().links()[0].b);
  };
  const std::string one = R"(<object type="NUMANode" os_index="5" cpuset="0xf"/>)";
  EXPECT_EQ(far_end(one), "NUMA5");
  EXPECT_EQ(far_end(one + R"(<object type="NUMANode" os_index="6" cpuset="0xf"/>)"), "package 0");
}

TEST(CpuLinks, OfAPackageWithSeveralNumaNodesTheGpusOwnIsAtTheEnd) {
  const Result<Topology> machine = parse_hwloc_xml(
      R"(<topology version="2.0"><object type="Machine" cpuset="0xf">
<object type="Package" os_index="0" cpuset="0xf" gp_index="2">
<object type="Group" cpuset="0x3"><object type="NUMANode" os_index="0" cpuset="0x3"/></object>
<object type="Group" cpuset="0xc"><object type="NUMANode" os_index="1" cpuset="0xc"/>
<object type="PCIDev" pci_busid="0000:01:00.0" pci_type="0302 [10de:15f9] [10de:116b] a1"
 gp_index="9"/></object></object></object>
<distances2hetero nbobjs="2" kind="25" name="NVLinkBandwidth">
<indexes>PCIDev:9 Package:2 </indexes><u64values>0 40000 40000 0 </u64values>
</distances2hetero></topology>)",
      "test.xml");
  ASSERT_TRUE(machine.ok()) << machine.status().text();
  EXPECT_EQ(label(machine.value(), "GPU0", "NUMA1"), "NV2");
  EXPECT_EQ(label(machine.value(), "GPU0", "NUMA0"), "SYS");
}

TEST(CpuLinks, WhatNoLinkJoinsIsLeftOutAndNoted) {
  const auto notes_of = [](const std::string& ends) {
    const Result<Topology> machine = parse_hwloc_xml(
        R"(<topology version="2.0"><object type="Machine" cpuset="0xf" gp_index="1">
<object type="NUMANode" os_index="0" gp_index="3"/>
<object type="Bridge" bridge_type="0-1" bridge_pci="0000:[00-01]">
<object type="PCIDev" pci_busid="0000:01:00.0" pci_type="0200 [15b3:101d] [15b3:0016] 00"
 gp_index="8"/><object type="PCIDev" pci_busid="0000:02:00.0"
 pci_type="0680 [10de:1ac2] [10de:0000] a1" gp_index="9"/></object></object>
<distances2hetero nbobjs="2" kind="25" name="NVLinkBandwidth">
<indexes>)" +
            ends + R"( </indexes><u64values>0 40000 40000 0 </u64values>
</distances2hetero></topology>)",
        "test.xml");
    EXPECT_TRUE(machine.ok() && machine.value().links().empty());
    return machine.ok() && machine.value().notes().size() == 1 ? machine.value().notes()[0].text
                                                               : std::string();
  };
  EXPECT_NE(notes_of("PCIDev:8 NUMANode:3").find("object 8 is neither"), std::string::npos);
  EXPECT_NE(notes_of("PCIDev:9 NUMANode:3").find("a nvswitch and a numa"), std::string::npos);
  EXPECT_NE(notes_of("Machine:1 NUMANode:3").find("which no such link joins"), std::string::npos);
  // Nor in NCCL's format.
  const Topology machine = from_nccl(R"(<system version="1"><cpu numaid="0" affinity="f">
<pci busid="0000:01:00.0" class="0x030200"><gpu dev="0">
<nvlink target="0000:02:00.0" count="1" tclass="0x030200"/></gpu></pci>
<pci busid="0000:02:00.0" class="0x020000"/><pci busid="0000:03:00.0" class="0x068000">
<nvlink target="" count="1" tclass="0x068001"/></pci></cpu></system>)");
  EXPECT_TRUE(machine.links().empty());
  ASSERT_EQ(machine.notes().size(), 2u);
  EXPECT_NE(machine.notes()[0].text.find("no accelerator"), std::string::npos);
  EXPECT_NE(machine.notes()[1].text.find("from an NVSwitch to a CPU"), std::string::npos);
}

TEST(CpuLinks, AMatrixMayNameGroupsAndMemory) {
  const auto link_to = [](const std::string& end) {
    const Result<Topology> machine = parse_hwloc_xml(
        R"(<topology version="2.0"><object type="Machine" cpuset="0xf">
<object type="Group" cpuset="0xf" gp_index="2"><object type="NUMANode" os_index="0" gp_index="3"/>
<object type="Bridge" bridge_type="0-1" bridge_pci="0000:[00-01]">
<object type="PCIDev" pci_busid="0000:01:00.0" pci_type="0302 [10de:15f9] [10de:116b] a1"
 gp_index="9"/></object></object></object>
<distances2hetero nbobjs="2" kind="25" name="NVLinkBandwidth">
<indexes>PCIDev:9 )" +
            end + R"( </indexes><u64values>0 40000 40000 0 </u64values>
</distances2hetero></topology>)",
        "test.xml");
    EXPECT_TRUE(machine.ok());
    return path(machine.value(), "GPU0", "NUMA0").label();
  };
  EXPECT_EQ(link_to("Group:2"), "NV2");
  EXPECT_EQ(link_to("NUMANode:3"), "NV2");
}

}  // namespace
}  // namespace weir::topo
