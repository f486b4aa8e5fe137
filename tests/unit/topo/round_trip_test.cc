// SPDX-License-Identifier: Apache-2.0
// Written as NCCL XML and read again, a machine has the same devices, paths and bandwidths.
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

TEST(RoundTrip, PackagesWithoutANumberAndManyLinksSurvive) {
  // Found by damaging a fixture: both were written in a way that the reader refused.
  Topology topology = fixture("dgx2.hwloc.xml");
  topology.mutable_node(topology.all(NodeKind::kPackage)[1]).os_index = -1;
  topology.add_link({find(topology, "GPU0"),
                     find(topology, "GPU1"),
                     LinkKind::kNvlink,
                     UINT32_MAX,
                     {1e30, 1, Source::kStated}});
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
