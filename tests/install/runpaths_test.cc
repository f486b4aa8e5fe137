// SPDX-License-Identifier: Apache-2.0
#include "install/runpaths.h"

#include <gtest/gtest.h>
#include <stdlib.h>

namespace weir::test {
namespace {

namespace fs = std::filesystem;

std::string joined(const std::vector<std::string>& lines) {
  std::string all;
  for (const std::string& line : lines) all += line + "\n";
  return all;
}

// Those that -DCMAKE_INSTALL_RPATH names besides.
std::vector<fs::path> folders_asked_for() {
  std::vector<fs::path> folders;
  for (const std::string& entry : entries_of(WEIR_INSTALL_RPATH)) {
    if (!entry.empty() && entry[0] == '/') folders.emplace_back(entry);
  }
  return folders;
}

TEST(Runpaths, AreCutAtEachColon) {
  EXPECT_EQ(entries_of(""), std::vector<std::string>());
  EXPECT_EQ(entries_of("/lib"), std::vector<std::string>({"/lib"}));
  EXPECT_EQ(entries_of("/lib:"), std::vector<std::string>({"/lib", ""}));
  EXPECT_EQ(entries_of("::"), std::vector<std::string>({"", "", ""}));
}

TEST(Runpaths, EntriesThatDependOnTheCurrentFolderOrLeaveTheTreeAreWrong) {
  const auto wrong = [](const std::string& entry) {
    return !wrong_with(entry, "/tree/bin/program", "/tree", {"/tree", "/opt/ucx"}).empty();
  };
  EXPECT_TRUE(wrong(""));
  EXPECT_TRUE(wrong("."));
  EXPECT_TRUE(wrong("lib"));
  EXPECT_TRUE(wrong("$ORIGINAL/lib"));
  EXPECT_TRUE(wrong("$ORIGIN/../../lib"));
  EXPECT_TRUE(wrong("/tmp"));
  EXPECT_TRUE(wrong("/trees/lib"));
  EXPECT_TRUE(wrong("/tree/../tmp"));
  EXPECT_FALSE(wrong("$ORIGIN"));
  EXPECT_FALSE(wrong("${ORIGIN}/../lib"));
  EXPECT_FALSE(wrong("/tree/lib"));
  EXPECT_FALSE(wrong("/opt/ucx/lib"));
}

TEST(Runpaths, OfWhatIsBuiltNameTheBuildFolderAlone) {
  std::vector<fs::path> also = folders_asked_for();
  also.emplace_back(WEIR_BUILD_FOLDER);
  size_t count = 0;
  EXPECT_EQ(joined(wrong_entries(WEIR_BUILD_FOLDER, also, &count)), "");
  EXPECT_GT(count, 2u);
}

TEST(InstalledRunpaths, AreNamedFromTheFileItself) {
  const char* prefix = getenv("WEIR_TEST_PREFIX");
  if (prefix == nullptr) GTEST_SKIP() << "WEIR_TEST_PREFIX names no installation";
  size_t count = 0;
  EXPECT_EQ(joined(wrong_entries(prefix, folders_asked_for(), &count)), "");
  EXPECT_GT(count, 2u);
}

}  // namespace
}  // namespace weir::test
