// SPDX-License-Identifier: Apache-2.0
// This machine, whatever it is: also a container or a virtual machine that shows no PCIe at all.
#include <algorithm>

#include "core/topo/cpus.h"
#include "core/topo/print.h"
#include "core/topo/svg.h"
#include "unit/topo/topo_support.h"

namespace weir::topo {
namespace {

TEST(ThisMachine, IsFoundWithTheCpusThatThisProcessRunsOn) {
  const Result<Topology> found = discover();
  ASSERT_TRUE(found.ok()) << found.status().text();
  const Topology& machine = found.value();
  EXPECT_EQ(machine.count(NodeKind::kMachine), 1u);
  EXPECT_EQ(machine.node(0).kind, NodeKind::kMachine);
  EXPECT_GE(machine.count(NodeKind::kCore), 1u);
  EXPECT_TRUE(machine.node(0).cpus.contains(cpus_allowed()))
      << machine.node(0).cpus.list() << " and " << cpus_allowed().list();
  EXPECT_FALSE(print_tree(machine).empty());
  EXPECT_FALSE(print_matrix(machine).empty());
  EXPECT_FALSE(to_svg(machine).empty());
}

TEST(ThisMachine, HasTheSameHashEachTime) {
  const Result<Topology> once = discover();
  const Result<Topology> again = discover();
  ASSERT_TRUE(once.ok() && again.ok());
  EXPECT_EQ(once.value().hash(), again.value().hash());
}

TEST(ThisMachine, WorksWithoutSysfsAndNvml) {
  const Result<Topology> found = discover({.sysfs_root = "/nonexistent", .nvml_library = ""});
  ASSERT_TRUE(found.ok()) << found.status().text();
  EXPECT_EQ(found.value().notes().size(), 1u);
}

TEST(ThisMachine, IsTheSameInSysWhereThereIsNoHwloc) {
  const Result<Topology> with = discover({.nvml_library = ""});
  const Result<Topology> without =
      discover({.hwloc_library = "libhwloc.so.none", .nvml_library = ""});
  ASSERT_TRUE(with.ok() && without.ok()) << with.status().text() << without.status().text();
  const auto said = [](const Topology& machine) {
    return std::any_of(machine.notes().begin(), machine.notes().end(),
                       [](const Note& note) { return note.where == "hwloc"; });
  };
  EXPECT_TRUE(said(without.value()));
  if (said(with.value())) GTEST_SKIP() << "no hwloc here";
  if (with.value().node(0).cpus != without.value().node(0).cpus) {
    GTEST_SKIP() << "hwloc leaves out processors that this control group may not use";
  }
  for (const NodeKind kind :
       {NodeKind::kPackage, NodeKind::kNuma, NodeKind::kCache, NodeKind::kCore, NodeKind::kGpu,
        NodeKind::kNic, NodeKind::kPciBridge, NodeKind::kPciDevice, NodeKind::kRootComplex}) {
    EXPECT_EQ(without.value().count(kind), with.value().count(kind)) << name_of(kind);
  }
}

TEST(ThisMachine, GetsGpusFromADriverThatHwlocDoesNotKnow) {
  const Result<Topology> found = discover({.nvml_library = WEIR_FAKE_NVML});
  ASSERT_TRUE(found.ok()) << found.status().text();
  EXPECT_GE(found.value().count(NodeKind::kGpu), 4u);
}

}  // namespace
}  // namespace weir::topo
