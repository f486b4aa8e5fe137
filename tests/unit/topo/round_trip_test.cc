// SPDX-License-Identifier: Apache-2.0
// Written as NCCL XML and read again, a machine has the same devices, paths and bandwidths.
#include "core/topo/cluster.h"
#include "core/topo/hwloc_xml.h"
#include "unit/topo/topo_support.h"

namespace weir::topo {
namespace {

Topology written_and_read(const Topology& topology) {
  const Result<std::string> xml = to_nccl_xml(topology);
  EXPECT_TRUE(xml.ok()) << xml.status().text();
  Result<Topology> again = parse_nccl_xml(xml.value(), "again.xml");
  EXPECT_TRUE(again.ok()) << again.status().text();
  return again.take();
}

std::vector<NodeId> devices(const Topology& topology) {
  std::vector<NodeId> all;
  for (const NodeKind kind :
       {NodeKind::kGpu, NodeKind::kNic, NodeKind::kNvSwitch, NodeKind::kNuma}) {
    const std::vector<NodeId> some = topology.all(kind);
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

void expect_same_paths(const Topology& topology, const Topology& again) {
  const std::vector<NodeId> before = devices(topology);
  ASSERT_EQ(before.size(), devices(again).size());
  for (const bool links : {true, false}) {
    const PathOptions options{.accelerator_links = links};
    for (const NodeId a : before) {
      for (const NodeId b : before) {
        const std::string name_a = topology.label(a);
        const std::string name_b = topology.label(b);
        const Path x = find_path(topology, a, b, options);
        const Path y = path(again, name_a, name_b, options);
        ASSERT_EQ(x.label(), y.label()) << name_a << " " << name_b;
        ASSERT_NEAR(x.bandwidth_gbs, y.bandwidth_gbs, 1e-6) << name_a << " " << name_b;
        ASSERT_EQ(x.estimated, y.estimated) << name_a << " " << name_b;
        ASSERT_EQ(x.link_count, y.link_count) << name_a << " " << name_b;
        ASSERT_NEAR(x.latency_us, y.latency_us, 1e-6) << name_a << " " << name_b;
      }
      ASSERT_EQ(topology.cpus_near(a), again.cpus_near(find(again, topology.label(a))));
    }
  }
}

TEST(RoundTrip, EveryFixtureKeepsPathClassesBandwidthsAndWhatIsEstimated) {
  for (const char* name : kFixtures) {
    SCOPED_TRACE(name);
    const Topology topology = fixture(name);
    expect_same_paths(topology, written_and_read(topology));
  }
}

TEST(RoundTrip, TheSecondWritingEqualsTheFirst) {
  for (const char* name : kFixtures) {
    SCOPED_TRACE(name);
    const Topology once = written_and_read(fixture(name));
    EXPECT_EQ(to_nccl_xml(once).value(), to_nccl_xml(written_and_read(once)).value());
  }
}

TEST(RoundTrip, ThisMachineKeepsItsPaths) {
  const Result<Topology> topology = discover();
  ASSERT_TRUE(topology.ok()) << topology.status().text();
  expect_same_paths(topology.value(), written_and_read(topology.value()));
}

Topology from_hwloc(const std::string& devices) {
  const std::string text = R"(<topology version="2.0"><object type="Machine" cpuset="0xf">
<object type="Package" os_index="0" cpuset="0x3"><object type="NUMANode" os_index="0" cpuset="0x3"/>
</object>
<object type="Package" os_index="1" cpuset="0xc"><object type="NUMANode" os_index="1" cpuset="0xc"/>
)" + devices + "</object></object></topology>";
  Result<Topology> topology = parse_hwloc_xml(text, "test.xml");
  EXPECT_TRUE(topology.ok()) << topology.status().text();
  return topology.take();
}

TEST(RoundTrip, TwoFunctionsBelowOneRootPortStayNear) {
  const Topology topology = from_hwloc(
      R"(<object type="Bridge" bridge_type="0-1" bridge_pci="0000:[00-02]">
<object type="Bridge" bridge_type="1-1" pci_busid="0000:00:01.0"
 pci_type="0604 [8086:352a] [8086:0000] 04">
<object type="PCIDev" pci_busid="0000:01:00.0" pci_type="0200 [15b3:101d] [15b3:0016] 00"/>
<object type="PCIDev" pci_busid="0000:01:00.1" pci_type="0200 [15b3:101d] [15b3:0016] 00"/></object>
<object type="Bridge" bridge_type="1-1" pci_busid="0000:00:02.0"
 pci_type="0604 [8086:352a] [8086:0000] 04">
<object type="PCIDev" pci_busid="0000:02:00.0" pci_type="0200 [15b3:101d] [15b3:0016] 00"/></object>
</object>)");
  EXPECT_EQ(label(topology, "NIC0", "NIC1"), "PIX");
  EXPECT_EQ(label(topology, "NIC0", "NIC2"), "PHB");
  const Topology again = written_and_read(topology);
  expect_same_paths(topology, again);
  expect_same_paths(topology, written_and_read(again));
}

TEST(RoundTrip, DevicesWithoutARootComplexStayApart) {
  const Topology topology = from_hwloc(
      R"(<object type="PCIDev" pci_busid="0000:01:00.0" pci_type="0200 [15b3:101d] [15b3:0016] 00"/>
<object type="PCIDev" pci_busid="0000:02:00.0" pci_type="0200 [15b3:101d] [15b3:0016] 00"/>)");
  EXPECT_EQ(label(topology, "NIC0", "NIC1"), "NODE");
  expect_same_paths(topology, written_and_read(topology));
}

TEST(RoundTrip, MemoryBelowACacheIsStillMemoryOfItsPackage) {
  const Result<Topology> topology = parse_hwloc_xml(
      R"(<topology version="2.0"><object type="Machine" cpuset="0xf">
<object type="Package" os_index="0" cpuset="0xf">
<object type="L3Cache" cpuset="0x3" depth="3" cache_type="0" cache_size="1000">
<object type="Group" cpuset="0x1"><object type="NUMANode" os_index="0" cpuset="0x1"/></object>
<object type="Group" cpuset="0x2"><object type="NUMANode" os_index="2" cpuset="0x2"/></object>
</object>
<object type="L3Cache" cpuset="0xc" depth="3" cache_type="0" cache_size="1000">
<object type="NUMANode" os_index="1" cpuset="0xc"/></object></object></object></topology>)",
      "test.xml");
  ASSERT_TRUE(topology.ok()) << topology.status().text();
  EXPECT_GT(path(topology.value(), "NUMA0", "NUMA1").bandwidth_gbs, 0);
  EXPECT_EQ(label(topology.value(), "NUMA0", "NUMA2"), "SYS");
  expect_same_paths(topology.value(), written_and_read(topology.value()));
}

TEST(RoundTrip, ThePortsOfOneAdapterStayOneWire) {
  // The verbs device and the interface of a RoCE adapter are the same port.
  Topology one = fixture("made-four-numa.hwloc3.xml");
  for (NetPort& port : one.mutable_node(find(one, "NIC0")).nic->ports) port.speed_mbps = 100000;
  const Topology again = written_and_read(one);
  EXPECT_DOUBLE_EQ(again.node(find(again, "NIC0")).nic->speed_mbps(), 100000);
  const Topology before[] = {one, one};
  const Topology after[] = {again, again};
  EXPECT_DOUBLE_EQ(path(join(after).value(), "M0.GPU0", "M1.GPU0").bandwidth_gbs,
                   path(join(before).value(), "M0.GPU0", "M1.GPU0").bandwidth_gbs);
}

TEST(RoundTrip, DevicesNearAPackageWithoutMemoryStayThere) {
  const Result<Topology> topology = parse_hwloc_xml(
      R"(<topology version="2.0"><object type="Machine" cpuset="0xf">
<info name="Architecture" value="ppc64le"/>
<object type="Package" os_index="0" cpuset="0x3"><object type="NUMANode" os_index="0" cpuset="0x3"/>
<object type="Bridge" bridge_type="0-1" bridge_pci="0000:[00-01]"><object type="PCIDev"
 pci_busid="0000:01:00.0" pci_type="0302 [10de:15f9] [10de:116b] a1"/></object></object>
<object type="Package" os_index="1" cpuset="0xc">
<object type="Bridge" bridge_type="0-1" bridge_pci="0000:[02-03]"><object type="PCIDev"
 pci_busid="0000:03:00.0" pci_type="0302 [10de:15f9] [10de:116b] a1" pci_link_speed="126.030769"/>
</object></object></object></topology>)",
      "test.xml");
  ASSERT_TRUE(topology.ok()) << topology.status().text();
  const Topology again = written_and_read(topology.value());
  EXPECT_DOUBLE_EQ(path(topology.value(), "GPU1", "NUMA0").bandwidth_gbs, 64) << "the X bus";
  EXPECT_DOUBLE_EQ(path(again, "GPU1", "NUMA0").bandwidth_gbs, 64);
  EXPECT_EQ(label(again, "GPU0", "GPU1"), "SYS");
}

TEST(RoundTrip, PackagesOfOneNumberStayTwo) {
  Topology topology = fixture("made-power-nvlink.hwloc.xml");
  topology.mutable_node(topology.all(NodeKind::kPackage)[1]).os_index = 0;
  ASSERT_TRUE(topology.finish().ok());
  expect_same_paths(topology, written_and_read(topology));
}

TEST(RoundTrip, APortThatIsBelowNoRootComplexKeepsItsDevicesNear) {
  const Topology topology = from_hwloc(
      R"(<object type="Bridge" bridge_type="1-1" pci_busid="0000:00:01.0"
 pci_type="0604 [8086:352a] [8086:0000] 04">
<object type="PCIDev" pci_busid="0000:01:00.0" pci_type="0200 [15b3:101d] [15b3:0016] 00"/>
<object type="PCIDev" pci_busid="0000:01:00.1" pci_type="0200 [15b3:101d] [15b3:0016] 00"/>
</object>)");
  EXPECT_EQ(label(topology, "NIC0", "NIC1"), "PIX");
  expect_same_paths(topology, written_and_read(topology));
}

TEST(RoundTrip, DevicesWithoutAClassStayWhatTheyAre) {
  const Topology topology = from_nccl(R"(<system version="1"><cpu numaid="0" affinity="f">
<pci busid="0000:01:00.0" class="0x088000" link_speed="8 GT/s" link_width="4">
<pci busid="0000:02:00.0"><gpu dev="0" sm="70">
<nvlink target="0000:03:00.0" count="2" tclass="0x030200"/>
<nvlink target="0000:04:00.0" count="1" tclass="0x068000"/></gpu></pci></pci>
<pci busid="0000:03:00.0"><gpu sm="70">
<nvlink target="0000:04:00.0" count="1" tclass="0x068000"/></gpu></pci>
<pci busid="0000:04:00.0"/><pci busid="0000:05:00.0"><nic><net name="eth0"/></nic></pci>
</cpu></system>)");
  EXPECT_EQ(topology.node(find(topology, "0000:01:00.0")).kind, NodeKind::kPciBridge);
  EXPECT_EQ(topology.count(NodeKind::kNvSwitch), 1u);
  EXPECT_EQ(label(topology, "GPU0", "GPU1"), "NV2");
  const Topology again = written_and_read(topology);
  EXPECT_EQ(again.count(NodeKind::kNic), 1u);
  expect_same_paths(topology, again);
}

TEST(RoundTrip, AnUncommonBandwidthIsKeptToTheLastDigit) {
  Topology topology = fixture("made-pex.nccl.xml");
  topology.mutable_node(find(topology, "GPU0")).up.bandwidth_gbs = 15.76;
  expect_same_paths(topology, written_and_read(topology));
}

TEST(RoundTrip, NumbersThatDoNotTellGpusApartAreNotWritten) {
  Topology topology = fixture("made-pex.nccl.xml");
  topology.mutable_node(find(topology, "GPU0")).gpu->dev = 3;
  topology.mutable_node(find(topology, "GPU3")).gpu->dev.reset();
  ASSERT_TRUE(topology.finish().ok());
  expect_same_paths(topology, written_and_read(topology));
}

TEST(RoundTrip, LinksToAnotherCpuThanTheNearestSurvive) {
  Topology topology = fixture("made-power-nvlink.hwloc.xml");
  const Edge edge{25, 0.5, Source::kStated};
  topology.add_link({find(topology, "GPU1"), find(topology, "NUMA1"), LinkKind::kC2c, 4, edge});
  topology.add_link(
      {find(topology, "GPU3"), topology.all(NodeKind::kPackage)[0], LinkKind::kNvlink, 1, edge});
  ASSERT_TRUE(topology.finish().ok());
  expect_same_paths(topology, written_and_read(topology));
  EXPECT_EQ(label(written_and_read(topology), "GPU1", "NUMA1"), "C2C4");
}

TEST(RoundTrip, NcclGetsTheBandwidthOfC2cWhichItNeeds) {
  const Topology topology = from_nccl(R"(<system version="1"><cpu numaid="0" affinity="f">
<pci busid="0000:01:00.0" class="0x030200"><gpu dev="0" sm="90"><c2c count="10" bw="44625"/></gpu>
</pci></cpu></system>)");
  EXPECT_NE(to_nccl_xml(topology).value().find("<c2c count=\"10\" bw=\"44625\""),
            std::string::npos);
}

TEST(RoundTrip, WhatWeirAddsIsChecked) {
  const auto refusal = [](const std::string& root, const std::string& link) {
    const std::string text = "<system version=\"1\"><cpu numaid=\"0\" affinity=\"f\">\n<pci " +
                             root + " busid=\"0000:01:00.0\" class=\"0x030200\"><gpu dev=\"0\">" +
                             link + "</gpu></pci></cpu></system>";
    const Result<Topology> topology = parse_nccl_xml(text, "f.xml");
    return topology.ok() ? "" : topology.status().text();
  };
  EXPECT_EQ(refusal("", ""), "");
  EXPECT_NE(refusal("weir_port=\"x\"", "").find("f.xml:2: weir_port=\"x\" is not a PCI address"),
            std::string::npos);
  EXPECT_NE(refusal("weir_port=\"0000:01:00.0\"", "").find("is used twice"), std::string::npos);
  EXPECT_NE(refusal("weir_package=\"-7\"", "").find("f.xml:2: weir_package"), std::string::npos);
  EXPECT_NE(refusal("", "<c2c count=\"1\" weir_numa=\"7\"/>").find("there is no such <cpu>"),
            std::string::npos);
  EXPECT_NE(refusal("", "<c2c count=\"1\" weir_package=\"7\"/>").find("no <cpu> is in it"),
            std::string::npos);
}

TEST(RoundTrip, PackagesWithoutANumberAndManyLinksSurvive) {
  // Found by damaging a fixture: both were written in a way that the reader refused.
  Topology topology = fixture("dgx2.hwloc.xml");
  topology.mutable_node(topology.all(NodeKind::kPackage)[1]).os_index = -1;
  topology.add_link({find(topology, "GPU0"),
                     find(topology, "GPU1"),
                     LinkKind::kNvlink,
                     UINT32_MAX,
                     {1e30, 0.5, Source::kStated}});
  ASSERT_TRUE(topology.finish().ok());
  expect_same_paths(topology, written_and_read(topology));
  EXPECT_EQ(label(topology, "GPU0", "GPU1"), "NV1048576");
}

TEST(RoundTrip, NamesThatNeedEscapesSurvive) {
  Topology topology = fixture("azure-ncv4-topo.nccl.xml");
  topology.mutable_node(0).name = "a <b> & \"c\"";
  EXPECT_EQ(written_and_read(topology).node(0).name, "a <b> & \"c\"");
}

TEST(RoundTrip, AGpuWithoutAddressCannotBeWrittenAndTheErrorNamesIt) {
  Topology topology;
  Node machine;
  topology.add(kNoNode, machine);
  Node gpu;
  gpu.kind = NodeKind::kGpu;
  gpu.gpu.emplace();
  topology.add(0, gpu);
  ASSERT_TRUE(topology.finish().ok());
  const Result<std::string> xml = to_nccl_xml(topology);
  ASSERT_FALSE(xml.ok());
  EXPECT_EQ(xml.status().code(), Code::kUnsupported);
  EXPECT_NE(xml.status().text().find("GPU0 has no PCI address"), std::string::npos);
}

}  // namespace
}  // namespace weir::topo
