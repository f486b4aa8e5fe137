// SPDX-License-Identifier: Apache-2.0
// What is true of the recorded machines.
#include <algorithm>
#include <map>
#include <set>

#include "unit/topo/topo_support.h"

namespace weir::topo {
namespace {

// ---- NVIDIA DGX-2H
// ---------------------------------------------------------------------------------

TEST(Dgx2, HasTwoPackagesSixteenGpusTwelveSwitches) {
  const Topology dgx2 = fixture("dgx2.hwloc.xml");
  EXPECT_EQ(dgx2.node(0).name, "NVIDIA DGX-2H");
  EXPECT_EQ(dgx2.count(NodeKind::kPackage), 2u);
  EXPECT_EQ(dgx2.count(NodeKind::kNuma), 2u);
  EXPECT_EQ(dgx2.count(NodeKind::kCore), 4u);
  EXPECT_EQ(dgx2.count(NodeKind::kGpu), 16u);
  EXPECT_EQ(dgx2.count(NodeKind::kNvSwitch), 12u);
  EXPECT_EQ(dgx2.count(NodeKind::kNic), 0u);
  EXPECT_EQ(dgx2.node(dgx2.all(NodeKind::kPackage)[0]).cpu->model,
            "Intel(R) Xeon(R) Platinum 8174 CPU @ 3.10GHz");
  EXPECT_EQ(dgx2.node(find(dgx2, "NUMA0")).memory_bytes, 810234351616u);
}

TEST(Dgx2, GpusZeroToSevenAreOnTheFirstSocketAndTheRestOnTheSecond) {
  const Topology dgx2 = fixture("dgx2.hwloc.xml");
  for (const NodeId id : dgx2.all(NodeKind::kGpu)) {
    const Node& gpu = dgx2.node(id);
    EXPECT_EQ(gpu.name, "Tesla V100-SXM3-32GB-H");
    const int32_t socket = gpu.gpu->index < 8 ? 0 : 1;
    EXPECT_EQ(dgx2.numa_of(id), socket) << dgx2.label(id);
    EXPECT_EQ(dgx2.node(dgx2.ancestor(id, NodeKind::kPackage)).os_index, socket);
    EXPECT_EQ(dgx2.cpus_near(id).list(), socket == 0 ? "0-1" : "24-25");
  }
  EXPECT_EQ(find(dgx2, "0000:34:00.0"), find(dgx2, "GPU0"));
  EXPECT_EQ(find(dgx2, "GPU-d3977428-7a30-086b-2e20-5c1eeed647c6"), find(dgx2, "gpu0"));
  EXPECT_EQ(find(dgx2, "e7:00.0"), find(dgx2, "GPU15"));
}

TEST(Dgx2, EachGpuHasOneLinkOf25GbsToEachOfTheSixSwitchesOfItsBoard) {
  const Topology dgx2 = fixture("dgx2.hwloc.xml");
  std::map<NodeId, std::set<NodeId>> switches_of;
  for (const Link& link : dgx2.links()) {
    if (dgx2.node(link.a).kind != NodeKind::kGpu) continue;
    EXPECT_EQ(link.kind, LinkKind::kNvlink);
    EXPECT_EQ(link.count, 1u);
    EXPECT_DOUBLE_EQ(link.edge.bandwidth_gbs, 25);
    EXPECT_EQ(link.edge.source, Source::kStated);
    EXPECT_TRUE(switches_of[link.a].insert(link.b).second);
    EXPECT_EQ(dgx2.numa_of(link.a), dgx2.numa_of(link.b)) << dgx2.label(link.a);
  }
  EXPECT_EQ(switches_of.size(), 16u);
  for (const auto& [gpu, switches] : switches_of) EXPECT_EQ(switches.size(), 6u);
}

TEST(Dgx2, TwoGpusReachEachOtherAt150GbsThroughTheSwitches) {
  const Topology dgx2 = fixture("dgx2.hwloc.xml");
  const Path near = path(dgx2, "GPU0", "GPU7");
  EXPECT_EQ(near.path_class, PathClass::kNvSwitch);
  EXPECT_EQ(near.label(), "NVS6");
  EXPECT_DOUBLE_EQ(near.bandwidth_gbs, 150);
  EXPECT_FALSE(near.estimated);
  EXPECT_EQ(near.way.size(), 3u);
  // The recorded matrix does not say how the boards are joined: the same rate, as an estimate.
  const Path far = path(dgx2, "GPU0", "GPU15");
  EXPECT_EQ(far.label(), "NVS6");
  EXPECT_DOUBLE_EQ(far.bandwidth_gbs, 150);
  EXPECT_TRUE(far.estimated);
  EXPECT_EQ(far.way.size(), 4u);
  ASSERT_EQ(dgx2.notes().size(), 1u);
  EXPECT_NE(dgx2.notes()[0].text.find("NVS0 and NVS6"), std::string::npos);
}

TEST(Dgx2, WithoutTheSwitchesPcieShowsItsFourLevels) {
  const Topology dgx2 = fixture("dgx2.hwloc.xml");
  const PathOptions pcie{.accelerator_links = false};
  const Path pix = path(dgx2, "GPU0", "GPU1", pcie);
  EXPECT_EQ(pix.path_class, PathClass::kPix);
  EXPECT_NEAR(pix.bandwidth_gbs, 15.754, 1e-3);
  EXPECT_FALSE(pix.estimated);
  EXPECT_EQ(path(dgx2, "GPU0", "GPU3", pcie).path_class, PathClass::kPxb);
  EXPECT_EQ(path(dgx2, "GPU0", "GPU4", pcie).path_class, PathClass::kNode);
  const Path sys = path(dgx2, "GPU0", "GPU8", pcie);
  EXPECT_EQ(sys.path_class, PathClass::kSystem);
  EXPECT_NEAR(sys.bandwidth_gbs, 15.754, 1e-3);
  EXPECT_TRUE(sys.estimated);
}

TEST(Dgx2, SwitchesHangOnNarrowPcieLinks) {
  const Topology dgx2 = fixture("dgx2.hwloc.xml");
  for (const NodeId id : dgx2.all(NodeKind::kNvSwitch)) {
    EXPECT_DOUBLE_EQ(dgx2.node(id).up.bandwidth_gbs, 1.0);
    EXPECT_EQ(dgx2.node(id).pci->width_max, 4u);
  }
}

// ---- Azure ND A100 v4
// ------------------------------------------------------------------------------

TEST(AzureNdv4, HasEightGpusAndEightInfinibandNicsOnFourNumaNodes) {
  const Topology ndv4 = fixture("azure-ndv4-topo.nccl.xml");
  EXPECT_EQ(ndv4.count(NodeKind::kGpu), 8u);
  EXPECT_EQ(ndv4.count(NodeKind::kNic), 8u);
  EXPECT_EQ(ndv4.count(NodeKind::kNuma), 4u);
  EXPECT_EQ(ndv4.count(NodeKind::kPciBridge), 4u);
  EXPECT_TRUE(ndv4.links().empty());
  EXPECT_TRUE(ndv4.notes().empty());
  for (const NodeId id : ndv4.all(NodeKind::kNic)) {
    EXPECT_TRUE(pci_class::is_infiniband(ndv4.node(id).pci->class_code));
  }
  EXPECT_EQ(ndv4.cpus_near(find(ndv4, "NUMA0")).list(), "0-23");
  EXPECT_EQ(ndv4.cpus_near(find(ndv4, "NUMA3")).list(), "72-95");
}

TEST(AzureNdv4, EachGpuSharesASwitchWithTwoNics) {
  const Topology ndv4 = fixture("azure-ndv4-topo.nccl.xml");
  const std::map<std::string, std::pair<int, std::set<std::string>>> expected = {
      {"0001:00:00.0", {1, {"0101:00:00.0", "0102:00:00.0"}}},
      {"0002:00:00.0", {1, {"0101:00:00.0", "0102:00:00.0"}}},
      {"0003:00:00.0", {0, {"0103:00:00.0", "0104:00:00.0"}}},
      {"0004:00:00.0", {0, {"0103:00:00.0", "0104:00:00.0"}}},
      {"000b:00:00.0", {3, {"0105:00:00.0", "0106:00:00.0"}}},
      {"000c:00:00.0", {3, {"0105:00:00.0", "0106:00:00.0"}}},
      {"000d:00:00.0", {2, {"0107:00:00.0", "0108:00:00.0"}}},
      {"000e:00:00.0", {2, {"0107:00:00.0", "0108:00:00.0"}}},
  };
  uint32_t index = 0;
  for (const auto& [gpu, expectation] : expected) {
    const auto& [numa, near] = expectation;
    const NodeId id = find(ndv4, gpu);
    EXPECT_EQ(ndv4.node(id).gpu->index, index++) << "GPUs count by address";
    EXPECT_EQ(ndv4.numa_of(id), numa) << gpu;
    for (const NodeId nic : ndv4.all(NodeKind::kNic)) {
      const Path way = find_path(ndv4, id, nic);
      const bool is_near = near.contains(ndv4.node(nic).pci->address.text());
      EXPECT_EQ(way.path_class, is_near ? PathClass::kPix : PathClass::kSystem);
      EXPECT_NEAR(way.bandwidth_gbs, 31.508, 1e-3);
      EXPECT_EQ(way.estimated, !is_near);
    }
  }
}

// ---- Azure NC A100 v4
// ------------------------------------------------------------------------------

TEST(AzureNcv4, HasFourGpusOnFourNumaNodesAndOneEthernetNic) {
  const Topology ncv4 = fixture("azure-ncv4-topo.nccl.xml");
  EXPECT_EQ(ncv4.count(NodeKind::kGpu), 4u);
  EXPECT_EQ(ncv4.count(NodeKind::kNuma), 4u);
  ASSERT_EQ(ncv4.count(NodeKind::kNic), 1u);
  for (uint32_t i = 0; i < 4; ++i) {
    const NodeId id = ncv4.all(NodeKind::kGpu)[i];
    EXPECT_EQ(ncv4.numa_of(id), static_cast<int32_t>(i));
    EXPECT_EQ(ncv4.node(id).gpu->compute_capability, 80);
    EXPECT_EQ(ncv4.node(id).gpu->rank, static_cast<int32_t>(i));
    EXPECT_EQ(ncv4.node(id).gpu->gdr, true);
    EXPECT_EQ(ncv4.node(id).up.source, Source::kEstimated) << "link_speed is empty in the file";
  }
  const Node& nic = ncv4.node(find(ncv4, "eth0"));
  EXPECT_FALSE(nic.pci.has_value());
  EXPECT_DOUBLE_EQ(nic.nic->speed_mbps(), 100000);
  EXPECT_FALSE(nic.nic->ports[0].infiniband);
  EXPECT_EQ(ncv4.numa_of(find(ncv4, "eth0")), 0);
}

TEST(AzureNcv4, LinksThatNameTheirOwnGpuAreReportedByLineAndNotUsed) {
  // The machine has bridges between pairs, but the file gives each GPU twelve links to itself.
  const Topology ncv4 = fixture("azure-ncv4-topo.nccl.xml");
  EXPECT_TRUE(ncv4.links().empty());
  ASSERT_EQ(ncv4.notes().size(), 4u);
  EXPECT_TRUE(ncv4.notes()[0].where.ends_with("azure-ncv4-topo.nccl.xml:5"));
  EXPECT_NE(ncv4.notes()[0].text.find("0001:00:00.0 has itself as its target"), std::string::npos);
  EXPECT_EQ(label(ncv4, "GPU0", "GPU1"), "SYS");
  EXPECT_EQ(label(ncv4, "GPU0", "eth0"), "NODE");
  EXPECT_EQ(label(ncv4, "GPU1", "NIC0"), "SYS");
}

// ---- Eight accelerators on AMD Rome
// ----------------------------------------------------------------

TEST(RcclRome, HasEightGpusJoinedByEightXgmiLinksInTwoRings) {
  const Topology rome = fixture("rccl-8p-rome-n4.nccl.xml");
  EXPECT_EQ(rome.count(NodeKind::kGpu), 8u);
  EXPECT_EQ(rome.count(NodeKind::kNic), 1u);
  EXPECT_EQ(rome.count(NodeKind::kNuma), 7u);
  EXPECT_TRUE(rome.notes().empty());
  std::set<std::pair<std::string, std::string>> links;
  for (const Link& link : rome.links()) {
    EXPECT_EQ(link.kind, LinkKind::kXgmi);
    EXPECT_EQ(link.count, 1u);
    EXPECT_DOUBLE_EQ(link.edge.bandwidth_gbs, 46);
    links.insert(std::minmax(rome.label(link.a), rome.label(link.b)));
  }
  const std::set<std::pair<std::string, std::string>> expected = {
      {"GPU0", "GPU2"}, {"GPU0", "GPU3"}, {"GPU2", "GPU5"}, {"GPU3", "GPU5"},
      {"GPU1", "GPU4"}, {"GPU1", "GPU7"}, {"GPU4", "GPU6"}, {"GPU6", "GPU7"}};
  EXPECT_EQ(links, expected);
}

TEST(RcclRome, NeighboursUseTheirLinkAndOthersTheCpu) {
  const Topology rome = fixture("rccl-8p-rome-n4.nccl.xml");
  EXPECT_EQ(label(rome, "GPU0", "GPU2"), "XG1");
  EXPECT_DOUBLE_EQ(path(rome, "GPU0", "GPU2").bandwidth_gbs, 46);
  EXPECT_EQ(label(rome, "GPU0", "GPU5"), "SYS") << "never by way of a third GPU";
  EXPECT_EQ(label(rome, "GPU1", "GPU2"), "PHB");
  EXPECT_EQ(rome.node(find(rome, "GPU4")).gpu->gcn, "906");
}

TEST(RcclRome, ItsNicIsAloneOnItsNumaNode) {
  const Topology rome = fixture("rccl-8p-rome-n4.nccl.xml");
  const Node& nic = rome.node(find(rome, "mlx5_0"));
  EXPECT_DOUBLE_EQ(nic.nic->speed_mbps(), 200000);
  EXPECT_TRUE(nic.nic->ports[0].infiniband);
  EXPECT_EQ(nic.nic->ports[0].guid, "0x68ce600003da341c");
  EXPECT_EQ(rome.numa_of(find(rome, "NIC0")), 4);
  EXPECT_EQ(rome.cpus_near(find(rome, "NIC0")).list(), "64-79");
  for (const NodeId gpu : rome.all(NodeKind::kGpu)) {
    EXPECT_EQ(find_path(rome, gpu, find(rome, "NIC0")).path_class, PathClass::kSystem);
  }
}

}  // namespace
}  // namespace weir::topo
