// SPDX-License-Identifier: Apache-2.0
#include "core/cost/cache.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>

namespace weir::cost {
namespace {

constexpr uint64_t kHash = 0x0123456789abcdefu;

class Cache : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "weir_cache_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    directory_ = root_ + "/a/b";
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  Table table() const {
    Table table = built_in_table();
    table.topology_hash = kHash;
    return table;
  }
  std::string path() const { return directory_ + "/" + cache_file_name(kHash); }
  void store() { ASSERT_TRUE(store_cached_table(directory_, table()).ok()); }
  // The table is ignored, with a warning that has `text` in it.
  void expect_ignored(const char* text) {
    const CacheLookup lookup = load_cached_table(directory_, kHash);
    EXPECT_FALSE(lookup.table.has_value());
    EXPECT_NE(lookup.warning.find(text), std::string::npos) << lookup.warning;
  }

  std::string doubts_path() const { return directory_ + "/" + doubts_file_name(kHash); }
  static void set_age(const std::string& path, int64_t seconds) {
    const timespec when = {.tv_sec = time(nullptr) - seconds, .tv_nsec = 0};
    const timespec both[] = {when, when};
    ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), both, 0), 0);
  }
  // It is measured anew, without a warning, for a reason that has `text` in it.
  void expect_outdated(const char* text) {
    const CacheLookup lookup = load_cached_table(directory_, kHash);
    EXPECT_FALSE(lookup.table.has_value());
    EXPECT_EQ(lookup.warning, "");
    EXPECT_NE(lookup.outdated.find(text), std::string::npos) << lookup.outdated;
  }
  void expect_used() {
    const CacheLookup lookup = load_cached_table(directory_, kHash);
    EXPECT_TRUE(lookup.table.has_value()) << lookup.warning << lookup.outdated;
    EXPECT_EQ(lookup.outdated, "");
  }
  // Whether doubts were noted.
  bool doubt(const Table& of) {
    const auto noted = doubt_cached_table(directory_, of, "a reason");
    EXPECT_TRUE(noted.ok()) << noted.status().text();
    return noted.ok() && noted.value();
  }

  std::string root_;
  std::string directory_;
};

TEST_F(Cache, RoundTripAndModes) {
  EXPECT_EQ(load_cached_table(directory_, kHash).warning, "");
  store();
  store();  // replaces
  const CacheLookup lookup = load_cached_table(directory_, kHash);
  ASSERT_TRUE(lookup.table.has_value()) << lookup.warning;
  EXPECT_EQ(to_blob(*lookup.table), to_blob(table()));
  struct stat info;
  ASSERT_EQ(stat(path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  ASSERT_EQ(stat(directory_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
    (void)entry;
    ++files;
  }
  EXPECT_EQ(files, 1u);  // no temporary is left
  EXPECT_FALSE(load_cached_table(directory_, kHash + 1).table.has_value());
}

TEST_F(Cache, CorruptFileIsIgnored) {
  store();
  std::ofstream(path(), std::ios::trunc) << "{ \"version\": 1";
  expect_ignored("not a JSON object");
}

TEST_F(Cache, ATableThatWasChangedIsIgnoredAndToolsReadIt) {
  store();
  std::string text;
  std::getline(std::ifstream(path()), text, '\0');
  const size_t figure = text.find("\"call_ns\": ");
  ASSERT_NE(figure, std::string::npos);
  text.insert(figure + 11, "1");
  std::ofstream(path(), std::ios::trunc) << text;
  expect_ignored("was changed since it was written");
  EXPECT_TRUE(read_table(path()).ok());
}

TEST_F(Cache, TablesOfAnOlderVersionAreMeasuredAnew) {
  EXPECT_EQ(cache_file_name(kHash), "tasks-v4-0123456789abcdef.json");
  store();
  std::string text;
  std::getline(std::ifstream(path()), text, '\0');
  const std::string now = "\"version\": " + std::to_string(Table::kVersion);
  const size_t version = text.find(now);
  ASSERT_NE(version, std::string::npos);
  text.replace(version, now.size(), "\"version\": 1");
  const std::string old = directory_ + "/tasks-v1-0123456789abcdef.json";
  std::filesystem::rename(path(), old);
  std::ofstream(old) << text;
  CacheLookup lookup = load_cached_table(directory_, kHash);
  EXPECT_FALSE(lookup.table.has_value());
  EXPECT_EQ(lookup.warning, "");
  // Nor is it an error where it has been given the new name.
  std::filesystem::rename(old, path());
  lookup = load_cached_table(directory_, kHash);
  EXPECT_FALSE(lookup.table.has_value());
  EXPECT_EQ(lookup.warning, "");
  EXPECT_TRUE(read_table(path()).ok()) << "tools read it";
}

TEST_F(Cache, ANewTableTakesThePlaceOfThoseOfOlderVersions) {
  store();
  const std::string old = directory_ + "/tasks-v3-0123456789abcdef";
  const std::string other = directory_ + "/tasks-v3-0123456789abcdee.json";
  for (const std::string& name : {old + ".json", old + ".doubts", other}) std::ofstream(name) << 1;
  store();
  EXPECT_FALSE(std::filesystem::exists(old + ".json"));
  EXPECT_FALSE(std::filesystem::exists(old + ".doubts"));
  EXPECT_TRUE(std::filesystem::exists(other)) << "of another machine";
  expect_used();
}

TEST_F(Cache, FileOfAnotherTopologyIsIgnored) {
  store();
  std::filesystem::rename(path(), directory_ + "/" + cache_file_name(7));
  const CacheLookup lookup = load_cached_table(directory_, 7);
  EXPECT_FALSE(lookup.table.has_value());
  EXPECT_NE(lookup.warning.find("is of topology 0123456789abcdef"), std::string::npos);
}

TEST_F(Cache, FileThatOthersMayWriteIsIgnored) {
  store();
  ASSERT_EQ(chmod(path().c_str(), 0666), 0);
  expect_ignored("others may write");
}

TEST_F(Cache, DirectoryThatOthersMayWriteIsIgnored) {
  store();
  ASSERT_EQ(chmod(directory_.c_str(), 0777), 0);
  expect_ignored("others may write");
  EXPECT_EQ(store_cached_table(directory_, table()).code(), Code::kRefused);
}

TEST_F(Cache, FileOfAnotherUserIsIgnored) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to give a file away";
  store();
  ASSERT_EQ(chown(path().c_str(), 12345, 12345), 0);
  expect_ignored("belongs to user 12345");
  store();  // replaced by one of our own
  ASSERT_EQ(chown(directory_.c_str(), 12345, 12345), 0);
  expect_ignored("belongs to user 12345");
}

TEST_F(Cache, LinksDirectoriesAndHugeFilesAreIgnored) {
  store();
  const std::string moved = root_ + "/elsewhere";
  std::filesystem::rename(path(), moved);
  std::filesystem::create_symlink(moved, path());
  expect_ignored("cannot open");
  std::filesystem::remove(path());
  std::filesystem::create_directory(path());
  expect_ignored("not a regular file");
  std::filesystem::remove(path());
  std::ofstream(path()) << std::string(2 << 20, ' ');
  ASSERT_EQ(chmod(path().c_str(), 0600), 0);
  expect_ignored("it may have at most");
}

TEST_F(Cache, ALinkOrAFifoOfTheNameIsReplacedAndWhatItLeadsToStays) {
  store();
  const std::string precious = root_ + "/precious";
  std::ofstream(precious) << "data";
  std::filesystem::remove(path());
  std::filesystem::create_symlink(precious, path());
  store();
  expect_used();
  std::string text;
  std::getline(std::ifstream(precious), text);
  EXPECT_EQ(text, "data");
  std::filesystem::create_symlink(precious, doubts_path());
  EXPECT_FALSE(doubt_cached_table(directory_, table(), "a reason").ok()) << "it is not read";
  std::filesystem::remove(doubts_path());
  std::filesystem::remove(path());
  ASSERT_EQ(mkfifo(path().c_str(), 0600), 0);
  store();
  expect_used();
}

TEST_F(Cache, ATableOfMoreThanThirtyDaysIsMeasuredAnew) {
  constexpr int64_t kDay = 24 * 3600;
  store();
  for (const int64_t age : {int64_t{0}, 29 * kDay, -29 * kDay}) {
    set_age(path(), age);
    expect_used();
  }
  // A clock may have been set back meanwhile.
  for (const int64_t age : {31 * kDay, -31 * kDay}) {
    set_age(path(), age);
    expect_outdated("was not written within the last 30 days");
  }
  store();
  expect_used();
}

TEST_F(Cache, ADoubtfulTableIsMeasuredAnewAndTheNewOneIsNotDoubted) {
  store();
  EXPECT_TRUE(doubt(table()));
  struct stat info;
  ASSERT_EQ(stat(doubts_path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  expect_outdated("a reason (");
  Table other = table();
  other.times.call_ns += 1;
  ASSERT_TRUE(store_cached_table(directory_, other).ok());
  expect_used();
  // Whoever used the old table says nothing about the new one.
  set_age(doubts_path(), 48 * 3600);
  EXPECT_FALSE(doubt(table()));
  expect_used();
}

TEST_F(Cache, ATableIsDoubtedAtMostOnceADay) {
  store();
  EXPECT_TRUE(doubt(table()));
  Table other = table();
  other.times.call_ns += 1;
  ASSERT_TRUE(store_cached_table(directory_, other).ok());
  for (const int64_t age : {int64_t{0}, int64_t{23 * 3600}, int64_t{-3600}}) {
    set_age(doubts_path(), age);
    EXPECT_FALSE(doubt(other));
    expect_used();
  }
  set_age(doubts_path(), 25 * 3600);
  EXPECT_TRUE(doubt(other));
  expect_outdated("a reason");
}

TEST_F(Cache, NothingIsDoubtedWhereNothingIsCached) {
  EXPECT_FALSE(doubt(table()));
  EXPECT_FALSE(std::filesystem::exists(directory_));
}

TEST_F(Cache, DoubtsThatOthersMayWriteAreIgnored) {
  store();
  EXPECT_TRUE(doubt(table()));
  ASSERT_EQ(chmod(doubts_path().c_str(), 0666), 0);
  expect_used();
  const auto refused = doubt_cached_table(directory_, table(), "a reason");
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().text().find("others may write"), std::string::npos);
  // Nor does what is in the file matter, as long as it is not about this table.
  std::filesystem::remove(doubts_path());
  for (const char* text : {"", "x", "0123456789abcdef a reason"}) {
    std::ofstream(doubts_path(), std::ios::trunc) << text;
    ASSERT_EQ(chmod(doubts_path().c_str(), 0600), 0);
    expect_used();
  }
  ASSERT_EQ(chmod(directory_.c_str(), 0777), 0);
  EXPECT_FALSE(doubt_cached_table(directory_, table(), "a reason").ok());
}

TEST_F(Cache, TheReasonOfDoubtsIsOneLineOfTheLog) {
  store();
  ASSERT_TRUE(doubt_cached_table(directory_, table(), "a\nb\x1b" + std::string(9999, 'c')).ok());
  const std::string reason = load_cached_table(directory_, kHash).outdated;
  EXPECT_TRUE(reason.starts_with("a b c")) << reason;
  EXPECT_LT(reason.size(), 300 + directory_.size());
}

TEST_F(Cache, ATableIsWrittenToAnyFileAndReadBack) {
  const std::string file = root_ + "/costs.json";
  ASSERT_TRUE(write_table(file, built_in_table()).ok());
  ASSERT_TRUE(write_table(file, table()).ok());  // replaces
  const Result<Table> read = read_table(file);
  ASSERT_TRUE(read.ok()) << read.status().text();
  EXPECT_EQ(to_blob(read.value()), to_blob(table()));
  struct stat info;
  ASSERT_EQ(stat(file.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  Table bad = table();
  bad.times.call_ns = -1;
  EXPECT_FALSE(write_table(file, bad).ok());
  EXPECT_EQ(to_blob(read_table(file).value()), to_blob(table()));
  EXPECT_FALSE(write_table(root_ + "/none/costs.json", table()).ok());
}

TEST_F(Cache, ReadingATableNamesWhatIsWrongWithTheFile) {
  const auto expect_refused = [&](const std::string& file, const char* text) {
    const Result<Table> read = read_table(file);
    ASSERT_FALSE(read.ok());
    EXPECT_NE(read.status().text().find(text), std::string::npos) << read.status().text();
    EXPECT_NE(read.status().text().find(file), std::string::npos) << read.status().text();
  };
  expect_refused(root_ + "/none", "cannot open");
  expect_refused(root_, "not a regular file");
  const std::string file = root_ + "/costs.json";
  std::ofstream(file) << "{";
  expect_refused(file, "not a JSON object");
}

TEST_F(Cache, DirectoryComesFromTheSettingThenXdgThenHome) {
  EXPECT_EQ(cache_directory("/x").value(), "/x");
  setenv("XDG_CACHE_HOME", "/xdg", 1);
  setenv("HOME", "/somewhere", 1);
  EXPECT_EQ(cache_directory("").value(), "/xdg/weir");
  setenv("XDG_CACHE_HOME", "relative", 1);
  EXPECT_EQ(cache_directory("").value(), "/somewhere/.cache/weir");
  unsetenv("XDG_CACHE_HOME");
  unsetenv("HOME");
  EXPECT_FALSE(cache_directory("").ok());
}

}  // namespace
}  // namespace weir::cost
