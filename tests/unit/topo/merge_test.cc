// SPDX-License-Identifier: Apache-2.0
// A topology file merged with what is found in the machine.
#include "core/topo/merge.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/topo/cluster.h"
#include "core/topo/hwloc_xml.h"
#include "unit/topo/topo_support.h"

namespace weir::topo {
namespace {

Topology merged(const Topology& file, const Topology& machine) {
  Result<Topology> both = merge(file, machine);
  if (both.ok()) return both.take();
  ADD_FAILURE() << both.status().text();
  return Topology();
}

// A virtual machine as it shows itself: all devices side by side.
Topology flat_machine() {
  const auto device = [](const char* busid, const char* type, const char* inside) {
    return fmt::format(R"(<object type="PCIDev" pci_busid="{}" pci_type="{}"
 pci_link_speed="31.507692">{}</object>)",
                       busid, type, inside);
  };
  constexpr const char* kGpu = "0302 [10de:20b2] [10de:1463] a1";
  constexpr const char* kNic = "0207 [15b3:101c] [15b3:0007] 00";
  const std::string text =
      R"(<topology version="2.0"><object type="Machine" cpuset="0xf">
<info name="Architecture" value="x86_64"/>
<object type="Package" os_index="0" cpuset="0xf"><info name="CPUVendor" value="AuthenticAMD"/>
<info name="CPUFamilyNumber" value="25"/><info name="CPUModelNumber" value="1"/>
<object type="L3Cache" cpuset="0xf" depth="3" cache_type="0" cache_size="33554432">
<object type="NUMANode" os_index="0" cpuset="0xf" local_memory="1000000"/>
<object type="Core" os_index="0" cpuset="0x3"/><object type="Core" os_index="1" cpuset="0xc"/>
<object type="Bridge" bridge_type="0-1" bridge_pci="0000:[00-08]">)" +
      device("0000:01:00.0", kGpu, R"(<object type="OSDev" name="nvml0" osdev_type="1">
<info name="GPUModel" value="A100"/><info name="NVIDIAUUID" value="GPU-1"/></object>)") +
      device("0000:02:00.0", kGpu, R"(<object type="OSDev" name="nvml1" osdev_type="1"/>)") +
      device("0000:03:00.0", kNic, R"(<object type="OSDev" name="mlx5_0" osdev_type="3">
<info name="NodeGUID" value="0001"/></object><object type="OSDev" name="ib0" osdev_type="2"/>)") +
      device("0000:04:00.0", kNic, R"(<object type="OSDev" name="mlx5_1" osdev_type="3"/>)") +
      device("0000:05:00.0", "0108 [144d:a824] [144d:a801] 00", "") +
      "</object></object></object></object></topology>";
  Result<Topology> topology = parse_hwloc_xml(text, "found");
  EXPECT_TRUE(topology.ok()) << topology.status().text();
  Topology machine = topology.take();
  for (const NodeId id : machine.all(NodeKind::kGpu)) {
    machine.mutable_node(id).gpu->compute_capability = 80;
  }
  for (const NodeId id : machine.all(NodeKind::kNic)) {
    for (NetPort& port : machine.mutable_node(id).nic->ports) port.speed_mbps = 200000;
  }
  machine.add_link({find(machine, "GPU0"),
                    find(machine, "GPU1"),
                    LinkKind::kNvlink,
                    12,
                    {300, 0.5, Source::kStated}});
  EXPECT_TRUE(machine.finish().ok());
  return machine;
}

// The file that its cloud provider has for it: the switch that the hypervisor hides.
constexpr const char* kSwitch = R"(<system version="1">
<cpu numaid="0" affinity="0000000f" arch="x86_64" vendor="AuthenticAMD" familyid="25" modelid="1">
<pci busid="ffff:ff:01.0" class="0x060400" link_speed="16 GT/s" link_width="16">
<pci busid="0000:01:00.0" class="0x030200" link_speed="16 GT/s" link_width="8"/>
<pci busid="0000:03:00.0" class="0x020700"/></pci></cpu></system>)";

TEST(Merge, TheFilesElementsStayAndTheMachinesAreAdded) {
  const Topology both = merged(from_nccl(kSwitch), flat_machine());
  EXPECT_EQ(both.count(NodeKind::kGpu), 2u);
  EXPECT_EQ(both.count(NodeKind::kNic), 2u);
  EXPECT_EQ(both.count(NodeKind::kPciDevice), 1u);
  EXPECT_EQ(label(both, "GPU0", "mlx5_0"), "PIX") << "by the file";
  EXPECT_EQ(label(both, "GPU1", "mlx5_1"), "PHB") << "by the machine";
  EXPECT_EQ(label(both, "GPU0", "mlx5_1"), "PHB") << "below one root complex";
  EXPECT_TRUE(both.notes().empty()) << both.notes()[0].text;
}

TEST(Merge, MissingAttributesAreTheMachines) {
  const Topology both = merged(from_nccl(kSwitch), flat_machine());
  const Node& gpu = both.node(find(both, "GPU0"));
  EXPECT_EQ(gpu.name, "A100");
  EXPECT_EQ(gpu.gpu->uuid, "GPU-1");
  EXPECT_EQ(gpu.gpu->compute_capability, 80);
  EXPECT_EQ(gpu.gpu->dev, 0);
  EXPECT_EQ(gpu.pci->vendor, 0x10de);
  EXPECT_EQ(gpu.pci->subsystem_device, 0x1463);
  EXPECT_NEAR(gpu.up.bandwidth_gbs, 15.754, 1e-3) << "8 lanes, as the file states";
  const Node& nic = both.node(find(both, "mlx5_0"));
  EXPECT_NEAR(nic.up.bandwidth_gbs, 31.508, 1e-3) << "the file states nothing";
  EXPECT_EQ(nic.up.source, Source::kStated);
  ASSERT_EQ(nic.nic->ports.size(), 2u);
  EXPECT_EQ(nic.nic->ports[0].guid, "0001");
  EXPECT_EQ(nic.nic->ports[1].name, "ib0");
}

TEST(Merge, SpeedAndWidthAreFilledInEachByItself) {
  const auto bandwidth = [](const char* link) {
    const Topology both =
        merged(from_nccl(fmt::format(R"(<system version="1"><cpu numaid="0" affinity="f">
<pci busid="0000:01:00.0" class="0x030200" {}/></cpu></system>)",
                                     link)),
               flat_machine());
    return both.node(find(both, "GPU0")).up;
  };
  EXPECT_NEAR(bandwidth(R"(link_speed="8 GT/s")").bandwidth_gbs, 15.754, 1e-3);
  EXPECT_NEAR(bandwidth(R"(link_width="4")").bandwidth_gbs, 7.877, 1e-3);
  EXPECT_NEAR(bandwidth(R"(link_speed="8 GT/s" link_width="4")").bandwidth_gbs, 3.938, 1e-3);
  EXPECT_EQ(bandwidth(R"(link_speed="8 GT/s")").source, Source::kStated);
  EXPECT_NEAR(bandwidth(R"(weir_bw="5")").bandwidth_gbs, 5, 1e-9);
}

TEST(Merge, ALinkOfWhichTheFileSaysNothingIsAsWideAsInTheMachine) {
  // The other end of the link is narrower than the device.
  Topology machine = flat_machine();
  machine.mutable_node(find(machine, "GPU0")).up.bandwidth_gbs = 3.938;
  const Topology both = merged(from_nccl(R"(<system version="1"><cpu numaid="0" affinity="f">
<pci busid="0000:01:00.0" class="0x030200"/></cpu></system>)"),
                               machine);
  EXPECT_NEAR(both.node(find(both, "GPU0")).up.bandwidth_gbs, 3.938, 1e-9);
}

TEST(Merge, PortsAreKnownByName) {
  const Topology both = merged(from_nccl(R"(<system version="1"><cpu numaid="0" affinity="f">
<pci busid="0000:07:00.0" class="0x020000"><nic><net name="mlx5_1" dev="3" speed="50000"/></nic>
</pci><pci busid="0000:03:00.0" class="0x020700"><nic><net name="mlx5_0" gdr="1"/></nic></pci>
<nic><net name="ib0"/></nic></cpu></system>)"),
                               flat_machine());
  EXPECT_EQ(both.count(NodeKind::kNic), 3u);
  const Node& moved = both.node(find(both, "mlx5_1"));
  EXPECT_EQ(moved.pci->address.text(), "0000:07:00.0") << "where the file has it";
  EXPECT_DOUBLE_EQ(moved.nic->ports[0].speed_mbps, 50000) << "as the file states";
  EXPECT_TRUE(moved.nic->ports[0].infiniband) << "as the machine knows";
  const Node& other = both.node(find(both, "mlx5_0"));
  ASSERT_EQ(other.nic->ports.size(), 1u) << "ib0 is elsewhere in the file";
  EXPECT_DOUBLE_EQ(other.nic->ports[0].speed_mbps, 200000);
  EXPECT_EQ(other.nic->ports[0].gdr, true);
  EXPECT_DOUBLE_EQ(both.node(find(both, "ib0")).nic->ports[0].speed_mbps, 200000);
}

TEST(Merge, ADeviceWithoutAClassIsWhatTheMachineSays) {
  const Topology both = merged(from_nccl(R"(<system version="1"><cpu numaid="0" affinity="f">
<pci busid="0000:0a:00.0" class="0x060400"><pci busid="0000:01:00.0" class="0x030200"/>
<pci busid="0000:02:00.0"/><pci busid="0000:04:00.0"/></pci></cpu></system>)"),
                               flat_machine());
  EXPECT_EQ(label(both, "0000:01:00.0", "0000:02:00.0"), "NV12");
  EXPECT_EQ(label(both, "GPU1", "mlx5_1"), "PIX");
  EXPECT_EQ(both.count(NodeKind::kGpu), 2u);
}

TEST(Merge, AGpuKeepsTheLinksThatTheFileGivesIt) {
  const auto nv = [](const char* links) {
    const Topology both =
        merged(from_nccl(fmt::format(R"(<system version="1"><cpu numaid="0" affinity="f">
<pci busid="0000:01:00.0" class="0x030200"><gpu dev="0">{}</gpu></pci></cpu></system>)",
                                     links)),
               flat_machine());
    return both;
  };
  EXPECT_EQ(label(nv(""), "GPU0", "GPU1"), "NV12") << "the machine's";
  // The file does not have GPU1, and so gives it no links: those of the machine are its.
  const Topology to_switch = nv(R"(<nvlink target="0000:c1:00.0" count="6" tclass="0x068000"/>)");
  EXPECT_EQ(label(to_switch, "GPU0", "GPU1"), "NV12");
  EXPECT_EQ(to_switch.links().size(), 2u);
  EXPECT_DOUBLE_EQ(path(to_switch, "GPU0", "NVS0").bandwidth_gbs, 150)
      << "6 links of the generation that the machine knows";
  EXPECT_FALSE(path(to_switch, "GPU0", "NVS0").estimated);
  const Topology both = merged(from_nccl(R"(<system version="1"><cpu numaid="0" affinity="f">
<pci busid="0000:01:00.0" class="0x030200"><gpu dev="0">
<nvlink target="0000:02:00.0" count="4" tclass="0x030200"/></gpu></pci>
<pci busid="0000:02:00.0" class="0x030200"><gpu dev="1"/></pci></cpu></system>)"),
                               flat_machine());
  EXPECT_EQ(label(both, "GPU0", "GPU1"), "NV4");
  EXPECT_DOUBLE_EQ(path(both, "GPU0", "GPU1").bandwidth_gbs, 100);
}

TEST(Merge, ProcessorsAreTheMachinesWithTheFilesMemory) {
  const Topology both = merged(from_nccl(R"(<system version="1">
<cpu numaid="0" affinity="00000003" arch="x86_64" vendor="GenuineIntel">
<pci busid="0000:01:00.0" class="0x030200"/></cpu>
<cpu numaid="1" affinity="0000000c"><pci busid="0000:02:00.0" class="0x030200"/></cpu></system>)"),
                               flat_machine());
  EXPECT_EQ(both.count(NodeKind::kPackage), 1u);
  EXPECT_EQ(both.count(NodeKind::kCache), 1u);
  EXPECT_EQ(both.count(NodeKind::kCore), 2u);
  EXPECT_EQ(both.count(NodeKind::kNuma), 2u);
  const Node& numa = both.node(find(both, "NUMA0"));
  EXPECT_EQ(numa.cpus.list(), "0-1") << "the file's";
  EXPECT_EQ(numa.memory_bytes, 1000000u) << "the machine's";
  EXPECT_EQ(numa.cpu->vendor, "GenuineIntel");
  EXPECT_EQ(numa.cpu->family_id, 25) << "the file does not say";
  EXPECT_EQ(both.numa_of(find(both, "GPU1")), 1);
  ASSERT_EQ(both.notes().size(), 1u);
  EXPECT_EQ(both.notes()[0].where, "NUMA1");
}

TEST(Merge, WhatIsBelowABridgeOfTheFileIsAddedBelowIt) {
  const auto port = [](const char* busid) {
    return fmt::format(R"(<object type="Bridge" bridge_type="1-1" pci_busid="{}"
 pci_type="0604 [11f8:4000] [0000:0000] 00">)",
                       busid);
  };
  const auto gpu = [](const char* busid) {
    return fmt::format(R"(<object type="PCIDev" pci_busid="{}"
 pci_type="0302 [10de:20b2] [10de:1463] a1"/>)",
                       busid);
  };
  const std::string end = "</object>";
  const Result<Topology> machine = parse_hwloc_xml(
      R"(<topology version="2.0"><object type="Machine" cpuset="0x1">
<object type="NUMANode" os_index="0" cpuset="0x1"/>
<object type="Bridge" bridge_type="0-1" bridge_pci="0000:[00-0f]">)" +
          port("0000:00:01.0") + port("0000:01:00.0") + port("0000:02:00.0") + gpu("0000:03:00.0") +
          end + port("0000:02:01.0") + gpu("0000:04:00.0") + end + end + end +
          port("0000:00:02.0") + gpu("0000:05:00.0") + end + end + end + "</topology>",
      "found");
  ASSERT_TRUE(machine.ok()) << machine.status().text();
  const Topology both = merged(from_nccl(R"(<system version="1"><cpu numaid="0" affinity="1">
<pci busid="0000:01:00.0" class="0x060400"><pci busid="0000:03:00.0" class="0x030200"/></pci>
</cpu></system>)"),
                               machine.value());
  EXPECT_EQ(label(both, "0000:03:00.0", "0000:04:00.0"), "PIX");
  EXPECT_EQ(label(both, "0000:03:00.0", "0000:05:00.0"), "PHB") << "the root complex is known, too";
  EXPECT_EQ(both.node(both.ancestor(find(both, "GPU0"), NodeKind::kRootComplex)).name, "0000:00");
  EXPECT_EQ(both.count(NodeKind::kPciBridge), 3u) << "no ports that nothing is below";
}

TEST(Merge, SwitchesThatOnlyLinksNameComeWithTheirLinks) {
  const auto gpus = [](const std::string& links) {
    return from_nccl(R"(<system version="1"><cpu numaid="0" affinity="f">
<pci busid="0000:01:00.0" class="0x030200"><gpu dev="0" sm="80">)" +
                     links + R"(</gpu></pci>
<pci busid="0000:02:00.0" class="0x030200"><gpu dev="1" sm="80">)" +
                     links + R"(</gpu></pci></cpu></system>)");
  };
  const auto to_switch = [](const char* busid) {
    return fmt::format(R"(<nvlink target="{}" count="6" tclass="0x068000"/>)", busid);
  };
  const Topology machine = gpus(to_switch("0000:c1:00.0"));
  const Topology all = merged(gpus(""), machine);
  EXPECT_EQ(all.count(NodeKind::kNvSwitch), 1u);
  EXPECT_EQ(label(all, "GPU0", "GPU1"), "NVS6");
  const Topology same = merged(gpus(to_switch("0000:c1:00.0")), machine);
  EXPECT_EQ(same.count(NodeKind::kNvSwitch), 1u);
  EXPECT_DOUBLE_EQ(path(same, "GPU0", "GPU1").bandwidth_gbs, 150);
  const Topology other = merged(gpus(to_switch("0000:c2:00.0")), machine);
  EXPECT_EQ(other.count(NodeKind::kNvSwitch), 1u) << "the file's, to which both GPUs have links";
  EXPECT_EQ(label(other, "GPU0", "GPU1"), "NVS6");
}

TEST(Merge, AMachineMergedWithItselfStaysAsItIs) {
  for (const char* name : kFixtures) {
    SCOPED_TRACE(name);
    const Topology machine = fixture(name);
    const Topology both = merged(machine, machine);
    EXPECT_EQ(both.hash(), machine.hash());
    EXPECT_EQ(both.node_count(), machine.node_count());
    // And with what is left of it on the way through NCCL's format.
    const Topology less = from_nccl(to_nccl_xml(machine).value());
    const Topology again = merged(less, machine);
    for (const NodeKind kind : {NodeKind::kGpu, NodeKind::kNic, NodeKind::kNvSwitch,
                                NodeKind::kNuma, NodeKind::kCore, NodeKind::kCache}) {
      EXPECT_EQ(again.count(kind), machine.count(kind)) << name_of(kind);
    }
    std::vector<NodeId> ends = machine.all(NodeKind::kGpu);
    for (const NodeId nic : machine.all(NodeKind::kNic)) ends.push_back(nic);
    for (const NodeId numa : machine.all(NodeKind::kNuma)) ends.push_back(numa);
    for (const NodeId a : ends) {
      for (const NodeId b : ends) {
        const Path before = find_path(machine, a, b);
        const Path after = path(again, machine.label(a), machine.label(b));
        ASSERT_EQ(after.label(), before.label()) << machine.label(a) << " " << machine.label(b);
        ASSERT_NEAR(after.bandwidth_gbs, before.bandwidth_gbs, 1e-6);
        ASSERT_EQ(after.estimated, before.estimated);
      }
    }
  }
}

std::string refusal(const Topology& file, const Topology& machine) {
  const Result<Topology> both = merge(file, machine);
  EXPECT_FALSE(both.ok());
  if (both.ok()) return "";
  EXPECT_EQ(both.status().code(), Code::kUnsupported);
  return both.status().text();
}

TEST(Merge, AFileOfAnotherMachineCannotBeMerged) {
  EXPECT_EQ(refusal(fixture("dgx2.hwloc.xml"), flat_machine()),
            "the file is of another machine: none of its 16 GPUs (0000:34:00.0, …) is in this one");
  EXPECT_EQ(refusal(from_nccl(R"(<system version="1"><cpu numaid="0" affinity="f">
<nic><net name="eth7"/></nic></cpu></system>)"),
                    flat_machine()),
            "the file is of another machine: none of its 1 network adapters (eth7, …) is in this "
            "one");
  // An adapter of the same name does not make it the same machine.
  EXPECT_NE(refusal(from_nccl(R"(<system version="1"><cpu numaid="0" affinity="f">
<pci busid="0000:99:00.0" class="0x030200"/><nic><net name="mlx5_0"/></nic></cpu></system>)"),
                    flat_machine())
                .find("none of its 1 GPUs"),
            std::string::npos);
  // Nor is a device of another kind at the same address.
  EXPECT_NE(refusal(from_nccl(R"(<system version="1"><cpu numaid="0" affinity="f">
<pci busid="0000:03:00.0" class="0x030200"/></cpu></system>)"),
                    flat_machine())
                .find("another machine"),
            std::string::npos);
}

TEST(Merge, SeveralMachinesCannotBeMerged) {
  const Topology one = flat_machine();
  const Topology parts[] = {one, one};
  const Topology two = join(parts).take();
  EXPECT_EQ(refusal(two, one), "the file is 2 machines, and only one can be merged");
  EXPECT_EQ(refusal(one, two), "what was found is 2 machines, and only one can be merged");
}

TEST(Merge, DevicesThatOnlyTheFileHasStayAndAreNoted) {
  const Topology both = merged(from_nccl(R"(<system version="1"><cpu numaid="0" affinity="f">
<pci busid="0000:01:00.0" class="0x030200"/><pci busid="0000:99:00.0" class="0x030200"/>
<pci busid="0000:9a:00.0" class="0x020000"/></cpu></system>)"),
                               flat_machine());
  EXPECT_EQ(both.count(NodeKind::kGpu), 3u);
  ASSERT_EQ(both.notes().size(), 2u);
  EXPECT_EQ(both.notes()[0].where, "0000:99:00.0");
  EXPECT_EQ(both.notes()[0].text, "this GPU is in the topology file only");
  EXPECT_EQ(both.notes()[1].where, "0000:9a:00.0");
}

}  // namespace
}  // namespace weir::topo
