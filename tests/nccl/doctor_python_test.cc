// SPDX-License-Identifier: Apache-2.0
// weir-info doctor on Python programs whose environment has NCCL as a wheel. The environment is
// made up: a library with PyTorch's RPATH, a library that plays NVIDIA's NCCL, and a script that
// plays the interpreter.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "weir_info/doctor.h"
#include "weir_info/installed_driver.h"
#include "weir_info/python_clients.h"
#include "weir_info/run_program.h"

namespace weir::info {
namespace {

namespace fs = std::filesystem;

std::string real_path(const std::string& path) { return fs::canonical(path).string(); }
std::string folder_of(const std::string& path) { return fs::path(path).parent_path().string(); }

class DoctorOnPython : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "VLLM_NCCL_SO_PATH",
                             "WEIR_NCCL_LIBRARY", "VIRTUAL_ENV", "CONDA_PREFIX"}) {
      unsetenv(name);
    }
    folder_ = fs::temp_directory_path() / ("weir-python-" + std::to_string(getpid()));
    fs::remove_all(folder_);
    wheel_ = copy_to(WEIR_DOUBLE, "nvidia/nccl/lib/libnccl.so.2");
    copy_to(WEIR_FAKE_TORCH, "torch/lib/libtorch_cuda.so");
    copy_to(WEIR_FAKE_TORCH, "cupy_backends/cuda/libs/nccl.cpython-311-x86_64-linux-gnu.so");
    python_ = write("bin/python3", "#!/bin/sh\necho /nowhere\necho " + packages().string() + "\n");
  }
  void TearDown() override {
    unsetenv("LD_LIBRARY_PATH");
    unsetenv("LD_PRELOAD");
    unsetenv("PYTHONPATH");
    fs::remove_all(folder_);
  }
  static void set(const char* name, const std::string& value) { setenv(name, value.c_str(), 1); }
  fs::path packages() const { return folder_ / "site-packages"; }
  std::string copy_to(const std::string& file, const std::string& below) const {
    const fs::path path = packages() / below;
    fs::create_directories(path.parent_path());
    fs::copy_file(file, path);
    return path.string();
  }
  std::string write(const std::string& below, const std::string& text) const {
    const fs::path path = folder_ / below;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
    fs::permissions(path, fs::perms::owner_all);
    return path.string();
  }
  Loading loading_of(const std::string& name) const {
    const PythonPackages found = packages_of_python(python_);
    EXPECT_EQ(found.nccl, wheel_);
    for (const PythonClient& client : found.clients) {
      if (client.name != name) continue;
      const auto loading = nccl_of(client, found.nccl);
      EXPECT_TRUE(loading.ok()) << loading.status().text();
      return loading.ok() ? loading.value() : Loading{};
    }
    ADD_FAILURE() << name << " was not found";
    return {};
  }

  fs::path folder_;
  std::string wheel_, python_;
};

TEST_F(DoctorOnPython, TheWheelGoesBeforeLdLibraryPathInEveryPackage) {
  set("LD_LIBRARY_PATH", folder_of(WEIR_OURS));
  const Loading torch = loading_of("PyTorch");
  EXPECT_EQ(real_path(torch.path), real_path(wheel_));
  EXPECT_EQ(torch.reason.find("RPATH of "), 0U) << torch.reason;
  const Loading cupy = loading_of("CuPy");
  EXPECT_EQ(real_path(cupy.path), real_path(wheel_));
  EXPECT_EQ(cupy.reason, "CuPy opens the wheel's file by its path");
}

TEST_F(DoctorOnPython, WhatTheLoaderDoesWithPytorchsLibraryIsWhatIsTold) {
  set("LD_LIBRARY_PATH", folder_of(WEIR_OURS));
  // A process that opens it, and shows which file it got.
  const auto maps = [&] {
    const std::string code = "import ctypes; ctypes.CDLL('" +
                             (packages() / "torch/lib/libtorch_cuda.so").string() +
                             "'); print(open('/proc/self/maps').read())";
    const auto output = run_program({"/usr/bin/env", "python3", "-c", code}, {}, 20'000);
    return output.ok() && output.value().exit_code == 0 ? output.value().out : std::string();
  };
  const std::string before = maps();
  if (before.empty()) GTEST_SKIP() << "no python3";
  EXPECT_NE(before.find(real_path(wheel_)), std::string::npos);
  EXPECT_EQ(before.find(real_path(WEIR_OURS)), std::string::npos);
  set("LD_PRELOAD", WEIR_OURS);
  EXPECT_NE(maps().find(real_path(WEIR_OURS)), std::string::npos);
  EXPECT_EQ(real_path(loading_of("PyTorch").path), real_path(WEIR_OURS));
}

TEST_F(DoctorOnPython, TheLineThatTheDoctorGivesChangesTheFile) {
  EXPECT_TRUE(shadowed_by(loading_of("PyTorch")).empty()) << "nobody asked for Weir";
  set("LD_LIBRARY_PATH", folder_of(WEIR_OURS));
  for (const char* name : {"PyTorch", "CuPy"}) {
    const auto shadowed = shadowed_by(loading_of(name));
    ASSERT_EQ(shadowed.size(), 1U) << name;
    EXPECT_EQ(real_path(shadowed[0].wanted), real_path(WEIR_OURS));
    EXPECT_EQ(real_path(shadowed[0].loaded), real_path(wheel_));
    const Check check = judge_shadowed(shadowed);
    EXPECT_EQ(check.verdict, Verdict::kBad);
    const std::string mark = "LD_PRELOAD=";
    const size_t at = check.remedy.find(mark);
    ASSERT_NE(at, std::string::npos) << check.remedy;
    set("LD_PRELOAD", check.remedy.substr(at + mark.size()));
    EXPECT_EQ(real_path(loading_of(name).path), real_path(WEIR_OURS)) << name;
    EXPECT_TRUE(shadowed_by(loading_of(name)).empty()) << name;
    unsetenv("LD_PRELOAD");
  }
}

TEST_F(DoctorOnPython, OtherLibrariesOnLdLibraryPathAreTheUsersOwnAffair) {
  set("LD_LIBRARY_PATH", folder_of(WEIR_REFUSING));
  EXPECT_TRUE(shadowed_by(loading_of("PyTorch")).empty());
}

TEST_F(DoctorOnPython, WithoutAWheelLdLibraryPathIsEnough) {
  fs::remove(wheel_);
  set("LD_LIBRARY_PATH", folder_of(WEIR_OURS));
  const PythonPackages found = packages_of_python(python_);
  EXPECT_EQ(found.nccl, "");
  ASSERT_EQ(found.clients.size(), 2U);
  for (const PythonClient& client : found.clients) {
    const auto loading = nccl_of(client, found.nccl);
    ASSERT_TRUE(loading.ok()) << loading.status().text();
    EXPECT_EQ(real_path(loading.value().path), real_path(WEIR_OURS)) << client.name;
    EXPECT_TRUE(shadowed_by(loading.value()).empty());
  }
}

TEST_F(DoctorOnPython, TheWholeDoctorSaysItOfAProgramOfPythons) {
  set("LD_LIBRARY_PATH", folder_of(WEIR_OURS));
  set("PYTHONPATH", packages().string());
  const std::string source = write("train.py", "import torch\n");
  const std::string ours = folder_of(WEIR_OURS) + "/" + kNcclName;
  const auto answer = [&] {
    const auto output = run_program({WEIR_INFO, "doctor", source}, {}, 60'000);
    EXPECT_TRUE(output.ok()) << output.status().text();
    return output.ok() ? output.value().out : std::string();
  };
  const std::string before = answer();
  if (before.find("there is no program python3") != std::string::npos) GTEST_SKIP() << before;
  EXPECT_NE(before.find("BAD  LD_LIBRARY_PATH: does not bring " + ours), std::string::npos)
      << before;
  EXPECT_NE(before.find("LD_PRELOAD=" + ours), std::string::npos) << before;
  set("LD_PRELOAD", ours);
  const std::string after = answer();
  EXPECT_EQ(after.find("BAD  LD_LIBRARY_PATH"), std::string::npos) << after;
  EXPECT_NE(after.find("libtorch_cuda.so: loads " + ours), std::string::npos) << after;
}

TEST_F(DoctorOnPython, AScriptOfPipsIsExaminedByItsInterpreter) {
  const std::string interpreter = write("long/path/bin/python3.11", "");
  fs::remove(interpreter);
  fs::copy_file(WEIR_PROGRAM_RPATH, interpreter);
  const std::string script = write(
      "bin/torchrun", "#!/bin/sh\n'''exec' " + interpreter + " \"$0\" \"$@\"\n' '''\nimport re\n");
  const auto found = find_program(script);
  ASSERT_TRUE(found.ok()) << found.status().text();
  EXPECT_EQ(found.value(), interpreter);
}

#ifdef WEIR_STAND_IN
TEST_F(DoctorOnPython, TheStandInForTheDriverIsRecognized) {
  set("LD_LIBRARY_PATH", folder_of(WEIR_STAND_IN));
  const InstalledDriver driver = gather_driver("/", WEIR_PROGRAM_RUNPATH);
  EXPECT_EQ(real_path(driver.library), real_path(WEIR_STAND_IN));
  EXPECT_TRUE(driver.stand_in);
}
#endif

}  // namespace
}  // namespace weir::info
