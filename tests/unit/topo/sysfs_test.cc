// SPDX-License-Identifier: Apache-2.0
// Facts from a made-up /sys.
#include "core/topo/sysfs.h"

#include "core/topo/hwloc_xml.h"
#include "unit/topo/topo_support.h"

namespace weir::topo {
namespace {

// A root port with a GPU below, and a network adapter beside it that hwloc knows no names of.
Topology machine() {
  Result<Topology> topology = parse_hwloc_xml(R"(<topology version="2.0">
<object type="Machine" cpuset="0x3"><object type="NUMANode" os_index="0" cpuset="0x3"/>
<object type="Bridge" bridge_type="0-1" bridge_pci="0000:[00-05]">
<object type="Bridge" bridge_type="1-1" bridge_pci="0000:[01-01]"
  pci_busid="0000:00:01.0" pci_type="0604 [8086:2030] [8086:0000] 04">
<object type="PCIDev" pci_busid="0000:01:00.0"
  pci_type="0302 [10de:20b5] [10de:0000] a1" pci_link_speed="1.0"/>
</object>
<object type="PCIDev" pci_busid="0000:02:00.0" pci_type="0207 [15b3:101b] [15b3:0007] 00"/>
</object></object></topology>)",
                                              "machine.xml");
  EXPECT_TRUE(topology.ok()) << topology.status().text();
  return topology.take();
}

void write_link(const TemporaryFolder& sys, const std::string& address,
                const std::string& speed_max, const std::string& width_max,
                const std::string& speed, const std::string& width) {
  const std::string folder = "bus/pci/devices/" + address + "/";
  sys.write(folder + "max_link_speed", speed_max + "\n");
  sys.write(folder + "max_link_width", width_max + "\n");
  sys.write(folder + "current_link_speed", speed + "\n");
  sys.write(folder + "current_link_width", width + "\n");
}

TEST(Sysfs, ALinkIsAsFastAsItsSlowerEndWhateverItIdlesAt) {
  const TemporaryFolder sys;
  write_link(sys, "0000:00:01.0", "16.0 GT/s PCIe", "16", "2.5 GT/s PCIe", "16");
  write_link(sys, "0000:01:00.0", "32.0 GT/s PCIe", "16", "2.5 GT/s PCIe", "16");
  Topology topology = machine();
  EXPECT_DOUBLE_EQ(topology.node(find(topology, "GPU0")).up.bandwidth_gbs, 1.0);
  ASSERT_TRUE(enrich_from_sysfs(sys.path(), &topology).ok());
  const Node& gpu = topology.node(find(topology, "GPU0"));
  EXPECT_NEAR(gpu.up.bandwidth_gbs, 31.508, 1e-3);
  EXPECT_EQ(gpu.up.source, Source::kStated);
  EXPECT_DOUBLE_EQ(gpu.pci->speed_gts_max, 32);
  EXPECT_DOUBLE_EQ(gpu.pci->speed_gts_current, 2.5);
  EXPECT_TRUE(topology.notes().empty());
}

TEST(Sysfs, ALinkThatRunsOnFewerLanesIsNarrowerAndNoted) {
  const TemporaryFolder sys;
  write_link(sys, "0000:00:01.0", "16.0 GT/s PCIe", "16", "16.0 GT/s PCIe", "4");
  write_link(sys, "0000:01:00.0", "16.0 GT/s PCIe", "16", "16.0 GT/s PCIe", "4");
  Topology topology = machine();
  ASSERT_TRUE(enrich_from_sysfs(sys.path(), &topology).ok());
  EXPECT_NEAR(topology.node(find(topology, "GPU0")).up.bandwidth_gbs, 7.877, 1e-3);
  ASSERT_EQ(topology.notes().size(), 1u);
  EXPECT_NE(topology.notes()[0].text.find("4 of 16 lanes"), std::string::npos);
}

TEST(Sysfs, InfinibandPortsHaveTheirRateAndGuid) {
  const TemporaryFolder sys;
  sys.write("bus/pci/devices/0000:02:00.0/infiniband/mlx5_0/x", "");
  sys.write("bus/pci/devices/0000:02:00.0/net/ib0/x", "");
  sys.write("class/net/ib0/speed", "-1\n");
  sys.write("class/infiniband/mlx5_0/node_guid", "946d:ae03:00aa:bbcc\n");
  sys.write("class/infiniband/mlx5_0/ports/1/rate", "200 Gb/sec (4X HDR)\n");
  sys.write("class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
  sys.write("class/infiniband/mlx5_0/ports/2/rate", "100 Gb/sec (4X EDR)\n");
  sys.write("class/infiniband/mlx5_0/ports/2/state", "1: DOWN\n");
  Topology topology = machine();
  ASSERT_TRUE(enrich_from_sysfs(sys.path(), &topology).ok());
  const NicInfo& nic = *topology.node(find(topology, "ib0")).nic;
  EXPECT_DOUBLE_EQ(nic.speed_mbps(), 200000) << "the port that is down carries nothing";
  ASSERT_EQ(nic.ports.size(), 3u);
  EXPECT_EQ(nic.ports[0].name, "mlx5_0");
  EXPECT_EQ(nic.ports[0].port, 1u);
  EXPECT_EQ(nic.ports[0].guid, "946d:ae03:00aa:bbcc");
  EXPECT_DOUBLE_EQ(nic.ports[1].speed_mbps, 0);
}

TEST(Sysfs, EthernetSpeedIsReadAndWhatIsDownOrVirtualIsNot) {
  const TemporaryFolder sys;
  sys.write("bus/pci/devices/0000:02:00.0/net/eth0/x", "");
  sys.write("class/net/eth0/speed", "100000\n");
  const auto interface = [&](const std::string& name, const std::string& index,
                             const std::string& peer, const std::string& state) {
    sys.write("class/net/" + name + "/type", name == "lo" ? "772\n" : "1\n");
    sys.write("class/net/" + name + "/ifindex", index + "\n");
    sys.write("class/net/" + name + "/iflink", peer + "\n");
    sys.write("class/net/" + name + "/operstate", state + "\n");
  };
  interface("lo", "1", "1", "unknown");
  interface("docker0", "3", "3", "up");  // a bridge of this machine's own
  interface("veth0", "4", "9", "up");    // the end of a pair: a container's adapter
  interface("veth1", "5", "10", "down");
  interface("hv0", "6", "6", "up");  // on a bus that is no PCI
  sys.write("class/net/hv0/device/x", "");
  sys.write("class/net/hv0/speed", "40000\n");
  interface("vf0", "7", "7", "up");  // a virtual function behind hv0
  sys.write("class/net/vf0/device/x", "");
  sys.write("class/net/vf0/master/x", "");
  Topology topology = machine();
  ASSERT_TRUE(enrich_from_sysfs(sys.path(), &topology).ok());
  EXPECT_EQ(topology.count(NodeKind::kNic), 3u);
  EXPECT_DOUBLE_EQ(topology.node(find(topology, "eth0")).nic->speed_mbps(), 100000);
  EXPECT_DOUBLE_EQ(topology.node(find(topology, "hv0")).nic->speed_mbps(), 40000);
  EXPECT_TRUE(topology.find("veth0").ok());
  for (const char* absent : {"lo", "docker0", "veth1", "vf0"}) {
    EXPECT_FALSE(topology.find(absent).ok()) << absent;
  }
}

TEST(Sysfs, NonsenseLeavesFactsUnknown) {
  const TemporaryFolder sys;
  write_link(sys, "0000:01:00.0", "Unknown", "255", "", "999999999999");
  sys.write("bus/pci/devices/0000:02:00.0/net/eth0/x", "");
  sys.write("class/net/eth0/speed", "4294967295000\n");
  sys.write("class/net/eth1/type", "one\n");
  Topology topology = machine();
  ASSERT_TRUE(enrich_from_sysfs(sys.path(), &topology).ok());
  EXPECT_DOUBLE_EQ(topology.node(find(topology, "GPU0")).up.bandwidth_gbs, 1.0);
  EXPECT_DOUBLE_EQ(topology.node(find(topology, "eth0")).nic->speed_mbps(), 0);
  EXPECT_FALSE(topology.find("eth1").ok());
}

TEST(Sysfs, AMissingTreeIsANoteAndNoError) {
  Topology topology = machine();
  ASSERT_TRUE(enrich_from_sysfs("/nonexistent/sys", &topology).ok());
  ASSERT_EQ(topology.notes().size(), 1u);
  EXPECT_EQ(topology.notes()[0].where, "/nonexistent/sys");
}

}  // namespace
}  // namespace weir::topo
