// SPDX-License-Identifier: Apache-2.0
#include "offload/store/inspect.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "offload/store/simulated_disk.h"
#include "offload/store/store_run.h"

namespace weir::offload {
namespace {

class InspectTest : public testing::Test {
 protected:
  void SetUp() override {
    auto made = Store::create(disk_, names_, test_description(), test_options(1));
    ASSERT_TRUE(made.ok());
    store_ = made.take();
    for (uint64_t step = 0; step < 3; ++step) ASSERT_TRUE(commit_step(disk_, *store_, step).ok());
  }
  InspectReport look() {
    store_.reset();
    bool lost = false;
    const uint64_t events = drive_.events();
    Result<InspectReport> report = inspect(disk_, names_, 1000, nullptr, &lost);
    EXPECT_TRUE(report.ok()) << report.status().text();
    EXPECT_EQ(drive_.events(), events) << "it has changed something";
    EXPECT_EQ(disk_.open_files(), 0u);
    return report.take();
  }
  void flip(const std::string& path, uint64_t at) {
    (*drive_.content(path))[at] ^= 1;
    drive_.commit_edit(path);
  }

  std::vector<std::string> names_ = test_directories();
  SimulatedDrive drive_{1};
  SimulatedDisk disk_{drive_};
  std::unique_ptr<Store> store_;
};

TEST_F(InspectTest, AWholeStoreIsGood) {
  const InspectReport report = look();
  EXPECT_EQ(report.verdict(), Verdict::kGood);
  EXPECT_EQ(report.summary(), "epoch 3 (step 2) is whole");
  EXPECT_TRUE(report.whole(0));
  EXPECT_TRUE(report.whole(1));
}

TEST_F(InspectTest, AStepThatWasCutShortIsNoDamage) {
  ASSERT_TRUE(write_step(disk_, *store_, 3).ok());
  const InspectReport report = look();
  EXPECT_EQ(report.verdict(), Verdict::kGood);
  EXPECT_EQ(report.slots[1].other_chunks, 6u);
}

TEST_F(InspectTest, DamagedMetadataIsRecoverable) {
  flip("/drive0/meta-b", 9000);
  const InspectReport report = look();
  EXPECT_EQ(report.verdict(), Verdict::kRecoverable);
  EXPECT_NE(report.summary().find("copies of the metadata are damaged"), std::string::npos);
}

TEST_F(InspectTest, AForeignCopyOfTheMetadataBesideGoodOnesIsRecoverable) {
  auto other = Store::create(disk_, {"/other0", "/other1"}, test_description(), test_options(9));
  ASSERT_TRUE(other.ok());
  other.value().reset();
  *drive_.content("/drive1/meta-a") = *drive_.content("/other1/meta-a");
  drive_.commit_edit("/drive1/meta-a");
  InspectReport report = look();
  EXPECT_EQ(report.verdict(), Verdict::kRecoverable);
  ASSERT_EQ(report.metadata.problems.size(), 1u);
  EXPECT_NE(report.metadata.problems[0].find("'/drive1/meta-a': header of store"),
            std::string::npos)
      << report.metadata.problems[0];
  // One of another directory of the same store.
  *drive_.content("/drive1/meta-a") = *drive_.content("/drive0/meta-a");
  drive_.commit_edit("/drive1/meta-a");
  report = look();
  EXPECT_EQ(report.verdict(), Verdict::kRecoverable);
  EXPECT_NE(report.metadata.problems[0].find("header of directory 0 of 2, not of 1 of 2"),
            std::string::npos)
      << report.metadata.problems[0];
}

TEST_F(InspectTest, ADamagedChunkIsRecoverableWhileThePreviousEpochIsWholeAndLostAfterwards) {
  flip("/drive1/slot-a", 4100);  // chunk 3 of the committed slot
  InspectReport report = look();
  EXPECT_EQ(report.verdict(), Verdict::kRecoverable);
  EXPECT_EQ(
      report.summary(),
      "1 of 6 chunks of epoch 3 (step 2) are bad; epoch 2 (step 1) is whole: opening the store "
      "for writing, or the first step after it, goes back to it");
  ASSERT_EQ(report.slots[0].first_bad.size(), 1u);
  EXPECT_EQ(report.slots[0].first_bad[0].chunk, 3u);
  flip("/drive0/slot-b", 0);
  report = look();
  EXPECT_EQ(report.verdict(), Verdict::kLost);
  EXPECT_NE(report.summary().find("restore a checkpoint"), std::string::npos);
}

TEST_F(InspectTest, DamageOfThePreviousEpochAloneIsRecoverable) {
  flip("/drive0/slot-b", 0);
  EXPECT_EQ(look().verdict(), Verdict::kRecoverable);
  drive_.erase("/drive0/slot-b");
  EXPECT_EQ(look().verdict(), Verdict::kRecoverable);
}

TEST_F(InspectTest, AZeroedChunkOfACommitIsDamageAndAFileMadeAnewIsNone) {
  store_.reset();
  std::vector<unsigned char>* older = drive_.content("/drive0/slot-b");
  std::fill(older->begin(), older->begin() + kTestChunkBytes, 0);
  drive_.commit_edit("/drive0/slot-b");
  InspectReport report = look();
  EXPECT_EQ(report.verdict(), Verdict::kRecoverable);
  EXPECT_EQ(report.slots[1].bad_chunks, 1u);
  EXPECT_EQ(report.slots[1].empty_chunks, 0u);
  EXPECT_NE(report.summary().find("the epoch before it is damaged"), std::string::npos);
  drive_.erase("/drive0/slot-b");
  ASSERT_TRUE(Store::open(disk_, names_, nullptr, test_options(2)).ok());
  report = look();
  EXPECT_EQ(report.verdict(), Verdict::kGood);
  EXPECT_EQ(report.slots[1].empty_chunks, 3u);
}

TEST_F(InspectTest, ACheckpointHasOneSlot) {
  ASSERT_TRUE(store_->checkpoint({"/held0", "/held1"}).ok());
  names_ = {"/held0", "/held1"};
  InspectReport report = look();
  EXPECT_EQ(report.verdict(), Verdict::kGood);
  EXPECT_TRUE(report.slots[0].present);
  EXPECT_FALSE(report.slots[1].present);
  flip("/held0/slot-a", 77);
  report = look();
  EXPECT_EQ(report.verdict(), Verdict::kLost);
}

TEST_F(InspectTest, SaysWhenItCannotLookAndWhenThereIsNothingLeft) {
  bool lost = true;
  SimulatedDisk other(drive_);
  Status status = inspect(other, names_, 1000, nullptr, &lost).status();
  EXPECT_NE(status.text().find("is in use"), std::string::npos) << status.text();
  EXPECT_FALSE(lost);
  store_.reset();
  for (const char* path :
       {"/drive0/meta-a", "/drive0/meta-b", "/drive1/meta-a", "/drive1/meta-b"}) {
    flip(path, 8200);
  }
  status = inspect(other, names_, 1000, nullptr, &lost).status();
  EXPECT_FALSE(status.ok());
  EXPECT_TRUE(lost);
}

}  // namespace
}  // namespace weir::offload
