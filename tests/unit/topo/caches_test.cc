// SPDX-License-Identifier: Apache-2.0
// A processor's caches by /sys, and that hwloc says the same of this machine.
#include "core/topo/caches.h"

#include <fmt/format.h>

#include "core/topo/cpus.h"
#include "unit/topo/topo_support.h"

namespace weir::topo {
namespace {

constexpr uint64_t kKib = 1024;
constexpr uint64_t kMib = 1024 * kKib;

class Sys {
 public:
  // Of processor 3, whose core has the processors 3 and 7.
  Sys() { sys_.write(folder() + "topology/thread_siblings_list", "3,7\n"); }
  Sys& cache(const std::string& level, const std::string& type, const std::string& size,
             const std::string& shared) {
    const std::string place = folder() + fmt::format("cache/index{}/", count_++);
    sys_.write(place + "level", level + "\n");
    sys_.write(place + "type", type + "\n");
    sys_.write(place + "size", size + "\n");
    sys_.write(place + "shared_cpu_list", shared + "\n");
    return *this;
  }
  CpuCaches caches() const { return caches_of(3, sys_.path()); }

 private:
  static std::string folder() { return "devices/system/cpu/cpu3/"; }
  TemporaryFolder sys_;
  int count_ = 0;
};

TEST(Caches, AreThoseOfTheProcessor) {
  const CpuCaches caches = Sys()
                               .cache("1", "Data", "48K", "3,7")
                               .cache("1", "Instruction", "32K", "3,7")
                               .cache("2", "Unified", "2048K", "3,7")
                               .cache("3", "Unified", "32768K", "0-7")
                               .caches();
  EXPECT_TRUE(caches.known);
  EXPECT_EQ(caches.l2_bytes, 2 * kMib);
  EXPECT_EQ(caches.last_bytes, 32 * kMib);
}

TEST(Caches, TheLastLevelIsTheHighestInAnyOrder) {
  const CpuCaches caches = Sys()
                               .cache("4", "Unified", "128M", "0-7")
                               .cache("3", "Unified", "8M", "0-7")
                               .cache("2", "Unified", "256K", "3,7")
                               .caches();
  EXPECT_EQ(caches.last_bytes, 128 * kMib);
  EXPECT_EQ(caches.l2_bytes, 256 * kKib);
}

TEST(Caches, ASecondLevelIsTheLastOnlyIfCoresShareIt) {
  Sys shared;
  shared.cache("2", "Unified", "1M", "2-3,6-7");
  EXPECT_EQ(shared.caches().last_bytes, kMib);
  EXPECT_EQ(shared.caches().l2_bytes, kMib);
  Sys own;
  own.cache("2", "Unified", "1M", "3,7");
  EXPECT_EQ(own.caches().last_bytes, 0u);
  EXPECT_EQ(own.caches().l2_bytes, kMib);
  // A third level is one also where only this core may use it.
  own.cache("3", "Unified", "4M", "3,7");
  EXPECT_EQ(own.caches().last_bytes, 4 * kMib);
}

TEST(Caches, WhatIsNoSizeIsLeftOut) {
  EXPECT_FALSE(Sys().caches().known);
  EXPECT_FALSE(caches_of(0, "/nonexistent").known);
  for (const char* size : {"", "K", "-1K", "0K", "big", "99999999999G", "2048G"}) {
    EXPECT_FALSE(Sys().cache("3", "Unified", size, "0-7").caches().known) << size;
  }
  for (const char* level : {"", "0", "9", "x", "-3"}) {
    EXPECT_FALSE(Sys().cache(level, "Unified", "1M", "0-7").caches().known) << level;
  }
  EXPECT_FALSE(Sys().cache("2", "Instruction", "1M", "0-7").caches().known);
}

// The highest cache above the processor, in the topology.
CacheInfo last_cache(const Topology& machine, uint32_t cpu) {
  CacheInfo last;
  for (const Node& node : machine.nodes()) {
    if (node.cache && node.cpus.contains(cpu) && node.cache->level > last.level) last = *node.cache;
  }
  return last;
}

TEST(Caches, OfThisMachineAreHwlocs) {
  const Result<Topology> machine = discover({.nvml_library = ""});
  ASSERT_TRUE(machine.ok()) << machine.status().text();
  bool any = false;
  for (const uint32_t cpu : cpus_allowed().cpus()) {
    const CacheInfo last = last_cache(machine.value(), cpu);
    const CpuCaches caches = caches_of(cpu);
    if (!caches.known || last.level < 3) continue;
    EXPECT_EQ(caches.last_bytes, last.bytes) << "processor " << cpu;
    any = true;
  }
  if (!any) GTEST_SKIP() << "this machine shows no third level";
  EXPECT_TRUE(own_caches().known);
}

}  // namespace
}  // namespace weir::topo
