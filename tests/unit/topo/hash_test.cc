// SPDX-License-Identifier: Apache-2.0
// Measured tables are kept under the hash: it must stay, and it must change with what they depend
// on.
#include <fmt/format.h>

#include <set>

#include "unit/topo/topo_support.h"

namespace weir::topo {
namespace {

TEST(Hash, IsStableFromRunToRun) {
  // A change of these values means that every cached table is measured again: raise kFormVersion in
  // hash.cc when it is meant.
  const std::pair<const char*, const char*> expected[] = {
      {"dgx2.hwloc.xml", "3ba8a60a7d2b5639"},
      {"azure-ndv4-topo.nccl.xml", "ff7aee096f3189cf"},
      {"azure-ncv4-topo.nccl.xml", "2ec2ccc9e6423f6a"},
      {"rccl-8p-rome-n4.nccl.xml", "8f6f115e8335b7f4"},
  };
  std::set<uint64_t> all;
  for (const auto& [name, hash] : expected) {
    EXPECT_EQ(fmt::format("{:016x}", fixture(name).hash()), hash) << name;
    all.insert(fixture(name).hash());
  }
  EXPECT_EQ(all.size(), 4u);
}

constexpr const char* kTwoCpus = R"(<system version="1">
<cpu numaid="{}" affinity="{}">
<pci busid="0000:{}:00.0" class="0x030200" link_speed="16 GT/s" link_width="16"/></cpu>
<cpu numaid="{}" affinity="{}">
<pci busid="0000:{}:00.0" class="0x030200" link_speed="16 GT/s" link_width="16"/></cpu>
</system>)";

TEST(Hash, TheOrderOfSiblingsNamesAndNotesDoNotCount) {
  const Topology one = from_nccl(fmt::format(kTwoCpus, 0, "f", "01", 1, "f0", "02"));
  Topology other = from_nccl(fmt::format(kTwoCpus, 1, "f0", "02", 0, "f", "01"));
  EXPECT_EQ(one.hash(), other.hash());
  other.mutable_node(0).name = "another host";
  other.add_note("x", "y");
  for (const NodeId id : other.all(NodeKind::kGpu)) other.mutable_node(id).gpu->uuid = "GPU-x";
  EXPECT_EQ(one.hash(), other.hash());
}

TEST(Hash, EveryFactThatPerformanceDependsOnCounts) {
  const Topology one = fixture("dgx2.hwloc.xml");
  std::set<uint64_t> seen = {one.hash()};
  const auto changed = [&](const char* what, auto change) {
    Topology other = one;
    change(other);
    EXPECT_TRUE(seen.insert(other.hash()).second) << what;
  };
  const NodeId gpu = find(one, "GPU3");
  changed("bandwidth", [&](Topology& t) { t.mutable_node(gpu).up.bandwidth_gbs = 7.9; });
  changed("model", [&](Topology& t) { t.mutable_node(gpu).pci->device = 1; });
  changed("cpus", [&](Topology& t) { t.mutable_node(find(t, "NUMA0")).cpus.add(77); });
  changed("link", [&](Topology& t) {
    t.add_link(
        {find(t, "GPU0"), find(t, "GPU1"), LinkKind::kNvlink, 1, {25, 0.5, Source::kStated}});
  });
  changed("cache",
          [&](Topology& t) { t.mutable_node(t.all(NodeKind::kCache)[0]).cache->bytes = 1; });
  changed("device", [&](Topology& t) {
    Node nic;
    nic.kind = NodeKind::kNic;
    nic.nic.emplace();
    t.add(0, nic);
  });
}

}  // namespace
}  // namespace weir::topo
