// SPDX-License-Identifier: Apache-2.0
#include "core/topo/cluster.h"

#include "core/topo/print.h"
#include "unit/topo/topo_support.h"

namespace weir::topo {
namespace {

TEST(Cluster, EachMachineComesOutAsItWentIn) {
  std::vector<Topology> parts;
  for (const char* name : kFixtures) parts.push_back(fixture(name));
  const Result<Topology> whole = join(parts);
  ASSERT_TRUE(whole.ok()) << whole.status().text();
  EXPECT_EQ(whole.value().count(NodeKind::kMachine), parts.size());
  for (uint32_t i = 0; i < parts.size(); ++i) {
    const Result<Topology> alone = machine(whole.value(), i);
    ASSERT_TRUE(alone.ok());
    EXPECT_EQ(alone.value().hash(), parts[i].hash()) << kFixtures[i];
    EXPECT_EQ(alone.value().links().size(), parts[i].links().size());
  }
  EXPECT_FALSE(machine(whole.value(), static_cast<uint32_t>(parts.size())).ok());
}

TEST(Cluster, JoinsOfJoinsAreFlat) {
  const Topology one = fixture("azure-ncv4-topo.nccl.xml");
  const Topology two[] = {one, one};
  const Topology pair = join(two).take();
  const Topology mixed[] = {pair, one};
  const Topology three = join(mixed).take();
  EXPECT_EQ(three.count(NodeKind::kMachine), 3u);
  EXPECT_EQ(three.node(0).children.size(), 3u);
}

TEST(Cluster, NamesThatAreInSeveralMachinesMustSayWhich) {
  const Topology one = fixture("azure-ncv4-topo.nccl.xml");
  const Topology two[] = {one, one};
  const Topology pair = join(two).take();
  const Result<NodeId> either = pair.find("GPU1");
  ASSERT_FALSE(either.ok());
  EXPECT_EQ(either.status().text(), "\"GPU1\" names several devices: M0.GPU1, M1.GPU1");
  EXPECT_EQ(pair.label(find(pair, "m1.gpu1")), "M1.GPU1");
  EXPECT_EQ(pair.label(find(pair, "M1.eth0")), "M1.NIC0");
}

TEST(Cluster, NothingToJoinIsAnError) {
  EXPECT_FALSE(join({}).ok());
  const Topology empty[] = {Topology()};
  EXPECT_FALSE(join(empty).ok());
}

TEST(Cluster, SeveralMachinesAreNoNcclFile) {
  const Topology one = fixture("azure-ncv4-topo.nccl.xml");
  const Topology two[] = {one, one};
  const Result<std::string> xml = to_nccl_xml(join(two).value());
  ASSERT_FALSE(xml.ok());
  EXPECT_EQ(xml.status().code(), Code::kUnsupported);
}

}  // namespace
}  // namespace weir::topo
