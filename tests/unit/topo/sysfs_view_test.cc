// SPDX-License-Identifier: Apache-2.0
// A machine from a made-up /sys, without hwloc: two packages with two NUMA nodes each, memory
// without processors, and a PCIe switch with a GPU and a network card below the second node.
#include "core/topo/sysfs_view.h"

#include <fmt/format.h>

#include "core/topo/cpus.h"
#include "unit/topo/topo_support.h"

namespace weir::topo {
namespace {

namespace fs = std::filesystem;

// Processor c and c + 8 are one core, two cores a node, two nodes a package.
void write_processors(const TemporaryFolder& sys) {
  sys.write("devices/system/cpu/online", "0-15\n");
  for (int cpu = 0; cpu < 16; ++cpu) {
    const int core = cpu % 8;
    const int node = core / 2;
    const std::string folder = fmt::format("devices/system/cpu/cpu{}/", cpu);
    const std::string of_core = fmt::format("{},{}\n", core, core + 8);
    const std::string of_node =
        fmt::format("{}-{},{}-{}\n", 2 * node, 2 * node + 1, 2 * node + 8, 2 * node + 9);
    sys.write(folder + "topology/physical_package_id", fmt::format("{}\n", node / 2));
    sys.write(folder + "topology/core_id", fmt::format("{}\n", core));
    sys.write(folder + "topology/thread_siblings_list", of_core);
    const auto cache = [&](int index, int level, const char* type, const char* size,
                           const std::string& shared) {
      const std::string place = folder + fmt::format("cache/index{}/", index);
      sys.write(place + "level", fmt::format("{}\n", level));
      sys.write(place + "type", fmt::format("{}\n", type));
      sys.write(place + "size", fmt::format("{}\n", size));
      sys.write(place + "shared_cpu_list", shared);
    };
    cache(0, 1, "Data", "48K", of_core);
    cache(1, 1, "Instruction", "32K", of_core);
    cache(2, 2, "Unified", "2048K", of_core);
    cache(3, 3, "Unified", "32M", of_node);
    sys.write(fmt::format("devices/system/node/node{}/cpulist", node), of_node);
    sys.write(fmt::format("devices/system/node/node{}/meminfo", node),
              fmt::format("Node {} MemTotal:       1024 kB\nNode {} MemFree: 1 kB\n", node, node));
  }
  sys.write("devices/system/node/node4/cpulist", "\n");
  sys.write("devices/system/node/node4/meminfo", "Node 4 MemTotal:       4096 kB\n");
  sys.write("devices/system/node/possible", "0-4\n");
}

// `place` is below devices/; its last part is the device's address.
void write_device(const TemporaryFolder& sys, const std::string& place, const std::string& code,
                  const std::string& vendor) {
  const std::string folder = "devices/" + place + "/";
  const std::string address = fs::path(place).filename().string();
  sys.write(folder + "class", code + "\n");
  sys.write(folder + "vendor", vendor + "\n");
  sys.write(folder + "device", "0x1234\n");
  sys.write(folder + "numa_node", "1\n");
  fs::create_directories(sys.path() + "/bus/pci/devices");
  fs::create_symlink(sys.path() + "/devices/" + place, sys.path() + "/bus/pci/devices/" + address);
}

void write_devices(const TemporaryFolder& sys) {
  const std::string port = "pci0000:10/0000:10:01.0";
  const std::string upstream = port + "/0000:11:00.0";
  write_device(sys, port, "0x060400", "0x8086");
  write_device(sys, "pci0000:10/0000:10:00.0", "0x088000", "0x8086");  // of no interest
  write_device(sys, upstream, "0x060400", "0x1000");
  write_device(sys, upstream + "/0000:12:00.0", "0x060400", "0x1000");
  write_device(sys, upstream + "/0000:12:01.0", "0x060400", "0x1000");
  write_device(sys, upstream + "/0000:12:00.0/0000:13:00.0", "0x030200", "0x10de");
  write_device(sys, upstream + "/0000:12:01.0/0000:14:00.0", "0x020700", "0x15b3");
  const std::string verbs = upstream + "/0000:12:01.0/0000:14:00.0/infiniband/mlx5_0";
  sys.write("devices/" + verbs + "/node_guid", "946d:ae03:00aa:bbcc\n");
  sys.write("devices/" + verbs + "/ports/1/rate", "400 Gb/sec (4X NDR)\n");
  fs::create_directories(sys.path() + "/class/infiniband");
  fs::create_symlink(sys.path() + "/devices/" + verbs, sys.path() + "/class/infiniband/mlx5_0");
}

Topology machine(const TemporaryFolder& sys) {
  sys.write("cpuinfo",
            "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\n"
            "model name\t: A <processor> & more\n\nprocessor\t: 1\nvendor_id\t: Other\n");
  Result<Topology> found = discover({.hwloc_library = "",
                                     .sysfs_root = sys.path(),
                                     .cpuinfo_file = sys.path() + "/cpuinfo",
                                     .nvml_library = ""});
  EXPECT_TRUE(found.ok()) << found.status().text();
  return found.ok() ? found.take() : Topology();
}

TEST(SysfsView, HasProcessorsCachesAndNodesWhereTheyAre) {
  const TemporaryFolder sys;
  write_processors(sys);
  const Topology topology = machine(sys);
  EXPECT_EQ(topology.node(0).cpus.list(), "0-15");
  EXPECT_EQ(topology.count(NodeKind::kPackage), 2u);
  EXPECT_EQ(topology.count(NodeKind::kNuma), 5u);
  EXPECT_EQ(topology.count(NodeKind::kCore), 8u);
  EXPECT_EQ(topology.count(NodeKind::kCache), 4u + 8u + 8u);
  const Node& package = topology.node(topology.all(NodeKind::kPackage)[1]);
  EXPECT_EQ(package.os_index, 1);
  EXPECT_EQ(package.cpus.list(), "4-7,12-15");
  ASSERT_TRUE(package.cpu.has_value());
  EXPECT_EQ(package.cpu->vendor, "GenuineIntel");
  EXPECT_EQ(package.cpu->model, "A <processor> & more");
  EXPECT_EQ(package.cpu->family_id, 6);
  EXPECT_EQ(package.cpu->model_id, 143);
  const NodeId numa = find(topology, "NUMA2");
  EXPECT_EQ(topology.node(numa).cpus.list(), "4-5,12-13");
  EXPECT_EQ(topology.node(numa).memory_bytes, 1024u << 10);
  EXPECT_EQ(topology.node(topology.ancestor(numa, NodeKind::kPackage)).os_index, 1);
  EXPECT_EQ(topology.node(find(topology, "NUMA4")).memory_bytes, 4096u << 10);
  EXPECT_TRUE(topology.node(find(topology, "NUMA4")).cpus.empty());
  for (const NodeId core : topology.all(NodeKind::kCore)) {
    EXPECT_EQ(topology.numa_of(core), topology.node(core).os_index / 2);
    EXPECT_EQ(topology.node(core).cpus.count(), 2u);
  }
  CpuSet pair;
  pair.add(4);
  pair.add(5);
  const SharedCache shared = shared_cache(topology, pair);
  EXPECT_EQ(shared.level, 3u);
  EXPECT_EQ(shared.bytes, 32u << 20);
}

TEST(SysfsView, HasThePciTreeDownToDevicesOfInterest) {
  const TemporaryFolder sys;
  write_processors(sys);
  write_devices(sys);
  const Topology topology = machine(sys);
  EXPECT_EQ(topology.count(NodeKind::kRootComplex), 1u);
  EXPECT_EQ(topology.count(NodeKind::kPciBridge), 4u);
  EXPECT_EQ(topology.count(NodeKind::kPciDevice), 0u);
  const NodeId gpu = find(topology, "GPU0");
  EXPECT_EQ(topology.node(gpu).pci->address.text(), "0000:13:00.0");
  EXPECT_EQ(topology.node(gpu).pci->vendor, 0x10de);
  EXPECT_EQ(topology.numa_of(gpu), 1);
  const Node& nic = topology.node(find(topology, "mlx5_0"));
  EXPECT_EQ(nic.pci->address.text(), "0000:14:00.0");
  EXPECT_EQ(nic.nic->ports.at(0).guid, "946d:ae03:00aa:bbcc");
  EXPECT_DOUBLE_EQ(nic.nic->ports.at(0).speed_mbps, 400'000);
  EXPECT_EQ(label(topology, "GPU0", "NIC0"), "PIX");
  EXPECT_EQ(topology.node(topology.node(gpu).parent).bridge, BridgeRole::kDownstreamPort);
}

TEST(SysfsView, WhyHwlocIsNotUsedIsNoted) {
  const TemporaryFolder sys;
  const auto note_of = [&](const std::string& library) {
    const Result<Topology> found =
        discover({.hwloc_library = library, .sysfs_root = sys.path(), .nvml_library = ""});
    EXPECT_TRUE(found.ok()) << found.status().text();
    return found.ok() && !found.value().notes().empty() ? found.value().notes()[0].text : "";
  };
  EXPECT_NE(note_of("libhwloc.so.none").find("cannot open shared object file"), std::string::npos);
  EXPECT_NE(note_of("").find("no library is named"), std::string::npos);
  EXPECT_NE(note_of("libm.so.6").find("libm.so.6 has no function hwloc_"), std::string::npos);
  const Result<std::string> version = hwloc_version("libhwloc.so.none");
  ASSERT_FALSE(version.ok());
  EXPECT_EQ(version.status().code(), Code::kUnsupported);
}

TEST(SysfsView, NothingInSysLeavesTheProcessorsOfThisProcess) {
  const TemporaryFolder sys;
  const Topology topology = machine(sys);
  EXPECT_EQ(topology.node(0).cpus, cpus_allowed());
  EXPECT_EQ(topology.count(NodeKind::kCore), cpus_allowed().count());
}

TEST(SysfsView, DamagedFilesLeaveTheirFactsOut) {
  const TemporaryFolder sys;
  write_processors(sys);
  write_devices(sys);
  sys.write("devices/system/cpu/cpu3/topology/physical_package_id", "-1\n");
  sys.write("devices/system/cpu/cpu3/topology/thread_siblings_list", "9-2,x\n");
  sys.write("devices/system/cpu/cpu3/cache/index3/level", "99999999999999999999\n");
  sys.write("devices/system/cpu/cpu3/cache/index2/shared_cpu_list", "0-4000000000\n");
  sys.write("devices/system/node/node1/meminfo", "Node 1 MemTotal: lots\n");
  sys.write("devices/pci0000:10/0000:10:01.0/class", std::string(300, '\xff') + "\n");
  sys.write("devices/pci0000:10/0000:10:01.0/vendor", "0x-1\n");
  const Topology topology = machine(sys);
  EXPECT_EQ(topology.count(NodeKind::kPackage), 2u);
  EXPECT_EQ(topology.count(NodeKind::kGpu), 1u);
  EXPECT_EQ(topology.node(find(topology, "NUMA1")).memory_bytes, 0u);
}

}  // namespace
}  // namespace weir::topo
