// SPDX-License-Identifier: Apache-2.0
#include "weir_info/doctor.h"

#include <elf.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
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
      "/app", true, "/lib/libnccl.so.2", "RPATH of /app", {{"/app", {"ncclCommResume"}}}, {}, {}};
  found.version = 22809;
  const auto checks = judge_nccl(found);
  EXPECT_TRUE(mentions(checks, Verdict::kBad, "ncclCommResume"));
  EXPECT_TRUE(mentions(checks, Verdict::kGood, "RPATH of /app"));
  EXPECT_TRUE(mentions(checks, Verdict::kGood, "2.28.9, not Weir's"));
}

TEST(Doctor, AProgramThatNeedsALibraryThatIsNotThereIsBad) {
  NcclFound found;
  found.loading = {"/app", true, "", "no folder has one", {}, {}, {}};
  EXPECT_TRUE(mentions(judge_nccl(found), Verdict::kBad, "no folder has one"));
  found.loading.linked = false;
  EXPECT_FALSE(mentions(judge_nccl(found), Verdict::kBad, ""));
  found.loading.not_found = {"libcudart.so.12"};
  EXPECT_TRUE(mentions(judge_nccl(found), Verdict::kBad, "libcudart.so.12 not found"));
}

TEST(Doctor, ALibraryThatDoesNotOpenIsBad) {
  NcclFound found;
  found.loading = {"/app", true, "/lib/libnccl.so.2", "LD_PRELOAD names it", {}, {}, {}};
  EXPECT_TRUE(mentions(judge_nccl(found), Verdict::kBad, "cannot be opened"));
}

Behind behind_of(int devices, const std::string& path) {
  Behind behind;
  behind.devices = devices;
  if (devices == 0) behind.no_devices = behind.not_looked = "there is no CUDA driver";
  behind.path = path;
  behind.found_by = "the loader's cache";
  behind.version = 22809;
  return behind;
}

TEST(Doctor, WhoDoesTheWorkFollowsTheLibrarysRules) {
  const auto work_of = [](const Behind& behind) { return judge_behind(behind, {}).back(); };
  const std::string real = "/lib/libnccl.so.2";
  EXPECT_EQ(work_of(behind_of(0, real)).finding, "Weir's transports: there is no CUDA driver");
  EXPECT_EQ(work_of(behind_of(0, "")).verdict, Verdict::kGood);
  EXPECT_EQ(work_of(behind_of(2, real)).finding.find("the real NCCL for communicators"), 0u);
  EXPECT_EQ(work_of(behind_of(2, "")).finding, "Weir's transports: there is no real NCCL");
  EXPECT_TRUE(mentions(judge_behind(behind_of(2, ""), {}), Verdict::kNote, "WEIR_NCCL_LIBRARY"));

  Behind forced = behind_of(2, real);
  forced.requested.backend = nccl::RequestedBackend::kNccl;
  EXPECT_EQ(work_of(forced).verdict, Verdict::kGood);
  for (Behind bad : {behind_of(0, real), behind_of(2, "")}) {
    bad.requested.backend = nccl::RequestedBackend::kNccl;
    EXPECT_EQ(work_of(bad).verdict, Verdict::kBad);
    EXPECT_EQ(work_of(bad).remedy, "unset WEIR_BACKEND");
    bad.requested.backend = nccl::RequestedBackend::kAuto;
    bad.requested.disabled = true;
    EXPECT_EQ(work_of(bad).verdict, Verdict::kBad);
    EXPECT_EQ(work_of(bad).remedy, "unset WEIR_DISABLE");
  }
  Behind disabled = behind_of(2, real);
  disabled.requested.disabled = true;
  EXPECT_EQ(work_of(disabled).verdict, Verdict::kGood);
}

TEST(Doctor, AFunctionThatTheRealOneLacksIsBadForAProgramThatWantsIt) {
  Behind behind = behind_of(1, "/lib/libnccl.so.2");
  behind.missing = {"ncclCommShrink (since 2.27.3)", "ncclCommGrow (since 2.29.2)"};
  EXPECT_FALSE(mentions(judge_behind(behind, {"ncclAllReduce"}), Verdict::kBad, ""));
  EXPECT_TRUE(
      mentions(judge_behind(behind, {"ncclAllReduce"}), Verdict::kGood, "ncclCommGrow (since"));
  for (const char* wanted : {"ncclCommShrink", "pncclCommShrink"}) {
    const auto checks = judge_behind(behind, {wanted});
    EXPECT_TRUE(mentions(checks, Verdict::kBad, "ncclCommShrink (since 2.27.3)"));
    EXPECT_FALSE(mentions(checks, Verdict::kBad, "ncclCommGrow"));
  }
}

TEST(Doctor, FilesThatAreNotTheRealOneAreNamedWithTheReason) {
  Behind behind = behind_of(1, "/lib/libnccl.so.2");
  behind.refused = {{"/opt/weir/libnccl.so.2", "LD_LIBRARY_PATH", "is Weir's own"}};
  EXPECT_TRUE(mentions(judge_behind(behind, {}), Verdict::kGood,
                       "/opt/weir/libnccl.so.2 (LD_LIBRARY_PATH): is Weir's own"));
  behind.path.clear();
  behind.requested.library = behind.refused[0].path;
  EXPECT_TRUE(mentions(judge_behind(behind, {}), Verdict::kBad, "is Weir's own"));
  behind = Behind();
  behind.trouble = "it was ended by signal 11";
  EXPECT_TRUE(mentions(judge_behind(behind, {}), Verdict::kBad, "signal 11"));
}

TEST(Doctor, ADriverThatIsNotWholeHasARemedy) {
  const InstalledDriver whole = {true, "550.54.15", true, "/lib/libcuda.so.1", "550.54.15", false};
  for (const Check& check : judge_driver(whole)) EXPECT_EQ(check.verdict, Verdict::kGood);
  for (const Check& check : judge_driver({})) EXPECT_EQ(check.verdict, Verdict::kGood);
  InstalledDriver driver = whole;
  driver.library = driver.library_version = "";
  EXPECT_TRUE(mentions(judge_driver(driver), Verdict::kBad, "libcuda1"));
  driver = whole;
  driver.device_file = false;
  EXPECT_TRUE(mentions(judge_driver(driver), Verdict::kBad, "nvidia-modprobe"));
  driver = whole;
  driver.library_version = "535.161.08";
  EXPECT_TRUE(mentions(judge_driver(driver), Verdict::kNote, "535.161.08"));
  driver = {false, "", false, "/lib/libcuda.so.1", "", false};
  EXPECT_TRUE(mentions(judge_driver(driver), Verdict::kNote, "--gpus all"));
  driver.stand_in = true;
  EXPECT_TRUE(mentions(judge_driver(driver), Verdict::kGood, "Weir's stand-in"));
  EXPECT_FALSE(mentions(judge_driver(driver), Verdict::kNote, ""));
}

TEST(Doctor, TheDirectWayIsToldWithItsReason) {
  InstalledDriver driver = {true, "550.54.15", true, "/lib/libcuda.so.1", "550.54.15", false};
  EXPECT_TRUE(mentions(judge_driver(driver), Verdict::kGood, "directly on one machine, but"));
  EXPECT_TRUE(mentions(judge_driver(driver, "1"), Verdict::kNote, "unset WEIR_DIRECT"));
  EXPECT_TRUE(mentions(judge_driver(driver, "0"), Verdict::kGood, "WEIR_DIRECT=0"));
  driver.stand_in = true;
  EXPECT_TRUE(mentions(judge_driver(driver), Verdict::kGood, "directly on one machine"));
  EXPECT_FALSE(mentions(judge_driver(driver, "1"), Verdict::kNote, ""));
  EXPECT_TRUE(mentions(judge_driver(driver, "0"), Verdict::kGood, "WEIR_DIRECT=0"));
}

TEST(Doctor, TheDriversVersionIsReadAsNvidiaWritesIt) {
  EXPECT_EQ(driver_version_in("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  "
                              "5 22:23:56 UTC 2024\nGCC version:  gcc version 12.2.0\n"),
            "550.54.15");
  EXPECT_EQ(driver_version_in("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  "
                              "Release Build  (root@host)\n"),
            "570.86.15");
  EXPECT_EQ(driver_version_in("GCC version:  gcc version 12.2.0\n"), "");
  EXPECT_EQ(driver_version_of_file("libcuda.so.550.54.15"), "550.54.15");
  EXPECT_EQ(driver_version_of_file("libcuda.so.1"), "");
  EXPECT_EQ(driver_version_of_file("other.so.1.2"), "");
}

TEST(Doctor, ATopologyFileThatCannotBeReadIsBadAndNamed) {
  const Check missing =
      check_topology_file("NCCL_TOPO_FILE", "/nowhere/topology.xml", topo::Merge::kAuto);
  EXPECT_EQ(missing.verdict, Verdict::kBad);
  EXPECT_EQ(missing.subject, "NCCL_TOPO_FILE");
  EXPECT_NE(missing.finding.find("/nowhere/topology.xml"), std::string::npos);
  EXPECT_NE(missing.remedy, "");
  for (const auto& entry : fs::directory_iterator(WEIR_TEST_FIXTURES "/topologies")) {
    if (entry.path().extension() != ".xml") continue;
    const std::string path = entry.path().string();
    const Check check = check_topology_file("WEIR_TOPOLOGY_FILE", path, topo::Merge::kNever);
    EXPECT_EQ(check.verdict, Verdict::kGood) << check.finding;
  }
}

TEST(Doctor, ATopologyFileOfAnotherMachineIsNoted) {
  const std::string path = testing::TempDir() + "weir_doctor_topology.xml";
  std::ofstream(path) << R"(<system version="1"><cpu numaid="0">
<pci busid="fffff:ff:1f.7" class="0x030200"/></cpu></system>)";
  const Check noted = check_topology_file("NCCL_TOPO_FILE", path, topo::Merge::kAuto);
  EXPECT_EQ(noted.verdict, Verdict::kNote);
  EXPECT_NE(noted.finding.find("the file is of another machine"), std::string::npos);
  EXPECT_NE(noted.remedy.find("WEIR_TOPOLOGY_MERGE=0"), std::string::npos);
  EXPECT_EQ(check_topology_file("NCCL_TOPO_FILE", path, topo::Merge::kAlways).verdict,
            Verdict::kBad);
  fs::remove(path);
}

std::vector<Check> checks_of_variable(std::string variable) {
  char* environment[] = {variable.data(), nullptr};
  return judge_variables(parse_settings(environment));
}

TEST(Doctor, VariablesWithWhichNothingStartsAreBad) {
  const std::string fifo = testing::TempDir() + "weir_doctor_fifo";
  fs::remove(fifo);
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  for (const auto& [variable, text] : {
           std::pair<std::string, const char*>{"WEIR_ALGORITHM=foo", "WEIR_ALGORITHM: 'foo'"},
           {"WEIR_ALGORITHM=allreduce=ring", "'allreduce' is not a collective; known are "},
           {"WEIR_TUNING_FILE=/nonexist", "WEIR_TUNING_FILE: "},
           {"WEIR_TUNING_FILE=" + fifo, "weir_doctor_fifo' is not a regular file"},
           {"WEIR_PROGRAMS=/nonexist", "WEIR_PROGRAMS: "},
           {"WEIR_FAILOVER=foo", "WEIR_FAILOVER"},
           {"WEIR_TRANSPORT=foo", "foo"},
           {"WEIR_SPIN_US=many", "WEIR_SPIN_US"},
       }) {
    const auto checks = checks_of_variable(variable);
    ASSERT_EQ(checks.size(), 1u) << variable;
    EXPECT_EQ(checks[0].verdict, Verdict::kBad) << variable;
    EXPECT_NE(checks[0].finding.find(text), std::string::npos) << checks[0].finding;
    EXPECT_NE(checks[0].remedy, "") << variable;
  }
  fs::remove(fifo);
  const auto unknown = checks_of_variable("WEIR_FOO=1");
  ASSERT_EQ(unknown.size(), 1u);
  EXPECT_EQ(unknown[0].verdict, Verdict::kNote);
  EXPECT_NE(unknown[0].finding.find("WEIR_FOO is set, but Weir has no such"), std::string::npos);
  const auto good = checks_of_variable("WEIR_ALGORITHM=all_reduce=ring");
  ASSERT_EQ(good.size(), 1u);
  EXPECT_EQ(good[0].verdict, Verdict::kGood) << good[0].finding;
}

TEST(Doctor, JsonHoldsEveryCheckWithItsRemedy) {
  const std::vector<Section> sections = {
      {"One", {{Verdict::kGood, "a", "fine", ""}, {Verdict::kBad, "b", "br\"oken", "mend it"}}},
      {"Two", {}}};
  const auto json = nlohmann::json::parse(json_of(sections));
  ASSERT_EQ(json.size(), 2u);
  EXPECT_EQ(json[0]["section"], "One");
  const nlohmann::json bad = {
      {"verdict", "BAD"}, {"subject", "b"}, {"finding", "br\"oken"}, {"remedy", "mend it"}};
  EXPECT_EQ(json[0]["checks"][1], bad);
  EXPECT_EQ(json[0]["checks"][0]["verdict"], "ok");
  EXPECT_TRUE(json[1]["checks"].empty());
  EXPECT_TRUE(any_bad(sections));
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

TEST(Doctor, GpusBehindACommonSwitchAreShownTopology) {
  FakeRoot root;
  root.processor("fpu hypervisor sse2");
  root.device("pci0000:00/0000:00:01.0/0000:01:00.0", "0000:02:00.0", "0x030200");
  root.device("pci0000:00/0000:00:01.0/0000:01:00.1", "0000:03:00.0", "0x020700");
  EXPECT_FALSE(hides_topology(gather_pci_tree(root.path())));
}

TEST(Doctor, GpusBehindAPortOfTheirOwnEachAreHiddenTopology) {
  FakeRoot root;
  root.processor("fpu hypervisor sse2");
  root.device("pci0000:00/0000:00:01.0", "0000:01:00.0", "0x030200");
  root.device("pci0000:00/0000:00:01.0", "0000:01:00.1", "0x030200");  // the same card
  root.device("pci0000:00/0000:00:02.0", "0000:02:00.0", "0x030200");
  EXPECT_TRUE(hides_topology(gather_pci_tree(root.path())));
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

TEST(AnswerOfFork, ItIsWholeOrAnErrorThatSaysHowItEnded) {
  std::string large(300'000, 'x');
  const auto answer = answer_of_fork(
      [&] {
        puts("nobody sees this");
        return large;
      },
      30'000);
  ASSERT_TRUE(answer.ok()) << answer.status().text();
  EXPECT_EQ(answer.value(), large);
  const auto killed = answer_of_fork(
      []() -> std::string {
        raise(SIGKILL);
        return "never";
      },
      30'000);
  ASSERT_FALSE(killed.ok());
  EXPECT_NE(killed.status().text().find("signal 9"), std::string::npos);
  const auto hangs = answer_of_fork(
      []() -> std::string {
        for (;;) pause();
      },
      100);
  ASSERT_FALSE(hangs.ok());
  EXPECT_NE(hangs.status().text().find("100 ms"), std::string::npos);
}

TEST(RunProgram, OneThatDoesNotEndIsKilledAndNamed) {
  const auto output = run_program({"/bin/sh", "-c", "exec sleep 1000"}, {}, 100);
  ASSERT_FALSE(output.ok());
  EXPECT_NE(output.status().text().find("/bin/sh"), std::string::npos);
  EXPECT_FALSE(run_program({"/nowhere/at/all"}, {}, 1000).ok());
}

}  // namespace
}  // namespace weir::info
