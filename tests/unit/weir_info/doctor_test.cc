// SPDX-License-Identifier: Apache-2.0
#include "weir_info/doctor.h"

#include <elf.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "weir_info/elf_file.h"
#include "weir_info/run_program.h"

namespace weir::info {
namespace {

namespace fs = std::filesystem;

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

bool mentions(const std::vector<Check>& checks, Verdict verdict, const std::string& text) {
  for (const Check& check : checks) {
    if (check.verdict == verdict &&
        (check.finding + check.remedy).find(text) != std::string::npos) {
      return true;
    }
  }
  return false;
}

TEST(Doctor, ALibraryThatLacksSymbolsIsBadAndNamesThem) {
  NcclFound found;
  found.loading = {
      "/app", true, "/lib/libnccl.so.2", "RPATH of /app", {{"/app", {"ncclCommResume"}}}};
  found.version = 22809;
  const auto checks = judge_nccl(found);
  EXPECT_TRUE(mentions(checks, Verdict::kBad, "ncclCommResume"));
  EXPECT_TRUE(mentions(checks, Verdict::kGood, "RPATH of /app"));
  EXPECT_TRUE(mentions(checks, Verdict::kGood, "2.28.9, not Weir's"));
}

TEST(Doctor, AProgramThatNeedsALibraryThatIsNotThereIsBad) {
  NcclFound found;
  found.loading = {"/app", true, "", "no folder has one", {}};
  EXPECT_TRUE(mentions(judge_nccl(found), Verdict::kBad, "no folder has one"));
  found.loading.linked = false;
  EXPECT_FALSE(mentions(judge_nccl(found), Verdict::kBad, ""));
}

TEST(Doctor, ALibraryThatDoesNotOpenIsBad) {
  NcclFound found;
  found.loading = {"/app", true, "/lib/libnccl.so.2", "LD_PRELOAD names it", {}};
  EXPECT_TRUE(mentions(judge_nccl(found), Verdict::kBad, "cannot be opened"));
}

TEST(Doctor, WithoutATransportBetweenHostsSomethingIsBad) {
  std::vector<TransportLine> transports = {{"shm", "", "", "", true, ""},
                                           {"tcp", "", "", "", false, "no interface"}};
  EXPECT_TRUE(mentions(judge_transports(transports), Verdict::kBad, "no transport reaches"));
  EXPECT_TRUE(mentions(judge_transports(transports), Verdict::kNote, "libucx-dev"));
  transports[1].viable = true;
  EXPECT_FALSE(mentions(judge_transports(transports), Verdict::kBad, ""));
}

TEST(Doctor, EveryTransportThatIsNotViableHasARemedy) {
  for (const char* name : {"shm", "tcp", "ucx", "ofi", "nccl", "ncclnet", "somebodys"}) {
    const auto checks = judge_transports({{name, "", "", "", false, "it lacks something"}});
    EXPECT_EQ(checks[0].subject, name);
    EXPECT_EQ(checks[0].verdict, Verdict::kNote);
    EXPECT_EQ(checks[0].finding, "not viable: it lacks something");
    EXPECT_NE(checks[0].remedy, "") << name;
    EXPECT_EQ(judge_transports({{name, "", "", "", true, ""}})[0].remedy, "") << name;
  }
}

TEST(Doctor, ALimitWithARemedyIsNoted) {
  const auto checks =
      judge_limits({{"locked memory", "8 MiB", "ulimit -l unlimited"}, {"kernel", "6.1", ""}});
  EXPECT_EQ(checks[0].verdict, Verdict::kNote);
  EXPECT_EQ(checks[1].verdict, Verdict::kGood);
}

// A file tree that stands in for "/", with PCI devices as sysfs shows them.
class FakeRoot {
 public:
  FakeRoot() : path_(fs::temp_directory_path() / ("weir-doctor-test-" + std::to_string(getpid()))) {
    fs::create_directories(path_ / "proc");
    fs::create_directories(path_ / "sys/bus/pci/devices");
  }
  ~FakeRoot() { fs::remove_all(path_); }
  void processor(const std::string& flags) {
    std::ofstream(path_ / "proc/cpuinfo") << "flags\t\t: " << flags << "\n";
  }
  void device(const std::string& below, const std::string& name, const std::string& device_class) {
    const fs::path real = path_ / "sys/devices" / below / name;
    fs::create_directories(real);
    std::ofstream(real / "class") << device_class << "\n";
    fs::create_directory_symlink(real, path_ / "sys/bus/pci/devices" / name);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

TEST(Doctor, GpusSideBySideInAVirtualMachineAreHiddenTopology) {
  FakeRoot root;
  root.processor("fpu hypervisor sse2");
  root.device("pci0000:00", "0000:00:04.0", "0x030200");
  root.device("pci0000:00", "0000:00:05.0", "0x020700");
  root.device("pci0000:00", "0000:00:06.0", "0x010802");  // a drive
  const PciTree tree = gather_pci_tree(root.path());
  EXPECT_EQ(tree.devices, (std::vector<std::string>{"0000:00:04.0", "0000:00:05.0"}));
  EXPECT_TRUE(hides_topology(tree));
  EXPECT_EQ(judge_topology(tree, false).verdict, Verdict::kNote);
  EXPECT_NE(judge_topology(tree, false).remedy.find("WEIR_TOPOLOGY_FILE"), std::string::npos);
  EXPECT_EQ(judge_topology(tree, true).verdict, Verdict::kGood);
}

TEST(Doctor, GpusBehindSwitchesAreShownTopology) {
  FakeRoot root;
  root.processor("fpu hypervisor sse2");
  root.device("pci0000:00/0000:00:01.0", "0000:01:00.0", "0x030200");
  root.device("pci0000:00/0000:00:01.0", "0000:01:00.1", "0x020700");
  EXPECT_FALSE(hides_topology(gather_pci_tree(root.path())));
}

TEST(Doctor, OnBareMetalNothingIsHidden) {
  FakeRoot root;
  root.processor("fpu sse2");
  root.device("pci0000:00", "0000:00:04.0", "0x030200");
  root.device("pci0000:00", "0000:00:05.0", "0x030200");
  EXPECT_FALSE(hides_topology(gather_pci_tree(root.path())));
}

TEST(ElfFile, AProgramTellsItsLoaderAndLibraries) {
  const auto file = read_elf_file("/proc/self/exe");
  ASSERT_TRUE(file.ok()) << file.status().text();
  EXPECT_NE(file.value().interpreter.find("ld-"), std::string::npos);
  EXPECT_FALSE(file.value().needed.empty());
  EXPECT_TRUE(file.value().imported.contains("fork") || file.value().imported.contains("memcpy"));
}

TEST(ElfFile, WhatIsNoElfFileIsAnErrorThatNamesIt) {
  for (const std::string bytes : {"",
                                  "\x7f"
                                  "ELF",
                                  "#!/bin/sh\n"}) {
    const auto file = parse_elf_file(bytes, "that.so");
    ASSERT_FALSE(file.ok());
    EXPECT_NE(file.status().text().find("that.so"), std::string::npos);
  }
  EXPECT_FALSE(read_elf_file("/nowhere/at/all.so").ok());
  EXPECT_FALSE(read_elf_file("/dev").ok());
}

TEST(ElfFile, ADamagedFileIsReadToNobodysHarm) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  // The headers of a real file, where damage goes deepest, and a few symbols.
  const std::string whole = bytes_of("/proc/self/exe");
  Elf64_Ehdr header;
  memcpy(&header, whole.data(), sizeof header);
  for (int i = 0; i < 50; ++i) {
    std::string damaged = whole;
    for (int change = 0; change < 8; ++change) {
      const uint64_t sections = header.e_shoff + random() % (header.e_shnum * sizeof(Elf64_Shdr));
      damaged[random() % 2 == 0 ? random() % 512 : sections] = static_cast<char>(random());
    }
    if (random() % 4 == 0) damaged.resize(random() % damaged.size());
    (void)parse_elf_file(damaged, "damaged");
  }
}

TEST(RunProgram, ItsOutputsAndExitAreKept) {
  const auto output = run_program({"/bin/sh", "-c", "echo $WEIR_WORD; echo no >&2; exit 7"},
                                  {{"WEIR_WORD", "yes"}}, 30'000);
  ASSERT_TRUE(output.ok()) << output.status().text();
  EXPECT_EQ(output.value().out, "yes\n");
  EXPECT_EQ(output.value().err, "no\n");
  EXPECT_EQ(output.value().exit_code, 7);
}

TEST(RunProgram, OneThatDoesNotEndIsKilledAndNamed) {
  const auto output = run_program({"/bin/sh", "-c", "exec sleep 1000"}, {}, 100);
  ASSERT_FALSE(output.ok());
  EXPECT_NE(output.status().text().find("/bin/sh"), std::string::npos);
  EXPECT_FALSE(run_program({"/nowhere/at/all"}, {}, 1000).ok());
}

}  // namespace
}  // namespace weir::info
