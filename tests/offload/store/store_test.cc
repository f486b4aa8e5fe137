// SPDX-License-Identifier: Apache-2.0
#include "offload/store/store.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "offload/store/bytes.h"
#include "offload/store/crc32c.h"
#include "offload/store/file_names.h"
#include "offload/store/simulated_disk.h"
#include "offload/store/store_run.h"

namespace weir::offload {
namespace {

// A drive, a process and a store with step 0 committed.
class StoreTest : public testing::Test {
 protected:
  void make(const StoreDescription& description = test_description(), uint32_t directories = 2) {
    names_ = test_directories(directories);
    Result<std::unique_ptr<Store>> made =
        Store::create(disk_, names_, description, test_options(1));
    ASSERT_TRUE(made.ok()) << made.status().text();
    store_ = made.take();
    const Status status = commit_step(disk_, *store_, 0);
    ASSERT_TRUE(status.ok()) << status.text();
  }
  Result<std::unique_ptr<Store>> open(const StoreDescription* expected = nullptr,
                                      StoreOptions options = test_options(2)) {
    store_.reset();
    return Store::open(disk_, names_, expected, std::move(options));
  }
  void expect_refused(const std::string& words, Code code = Code::kRefused,
                      const StoreDescription* expected = nullptr) {
    const Result<std::unique_ptr<Store>> opened = open(expected);
    ASSERT_FALSE(opened.ok());
    EXPECT_EQ(opened.status().code(), code) << opened.status().text();
    EXPECT_NE(opened.status().text().find(words), std::string::npos) << opened.status().text();
    EXPECT_EQ(disk_.open_files(), 0u);
  }

  SimulatedDrive drive_{1};
  SimulatedDisk disk_{drive_};
  std::vector<std::string> names_;
  std::unique_ptr<Store> store_;
};

TEST_F(StoreTest, HoldsWhatWasCommittedOverAnyNumberOfDirectories) {
  for (const uint32_t directories : {1u, 2u, 3u, 7u}) {
    SimulatedDrive drive(directories);
    SimulatedDisk disk(drive);
    const std::vector<std::string> names = test_directories(directories);
    {
      auto made = Store::create(disk, names, test_description(), test_options(1));
      ASSERT_TRUE(made.ok()) << made.status().text();
      for (uint64_t step = 0; step < 5; ++step) {
        const Status status = commit_step(disk, *made.value(), step);
        ASSERT_TRUE(status.ok()) << status.text();
        EXPECT_EQ(made.value()->committed()->epoch, step + 1);
      }
    }
    EXPECT_EQ(disk.open_files(), 0u);
    const StoreDescription description = test_description();
    StoreOptions options = test_options(2);
    options.verify_all = true;
    auto opened = Store::open(disk, names, &description, std::move(options));
    ASSERT_TRUE(opened.ok()) << opened.status().text();
    EXPECT_EQ(opened.value()->committed()->step, 4u);
    EXPECT_EQ(opened.value()->previous()->step, 3u);
    EXPECT_TRUE(opened.value()->problems().empty());
    const Status status = check_committed(disk, *opened.value());
    EXPECT_TRUE(status.ok()) << status.text();
  }
}

TEST_F(StoreTest, AbandonedStepLeavesTheCommittedStateBitForBit) {
  make();
  for (uint64_t attempt = 1; attempt < 4; ++attempt) {
    ASSERT_TRUE(write_step(disk_, *store_, 1, attempt).ok());
    EXPECT_TRUE(check_state(disk_, *store_, 1, attempt).ok());
    ASSERT_TRUE(store_->abandon_step().ok());
    EXPECT_TRUE(check_state(disk_, *store_, 0).ok());
  }
  EXPECT_TRUE(commit_step(disk_, *store_, 1).ok());
  EXPECT_TRUE(check_state(disk_, *store_, 1).ok());
}

TEST_F(StoreTest, UncommittedStepsBuildOnEachOtherAndAreLostTogether) {
  make();
  for (uint64_t step = 1; step < 4; ++step) {
    ASSERT_TRUE(write_step(disk_, *store_, step).ok());
    ASSERT_TRUE(store_->end_step().ok());
    ASSERT_TRUE(check_state(disk_, *store_, step).ok());
    EXPECT_EQ(store_->committed()->step, 0u);
  }
  ASSERT_TRUE(store_->abandon_step().ok());
  EXPECT_TRUE(check_state(disk_, *store_, 0).ok());
  for (uint64_t step = 1; step < 4; ++step) {
    ASSERT_TRUE(write_step(disk_, *store_, step, 5).ok());
    ASSERT_TRUE(step == 3 || store_->end_step().ok());
  }
  ASSERT_TRUE(store_->commit().ok());
  EXPECT_EQ(store_->committed()->epoch, 2u);
  auto opened = open();
  ASSERT_TRUE(opened.ok());
  EXPECT_TRUE(check_state(disk_, *opened.value(), 3, 5).ok());
}

TEST_F(StoreTest, CommitNeedsEveryChunkOfThisStep) {
  make();
  ASSERT_TRUE(write_step(disk_, *store_, 1).ok());
  ASSERT_TRUE(store_->end_step().ok());
  ASSERT_TRUE(store_->begin_step(2).ok());
  Status status = store_->commit();
  EXPECT_EQ(status.code(), Code::kInvalidUsage);
  EXPECT_NE(status.text().find("chunk 0 was not written in step 2"), std::string::npos);
  ASSERT_TRUE(store_->abandon_step().ok());
  EXPECT_TRUE(commit_step(disk_, *store_, 1).ok());
}

TEST_F(StoreTest, CallsOutOfOrderAreRefusedAndHarmNothing) {
  make();
  AlignedBuffer buffer = AlignedBuffer::make(kTestChunkBytes).take();
  EXPECT_FALSE(store_->write_transfer(0, buffer.data()).ok());
  EXPECT_FALSE(store_->wrote(0).ok());
  EXPECT_FALSE(store_->commit().ok());
  EXPECT_FALSE(store_->end_step().ok());
  EXPECT_FALSE(store_->begin_step(0).ok());  // not after step 0
  EXPECT_FALSE(store_->read_transfer(6, buffer.data()).ok());
  ASSERT_TRUE(store_->begin_step(1).ok());
  EXPECT_FALSE(store_->begin_step(2).ok());
  EXPECT_FALSE(store_->roll_back(1).ok());
  EXPECT_FALSE(store_->checkpoint({"/drive0/c", "/drive1/c"}).ok());
  const Transfer write = store_->write_transfer(0, buffer.data()).value();
  ASSERT_TRUE(disk_.submit({&write, 1}).ok());
  EXPECT_NE(store_->commit().text().find("1 transfers are in flight"), std::string::npos);
  std::vector<Completion> done;
  ASSERT_TRUE(disk_.reap(1, 0, &done).ok());
  ASSERT_TRUE(store_->abandon_step().ok());
  const std::vector<unsigned char> much(kCommitDataBytesMax + 1);
  ASSERT_TRUE(write_step(disk_, *store_, 1).ok());
  EXPECT_EQ(store_->commit(much).code(), Code::kInvalidArgument);
  EXPECT_TRUE(store_->commit().ok());
  EXPECT_TRUE(check_state(disk_, *store_, 1).ok());
}

TEST_F(StoreTest, ASlotIsWrittenAgainOnlyWhenEveryRankHasCommittedTheNewerStep) {
  make(test_description(1, 2));
  const Status early = store_->begin_step(1);
  EXPECT_EQ(early.code(), Code::kInvalidUsage);
  EXPECT_NE(early.text().find("would overwrite epoch 0"), std::string::npos) << early.text();
  store_->peers_committed(1);
  ASSERT_TRUE(commit_step(disk_, *store_, 1).ok());
  EXPECT_FALSE(store_->begin_step(2).ok());
  store_->peers_committed(2);
  EXPECT_TRUE(store_->begin_step(2).ok());
  // Within a commit interval the slot is this step's own.
  EXPECT_TRUE(store_->end_step().ok());
  EXPECT_TRUE(store_->begin_step(3).ok());
}

TEST_F(StoreTest, RollBackReturnsToThePreviousEpochAndGoesOnFromThere) {
  make();
  for (uint64_t step = 1; step < 4; ++step) ASSERT_TRUE(commit_step(disk_, *store_, step).ok());
  EXPECT_TRUE(store_->roll_back(4).ok());  // that it is
  EXPECT_EQ(store_->roll_back(2).code(), Code::kRefused);
  ASSERT_TRUE(store_->roll_back(3).ok());
  EXPECT_TRUE(check_state(disk_, *store_, 2).ok());
  EXPECT_EQ(store_->roll_back(4).code(), Code::kRefused);
  auto opened = open();
  ASSERT_TRUE(opened.ok());
  ASSERT_TRUE(check_committed(disk_, *opened.value()).ok());
  EXPECT_EQ(opened.value()->committed()->epoch, 3u);
  ASSERT_TRUE(commit_step(disk_, *opened.value(), 3, 8).ok());
  EXPECT_EQ(opened.value()->committed()->epoch, 4u);
  EXPECT_TRUE(check_state(disk_, *opened.value(), 3, 8).ok());
}

TEST_F(StoreTest, RollBackIsRefusedOnceALaterStepHasWritten) {
  make();
  ASSERT_TRUE(commit_step(disk_, *store_, 1).ok());
  ASSERT_TRUE(write_step(disk_, *store_, 2).ok());
  ASSERT_TRUE(store_->abandon_step().ok());
  EXPECT_EQ(store_->previous(), nullptr);
  EXPECT_EQ(store_->roll_back(1).code(), Code::kRefused);
  EXPECT_TRUE(check_state(disk_, *store_, 1).ok());
}

TEST_F(StoreTest, ALostWriteIsFoundEvenWhenAnAttemptAtTheSameEpochIsBelow) {
  make();
  ASSERT_TRUE(write_step(disk_, *store_, 1, 1).ok());
  drive_.settle();
  const std::vector<unsigned char> first_attempt = *drive_.content("/drive0/slot-b");
  auto opened = open();  // as after a crash
  ASSERT_TRUE(opened.ok());
  ASSERT_TRUE(commit_step(disk_, *opened.value(), 1, 2).ok());
  std::vector<unsigned char>& slot = *drive_.content("/drive0/slot-b");
  ASSERT_NE(slot, first_attempt);
  std::copy_n(first_attempt.begin(), kTestChunkBytes, slot.begin());
  drive_.commit_edit("/drive0/slot-b");
  const Status status = check_state(disk_, *opened.value(), 1, 2);
  EXPECT_EQ(status.code(), Code::kRefused) << status.text();
}

// ---- What open refuses --------------------------------------------------------------------------

TEST_F(StoreTest, OpenNamesAMissingStoreDirectoryOrFile) {
  names_ = test_directories(2);
  expect_refused("expected directory '/drive0' (1 of 2), found nothing");
  ASSERT_TRUE(disk_.make_directory("/drive0").ok());
  ASSERT_TRUE(disk_.make_directory("/drive1").ok());
  expect_refused("no store in '/drive0'");
  make();
  drive_.erase("/drive1/slot-a");
  expect_refused("expected file '/drive1/slot-a', found none");
  drive_.erase_directory("/drive1");
  expect_refused("expected directory '/drive1' (2 of 2), found nothing");
}

TEST_F(StoreTest, OpenNamesWhatIsOfAnotherModelOrRank) {
  make();
  StoreDescription other = test_description(0, 2);
  expect_refused("a rank count of 2, found 1", Code::kMismatch, &other);
  other = test_description();
  other.model = "large";
  expect_refused("expected the state of model 'large', found 'little'", Code::kMismatch, &other);
  other = test_description();
  other.groups[2].state_format = 4;
  expect_refused("state format 4, found 1", Code::kMismatch, &other);
}

TEST_F(StoreTest, OpenNamesAnotherFormatVersion) {
  make(test_description(), 1);
  for (const char* name : {"/drive0/meta-a", "/drive0/meta-b"}) {
    std::vector<unsigned char>& file = *drive_.content(name);
    unsigned char* header = file.data() + kHeaderOffset;
    put_little<uint32_t>(header + 8, 2);
    put_little<uint32_t>(header + 12, 0);
    put_little<uint32_t>(header + 12, crc32c(header, file.size() - kHeaderOffset));
    drive_.commit_edit(name);
  }
  expect_refused("expected format version 1, found 2", Code::kUnsupported);
}

TEST_F(StoreTest, OpenNamesDirectoriesInAnotherOrderNumberOrOfAnotherStore) {
  make();
  names_ = {"/drive1", "/drive0"};
  expect_refused("expected '/drive1' to be directory 0 of the store, found number 1",
                 Code::kMismatch);
  names_ = {"/drive0"};
  expect_refused("expected a store over 1 directories, found '/drive0' to be one of 2",
                 Code::kMismatch);
  names_ = {"/drive0", "/drive0"};
  expect_refused("'/drive0' is given twice", Code::kInvalidArgument);
  auto made = Store::create(disk_, {"/other0", "/other1"}, test_description(), test_options(9));
  ASSERT_TRUE(made.ok());
  made.value().reset();
  names_ = {"/drive0", "/other1"};
  expect_refused("expected directories of one store", Code::kMismatch);
}

TEST_F(StoreTest, OpenNamesATruncatedFile) {
  make();
  drive_.content("/drive0/slot-a")->resize(8192);
  drive_.commit_edit("/drive0/slot-a");
  expect_refused("expected '/drive0/slot-a' to have 12288 bytes, found 8192: it was truncated");
}

TEST_F(StoreTest, OpenAndCreateNameWhatMayNotBeOpened) {
  make();
  drive_.forbidden = {"/drive1/slot-a"};
  expect_refused("'/drive1/slot-a': Permission denied", Code::kSystem);
  drive_.forbidden = {"/shut"};
  const auto made = Store::create(disk_, {"/shut/x"}, test_description(), test_options(1));
  ASSERT_FALSE(made.ok());
  EXPECT_NE(made.status().text().find("'/shut/x': Permission denied"), std::string::npos)
      << made.status().text();
}

TEST_F(StoreTest, TwoProcessesCannotHaveOneStore) {
  make();
  SimulatedDisk other(drive_);
  auto second = Store::open(other, names_, nullptr, test_options(3));
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), Code::kRefused);
  EXPECT_NE(second.status().text().find("the store in '/drive0' is in use: expected it to be free"),
            std::string::npos);
  EXPECT_EQ(Store::remove(other, names_).code(), Code::kRefused);
  store_.reset();
  second = Store::open(other, names_, nullptr, test_options(3));
  EXPECT_TRUE(second.ok()) << second.status().text();
}

TEST_F(StoreTest, ReadersNeedNoLockAndChangeNothing) {
  make();
  StoreOptions options = test_options(3);
  options.read_only = true;
  options.verify_all = true;
  SimulatedDisk other(drive_);
  const uint64_t events = drive_.events();
  auto reader = Store::open(other, names_, nullptr, std::move(options));
  ASSERT_TRUE(reader.ok()) << reader.status().text();
  EXPECT_TRUE(check_committed(other, *reader.value()).ok());
  EXPECT_EQ(reader.value()->begin_step(9).code(), Code::kInvalidUsage);
  EXPECT_EQ(drive_.events(), events);
}

TEST_F(StoreTest, CreateIsRefusedWhereAStoreIsAndLeavesItAlone) {
  make();
  auto again = Store::create(disk_, names_, test_description(), test_options(5));
  ASSERT_FALSE(again.ok());
  EXPECT_NE(again.status().text().find("to be free, found it open"), std::string::npos);
  EXPECT_TRUE(check_committed(disk_, *store_).ok());
  store_.reset();
  again = Store::create(disk_, names_, test_description(), test_options(5));
  ASSERT_FALSE(again.ok());
  EXPECT_NE(again.status().text().find("expected no store or checkpoint in '/drive0', found"),
            std::string::npos);
  ASSERT_TRUE(Store::remove(disk_, names_).ok());
  EXPECT_TRUE(drive_.paths().empty());
  EXPECT_TRUE(Store::create(disk_, names_, test_description(), test_options(5)).ok());
}

TEST_F(StoreTest, AFullDriveIsFoundByCreateWhichLeavesNothing) {
  drive_.capacity_bytes = 60'000;
  const auto made = Store::create(disk_, test_directories(2), test_description(), test_options(1));
  if (made.ok()) GTEST_FAIL() << "there is no room for it";
  drive_.capacity_bytes = 20'000;
  const auto less = Store::create(disk_, test_directories(2), test_description(), test_options(1));
  ASSERT_FALSE(less.ok());
  EXPECT_NE(less.status().text().find("needs 24576 bytes for two slots, 20000 are free"),
            std::string::npos)
      << less.status().text();
  EXPECT_TRUE(drive_.paths().empty());
  for (const std::string& name : test_directories(2)) EXPECT_FALSE(disk_.exists(name).value());
}

TEST_F(StoreTest, AStoreThatWasNeverCommittedSaysSoWhenRead) {
  names_ = test_directories(2);
  auto made = Store::create(disk_, names_, test_description(), test_options(1));
  ASSERT_TRUE(made.ok());
  made.value().reset();
  auto opened = open();
  ASSERT_TRUE(opened.ok()) << opened.status().text();
  EXPECT_EQ(opened.value()->committed(), nullptr);
  AlignedBuffer buffer = AlignedBuffer::make(kTestChunkBytes).take();
  EXPECT_NE(opened.value()->read_transfer(0, buffer.data()).status().text().find("never written"),
            std::string::npos);
  ASSERT_TRUE(commit_step(disk_, *opened.value(), 0).ok());
  EXPECT_TRUE(check_committed(disk_, *opened.value()).ok());
}

}  // namespace
}  // namespace weir::offload
