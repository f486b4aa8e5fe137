// SPDX-License-Identifier: Apache-2.0
// docs/hostcuda.md names exactly the functions that src/hostcuda/runtime/refused.cc refuses.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace weir::test {
namespace {

std::string contents(const std::string& path) {
  std::ifstream file(std::string(WEIR_TEST_SOURCE_DIR) + "/" + path);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

// The first group of every match.
std::vector<std::string> all_of(const std::string& text, const char* pattern) {
  const std::regex regex(pattern);
  std::vector<std::string> found;
  for (std::sregex_iterator it(text.begin(), text.end(), regex), end; it != end; ++it) {
    found.push_back((*it)[1]);
  }
  return found;
}

// Without the twins for a default stream per thread.
std::set<std::string> without_twins(const std::vector<std::string>& names) {
  std::set<std::string> result;
  for (const std::string& name : names) {
    result.insert(std::regex_replace(name, std::regex("_pt(ds|sz)$"), ""));
  }
  return result;
}

TEST(HostCudaDocumentation, NamesExactlyTheFunctionsThatAreRefused) {
  const std::set<std::string> refused = without_twins(
      all_of(contents("src/hostcuda/runtime/refused.cc"), "\nWEIR_REFUSE\\((\\w+)\\)"));
  const std::set<std::string> exported =
      without_twins(all_of(contents("tests/hostcuda/cudart_symbols.txt"), "(\\w+)\n"));
  EXPECT_GT(refused.size(), 50U);
  const std::string document = contents("docs/hostcuda.md");
  const size_t begin = document.find("## What is missing");
  ASSERT_NE(begin, std::string::npos);
  std::set<std::string> undocumented = refused;
  const std::string rows = document.substr(begin);
  size_t pattern_count = 0;
  for (const std::string& row : all_of(rows, "\n\\|[^|]*\\|([^|]*)\\|")) {
    for (const std::string& pattern : all_of(row, "`([\\w*]+)`")) {
      ++pattern_count;
      const std::regex regex(std::regex_replace(pattern, std::regex("\\*"), ".*"));
      const auto matches = [&](const std::string& name) { return std::regex_match(name, regex); };
      EXPECT_TRUE(std::any_of(refused.begin(), refused.end(), matches))
          << pattern << " is documented as refused, and is not";
      for (const std::string& name : exported) {
        EXPECT_TRUE(!matches(name) || refused.contains(name)) << name << " by " << pattern;
      }
      std::erase_if(undocumented, matches);
    }
  }
  EXPECT_GT(pattern_count, 50U);
  for (const std::string& name : undocumented) ADD_FAILURE() << name << " is not documented";
}

}  // namespace
}  // namespace weir::test
