// SPDX-License-Identifier: Apache-2.0
// Where processors lie: by a made /sys, by recorded machines, and alike by both on this one.
#include "core/topo/cpu_place.h"

#include <fmt/format.h>

#include "core/topo/cpus.h"
#include "unit/topo/topo_support.h"

namespace weir::topo {
namespace {

CpuSet cpus(const std::string& list) { return CpuSet::parse_list(list).take(); }

// 2 packages of 2 NUMA nodes of 2 caches of 2 cores with 1 processor each: 16 processors.
class Sys {
 public:
  Sys() {
    for (uint32_t cpu = 0; cpu < 16; ++cpu) {
      write(cpu, "cache/index0/level", "1");
      write(cpu, "cache/index0/type", "Data");
      write(cpu, "cache/index0/shared_cpu_list", fmt::format("{}", cpu));
      write(cpu, "cache/index1/level", "3");
      write(cpu, "cache/index1/type", "Unified");
      write(cpu, "cache/index1/shared_cpu_list", range(cpu, 2));
      write(cpu, "topology/package_cpus_list", range(cpu, 8));
      write(cpu, "topology/physical_package_id", fmt::format("{}", 3 + cpu / 8));
    }
    sys_.write("devices/system/node/online", "0-3\n");
    for (uint32_t node = 0; node < 4; ++node) {
      sys_.write(fmt::format("devices/system/node/node{}/cpulist", node), range(node * 4, 4));
    }
  }
  CpuPlace place(const std::string& list) const { return place_of(cpus(list), sys_.path()); }
  // With processors of this description.
  uint32_t link_mbs(const std::string& cpuinfo) const {
    sys_.write("cpuinfo", cpuinfo);
    return package_link_mbs(sys_.path(), sys_.path() + "/cpuinfo");
  }

 private:
  static std::string range(uint32_t cpu, uint32_t size) {
    return fmt::format("{}-{}\n", cpu / size * size, cpu / size * size + size - 1);
  }
  void write(uint32_t cpu, const std::string& file, const std::string& text) {
    sys_.write(fmt::format("devices/system/cpu/cpu{}/{}", cpu, file), text);
  }
  TemporaryFolder sys_;
};

constexpr uint32_t kSeveral = CpuPlace::kSeveral;

TEST(CpuPlace, IsTheFinestPartThatHasAllProcessors) {
  const Sys sys;
  EXPECT_EQ(sys.place("5"), (CpuPlace{4, 1, 3}));
  EXPECT_EQ(sys.place("4-5"), (CpuPlace{4, 1, 3}));
  EXPECT_EQ(sys.place("5-6"), (CpuPlace{kSeveral, 1, 3}));
  EXPECT_EQ(sys.place("3-4"), (CpuPlace{kSeveral, kSeveral, 3}));
  EXPECT_EQ(sys.place("7,8"), (CpuPlace{kSeveral, kSeveral, kSeveral}));
  EXPECT_EQ(sys.place("15"), (CpuPlace{14, 3, 4}));
}

TEST(CpuPlace, WhatJoinsPackagesIsAsTheModelOfTheProcessorsSays) {
  const Sys sys;
  const std::string first = "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\n";
  EXPECT_EQ(sys.link_mbs(first + "model\t\t: 85\nmodel name\t: Xeon\n\nmodel\t\t: 143\n"), 40'000u);
  EXPECT_EQ(sys.link_mbs("vendor_id\t: AuthenticAMD\ncpu family\t: 25\n"), 72'000u);
  EXPECT_EQ(sys.link_mbs(""), 20'000u);
  const TemporaryFolder one;
  one.write("devices/system/node/online", "0\n");
  EXPECT_EQ(package_link_mbs(one.path(), "/proc/cpuinfo"), 0u);
  EXPECT_EQ(package_link_mbs(fixture("dgx2.hwloc.xml")), 40'000u);
  EXPECT_EQ(package_link_mbs(fixture("made-8-fully-linked.nccl.xml")), 0u);
}

TEST(CpuPlace, IsUnknownWhereTheKernelSaysNothing) {
  const TemporaryFolder empty;
  EXPECT_EQ(place_of(cpus("0-3"), empty.path()), CpuPlace());
  EXPECT_EQ(place_of(CpuSet(), "/sys"), CpuPlace());
}

TEST(CpuPlace, InRecordedMachines) {
  const Topology dual = fixture("dgx2.hwloc.xml");
  EXPECT_EQ(place_of(cpus("0-1"), dual), (CpuPlace{0, 0, 0}));
  EXPECT_EQ(place_of(cpus("24"), dual), (CpuPlace{24, 1, 1}));
  EXPECT_EQ(place_of(cpus("0,24"), dual), (CpuPlace{kSeveral, kSeveral, kSeveral}));
  const Topology four = fixture("made-four-numa.hwloc3.xml");
  EXPECT_EQ(place_of(cpus("2-3"), four).numa, 1u);
  EXPECT_EQ(place_of(cpus("1-2"), four).numa, kSeveral);
  EXPECT_EQ(place_of(cpus("1-2"), four).package, 0u);
  // NCCL's format has no caches.
  EXPECT_EQ(place_of(cpus("0-3"), fixture("azure-ndv4-topo.nccl.xml")).cache, CpuPlace::kUnknown);
}

TEST(CpuPlace, OfThisMachineIsHwlocs) {
  const Result<Topology> machine = discover({.nvml_library = ""});
  ASSERT_TRUE(machine.ok()) << machine.status().text();
  const CpuSet allowed = cpus_allowed();
  std::vector<CpuSet> sets = {allowed};
  for (const uint32_t cpu : allowed.cpus()) {
    sets.emplace_back();
    sets.back().add(cpu);
  }
  for (const CpuSet& set : sets) {
    const CpuPlace by_files = place_of(set, "/sys");
    const CpuPlace by_hwloc = place_of(set, machine.value());
    for (const auto part : {&CpuPlace::cache, &CpuPlace::numa, &CpuPlace::package}) {
      if (by_files.*part == CpuPlace::kUnknown || by_hwloc.*part == CpuPlace::kUnknown) continue;
      EXPECT_EQ(by_files.*part, by_hwloc.*part) << "processors " << set.list();
    }
  }
}

}  // namespace
}  // namespace weir::topo
