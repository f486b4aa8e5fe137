// SPDX-License-Identifier: Apache-2.0
// An algorithm says what it can do in its descriptor. Where something else is decided by its name,
// a new algorithm is barred without a word.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "core/algo/algorithm.h"

namespace weir::algo {
namespace {

namespace fs = std::filesystem;

// Without comments from // to the end of a line.
std::string code_of(const fs::path& path) {
  std::ifstream file(path);
  std::string code;
  for (std::string line; std::getline(file, line);) code += line.substr(0, line.find("//")) + "\n";
  return code;
}

TEST(AlgorithmNames, StandNowhereButInTheirDescriptors) {
  std::set<std::string> quoted;
  for (const Algorithm* algorithm : all_algorithms()) {
    quoted.insert('"' + std::string(algorithm->name) + '"');
  }
  size_t file_count = 0;
  for (const char* folder : {"cost", "engine", "comm", "sim", "sched"}) {
    const fs::path path = fs::path(WEIR_SOURCE_TREE) / "src/core" / folder;
    for (const auto& entry : fs::recursive_directory_iterator(path)) {
      if (entry.path().extension() != ".cc" && entry.path().extension() != ".h") continue;
      ++file_count;
      const std::string code = code_of(entry.path());
      for (const std::string& name : quoted) {
        EXPECT_EQ(code.find(name), std::string::npos) << entry.path() << " names " << name;
      }
    }
  }
  EXPECT_GT(file_count, 50u);
}

}  // namespace
}  // namespace weir::algo
