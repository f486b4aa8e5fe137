// SPDX-License-Identifier: Apache-2.0
// Each test that docs/nccl_semantics.md and docs/nccl.md name exists.
#include <gtest/gtest.h>

#include <regex>
#include <set>

#include "tree/tree_files.h"

namespace weir::tree {
namespace {

// "NcclGroup.X" for every TEST(NcclGroup, X) of tests/nccl.
std::set<std::string> tests_of_the_tree() {
  static const std::regex kTest("TEST(?:_F)?\\((\\w+),\\s*(\\w+)\\)");
  std::set<std::string> names;
  for (const std::string& path : files()) {
    if (!starts_with(path, "tests/nccl/") || !ends_with(path, ".cc")) continue;
    const std::string text = read(path);
    for (std::sregex_iterator it(text.begin(), text.end(), kTest), end; it != end; ++it) {
      names.insert((*it)[1].str() + "." + (*it)[2].str());
    }
  }
  return names;
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

TEST(NcclSemantics, EveryRowHasATest) {
  for (const std::string& line : lines_of(read("docs/nccl_semantics.md"))) {
    if (!starts_with(line, "| ") || starts_with(line, "| ---") || starts_with(line, "| promise")) {
      continue;
    }
    EXPECT_NE(line.find("| `", 2), std::string::npos) << line;
  }
}

}  // namespace
}  // namespace weir::tree
