// SPDX-License-Identifier: Apache-2.0
// What holds for every file: licence line, no loose ends, nothing of the machine it was written on.
#include <gtest/gtest.h>

#include <regex>
#include <set>

#include "tree/tree_files.h"

namespace weir::tree {
namespace {

constexpr const char* kLicenceLine = "SPDX-License-Identifier: Apache-2.0";

// Text that we wrote: recorded machines (fixtures) and the licence are others' words.
bool is_ours(const std::string& path) {
  return path != "LICENSE" && !starts_with(path, "tests/fixtures/") &&
         !starts_with(path, "tests/fuzz/corpus/");
}

bool is_script(const std::string& text) { return starts_with(text, "#!"); }

// Files that carry the licence line; what has no comments (JSON, recorded data) or is for reading
// (Markdown) does not.
bool carries_licence(const std::string& path, const std::string& text) {
  if (is_source(path) || is_script(text) || ends_with(path, "CMakeLists.txt")) return true;
  for (const char* suffix : {".cmake", ".py", ".sh", ".in", ".map", ".toml", ".supp"})
    if (ends_with(path, suffix)) return true;
  return false;
}

// Fails at each line of our files that `pattern` matches, but in files that `exempt` lists.
void expect_no_line_matches(const std::string& pattern, const std::set<std::string>& exempt) {
  const std::regex regex(pattern);
  for (const std::string& path : files()) {
    if (!is_ours(path) || exempt.count(path) != 0) continue;
    const std::string text = read(path);
    if (text.find('\0') != std::string::npos) continue;
    if (!std::regex_search(text, regex)) continue;
    int number = 0;
    for (const std::string& line : lines_of(text)) {
      ++number;
      if (std::regex_search(line, regex)) ADD_FAILURE() << path << ":" << number << ": " << line;
    }
  }
}

TEST(Files, TheTreeIsThere) {
  EXPECT_GT(files().size(), 40u);
  for (const char* path : {"README.md", "LICENSE", "include/weir/weir.h", "tools/check"})
    EXPECT_TRUE(exists(path)) << path;
}

TEST(Files, EverySourceFileBeginsWithTheLicenceLine) {
  for (const std::string& path : files()) {
    if (!is_ours(path)) continue;
    const std::string text = read(path);
    if (!carries_licence(path, text)) continue;
    const std::vector<std::string> lines = lines_of(text);
    const size_t at = is_script(text) ? 1 : 0;
    EXPECT_TRUE(lines.size() > at && lines[at].find(kLicenceLine) != std::string::npos)
        << path << ": line " << at + 1 << " is to say " << kLicenceLine;
  }
}

TEST(Files, HeadersHaveOneGuard) {
  for (const std::string& path : files()) {
    // Examples are C11 or C++, as a user would write them.
    if (!ends_with(path, ".h") || ends_with(path, "-inl.h") || starts_with(path, "examples/"))
      continue;
    const std::string text = read(path);
    const bool once = text.find("#pragma once") != std::string::npos;
    // The public headers are plain C11.
    const bool ifndef = text.find("#ifndef WEIR_") != std::string::npos;
    EXPECT_EQ(starts_with(path, "include/"), ifndef && !once) << path;
    EXPECT_EQ(!starts_with(path, "include/"), once) << path;
  }
}

TEST(Files, NoFileNamesAPlaceOfOneMachine) {
  // Written in pieces, since this file is read as well.
  const std::string places[] = {std::string("/wo") + "rk/", std::string("/ro") + "ot/",
                                std::string("/ho") + "me/", std::string("/tmp/bu") + "ild-",
                                std::string("/Us") + "ers/"};
  std::string pattern;
  for (const std::string& place : places)
    pattern += (pattern.empty() ? "(^|[^A-Za-z0-9_.}/])(" : "|") + place;
  expect_no_line_matches(pattern + ")", {});
}

TEST(Files, NoLooseEndsAreLeft) {
  expect_no_line_matches(
      "\\b(TO"
      "DO|FIX"
      "ME|XX"
      "X|HA"
      "CK)\\b",
      {});
}

TEST(Files, NoTestIsSwitchedOff) {
  // A test that starts its own program again gives the second run a test that only it asks for.
  std::set<std::string> restarting;
  for (const std::string& path : files())
    if (is_source(path) && read(path).find("gtest_also_run_disa"
                                           "bled_tests") != std::string::npos)
      restarting.insert(path);
  expect_no_line_matches(
      "\\bDISA"
      "BLED_",
      restarting);
}

TEST(Files, LinesEndWithoutSpaces) { expect_no_line_matches("[ \t\r]+$", {}); }

TEST(Files, ScriptsAndOnlyTheyAreExecutable) {
  for (const std::string& path : files())
    EXPECT_EQ(is_script(read(path)), is_executable(path)) << path;
}

constexpr size_t kColumnsMax = 100;

bool has_columns_max(const std::string& path, const std::string& text) {
  if (is_source(path) || ends_with(path, "CMakeLists.txt")) return true;
  for (const char* suffix : {".cmake", ".in", ".map", ".sh", ".py"})
    if (ends_with(path, suffix)) return true;
  return is_script(text);
}

// Characters, of which UTF-8 makes several bytes.
size_t columns_of(const std::string& line) {
  size_t count = 0;
  for (const char c : line) count += (static_cast<unsigned char>(c) & 0xc0u) != 0x80u ? 1 : 0;
  return count;
}

TEST(Files, LinesOfSourcesHaveAtMost100Columns) {
  for (const std::string& path : files()) {
    if (!is_ours(path)) continue;
    const std::string text = read(path);
    if (!has_columns_max(path, text)) continue;
    int number = 0;
    for (const std::string& line : lines_of(text)) {
      ++number;
      EXPECT_LE(columns_of(line), kColumnsMax) << path << ":" << number << ": " << line;
    }
  }
}

TEST(Files, SourcesAreNotLongerThan800Lines) {
  for (const std::string& path : files())
    if (is_source(path) && is_ours(path)) {
      EXPECT_LE(lines_of(read(path)).size(), 800u) << path << ": would two names say more?";
    }
}

}  // namespace
}  // namespace weir::tree
