// SPDX-License-Identifier: Apache-2.0
// weir-info doctor on programs that find libnccl.so.2 in each way: what it says beside what the
// loader does.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <tuple>

#include "weir_info/loading.h"

namespace weir::info {
namespace {

namespace fs = std::filesystem;

// An environment variable for as long as it lives.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    setenv(name, value.c_str(), 1);
  }
  ~Variable() { unsetenv(name_); }

 private:
  const char* name_;
};

Loading loading_of(const std::string& object) {
  auto loading = nccl_of(object);
  EXPECT_TRUE(loading.ok()) << loading.status().text();
  return loading.ok() ? loading.value() : Loading{};
}

std::string real_path(const std::string& path) { return fs::canonical(path).string(); }

TEST(DoctorOnPrograms, RpathGoesBeforeTheEnvironmentAndRunpathBehindIt) {
  Loading rpath = loading_of(WEIR_PROGRAM_RPATH);
  EXPECT_TRUE(rpath.linked);
  EXPECT_EQ(real_path(rpath.path), real_path(WEIR_REFUSING));
  EXPECT_EQ(rpath.reason.find("RPATH of "), 0u) << rpath.reason;
  Loading runpath = loading_of(WEIR_PROGRAM_RUNPATH);
  EXPECT_EQ(runpath.reason.find("RUNPATH of "), 0u) << runpath.reason;

  const Variable folders("LD_LIBRARY_PATH", fs::path(WEIR_OURS).parent_path().string());
  EXPECT_EQ(real_path(loading_of(WEIR_PROGRAM_RPATH).path), real_path(WEIR_REFUSING));
  runpath = loading_of(WEIR_PROGRAM_RUNPATH);
  EXPECT_EQ(real_path(runpath.path), real_path(WEIR_OURS));
  EXPECT_EQ(runpath.reason, "LD_LIBRARY_PATH");
}

TEST(DoctorOnPrograms, APreloadedLibraryIsFoundWhateverItsFileIsCalled) {
  const std::string copy =
      fs::temp_directory_path() / ("weir-doctor-" + std::to_string(getpid()) + ".so");
  fs::copy_file(WEIR_OURS, copy);
  {
    const Variable preload("LD_PRELOAD", copy);
    for (const char* program : {WEIR_PROGRAM_RPATH, WEIR_PROGRAM_RUNPATH, "/bin/sh"}) {
      const Loading loading = loading_of(real_path(program));
      EXPECT_EQ(loading.path, copy) << program;
      EXPECT_EQ(loading.reason, "LD_PRELOAD names it");
      EXPECT_TRUE(loading.missing.empty());
    }
  }
  fs::remove(copy);
}

TEST(DoctorOnPrograms, AProgramThatIsNotLinkedToItIsToldWhatItsNameFinds) {
  const Variable folders("LD_LIBRARY_PATH", fs::path(WEIR_OURS).parent_path().string());
  const Loading loading = loading_of(real_path("/bin/sh"));
  EXPECT_FALSE(loading.linked);
  EXPECT_EQ(real_path(loading.path), real_path(WEIR_OURS));
  EXPECT_EQ(loading.reason, "LD_LIBRARY_PATH");
}

TEST(DoctorOnPrograms, SymbolsThatTheLibraryLacksAreNamed) {
  const Variable folders("LD_LIBRARY_PATH", WEIR_OLD_FOLDER);
  const Loading loading = loading_of(WEIR_PROGRAM_RUNPATH);
  ASSERT_EQ(real_path(loading.path), real_path(std::string(WEIR_OLD_FOLDER) + "/libnccl.so.2"));
  ASSERT_EQ(loading.missing.size(), 1u);
  const auto& names = loading.missing[0].names;
  EXPECT_NE(std::find(names.begin(), names.end(), "ncclAllReduce"), names.end());
  EXPECT_EQ(std::find(names.begin(), names.end(), "ncclGetVersion"), names.end());
}

TEST(DoctorOnPrograms, TheVersionIsTheLibrarysOwnAnswer) {
  EXPECT_GE(nccl_version_of(WEIR_OURS), 23203);
  EXPECT_EQ(nccl_version_of(std::string(WEIR_OLD_FOLDER) + "/libnccl.so.2"), 20400);
  EXPECT_EQ(nccl_version_of("/nowhere/libnccl.so.2"), 0);
}

TEST(DoctorOnPrograms, ProgramsAreFoundByNameByPathAndBehindScripts) {
  EXPECT_TRUE(find_program("sh").ok());
  EXPECT_FALSE(find_program("no-such-program-at-all").ok());
  EXPECT_FALSE(find_program("/no/such/program").ok());
  const std::string script =
      fs::temp_directory_path() / ("weir-doctor-" + std::to_string(getpid()) + ".sh");
  for (const char* first : {"#!/usr/bin/env -S sh -e\n", "#! /bin/sh\n"}) {
    FILE* file = fopen(script.c_str(), "w");
    ASSERT_NE(file, nullptr);
    fputs(first, file);
    fclose(file);
    const auto found = find_program(script);
    ASSERT_TRUE(found.ok()) << found.status().text();
    EXPECT_EQ(fs::path(found.value()).filename(), "sh");
  }
  fs::remove(script);
}

TEST(DoctorOnPrograms, WhatAProgramNeedsAndDoesNotFindIsNamed) {
  const Loading loading = loading_of(WEIR_PROGRAM_LOST);
  EXPECT_TRUE(loading.linked);
  EXPECT_EQ(loading.path, "");
  EXPECT_EQ(loading.reason, "no folder that the loader looks in has one");
  EXPECT_EQ(loading.not_found, std::vector<std::string>{"libnowhere.so.7"});
}

TEST(DoctorOnPrograms, RelativeFoldersAndNamesOfTheEnvironmentAreUnderstood) {
  const std::string folder = fs::path(WEIR_OURS).parent_path().string();
  const fs::path before = fs::current_path();
  fs::current_path(fs::path(folder).parent_path());
  const std::string relative = fs::path(folder).filename().string();
  for (const auto& [variable, value, reason] :
       {std::tuple("LD_PRELOAD", relative + "/libnccl.so.2", "LD_PRELOAD names it"),
        {"LD_LIBRARY_PATH", relative, "LD_LIBRARY_PATH"}}) {
    const Variable set(variable, value);
    const Loading loading = loading_of(WEIR_PROGRAM_RUNPATH);
    EXPECT_EQ(real_path(loading.path), real_path(WEIR_OURS)) << variable;
    EXPECT_EQ(loading.reason, reason);
  }
  fs::current_path(before);
  const Variable folders("LD_LIBRARY_PATH", folder);
  const Variable preload("LD_PRELOAD", "libnccl.so.2");
  EXPECT_EQ(loading_of(WEIR_PROGRAM_RPATH).reason, "LD_PRELOAD names it");
}

TEST(DoctorOnPrograms, AScriptThatIsCalledPythonIsAskedForItsInterpreter) {
  const fs::path folder =
      fs::temp_directory_path() / ("weir-doctor-python-" + std::to_string(getpid()));
  fs::create_directories(folder);
  const std::string interpreter = (folder / "python3.11").string();
  fs::copy_file(WEIR_PROGRAM_RPATH, interpreter);
  const std::string script = (folder / "python3").string();
  const auto write = [&](const std::string& text) {
    FILE* file = fopen(script.c_str(), "w");
    ASSERT_NE(file, nullptr);
    fputs(text.c_str(), file);
    fclose(file);
    fs::permissions(script, fs::perms::owner_all);
  };
  write("#!/bin/sh\necho " + interpreter + "\n");
  const auto found = interpreter_of_python(script);
  EXPECT_TRUE(found.ok() && found.value() == interpreter) << found.status().text();
  // Also where another script begins with it.
  const std::string user = (folder / "train.py").string();
  FILE* file = fopen(user.c_str(), "w");
  ASSERT_NE(file, nullptr);
  fputs("#!/usr/bin/env python3\n", file);
  fclose(file);
  {
    const char* before = getenv("PATH");
    const std::string path = before == nullptr ? "" : before;
    setenv("PATH", (folder.string() + ":" + path).c_str(), 1);
    const auto behind = find_program(user);
    EXPECT_TRUE(behind.ok() && behind.value() == interpreter) << behind.status().text();
    setenv("PATH", path.c_str(), 1);
  }
  write("#!/bin/sh\necho no such version >&2\nexit 1\n");
  const auto none = interpreter_of_python(script);
  EXPECT_FALSE(none.ok());
  EXPECT_NE(none.status().text().find("no such version"), std::string::npos);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace weir::info
