// SPDX-License-Identifier: Apache-2.0
// weir-info doctor on what stands behind Weir's libnccl.so.2, with libraries that play NCCL and
// CUDA's driver.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "weir_info/behind.h"
#include "weir_info/doctor.h"
#include "weir_info/run_program.h"

namespace weir::info {
namespace {

namespace fs = std::filesystem;

std::string real_path(const std::string& path) { return fs::canonical(path).string(); }
std::string folder_of(const std::string& path) { return fs::path(path).parent_path().string(); }

// Without what the machine's own environment would have the search find first.
class DoctorBehind : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name :
         {"VIRTUAL_ENV", "CONDA_PREFIX", "WEIR_NCCL_LIBRARY", "WEIR_BACKEND", "WEIR_DISABLE",
          "LD_LIBRARY_PATH", "FAKE_CUDA_DEVICES", "LD_PRELOAD", "VLLM_NCCL_SO_PATH"}) {
      unsetenv(name);
    }
    folder_ = fs::temp_directory_path() / ("weir-behind-" + std::to_string(getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override {
    SetUp();
    fs::remove_all(folder_);
  }
  static void set(const char* name, const std::string& value) { setenv(name, value.c_str(), 1); }
  // A copy, so that it is another file than the one that was built.
  std::string copy_to(const std::string& file, const std::string& below) const {
    const fs::path path = folder_ / below;
    fs::create_directories(path.parent_path());
    fs::copy_file(file, path);
    return real_path(path.string());
  }
  const fs::path& folder() const { return folder_; }

 private:
  fs::path folder_;
};

TEST_F(DoctorBehind, TheOneThatIsNamedIsToldWithVersionDevicesAndWhatItLacks) {
  set("WEIR_NCCL_LIBRARY", WEIR_DOUBLE_OLDER);
  const Behind behind = look_behind({}, WEIR_FAKE_CUDA);
  EXPECT_EQ(behind.trouble, "");
  EXPECT_EQ(behind.not_looked, "");
  EXPECT_EQ(behind.devices, 8);
  EXPECT_EQ(behind.path, WEIR_DOUBLE_OLDER);
  EXPECT_EQ(behind.found_by, "WEIR_NCCL_LIBRARY");
  EXPECT_EQ(behind.version, 21405);
  const auto lacks = [&](const char* text) {
    return std::count(behind.missing.begin(), behind.missing.end(), text) == 1;
  };
  EXPECT_TRUE(lacks("ncclCommSplit (since 2.18.1)"));
  EXPECT_FALSE(lacks("ncclAllReduce (since 2.3.5)"));
  set("WEIR_NCCL_LIBRARY", WEIR_DOUBLE);
  EXPECT_EQ(look_behind({}, WEIR_FAKE_CUDA).version, 23299);
}

TEST_F(DoctorBehind, WithoutDevicesTheReasonIsTheLibrarys) {
  set("WEIR_NCCL_LIBRARY", WEIR_DOUBLE);
  for (const auto& [devices, reason] :
       {std::pair("0", "has no device"), {"-1", "does not start"}}) {
    set("FAKE_CUDA_DEVICES", devices);
    const Behind behind = look_behind({}, WEIR_FAKE_CUDA);
    EXPECT_EQ(behind.devices, 0);
    EXPECT_NE(behind.no_devices.find(reason), std::string::npos) << behind.no_devices;
    EXPECT_EQ(behind.path, WEIR_DOUBLE);
  }
  set("WEIR_BACKEND", "weir");
  EXPECT_EQ(look_behind({}, WEIR_FAKE_CUDA).not_looked, "WEIR_BACKEND=weir");
}

#ifdef WEIR_STAND_IN
TEST_F(DoctorBehind, TheStandInsDevicesAreNoneForTheRealOne) {
  set("WEIR_NCCL_LIBRARY", WEIR_DOUBLE);
  const Behind behind = look_behind({}, WEIR_STAND_IN);
  EXPECT_NE(behind.not_looked.find("stand-in"), std::string::npos) << behind.not_looked;
  EXPECT_EQ(behind.devices, 0);
}
#endif

TEST_F(DoctorBehind, EveryFileThatIsPassedOverIsNamedInTheOrderOfTheSearch) {
  const std::string damaged = (folder() / "damaged" / "libnccl.so.2").string();
  fs::create_directories(folder_of(damaged));
  fs::copy_file("/etc/passwd", damaged);
  set("LD_LIBRARY_PATH", folder_of(WEIR_OURS) + ":" + folder_of(damaged) + ":" + WEIR_OLD_FOLDER +
                             ":" + folder_of(WEIR_REFUSING) + ":" + folder_of(WEIR_DOUBLE));
  const Behind behind = look_behind({}, WEIR_FAKE_CUDA);
  EXPECT_EQ(behind.path, real_path(WEIR_DOUBLE));
  EXPECT_EQ(behind.found_by, "LD_LIBRARY_PATH");
  const std::pair<std::string, std::string> kExpected[] = {
      {real_path(WEIR_OURS), "is Weir's own"},
      {real_path(damaged), "invalid ELF header"},
      {real_path(std::string(WEIR_OLD_FOLDER) + "/libnccl.so.2"), "has no function nccl"},
      {real_path(WEIR_REFUSING), "ncclGetVersion fails"}};
  ASSERT_EQ(behind.refused.size(), std::size(kExpected));
  for (size_t i = 0; i < std::size(kExpected); ++i) {
    EXPECT_EQ(behind.refused[i].path, kExpected[i].first);
    EXPECT_NE(behind.refused[i].why.find(kExpected[i].second), std::string::npos)
        << behind.refused[i].why;
    EXPECT_EQ(behind.refused[i].found_by, "LD_LIBRARY_PATH");
  }
}

TEST_F(DoctorBehind, WeirsOwnIsNoRealOneByWhateverNameItIsCalled) {
  const std::string copy = copy_to(WEIR_OURS, "nvidia.so");
  set("WEIR_NCCL_LIBRARY", copy);
  const Behind behind = look_behind({}, WEIR_FAKE_CUDA);
  EXPECT_EQ(behind.path, "");
  ASSERT_EQ(behind.refused.size(), 1u);
  EXPECT_EQ(behind.refused[0].path, copy);
  EXPECT_EQ(behind.refused[0].why, "is Weir's own");
}

TEST_F(DoctorBehind, ThePackagesOfThePythonThatIsAskedAboutAreLookedAt) {
  const std::string in_packages = "nvidia/nccl/lib/libnccl.so.2";
  const std::string beside =
      copy_to(WEIR_DOUBLE, "beside/lib/python3.11/site-packages/" + in_packages);
  const std::string own = copy_to(WEIR_DOUBLE, "own/lib/python3.11/site-packages/" + in_packages);
  const std::string python = (folder() / "own/bin/python3.11").string();
  Behind behind = look_behind({python, {}}, WEIR_FAKE_CUDA);
  EXPECT_EQ(behind.path, own);
  EXPECT_EQ(behind.found_by, "the Python that runs");
  const std::string packages = (folder() / "beside/lib/python3.11/site-packages").string();
  behind = look_behind({python, {packages}}, WEIR_FAKE_CUDA);
  EXPECT_EQ(behind.path, beside);
  EXPECT_EQ(behind.found_by, "next to a Python package that is loaded");
}

TEST_F(DoctorBehind, ALibraryThatEndsItsProcessIsToldAndEndsNoDoctor) {
  set("WEIR_NCCL_LIBRARY", WEIR_DEADLY);
  const Behind behind = look_behind({}, WEIR_FAKE_CUDA);
  EXPECT_NE(behind.trouble.find("signal 9"), std::string::npos) << behind.trouble;
}

// The checks of one section of a report; null: there is no such section.
nlohmann::json section_in(const std::string& report_text, const std::string& title) {
  const auto report = nlohmann::json::parse(report_text, nullptr, false);
  EXPECT_TRUE(report.is_array()) << report_text;
  for (const auto& section : report) {
    if (section["section"] == title) return section["checks"];
  }
  return nullptr;
}

// Of what the doctor says of a program in this environment.
nlohmann::json section_of(const std::string& title, const std::string& program) {
  return section_in(json_of(examine_nccl(program).sections), title);
}

// Of what `weir-info doctor --json` prints.
nlohmann::json printed_section(const std::string& title, const std::string& program,
                               const std::vector<std::pair<std::string, std::string>>& environment,
                               int* exit_code = nullptr) {
  std::vector<std::string> command = {WEIR_INFO, "doctor", "--json"};
  if (!program.empty()) command.push_back(program);
  const auto output = run_program(command, environment, 60'000);
  EXPECT_TRUE(output.ok()) << output.status().text();
  if (!output.ok()) return nullptr;
  if (exit_code != nullptr) *exit_code = output.value().exit_code;
  return section_in(output.value().out, title);
}

bool has(const nlohmann::json& checks, const char* verdict, const char* subject,
         const std::string& finding) {
  return std::any_of(checks.begin(), checks.end(), [&](const nlohmann::json& check) {
    return check["verdict"] == verdict && check["subject"] == subject &&
           check["finding"].get<std::string>().find(finding) != std::string::npos;
  });
}

constexpr const char* kBehind = "Behind Weir's libnccl.so.2";

TEST_F(DoctorBehind, AProgramThatLoadsWeirsIsToldWhoWouldDoTheWork) {
  const std::string folders = folder_of(WEIR_OURS) + ":" + folder_of(WEIR_FAKE_CUDA);
  auto checks = printed_section(kBehind, WEIR_PROGRAM_RUNPATH,
                                {{"LD_LIBRARY_PATH", folders}, {"WEIR_NCCL_LIBRARY", WEIR_DOUBLE}});
  ASSERT_TRUE(checks.is_array());
  EXPECT_TRUE(has(checks, "ok", "real NCCL", "2.32.99, " WEIR_DOUBLE)) << checks;
  EXPECT_TRUE(has(checks, "ok", "its symbols", "all through 2.32")) << checks;
  EXPECT_TRUE(has(checks, "ok", "backend", "8 GPUs")) << checks;

  int exit_code = 0;
  checks = printed_section(kBehind, WEIR_PROGRAM_RUNPATH,
                           {{"LD_LIBRARY_PATH", folders}, {"WEIR_NCCL_LIBRARY", WEIR_DOUBLE_OLDER}},
                           &exit_code);
  EXPECT_TRUE(has(checks, "BAD", "its symbols", "ncclCommSplit (since 2.18.1)")) << checks;
  EXPECT_EQ(exit_code, 1);

  set("LD_PRELOAD", WEIR_OURS);
  set("WEIR_BACKEND", "weir");
  checks = section_of(kBehind, WEIR_PROGRAM_RUNPATH);
  EXPECT_TRUE(has(checks, "ok", "backend", "Weir's transports: WEIR_BACKEND=weir"));
}

TEST_F(DoctorBehind, TheRemedyNamesTheLibraryThatIsInstalledBesideIt) {
  const auto checks = printed_section(std::string("libnccl.so.2 of ") + WEIR_PROGRAM_LOST,
                                      WEIR_PROGRAM_LOST, {{"LD_LIBRARY_PATH", WEIR_OLD_FOLDER}});
  const std::string words = "to use Weir: LD_PRELOAD=";
  int told = 0;
  for (const auto& check : checks) {
    const auto remedy = check["remedy"].get<std::string>();
    if (remedy.find(words) != 0) continue;
    ++told;
    EXPECT_EQ(real_path(remedy.substr(words.size())), real_path(WEIR_OURS));
  }
  EXPECT_EQ(told, 1) << checks;
  EXPECT_TRUE(has(checks, "BAD", "libraries", "libnowhere.so.7 not found")) << checks;
}

TEST_F(DoctorBehind, ThePathThatVllmIsGivenIsLookedAt) {
  const std::string python = copy_to(WEIR_PROGRAM_RPATH, "bin/python3.11");
  const auto checks_for = [&](const std::string& path) {
    set("VLLM_NCCL_SO_PATH", path);
    return section_of("libnccl.so.2 of " + python, python);
  };
  EXPECT_TRUE(has(checks_for(WEIR_DOUBLE), "ok", "VLLM_NCCL_SO_PATH", "2.32.99, not Weir's"));
  EXPECT_TRUE(has(checks_for(WEIR_OURS), "ok", "VLLM_NCCL_SO_PATH", ": Weir's"));
  EXPECT_TRUE(has(checks_for("/nowhere/libnccl.so.2"), "BAD", "VLLM_NCCL_SO_PATH", "/nowhere/"));
}

TEST_F(DoctorBehind, TheDriversLibraryIsTheOneThatTheLoaderFinds) {
  const auto checks = printed_section("CUDA", "", {{"LD_LIBRARY_PATH", folder_of(WEIR_FAKE_CUDA)}});
  const auto found = std::find_if(checks.begin(), checks.end(), [](const nlohmann::json& check) {
    return check["subject"] == "libcuda.so.1";
  });
  ASSERT_NE(found, checks.end()) << checks;
  EXPECT_EQ(real_path((*found)["finding"].get<std::string>()), real_path(WEIR_FAKE_CUDA));
}

TEST_F(DoctorBehind, WhatIsBehindIsToldForWeirsLibraryOnlyAndWithoutAProgram) {
  EXPECT_TRUE(section_of(kBehind, WEIR_PROGRAM_RPATH).is_null());
  const auto checks =
      printed_section(kBehind, "", {{"WEIR_DISABLE", "1"}, {"WEIR_NCCL_LIBRARY", WEIR_OURS}});
  EXPECT_TRUE(has(checks, "BAD", "WEIR_NCCL_LIBRARY", "is Weir's own")) << checks;
  EXPECT_TRUE(has(checks, "BAD", "backend", "WEIR_DISABLE")) << checks;
}

}  // namespace
}  // namespace weir::info
