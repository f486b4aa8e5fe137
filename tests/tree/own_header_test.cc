// SPDX-License-Identifier: Apache-2.0
// Every source that has a header of its own name includes it first: so the compiler proves that the
// header needs nothing before it.
#include <gtest/gtest.h>

#include "tree/tree_files.h"

namespace weir::tree {
namespace {

// What is wrong with the order of `includes` in `source`, or "".
std::string broken_order(const std::string& source, const std::vector<Include>& includes,
                         const std::string& header) {
  if (includes.empty()) return "includes nothing, not even " + header;
  const Include& first = includes.front();
  if (included_file(source, first.path) == header) return "";
  return "includes " + first.path + " before " + header;
}

TEST(OwnHeader, EverySourceIncludesItFirst) {
  int pair_count = 0;
  for (const std::string& path : files()) {
    if (!is_source(path) || starts_with(path, "tests/fixtures/")) continue;
    const size_t dot = path.rfind('.');
    const std::string header = path.substr(0, dot) + ".h";
    if (path == header || !exists(header)) continue;
    ++pair_count;
    const std::string broken = broken_order(path, includes_of(read(path)), header);
    EXPECT_EQ(broken, "") << path;
  }
  EXPECT_GT(pair_count, 100);
}

TEST(OwnHeader, TheRuleRefusesWhatItMust) {
  const std::string header = "tests/tree/tree_files.h";
  const std::string source = "tests/tree/tree_files.cc";
  EXPECT_EQ(broken_order(source, {{"tree/tree_files.h", 1}, {"string", 2}}, header), "");
  EXPECT_EQ(broken_order(source, {{"tree_files.h", 1}}, header), "");
  EXPECT_NE(broken_order(source, {{"string", 1}, {"tree/tree_files.h", 2}}, header), "");
  EXPECT_NE(broken_order(source, {}, header), "");
}

}  // namespace
}  // namespace weir::tree
