// SPDX-License-Identifier: Apache-2.0
#include "core/comm/start/kept_table.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>

#include "core/cost/cache.h"

namespace weir::comm {
namespace {

constexpr uint64_t kHash = 0x77;

class Kept : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "weir_kept_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    table_ = cost::built_in_table();
    table_.topology_hash = kHash;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  KeptTable kept() const { return KeptTable(directory_, kHash, {}); }
  bool is_cached() const {
    return std::filesystem::exists(directory_ + "/" + cost::cache_file_name(kHash));
  }
  bool is_doubted() const {
    return std::filesystem::exists(directory_ + "/" + cost::doubts_file_name(kHash));
  }
  cost::Table implausible() const {
    cost::Table table = table_;
    table.times.link(cost::Link::kShmSharedCache).message_ns = 51'675;
    return table;
  }
  // Three decisions with 20 calls each, which took `factor` of the predicted time.
  static cost::DecisionLog log_of(double factor) {
    cost::DecisionLog log;
    for (int i = 0; i < 3; ++i) {
      cost::Decision decision;
      decision.predicted_ns = 1000;
      const uint64_t id = log.add({}, decision);
      for (int call = 0; call < 20; ++call) log.measured(id, factor * 1000);
    }
    return log;
  }

  std::string directory_;
  cost::Table table_;
};

TEST_F(Kept, IsFoundByThisProcessAndInTheCache) {
  EXPECT_FALSE(kept().find());
  kept().keep(table_);
  EXPECT_TRUE(is_cached());
  // The communicators of a process choose alike, whatever happens to the file.
  std::filesystem::remove(directory_ + "/" + cost::cache_file_name(kHash));
  ASSERT_TRUE(kept().find());
  EXPECT_EQ(cost::to_blob(*kept().find()), cost::to_blob(table_));
}

TEST_F(Kept, ATableThatIsImplausibleIsUsedByThisProcessOnly) {
  kept().keep(implausible());
  EXPECT_FALSE(is_cached());
  ASSERT_TRUE(kept().find());
  EXPECT_EQ(cost::to_blob(*kept().find()), cost::to_blob(implausible()));
}

TEST_F(Kept, ACachedTableThatIsImplausibleIsMeasuredAnew) {
  ASSERT_TRUE(cost::store_cached_table(directory_, implausible()).ok());
  EXPECT_FALSE(kept().find());
  ASSERT_TRUE(cost::store_cached_table(directory_, table_).ok());
  EXPECT_TRUE(kept().find());
}

TEST_F(Kept, ADoubtfulTableStaysThatOfThisProcess) {
  ASSERT_TRUE(cost::store_cached_table(directory_, table_).ok());
  ASSERT_TRUE(kept().find());
  doubt_if_times_disagree(directory_, table_, log_of(0.1));
  EXPECT_TRUE(is_doubted());
  EXPECT_TRUE(kept().find());
  EXPECT_FALSE(cost::load_cached_table(directory_, kHash).table) << "another process";
}

TEST_F(Kept, TimesThatAgreeLeaveNoDoubt) {
  ASSERT_TRUE(cost::store_cached_table(directory_, table_).ok());
  doubt_if_times_disagree(directory_, table_, log_of(1.5));
  doubt_if_times_disagree("", table_, log_of(10));
  EXPECT_FALSE(is_doubted());
}

TEST_F(Kept, NothingIsKeptWithoutADirectoryOrAHash) {
  for (const KeptTable& none : {KeptTable("", kHash, {}), KeptTable(directory_, 0, {})}) {
    none.keep(table_);
    EXPECT_FALSE(none.find());
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
}

TEST_F(Kept, WhatCannotBeWrittenIsNoError) {
  ASSERT_TRUE(cost::store_cached_table(directory_, table_).ok());
  ASSERT_EQ(chmod(directory_.c_str(), 0777), 0);  // others may write: refused
  kept().keep(table_);
  doubt_if_times_disagree(directory_, table_, log_of(10));
  EXPECT_FALSE(is_doubted());
  EXPECT_TRUE(kept().find());
}

}  // namespace
}  // namespace weir::comm
