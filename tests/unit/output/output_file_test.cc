// SPDX-License-Identifier: Apache-2.0
#include "output/output_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace weir::output {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class OutputFile : public testing::Test {
 protected:
  OutputFile() {
    std::string pattern = (fs::temp_directory_path() / "weir-output-XXXXXX").string();
    if (mkdtemp(pattern.data()) != nullptr) folder_ = pattern;
  }
  ~OutputFile() override {
    std::error_code ignored;
    if (!folder_.empty()) fs::remove_all(folder_, ignored);
  }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  std::string content(const std::string& name) const {
    std::ifstream file(path(name));
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  size_t file_count() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), {}));
  }

  std::string folder_;
};

TEST_F(OutputFile, IsReplacedWhole) {
  EXPECT_EQ(write_file(path("a"), "long text"), "");
  std::ifstream reader(path("a"));
  EXPECT_EQ(write_file(path("a"), "new"), "");
  EXPECT_EQ(content("a"), "new");
  std::string seen;
  std::getline(reader, seen);
  EXPECT_EQ(seen, "long text");  // a reader keeps the file that it opened
  EXPECT_EQ(file_count(), 1u);
}

TEST_F(OutputFile, LinksAreFollowedToTheFileThatTheyName) {
  fs::create_directory(path("d"));
  fs::create_symlink("d/file", path("relative"));
  fs::create_symlink(path("relative"), path("absolute"));
  EXPECT_EQ(write_file(path("absolute"), "made"), "");  // the last link leads nowhere yet
  EXPECT_EQ(content("d/file"), "made");
  EXPECT_EQ(write_file(path("absolute"), "changed"), "");
  EXPECT_EQ(content("d/file"), "changed");
  EXPECT_TRUE(fs::is_symlink(path("relative")) && fs::is_symlink(path("absolute")));
  fs::create_symlink(path("circle"), path("circle"));
  EXPECT_THAT(write_file(path("circle"), "x"), HasSubstr("circle: Too many levels"));
}

TEST_F(OutputFile, ALinkWithANameOfWeirsOwnIsReplaced) {
  std::ofstream(path("target")) << "stays";
  fs::create_symlink(path("target"), path("own"));
  EXPECT_EQ(write_file(path("own"), "text", {.is_own = true}), "");
  EXPECT_EQ(content("own"), "text");
  EXPECT_EQ(content("target"), "stays");
}

TEST_F(OutputFile, DevicesStayDevices) {
  if (mknod(path("null").c_str(), S_IFCHR | 0600, makedev(1, 3)) != 0 ||
      !std::ofstream(path("null"))) {
    GTEST_SKIP() << "makes no devices here";
  }
  EXPECT_EQ(write_file(path("null"), "text"), "");
  EXPECT_TRUE(fs::is_character_file(path("null")));
  EXPECT_EQ(file_count(), 1u);
}

TEST_F(OutputFile, AFifoIsWrittenToAndWithoutReaderAnError) {
  ASSERT_EQ(mkfifo(path("fifo").c_str(), 0600), 0);
  EXPECT_THAT(write_file(path("fifo"), "text"), HasSubstr("fifo: no program reads this FIFO"));
  const int reader = open(path("fifo").c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  EXPECT_EQ(write_file(path("fifo"), "text"), "");
  char got[8] = {};
  EXPECT_EQ(read(reader, got, sizeof got), 4);
  EXPECT_STREQ(got, "text");
  close(reader);
  EXPECT_TRUE(fs::is_fifo(path("fifo")));
}

TEST_F(OutputFile, WhatIsNoFileIsRefusedByName) {
  EXPECT_THAT(write_file(folder_, "x"), HasSubstr(folder_ + ": it is a directory"));
  EXPECT_THAT(write_file(path("none/a"), "x"), HasSubstr("none/a: No such file or directory; "));
}

TEST_F(OutputFile, WhatIsAlsoStandardErrorGetsTheTextThere) {
  const int before = dup(STDERR_FILENO);
  const int file = open(path("log").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  ASSERT_GE(file, 0);
  dup2(file, STDERR_FILENO);
  const bool wrote = write(STDERR_FILENO, "first ", 6) == 6;
  const std::string wrong = write_file(path("log"), "second");
  dup2(before, STDERR_FILENO);
  close(before);
  close(file);
  EXPECT_TRUE(wrote);
  EXPECT_EQ(wrong, "");
  EXPECT_EQ(content("log"), "first second");
}

}  // namespace
}  // namespace weir::output
