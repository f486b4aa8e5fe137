// SPDX-License-Identifier: Apache-2.0
#include "weir_info/machine.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace weir::info {
namespace {

// A machine with nothing to complain about.
Machine good_machine() {
  Machine machine;
  machine.kernel = "6.1.0";
  machine.cpus_online = 8;
  machine.cpus_allowed = 8;
  machine.memlock_bytes_max = kUnlimited;
  machine.descriptors_max = 65536;
  machine.dev_shm_bytes = machine.dev_shm_bytes_free = 1u << 30;
  machine.memfd = true;
  machine.huge_pages_reserved = machine.huge_pages_free = 128;
  machine.transparent_shmem = "never";
  return machine;
}

std::string remedy_of(const Machine& machine, const std::string& name) {
  for (const Finding& finding : judge_machine(machine))
    if (finding.name == name) return finding.remedy;
  return "no finding named " + name;
}

// A file tree that stands in for "/".
class FakeRoot {
 public:
  FakeRoot()
      : path_(std::filesystem::temp_directory_path() /
              ("weir-machine-test-" + std::to_string(getpid()))) {
    std::filesystem::create_directories(path_);
  }
  ~FakeRoot() { std::filesystem::remove_all(path_); }
  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name) << text;
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

TEST(Machine, AGoodMachineGetsNoRemedy) {
  for (const Finding& finding : judge_machine(good_machine()))
    EXPECT_EQ(finding.remedy, "") << finding.name;
}

TEST(Machine, EachLimitThatHurtsGetsItsRemedyAndNoOther) {
  const struct {
    const char* name;
    void (*worsen)(Machine&);
    const char* remedy_holds;
  } kCases[] = {
      {"processors allowed", [](Machine& m) { m.cpu_quota = 1.5; }, "WEIR_SPIN_US"},
      {"memory of the control group", [](Machine& m) { m.memory_bytes_max = 64u << 20; },
       "WEIR_STAGING_BYTES"},
      {"unnamed shared memory", [](Machine& m) { m.memfd = false; }, "seccomp"},
      {"/dev/shm", [](Machine& m) { m.dev_shm_bytes = 64u << 20; }, "--shm-size"},
      {"/dev/shm", [](Machine& m) { m.dev_shm_bytes_free = 1u << 20; }, "ls -lt /dev/shm"},
      {"descriptors", [](Machine& m) { m.descriptors_max = 256; }, "ulimit -n"},
      {"locked memory", [](Machine& m) { m.memlock_bytes_max = 8u << 20; }, "ulimit -l"},
      {"huge pages", [](Machine& m) { m.huge_pages_free = 0; }, "nr_hugepages"},
      {"cross-memory attach", [](Machine& m) { m.ptrace_scope = 2; }, "ptrace_scope"},
  };
  for (const auto& one : kCases) {
    Machine machine = good_machine();
    one.worsen(machine);
    EXPECT_NE(remedy_of(machine, one.name).find(one.remedy_holds), std::string::npos) << one.name;
    const auto findings = judge_machine(machine);
    EXPECT_EQ(std::count_if(findings.begin(), findings.end(),
                            [](const Finding& finding) { return !finding.remedy.empty(); }),
              1)
        << one.name;
  }
}

TEST(Machine, TheTightestControlGroupOnTheWayUpCounts) {
  const FakeRoot root;
  root.write("proc/self/cgroup", "0::/outer/inner\n");
  root.write("sys/fs/cgroup/outer/cpu.max", "150000 100000\n");
  root.write("sys/fs/cgroup/outer/inner/cpu.max", "max 100000\n");
  root.write("sys/fs/cgroup/outer/memory.max", "max\n");
  root.write("sys/fs/cgroup/outer/inner/memory.max", "1073741824\n");
  const Machine machine = gather_machine(root.path());
  EXPECT_DOUBLE_EQ(machine.cpu_quota, 1.5);
  EXPECT_EQ(machine.memory_bytes_max, 1073741824u);
}

TEST(Machine, FilesOfTheKernelAreRead) {
  const FakeRoot root;
  root.write("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "64\n");
  root.write("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "60\n");
  root.write("sys/kernel/mm/transparent_hugepage/shmem_enabled",
             "always within_size [advise] never deny force\n");
  root.write("proc/sys/kernel/yama/ptrace_scope", "1\n");
  const Machine machine = gather_machine(root.path());
  EXPECT_EQ(machine.huge_pages_reserved, 64u);
  EXPECT_EQ(machine.huge_pages_free, 60u);
  EXPECT_EQ(machine.transparent_shmem, "advise");
  EXPECT_EQ(machine.ptrace_scope, 1);
}

TEST(Machine, MissingAndBrokenFilesLeaveTheDefaults) {
  const FakeRoot root;
  root.write("proc/self/cgroup", "0::/group\n7:cpu:/old\ngarbage");
  root.write("sys/fs/cgroup/group/cpu.max", "100000\n");
  root.write("sys/fs/cgroup/group/memory.max", "-1\n");
  root.write("sys/kernel/mm/transparent_hugepage/shmem_enabled", "]nothing[\n");
  const Machine machine = gather_machine(root.path());
  EXPECT_EQ(machine.cpu_quota, 0);
  EXPECT_EQ(machine.memory_bytes_max, kUnlimited);
  EXPECT_EQ(machine.transparent_shmem, "");
  EXPECT_FALSE(machine.ptrace_scope.has_value());
  EXPECT_GE(machine.cpus_allowed, 1u);
}

TEST(Machine, BytesAreWrittenForPeople) {
  EXPECT_EQ(text_of_bytes(0), "0 B");
  EXPECT_EQ(text_of_bytes(64u << 20), "64 MiB");
  EXPECT_EQ(text_of_bytes(1536), "1.5 KiB");
  EXPECT_EQ(text_of_bytes(kUnlimited), "unlimited");
}

}  // namespace
}  // namespace weir::info
