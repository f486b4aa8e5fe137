// SPDX-License-Identifier: Apache-2.0
#include "core/topo/cpus.h"

#include <sched.h>

#include "core/topo/hwloc_xml.h"
#include "unit/topo/topo_support.h"

namespace weir::topo {
namespace {

CpuSet cpus(const std::string& list) { return CpuSet::parse_list(list).value(); }

TEST(Cpus, TheAffinityMaskIsWhatMayBeUsed) {
  const CpuSet before = cpus_allowed();
  ASSERT_FALSE(before.empty());
  EXPECT_GE(cpu_allowed_count(), 1u);
  EXPECT_LE(cpu_allowed_count(), before.count());
  cpu_set_t old;
  ASSERT_EQ(sched_getaffinity(0, sizeof old, &old), 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(before.cpus()[0], &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(cpus_allowed().cpus(), std::vector<uint32_t>{before.cpus()[0]});
  EXPECT_EQ(cpu_allowed_count(), 1u);
  ASSERT_EQ(sched_setaffinity(0, sizeof old, &old), 0);
}

TEST(Cpus, TheSmallestQuotaOfTheControlGroupsCuts) {
  const TemporaryFolder folder;
  const std::string root = folder.path() + "/cgroup";
  const std::string process = folder.write("proc_cgroup", "0::/a/b\n");
  const CpuSet all = cpus("0-63");
  EXPECT_EQ(cpu_allowed_count(all, root, process), 64u) << "no files, no quota";
  folder.write("cgroup/a/b/cpu.max", "max 100000\n");
  EXPECT_EQ(cpu_allowed_count(all, root, process), 64u);
  folder.write("cgroup/a/cpu.max", "250000 100000\n");
  EXPECT_EQ(cpu_allowed_count(all, root, process), 3u) << "2.5 processors, rounded up";
  folder.write("cgroup/a/b/cpu.max", "50000 100000\n");
  EXPECT_EQ(cpu_allowed_count(all, root, process), 1u);
  EXPECT_EQ(cpu_allowed_count(cpus("3"), root, process), 1u);
}

TEST(Cpus, VersionOneControlGroupsCutToo) {
  const TemporaryFolder folder;
  const std::string process =
      folder.write("proc_cgroup", "4:memory:/x\n3:cpu,cpuacct:/docker/7\nnonsense\n");
  const std::string root = folder.path() + "/cgroup";
  folder.write("cgroup/cpu/docker/7/cpu.cfs_quota_us", "400000\n");
  folder.write("cgroup/cpu/docker/7/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cpu_allowed_count(cpus("0-15"), root, process), 4u);
  folder.write("cgroup/cpu/docker/7/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(cpu_allowed_count(cpus("0-15"), root, process), 16u);
}

TEST(Cpus, NonsenseInTheQuotaIsNoQuota) {
  const TemporaryFolder folder;
  const std::string process = folder.write("proc_cgroup", "0::/\n");
  const std::string root = folder.path() + "/cgroup";
  for (const char* text : {"", "max", "0 0", "-5 100000", "ten 100000", "100000 0", "1e400 1"}) {
    folder.write("cgroup/cpu.max", text);
    EXPECT_EQ(cpu_allowed_count(cpus("0-7"), root, process), 8u) << text;
  }
}

// Two packages of four CPUs; an L3 for each, an L2 for each pair.
Topology machine() {
  const auto core = [](const char* mask) {
    return "<object type=\"L2Cache\" cpuset=\"" + std::string(mask) +
           "\" cache_size=\"1048576\" depth=\"2\"/>";
  };
  const auto package = [&](const char* index, const char* mask, const char* a, const char* b) {
    return "<object type=\"Package\" os_index=\"" + std::string(index) + "\" cpuset=\"" + mask +
           "\"><object type=\"NUMANode\" os_index=\"" + index + "\" cpuset=\"" + mask +
           "\"/><object type=\"L3Cache\" cpuset=\"" + mask +
           "\" cache_size=\"33554432\" depth=\"3\">" + core(a) + core(b) + "</object></object>";
  };
  Result<Topology> topology =
      parse_hwloc_xml("<topology version=\"2.0\"><object type=\"Machine\" cpuset=\"0xff\">" +
                          package("0", "0x0f", "0x03", "0x0c") +
                          package("1", "0xf0", "0x30", "0xc0") + "</object></topology>",
                      "machine.xml");
  EXPECT_TRUE(topology.ok()) << topology.status().text();
  return topology.take();
}

TEST(Cpus, RanksBelowOneCacheAreOneGroup) {
  const Topology topology = machine();
  const std::vector<CpuSet> ranks = {cpus("0"), cpus("1"), cpus("2"), cpus("5"), cpus("0-7"), {}};
  using Groups = std::vector<uint32_t>;
  EXPECT_EQ(cache_groups(topology, ranks, 2), (Groups{0, 0, 1, 2, 3, 4}));
  EXPECT_EQ(cache_groups(topology, ranks, 3), (Groups{0, 0, 0, 1, 2, 3}));
  EXPECT_EQ(numa_groups(topology, ranks), (Groups{0, 0, 0, 1, 2, 3}));
  EXPECT_EQ(cache_groups(topology, ranks, 4), (Groups{0, 1, 2, 3, 4, 5})) << "no such cache";
}

TEST(Cpus, TheSharedCacheIsTheOutermostThatHoldsAll) {
  const Topology topology = machine();
  EXPECT_EQ(shared_cache(topology, cpus("0-1")).level, 3u);
  EXPECT_EQ(shared_cache(topology, cpus("0-3")).bytes, 33554432u);
  EXPECT_EQ(shared_cache(topology, cpus("0,4")).level, 0u);
  EXPECT_EQ(shared_cache(topology, CpuSet()).level, 0u);
}

}  // namespace
}  // namespace weir::topo
