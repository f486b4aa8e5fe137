// SPDX-License-Identifier: Apache-2.0
// The documentation is true of the tree: links lead somewhere, commands exist, variables are
// listed.
#include <gtest/gtest.h>

#include <filesystem>
#include <regex>
#include <set>

#include "tree/tree_files.h"

namespace weir::tree {
namespace {

std::vector<std::string> pages() {
  std::vector<std::string> pages;
  for (const std::string& path : files())
    if (ends_with(path, ".md")) pages.push_back(path);
  return pages;
}

std::vector<std::string> matches_of(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  std::vector<std::string> found;
  for (auto it = std::sregex_iterator(text.begin(), text.end(), regex);
       it != std::sregex_iterator(); ++it)
    found.push_back((*it)[1]);
  return found;
}

// The names of the programs that CMake files make: weir_executable(NAME and add_executable(NAME,
// and words that end in _perf, which are made in a loop.
std::set<std::string> programs() {
  std::set<std::string> names;
  for (const std::string& path : files()) {
    // Made by perf/compare, with the compilers of its peers.
    if (starts_with(path, "perf/compare_mpi/") && is_source(path))
      names.insert(std::filesystem::path(path).stem().string());
    if (!ends_with(path, "CMakeLists.txt") && !ends_with(path, ".cmake")) continue;
    const std::string text = read(path);
    for (const std::string& name : matches_of(text, "(?:weir|add)_executable\\(\\s*([\\w-]+)"))
      names.insert(name);
    for (const std::string& name : matches_of(text, "\\b(\\w+_perf)\\b")) names.insert(name);
  }
  return names;
}

TEST(Docs, EveryRelativeLinkLeadsToAFile) {
  for (const std::string& page : pages()) {
    const auto folder = std::filesystem::path(page).parent_path();
    for (std::string link : matches_of(read(page), "\\]\\(([^)#\\s]+)[^)]*\\)")) {
      if (link.find("://") != std::string::npos || starts_with(link, "mailto:")) continue;
      const auto target = (folder / link).lexically_normal().generic_string();
      EXPECT_TRUE(exists(target)) << page << " links to " << link;
    }
  }
}

TEST(Docs, EveryPageIsReachedFromTheReadme) {
  std::set<std::string> reached = {"README.md"};
  std::vector<std::string> open = {"README.md"};
  while (!open.empty()) {
    const std::string page = open.back();
    open.pop_back();
    const auto folder = std::filesystem::path(page).parent_path();
    for (const std::string& link : matches_of(read(page), "\\]\\(([^)#\\s]+\\.md)")) {
      const std::string target = (folder / link).lexically_normal().generic_string();
      if (exists(target) && reached.insert(target).second) open.push_back(target);
    }
  }
  for (const std::string& page : pages())
    EXPECT_TRUE(!starts_with(page, "docs/") || reached.count(page) != 0) << page;
}

TEST(Docs, EveryPathThatIsNamedExists) {
  for (const std::string& page : pages()) {
    const std::string text = read(page);
    for (const char* top :
         {"tools", "perf", "docs", "src", "tests", "examples", "cmake", "include"}) {
      // In code (`tools/check --label fast` or an indented or fenced command), but no patterns.
      const std::string pattern =
          "(?:`|^|\\n| )((?:\\./)?" + std::string(top) + "/[\\w./-]*\\w)(?=[`\\s,;:)])";
      for (const std::string& path : matches_of(text, pattern))
        EXPECT_TRUE(exists(path)) << page << " names " << path;
    }
  }
}

TEST(Docs, EveryProgramThatIsNamedIsBuilt) {
  const std::set<std::string> built = programs();
  for (const std::string& page : pages()) {
    const std::string text = read(page);
    for (const std::string& name :
         matches_of(text, "(?:`|/| )(weir-(?:info|topo|sched)|\\w+_perf)\\b"))
      EXPECT_TRUE(built.count(name) != 0) << page << " names " << name;
  }
}

TEST(Docs, EveryVariableThatTheCodeReadsIsInTheEnvironmentPage) {
  if (!exists("docs/environment.md")) FAIL() << "write it with: weir-info --markdown";
  const std::string page = read("docs/environment.md");
  const std::string pattern = "(?:getenv|setting|->setting)\\s*\\([^;\"]*\"(WEIR_[A-Z0-9_]+)\"";
  for (const std::string& path : files()) {
    if (!is_source(path) || starts_with(path, "tests/")) continue;
    for (const std::string& name : matches_of(read(path), pattern))
      EXPECT_NE(page.find(name), std::string::npos) << path << " reads " << name;
  }
}

TEST(Docs, TheReadmeKeepsItsPromises) {
  const std::string readme = read("README.md");
  for (const char* needed :
       {"tools/demo", "tools/check", "docs/images/architecture.svg", "docs/architecture.md",
        "<!-- compare:begin -->", "<!-- compare:end -->"})
    EXPECT_NE(readme.find(needed), std::string::npos) << needed;
}

TEST(Docs, ContinuousIntegrationRunsWhatDevelopersRun) {
  EXPECT_NE(read(".ci/run").find("tools/check"), std::string::npos);
}

}  // namespace
}  // namespace weir::tree
