// SPDX-License-Identifier: Apache-2.0
// Each test that docs/nccl_semantics.md and docs/nccl.md name exists, and each function that
// libnccl.so.2 exports has one that calls it.
#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "tree/tree_files.h"

namespace weir::tree {
namespace {

// "NcclGroup.X" for every TEST(NcclGroup, X) of tests/nccl, and the text of the file that has it.
std::map<std::string, std::string> tests_with_files() {
  static const std::regex kTest("TEST(?:_F)?\\((\\w+),\\s*(\\w+)\\)");
  std::map<std::string, std::string> names;
  for (const std::string& path : files()) {
    if (!starts_with(path, "tests/nccl/") || !ends_with(path, ".cc")) continue;
    const std::string text = read(path);
    for (std::sregex_iterator it(text.begin(), text.end(), kTest), end; it != end; ++it) {
      names[(*it)[1].str() + "." + (*it)[2].str()] = text;
    }
  }
  return names;
}

std::set<std::string> tests_of_the_tree() {
  std::set<std::string> names;
  for (const auto& [name, text] : tests_with_files()) names.insert(name);
  return names;
}

// The first group of `pattern`, wherever it matches, after "nccl".
std::set<std::string> functions_in(const std::string& path, const char* pattern) {
  const std::string text = read(path);
  const std::regex row(pattern);
  std::set<std::string> names;
  for (std::sregex_iterator it(text.begin(), text.end(), row), end; it != end; ++it) {
    names.insert("nccl" + (*it)[1].str());
  }
  return names;
}

// Of the table of functions; another test compares its names with what the library exports.
std::set<std::string> exported_functions() {
  return functions_in("src/nccl/api/functions.h", "\n  X\\((\\w+), *\"[0-9.]+\"");
}

// What stands in backticks.
std::vector<std::string> quoted(const std::string& text) {
  static const std::regex kQuoted("`([^`]+)`");
  std::vector<std::string> words;
  for (std::sregex_iterator it(text.begin(), text.end(), kQuoted), end; it != end; ++it) {
    words.push_back((*it)[1]);
  }
  return words;
}

TEST(NcclSemantics, EveryTestThatThePageNamesExists) {
  const std::string page = read("docs/nccl_semantics.md");
  const std::set<std::string> known = tests_of_the_tree();
  const std::string programs = read("tests/nccl/CMakeLists.txt");
  static const std::regex kName("`(Nccl\\w+\\.\\w+|nccl_\\w+)`");
  size_t count = 0;
  for (std::sregex_iterator it(page.begin(), page.end(), kName), end; it != end; ++it, ++count) {
    const std::string name = (*it)[1];
    if (name.find('.') != std::string::npos) {
      EXPECT_TRUE(known.count(name) == 1) << name;
    } else if (starts_with(name, "nccl_program_")) {
      std::string mode = name.substr(std::string("nccl_program_").size());
      mode.replace(mode.find('_'), 1, " ");
      EXPECT_NE(programs.find('"' + mode + '"'), std::string::npos) << name;
    } else {
      const bool made = programs.find("NAME " + name) != std::string::npos ||
                        programs.find("weir_test(" + name + " ") != std::string::npos;
      EXPECT_TRUE(made) << name;
    }
  }
  EXPECT_GT(count, 50u);
}

TEST(NcclSemantics, EveryTestThatTheTableOfVariablesNamesExists) {
  const std::string page = read("docs/nccl.md");
  const std::set<std::string> known = tests_of_the_tree();
  static const std::regex kName("`(Nccl\\w+\\.\\w+)`");
  size_t count = 0;
  for (std::sregex_iterator it(page.begin(), page.end(), kName), end; it != end; ++it, ++count) {
    EXPECT_TRUE(known.count((*it)[1]) == 1) << (*it)[1];
  }
  EXPECT_GT(count, 10u);
}

TEST(NcclSemantics, EveryFunctionThatTheHeadersDeclareIsExported) {
  const char* const declaration = "\nWEIR_NCCL_DECLARE\\([\\w *]+,\\s*(\\w+)";
  std::set<std::string> declared = functions_in("include/weir/nccl.h", declaration);
  EXPECT_GT(declared.size(), 60u);
  declared.merge(functions_in("include/weir/nccl_device.h", declaration));
  EXPECT_GT(declared.size(), 90u);
  EXPECT_EQ(declared, exported_functions());
}

// The table "Function by function": each row has functions, what they do, tests.
TEST(NcclSemantics, EveryExportedFunctionHasARowWithATestThatCallsIt) {
  const std::set<std::string> exported = exported_functions();
  EXPECT_GT(exported.size(), 90u);
  const std::map<std::string, std::string> tests = tests_with_files();
  const std::string page = read("docs/nccl_semantics.md");
  const size_t begin = page.find("## Function by function");
  ASSERT_NE(begin, std::string::npos);
  std::set<std::string> named;
  for (const std::string& line : lines_of(page.substr(begin, page.find("\n## ", begin) - begin))) {
    if (!starts_with(line, "| `")) continue;
    const std::string first = line.substr(0, line.find(" |", 2));
    std::string files;
    for (const std::string& name : quoted(line.substr(line.rfind("| `")))) {
      if (starts_with(name, "nccl_program_")) files += read("tests/nccl/program.c");
      if (const auto found = tests.find(name); found != tests.end()) files += found->second;
    }
    for (const std::string& function : quoted(first)) {
      EXPECT_TRUE(named.insert(function).second) << function << " has two rows";
      EXPECT_TRUE(exported.count(function) == 1) << function << " is not exported";
      EXPECT_TRUE(std::regex_search(files, std::regex("\\b" + function + "\\b")))
          << "no test of its row calls " << function;
    }
  }
  for (const std::string& function : exported) {
    EXPECT_TRUE(named.count(function) == 1) << function << " has no row";
  }
}

TEST(NcclSemantics, EveryRowHasATest) {
  for (const std::string& line : lines_of(read("docs/nccl_semantics.md"))) {
    if (!starts_with(line, "| ") || starts_with(line, "| ---") || starts_with(line, "| promise") ||
        starts_with(line, "| functions")) {
      continue;
    }
    EXPECT_NE(line.find("| `", 2), std::string::npos) << line;
  }
}

}  // namespace
}  // namespace weir::tree
