// SPDX-License-Identifier: Apache-2.0
// What the libraries that leave the project ask of a system: glibc 2.34 and nothing else, so that
// they load on every distribution of the time and beside whatever a program has.
// cmake/WeirContained.cmake says how.
#include <gnu/libc-version.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "weir_info/elf_file.h"
#include "weir_info/run_program.h"

namespace weir::test {
namespace {

using Version = std::pair<int, int>;

constexpr Version kOldest{2, 34};
// Whoever builds with a later C library gets later versions of its functions.
constexpr Version kBuiltWith{2, 36};

struct Library {
  std::string path;
  std::vector<std::string> may_need;
  std::vector<std::string> exports;  // beginnings of names
};

std::vector<Library> libraries() {
  std::vector<Library> all = {
      {WEIR_LIBNCCL, {}, {"nccl", "pnccl", "weir_nccl_marker"}},
      {WEIR_LIBWEIR, {}, {"weir_"}},
      {WEIR_NET_PLUGIN, {}, {"ncclNetPlugin", "ncclCollNetPlugin", "ncclGinPlugin"}},
  };
  std::istringstream modules(WEIR_MODULES);
  for (std::string path; std::getline(modules, path, ':');) {
    // UCX is what its module stands on.
    const bool is_ucx = path.find("libweir_ucx") != std::string::npos;
    all.push_back({path,
                   is_ucx ? std::vector<std::string>{"libucp.so.0", "libucs.so.0"}
                          : std::vector<std::string>{},
                   {"weir_transport_plugin"}});
  }
  return all;
}

bool begins_with_one_of(const std::string& name, const std::vector<std::string>& beginnings) {
  return std::any_of(beginnings.begin(), beginnings.end(),
                     [&](const std::string& it) { return name.starts_with(it); });
}

// The rows of `readelf --dyn-syms` with what the library takes from others: binding and name, with
// its version.
std::vector<std::pair<std::string, std::string>> taken(const std::string& path) {
  std::vector<std::pair<std::string, std::string>> symbols;
  const auto listed = info::run_program({WEIR_READELF, "--wide", "--dyn-syms", path}, {}, 20'000);
  if (!listed.ok()) {
    ADD_FAILURE() << listed.status().text();
    return symbols;
  }
  std::istringstream lines(listed.value().out);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream cells(line);
    std::string number, value, size, type, binding, visibility, section, name;
    cells >> number >> value >> size >> type >> binding >> visibility >> section >> name;
    if (section == "UND" && !name.empty()) symbols.emplace_back(binding, name);
  }
  return symbols;
}

TEST(Needs, OnlyLibrariesOfTheCLibrary) {
  const std::set<std::string> of_glibc = {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2",
                                          "ld-linux-aarch64.so.1"};
  for (const Library& library : libraries()) {
    const auto file = info::read_elf_file(library.path);
    ASSERT_TRUE(file.ok()) << file.status().text();
    for (const std::string& needed : file.value().needed) {
      EXPECT_TRUE(of_glibc.contains(needed) || begins_with_one_of(needed, library.may_need))
          << library.path << " needs " << needed;
    }
  }
}

TEST(Needs, OnlyFunctionsOfThem) {
  for (const Library& library : libraries()) {
    if (!library.may_need.empty()) continue;
    const auto symbols = taken(library.path);
    EXPECT_GT(symbols.size(), 10u) << library.path;
    for (const auto& [binding, name] : symbols) {
      if (name.find("@GLIBC_") != std::string::npos) continue;
      // What GCC's objects ask about: transactional memory and profiles, which nobody has.
      const bool is_optional =
          binding == "WEAK" &&
          begins_with_one_of(name, {"_ITM_", "_ZGTt", "__gmon_start__", "__cxa_finalize"});
      EXPECT_TRUE(is_optional) << library.path << " takes " << name << " from others";
    }
  }
}

TEST(Needs, NoLaterVersionThan234) {
  int major = 0, minor = 0;
  ASSERT_EQ(sscanf(gnu_get_libc_version(), "%d.%d", &major, &minor), 2);
  if (Version(major, minor) > kBuiltWith) {
    GTEST_SKIP() << "built with glibc " << major << "." << minor
                 << ": what is distributed is built on Debian 12";
  }
  for (const Library& library : libraries()) {
    size_t versions = 0;
    for (const auto& [binding, name] : taken(library.path)) {
      const size_t at = name.find("@GLIBC_");
      if (at == std::string::npos) continue;
      Version version;
      if (sscanf(name.c_str() + at, "@GLIBC_%d.%d", &version.first, &version.second) != 2) continue;
      ++versions;
      EXPECT_LE(version, kOldest) << library.path << " needs " << name;
    }
    EXPECT_GT(versions, 10u) << library.path;
  }
}

TEST(Needs, NothingIsExportedButWhatIsNamed) {
  for (const Library& library : libraries()) {
    const auto file = info::read_elf_file(library.path);
    ASSERT_TRUE(file.ok()) << file.status().text();
    EXPECT_FALSE(file.value().exported.empty()) << library.path;
    for (const std::string& name : file.value().exported) {
      EXPECT_TRUE(begins_with_one_of(name, library.exports)) << library.path << " exports " << name;
    }
  }
}

}  // namespace
}  // namespace weir::test
