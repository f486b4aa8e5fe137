// SPDX-License-Identifier: Apache-2.0
// This machine, whatever it is: also a container or a virtual machine that shows no PCIe at all.
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

TEST(ThisMachine, GetsGpusFromADriverThatHwlocDoesNotKnow) {
  const Result<Topology> found = discover({.nvml_library = WEIR_FAKE_NVML});
  ASSERT_TRUE(found.ok()) << found.status().text();
  EXPECT_GE(found.value().count(NodeKind::kGpu), 4u);
}

}  // namespace
}  // namespace weir::topo
