// SPDX-License-Identifier: Apache-2.0
// Broadcom's PEX switches on two levels become one switch.
#include "core/topo/flat_switch.h"

#include <fmt/format.h>

#include "core/topo/hwloc_xml.h"
#include "unit/topo/topo_support.h"

namespace weir::topo {
namespace {

TEST(FlatSwitch, TwoLevelsOfBothGenerationsBecomeOne) {
  const Topology machine = fixture("made-pex.nccl.xml");
  EXPECT_EQ(machine.count(NodeKind::kPciBridge), 2u);
  const Path near = path(machine, "GPU0", "GPU1");
  EXPECT_EQ(near.label(), "PIX");
  EXPECT_NEAR(near.bandwidth_gbs, 31.508, 1e-3) << "a port's, not that between the levels";
  ASSERT_EQ(near.way.size(), 3u);
  EXPECT_EQ(machine.label(near.way[1]), "0000:01:00.0");
  EXPECT_EQ(label(machine, "GPU1", "mlx5_0"), "PIX");
  EXPECT_EQ(label(machine, "GPU2", "GPU3"), "PIX");
  EXPECT_EQ(label(machine, "GPU0", "GPU2"), "SYS");
  ASSERT_EQ(machine.notes().size(), 2u);
  EXPECT_EQ(machine.notes()[0].where, "0000:01:00.0");
  EXPECT_NE(machine.notes()[0].text.find("2 on the second level are joined"), std::string::npos);
}

// GPUs behind a bridge behind a bridge, with these numbers.
std::string two_levels(const std::string& first, const std::string& second) {
  return fmt::format(R"(<system version="1"><cpu numaid="0" affinity="f">
<pci busid="0000:01:00.0" class="0x060400" {}>
<pci busid="0000:02:00.0" class="0x060400" {}>
<pci busid="0000:03:00.0" class="0x030200"/></pci>
<pci busid="0000:04:00.0" class="0x030200"/></pci></cpu></system>)",
                     first, second);
}

std::string numbers(const char* vendor, const char* device, const char* sub_vendor,
                    const char* sub_device) {
  return fmt::format(R"(vendor="{}" device="{}" subsystem_vendor="{}" subsystem_device="{}")",
                     vendor, device, sub_vendor, sub_device);
}

TEST(FlatSwitch, OtherSwitchesStayAsTheyAre) {
  const std::string gen4 = numbers("0x1000", "0xc010", "0x1000", "0xa123");
  const std::string first5 = numbers("0x1000", "0xc030", "0x1000", "0x0123");
  const std::string second5 = numbers("0x1000", "0xc030", "0x1000", "0x1123");
  struct Case {
    std::string first;
    std::string second;
    const char* label;
  };
  const Case cases[] = {
      {gen4, gen4, "PIX"},
      {first5, second5, "PIX"},
      {second5, first5, "PXB"},
      {first5, first5, "PXB"},
      {gen4, second5, "PXB"},
      {"", "", "PXB"},
      {gen4, "", "PXB"},
      {gen4, numbers("0x1000", "0xc010", "0x1000", "0xb123"), "PXB"},
      {gen4, numbers("0x1000", "0xc010", "0x1028", "0xa123"), "PXB"},
      {gen4, numbers("0x1000", "0xc011", "0x1000", "0xa123"), "PXB"},
      {numbers("0x10b5", "0xc010", "0x1000", "0xa123"), gen4, "PXB"},
  };
  for (const Case& one : cases) {
    const Result<Topology> machine =
        join_flat_switches(from_nccl(two_levels(one.first, one.second)));
    ASSERT_TRUE(machine.ok());
    EXPECT_EQ(label(machine.value(), "0000:03:00.0", "0000:04:00.0"), one.label)
        << one.first << "\n"
        << one.second;
  }
}

TEST(FlatSwitch, OnlyTwoLevelsAreJoined) {
  const std::string gen4 = numbers("0x1000", "0xc010", "0x1000", "0xa123");
  const std::string bridge = "<pci class=\"0x060400\" " + gen4 + " busid=";
  const Result<Topology> machine = join_flat_switches(
      from_nccl(R"(<system version="1"><cpu numaid="0" affinity="f">)" + bridge +
                R"("0000:01:00.0">)" + bridge + R"("0000:02:00.0">)" + bridge + R"("0000:03:00.0">
<pci busid="0000:04:00.0" class="0x030200"/></pci></pci></pci></cpu></system>)"));
  ASSERT_TRUE(machine.ok());
  EXPECT_EQ(machine.value().count(NodeKind::kPciBridge), 2u) << "another switch is behind";
}

TEST(FlatSwitch, WhereEachPortIsShownThePortBetweenGoesToo) {
  const auto port = [](const char* busid) {
    return fmt::format(R"(<object type="Bridge" bridge_type="1-1" pci_busid="{}"
 pci_type="0604 [1000:c010] [1000:a096] b0">)",
                       busid);
  };
  const auto gpu = [](const char* busid) {
    return fmt::format(R"(<object type="PCIDev" pci_busid="{}" pci_link_speed="31.507692"
 pci_type="0302 [10de:20b2] [10de:1463] a1"/>)",
                       busid);
  };
  const std::string end = "</object>";
  const std::string text =
      R"(<topology version="2.0"><object type="Machine" cpuset="0x1">
<object type="Bridge" bridge_type="0-1" bridge_pci="0000:[00-0f]">
<object type="Bridge" bridge_type="1-1" pci_busid="0000:00:01.0"
 pci_type="0604 [1022:1483] [1022:1453] 00">)" +
      port("0000:01:00.0") + port("0000:02:00.0") + port("0000:03:00.0") + port("0000:04:00.0") +
      gpu("0000:05:00.0") + end + port("0000:04:01.0") + gpu("0000:06:00.0") + end + end + end +
      port("0000:02:01.0") + gpu("0000:07:00.0") + end + end + end + end + end + "</topology>";
  const Result<Topology> before = parse_hwloc_xml(text, "test.xml");
  ASSERT_TRUE(before.ok()) << before.status().text();
  EXPECT_EQ(label(before.value(), "GPU0", "GPU2"), "PXB");
  const Result<Topology> machine = join_flat_switches(before.value());
  ASSERT_TRUE(machine.ok());
  EXPECT_EQ(label(machine.value(), "GPU0", "GPU2"), "PIX");
  EXPECT_EQ(label(machine.value(), "GPU0", "GPU1"), "PIX");
  EXPECT_EQ(machine.value().count(NodeKind::kPciBridge), 5u)
      << "a root port, the upstream port and three downstream ports";
  for (const Node& node : machine.value().nodes()) {
    if (node.kind != NodeKind::kGpu) continue;
    EXPECT_EQ(machine.value().node(node.parent).bridge, BridgeRole::kDownstreamPort);
  }
}

TEST(FlatSwitch, LinksAndNotesStay) {
  Topology pex = from_nccl(two_levels(numbers("0x1000", "0xc010", "0x1000", "0xa123"),
                                      numbers("0x1000", "0xc010", "0x1000", "0xa123")));
  pex.add_link(
      {find(pex, "GPU0"), find(pex, "GPU1"), LinkKind::kNvlink, 2, {50, 0.5, Source::kStated}});
  pex.add_note("here", "a note");
  const Result<Topology> machine = join_flat_switches(pex);
  ASSERT_TRUE(machine.ok());
  EXPECT_EQ(label(machine.value(), "GPU0", "GPU1"), "NV2");
  EXPECT_EQ(machine.value().notes()[0].text, "a note");
}

}  // namespace
}  // namespace weir::topo
