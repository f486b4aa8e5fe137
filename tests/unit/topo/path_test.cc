// SPDX-License-Identifier: Apache-2.0
// Each class of path at least once, with the bandwidth and the way that follow from the file.
#include <fmt/format.h>

#include "core/topo/cluster.h"
#include "unit/topo/topo_support.h"

namespace weir::topo {
namespace {

// Two NUMA nodes. On the first: a switch with GPU0, GPU1 and a NIC, beside it a switch in a switch
// with GPU2, and GPU3 at another root complex. GPU4 is on the second.
constexpr const char* kMachine = R"(<system version="1">
  <cpu numaid="0" affinity="0000000f" arch="x86_64" vendor="AuthenticAMD" familyid="25" modelid="1">
    <pci busid="0000:01:00.0" class="0x060400" link_speed="16 GT/s" link_width="16" weir_root="a">
      <pci busid="0000:02:00.0" class="0x030200" link_speed="16 GT/s" link_width="16">
        <gpu dev="0" sm="80"/>
      </pci>
      <pci busid="0000:03:00.0" class="0x030200" link_speed="16 GT/s" link_width="8">
        <gpu dev="1" sm="80"/>
      </pci>
      <pci busid="0000:04:00.0" class="0x020700" link_speed="16 GT/s" link_width="16">
        <nic><net name="mlx5_0" dev="0" speed="100000" port="1" latency="1.5"/></nic>
      </pci>
      <pci busid="0000:05:00.0" class="0x060400" link_speed="8 GT/s" link_width="16">
        <pci busid="0000:06:00.0" class="0x030200" link_speed="16 GT/s" link_width="16">
          <gpu dev="2" sm="80"/>
        </pci>
      </pci>
    </pci>
    <pci busid="0000:11:00.0" class="0x030200" link_speed="32 GT/s" link_width="16" weir_root="b">
      <gpu dev="3" sm="80"/>
    </pci>
    <pci busid="0000:12:00.0" class="0x030200" link_speed="32 GT/s" link_width="16" weir_root="b">
      <gpu dev="5" sm="80"/>
    </pci>
  </cpu>
  <cpu numaid="1" affinity="000000f0" arch="x86_64" vendor="AuthenticAMD" familyid="25" modelid="1">
    <pci busid="0000:81:00.0" class="0x030200" link_speed="32 GT/s" link_width="16">
      <gpu dev="4" sm="90"/>
    </pci>
  </cpu>
</system>)";

constexpr double kGen4x8 = 15.7538;
constexpr double kGen3x16 = 15.7538;
constexpr double kGen4x16 = 31.5077;
constexpr double kGen5x16 = 63.0154;

TEST(Path, ANodeIsItself) {
  const Topology machine = from_nccl(kMachine);
  const Path self = path(machine, "GPU0", "GPU0");
  EXPECT_EQ(self.label(), "X");
  EXPECT_EQ(self.way.size(), 1u);
}

TEST(Path, OneSwitchIsPixAtTheNarrowerLink) {
  const Topology machine = from_nccl(kMachine);
  const Path pix = path(machine, "GPU0", "GPU1");
  EXPECT_EQ(pix.path_class, PathClass::kPix);
  EXPECT_NEAR(pix.bandwidth_gbs, kGen4x8, 1e-3);
  EXPECT_FALSE(pix.estimated);
  ASSERT_EQ(pix.way.size(), 3u);
  EXPECT_EQ(machine.label(pix.way[1]), "0000:01:00.0");
  EXPECT_EQ(label(machine, "GPU0", "mlx5_0"), "PIX");
  EXPECT_NEAR(path(machine, "GPU0", "NIC0").bandwidth_gbs, kGen4x16, 1e-3);
}

TEST(Path, SeveralSwitchesArePxbAtTheLinkBetweenThem) {
  const Topology machine = from_nccl(kMachine);
  const Path pxb = path(machine, "GPU0", "GPU2");
  EXPECT_EQ(pxb.path_class, PathClass::kPxb);
  EXPECT_NEAR(pxb.bandwidth_gbs, kGen3x16, 1e-3);
  EXPECT_EQ(pxb.way.size(), 4u);
}

TEST(Path, OneRootComplexIsPhb) {
  const Topology machine = from_nccl(kMachine);
  const Path phb = path(machine, "GPU3", "GPU5");
  EXPECT_EQ(phb.path_class, PathClass::kPhb);
  EXPECT_NEAR(phb.bandwidth_gbs, kGen5x16, 1e-3);
}

TEST(Path, RootComplexesOfOneNumaNodeAreNode) {
  const Topology machine = from_nccl(kMachine);
  const Path node = path(machine, "GPU0", "GPU3");
  EXPECT_EQ(node.path_class, PathClass::kNode);
  EXPECT_NEAR(node.bandwidth_gbs, kGen4x16, 1e-3);
  EXPECT_FALSE(node.estimated);
}

TEST(Path, AcrossNumaNodesIsSysAndAnEstimate) {
  const Topology machine = from_nccl(kMachine);
  const Path sys = path(machine, "GPU3", "GPU4");
  EXPECT_EQ(sys.path_class, PathClass::kSystem);
  EXPECT_NEAR(sys.bandwidth_gbs, kGen5x16, 1e-3);
  EXPECT_TRUE(sys.estimated) << "nothing states the link between the sockets";
}

TEST(Path, ADeviceAndItsOwnMemoryArePhb) {
  const Topology machine = from_nccl(kMachine);
  EXPECT_EQ(label(machine, "GPU0", "NUMA0"), "PHB");
  EXPECT_EQ(label(machine, "NUMA0", "GPU0"), "PHB");
  EXPECT_EQ(label(machine, "GPU0", "NUMA1"), "SYS");
  EXPECT_EQ(label(machine, "NUMA0", "NUMA1"), "SYS");
}

TEST(Path, IsTheSameInBothDirections) {
  for (const char* name : kFixtures) {
    const Topology machine = fixture(name);
    std::vector<NodeId> devices = machine.all(NodeKind::kGpu);
    for (const NodeId nic : machine.all(NodeKind::kNic)) devices.push_back(nic);
    for (const NodeId numa : machine.all(NodeKind::kNuma)) devices.push_back(numa);
    for (const NodeId a : devices) {
      for (const NodeId b : devices) {
        const Path there = find_path(machine, a, b);
        const Path back = find_path(machine, b, a);
        EXPECT_EQ(there.label(), back.label()) << machine.label(a) << " " << machine.label(b);
        EXPECT_DOUBLE_EQ(there.bandwidth_gbs, back.bandwidth_gbs);
        EXPECT_EQ(there.estimated, back.estimated);
        EXPECT_NEAR(there.latency_us, back.latency_us, 1e-9);
        EXPECT_EQ(there.way.size(), back.way.size());
        EXPECT_EQ(there.way.front(), a);
        EXPECT_EQ(there.way.back(), b);
      }
    }
  }
}

std::string gpu(const char* bus, int dev, int sm, const std::string& links) {
  return fmt::format(
      R"(<pci busid="0000:{}:00.0" class="0x030200" link_speed="16 GT/s" link_width="16">
<gpu dev="{}" sm="{}">{}</gpu></pci>)",
      bus, dev, sm, links);
}

std::string nvlink(const char* bus, int count, const char* target_class = "0x030200") {
  return fmt::format(R"(<nvlink target="0000:{}:00.0" count="{}" tclass="{}"/>)", bus, count,
                     target_class);
}

std::string one_cpu(const std::string& inside) {
  return "<system version=\"1\"><cpu numaid=\"0\" affinity=\"f\">" + inside + "</cpu></system>";
}

TEST(Path, DirectLinksCountOnceThoughBothEndsListThem) {
  const Topology machine =
      from_nccl(one_cpu(gpu("01", 0, 80, nvlink("02", 4)) + gpu("02", 1, 80, nvlink("01", 4)) +
                        gpu("03", 2, 80, "")));
  const Path link = path(machine, "GPU0", "GPU1");
  EXPECT_EQ(link.path_class, PathClass::kLink);
  EXPECT_EQ(link.label(), "NV4");
  EXPECT_DOUBLE_EQ(link.bandwidth_gbs, 100);
  EXPECT_FALSE(link.estimated);
  EXPECT_EQ(label(machine, "GPU0", "GPU2"), "PHB");
}

TEST(Path, EndsThatDisagreeAreNotedAndTheLargerCounts) {
  const Topology machine =
      from_nccl(one_cpu(gpu("01", 0, 80, nvlink("02", 2)) + gpu("02", 1, 80, nvlink("01", 4))));
  EXPECT_EQ(label(machine, "GPU0", "GPU1"), "NV4");
  ASSERT_EQ(machine.notes().size(), 1u);
  EXPECT_NE(machine.notes()[0].text.find("lists 2 links"), std::string::npos);
}

TEST(Path, NvlinkSpeedFollowsTheGeneration) {
  const std::pair<int, double> generations[] = {{60, 20}, {70, 25}, {80, 25}, {90, 25}, {100, 50}};
  for (const auto& [capability, gbs] : generations) {
    const Topology machine = from_nccl(
        one_cpu(gpu("01", 0, capability, nvlink("02", 1)) + gpu("02", 1, capability, "")));
    EXPECT_DOUBLE_EQ(path(machine, "GPU0", "GPU1").bandwidth_gbs, gbs) << capability;
  }
}

TEST(Path, SwitchesThatOnlyLinksNameJoinAllGpus) {
  const std::string links =
      nvlink("c1", 2, "0x068000") + nvlink("c2", 2, "0x068000") + nvlink("c3", 2, "0x068000");
  const Topology machine = from_nccl(one_cpu(gpu("01", 0, 80, links) + gpu("02", 1, 80, links)));
  EXPECT_EQ(machine.count(NodeKind::kNvSwitch), 3u);
  const Path way = path(machine, "GPU0", "GPU1");
  EXPECT_EQ(way.label(), "NVS6");
  EXPECT_DOUBLE_EQ(way.bandwidth_gbs, 150);
}

TEST(Path, SwitchesWithMadeUpNamesWork) {
  const std::string links = R"(<nvlink target="fffffff:ffff:ff" count="12" tclass="0x068000"/>)";
  const Topology machine = from_nccl(one_cpu(gpu("01", 0, 80, links) + gpu("02", 1, 80, links)));
  EXPECT_EQ(machine.count(NodeKind::kNvSwitch), 1u);
  EXPECT_EQ(label(machine, "GPU0", "GPU1"), "NVS12");
  EXPECT_DOUBLE_EQ(path(machine, "GPU0", "GPU1").bandwidth_gbs, 300);
}

TEST(Path, TheFlowThroughSwitchesIsLimitedByTheNarrowerEnd) {
  // GPU1 has lost one of its two switches.
  const Topology machine = from_nccl(
      one_cpu(gpu("01", 0, 80, nvlink("c1", 2, "0x068000") + nvlink("c2", 2, "0x068000")) +
              gpu("02", 1, 80, nvlink("c1", 1, "0x068000")) +
              gpu("03", 2, 80, nvlink("c2", 2, "0x068000"))));
  EXPECT_DOUBLE_EQ(path(machine, "GPU0", "GPU1").bandwidth_gbs, 25);
  EXPECT_DOUBLE_EQ(path(machine, "GPU0", "GPU2").bandwidth_gbs, 50);
  // GPU1 and GPU2 meet only through links between the switches, of which there are none; and GPU0
  // may not carry it. The switches are joined through GPU0, so no link is assumed either.
  EXPECT_EQ(label(machine, "GPU1", "GPU2"), "PHB");
}

TEST(Path, ChipToChipLinksJoinGpuAndCpu) {
  const Topology machine = from_nccl(one_cpu(gpu("01", 0, 90, R"(<c2c count="10" bw="44625"/>)")));
  const Path way = path(machine, "GPU0", "NUMA0");
  EXPECT_EQ(way.label(), "C2C10");
  EXPECT_NEAR(way.bandwidth_gbs, 446.25, 1e-6);
}

TEST(Path, AnotherMachineIsReachedThroughTheNearestNic) {
  const Topology one = from_nccl(kMachine);
  const Topology parts[] = {one, one};
  const Result<Topology> joined = join(parts);
  ASSERT_TRUE(joined.ok()) << joined.status().text();
  const Topology& both = joined.value();
  const Path way = path(both, "M0.GPU0", "M1.GPU4");
  EXPECT_EQ(way.path_class, PathClass::kNetwork);
  EXPECT_DOUBLE_EQ(way.bandwidth_gbs, 12.5) << "100 Gbit/s";
  EXPECT_GT(way.latency_us, 3.0) << "both NICs state 1.5 us";
  EXPECT_EQ(both.label(way.way[2]), "M0.NIC0");
  EXPECT_EQ(way.way[3], 0u);
  EXPECT_EQ(label(both, "M0.NIC0", "M1.NIC0"), "NET");
  EXPECT_EQ(label(both, "M1.GPU0", "M1.GPU1"), "PIX") << "inside one machine nothing changes";
}

TEST(Path, WithoutANicThereIsNoWayToAnotherMachine) {
  const Topology parts[] = {from_nccl(kMachine), fixture("dgx2.hwloc.xml")};
  const Result<Topology> both = join(parts);
  ASSERT_TRUE(both.ok());
  const Path way = path(both.value(), "M0.GPU0", "M1.GPU0");
  EXPECT_EQ(way.path_class, PathClass::kNone);
  EXPECT_EQ(way.label(), "-");
  EXPECT_TRUE(way.way.empty());
}

}  // namespace
}  // namespace weir::topo
