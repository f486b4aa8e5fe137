// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "offload/store/simulated_disk.h"
#include "offload/store/store_run.h"

namespace weir::offload {
namespace {

enum class Way { kLink, kClone, kCopy };

const std::vector<std::string> kHeld = {"/held/0", "/held/1"};

StoreOptions reading() {
  StoreOptions options = test_options(9);
  options.read_only = true;
  options.verify_all = true;
  return options;
}

// The checkpoint opens, and every chunk is that of `step`. One that was cut short may lack copies
// of its metadata.
void expect_checkpoint(SimulatedDisk& disk, const std::vector<std::string>& directories,
                       uint64_t step, bool complete = true) {
  const StoreDescription description = test_description();
  auto held = Store::open(disk, directories, &description, reading());
  ASSERT_TRUE(held.ok()) << held.status().text();
  EXPECT_TRUE(held.value()->problems().empty() || !complete);
  EXPECT_EQ(held.value()->committed()->step, step);
  const Status status = check_committed(disk, *held.value());
  EXPECT_TRUE(status.ok()) << status.text();
}

class CheckpointTest : public testing::TestWithParam<Way> {
 protected:
  void set_way(SimulatedDrive* drive) const {
    drive->links = GetParam() == Way::kLink;
    drive->clones = GetParam() == Way::kClone;
  }
};

TEST_P(CheckpointTest, HoldsItsEpochWhileTheStoreGoesOn) {
  SimulatedDrive drive(1);
  set_way(&drive);
  SimulatedDisk disk(drive);
  ASSERT_TRUE(disk.make_directory("/held").ok());
  auto made = Store::create(disk, test_directories(), test_description(), test_options(1));
  ASSERT_TRUE(made.ok());
  Store& store = *made.value();
  EXPECT_EQ(store.checkpoint(kHeld).code(), Code::kInvalidUsage);  // nothing to hold
  for (uint64_t step = 0; step < 3; ++step) ASSERT_TRUE(commit_step(disk, store, step).ok());
  Status status = store.checkpoint(kHeld);
  ASSERT_TRUE(status.ok()) << status.text();
  EXPECT_EQ(drive.link_count("/drive0/slot-a"), GetParam() == Way::kLink ? 2u : 1u);
  for (uint64_t step = 3; step < 9; ++step) {
    expect_checkpoint(disk, kHeld, 2);
    ASSERT_TRUE(commit_step(disk, store, step).ok());
    ASSERT_TRUE(check_committed(disk, store).ok());
  }
  EXPECT_EQ(drive.link_count("/drive0/slot-a"), 1u);
  EXPECT_NE(store.checkpoint(kHeld).text().find("expected no store or checkpoint in '/held/0'"),
            std::string::npos);
  ASSERT_TRUE(store.checkpoint({"/held/2", "/held/3"}).ok());
  ASSERT_TRUE(store.checkpoint({"/held/4", "/held/5"}).ok());  // twice the same epoch
  ASSERT_TRUE(commit_step(disk, store, 9).ok());
  ASSERT_TRUE(commit_step(disk, store, 10).ok());
  expect_checkpoint(disk, kHeld, 2);
  expect_checkpoint(disk, {"/held/2", "/held/3"}, 8);
  expect_checkpoint(disk, {"/held/4", "/held/5"}, 8);
  const auto writing = Store::open(disk, kHeld, nullptr, test_options(3));
  EXPECT_EQ(writing.status().code(), Code::kInvalidUsage);
  EXPECT_NE(writing.status().text().find("found a checkpoint"), std::string::npos);
}

TEST_P(CheckpointTest, SurvivesACrashAtEveryEventAroundIt) {
  const auto run = [&](SimulatedDrive& drive, bool* complete, uint64_t* acknowledged) {
    SimulatedDisk disk(drive);
    *complete = false;
    *acknowledged = 0;
    static_cast<void>(disk.make_directory("/held"));
    auto made = Store::create(disk, test_directories(), test_description(), test_options(1));
    if (!made.ok()) return;
    Store& store = *made.value();
    for (uint64_t step = 0; step < 6; ++step) {
      if (!commit_step(disk, store, step).ok()) return;
      *acknowledged = step;
      if (step != 2) continue;
      if (!store.checkpoint(kHeld).ok()) return;
      *complete = true;
    }
  };
  bool complete = false;
  uint64_t acknowledged = 0;
  SimulatedDrive counted(1);
  set_way(&counted);
  run(counted, &complete, &acknowledged);
  ASSERT_TRUE(complete && acknowledged == 5);
  for (uint64_t at = 60; at < counted.events(); ++at) {
    for (const CrashMode mode : {CrashMode::kDropped, CrashMode::kTorn, CrashMode::kReordered}) {
      SCOPED_TRACE(testing::Message() << "event " << at);
      SimulatedDrive drive(at);
      set_way(&drive);
      drive.crash_at_event = at;
      run(drive, &complete, &acknowledged);
      drive.power_cycle(mode);
      SimulatedDisk disk(drive);
      auto opened = Store::open(disk, test_directories(), nullptr, test_options(at));
      ASSERT_TRUE(opened.ok()) << opened.status().text();
      Store& store = *opened.value();
      const uint64_t found = store.committed()->step;
      ASSERT_TRUE(found == acknowledged || found == acknowledged + 1);
      ASSERT_TRUE(check_committed(disk, store).ok());
      for (uint64_t step = found + 1; step < found + 4; ++step) {
        const Status status = commit_step(disk, store, step);
        ASSERT_TRUE(status.ok()) << status.text();
      }
      ASSERT_TRUE(check_committed(disk, store).ok());
      const auto held = Store::open(disk, kHeld, nullptr, reading());
      EXPECT_TRUE(held.ok() || !complete) << held.status().text();
      if (held.ok()) expect_checkpoint(disk, kHeld, 2, complete);
      if (HasFailure()) return;
    }
  }
}

TEST_P(CheckpointTest, ThatWasCutShortIsReplacedByTheNextIntoItsDirectories) {
  const auto prepare = [&](SimulatedDrive& drive) {
    set_way(&drive);
    SimulatedDisk disk(drive);
    ASSERT_TRUE(disk.make_directory("/held").ok());
    auto made = Store::create(disk, test_directories(), test_description(), test_options(1));
    ASSERT_TRUE(made.ok());
    for (uint64_t step = 0; step < 3; ++step) {
      ASSERT_TRUE(commit_step(disk, *made.value(), step).ok());
    }
  };
  bool was_cut = true;
  uint64_t replaced = 0;
  for (uint64_t at = 0; was_cut; ++at) {
    for (const bool killed : {true, false}) {
      SCOPED_TRACE(testing::Message() << "event " << at << (killed ? ", killed" : ", no power"));
      SimulatedDrive drive(at);
      prepare(drive);
      drive.settle();
      {
        SimulatedDisk disk(drive);
        auto store = Store::open(disk, test_directories(), nullptr, test_options(2));
        ASSERT_TRUE(store.ok());
        drive.crash_at_event = drive.events() + at;
        const bool made = store.value()->checkpoint(kHeld).ok();
        EXPECT_TRUE(made || drive.crashed());
      }
      was_cut = drive.crashed();
      if (killed) {
        drive.kill_processes();
      } else {
        drive.power_cycle(CrashMode::kReordered);
      }
      drive.crash_at_event.reset();
      SimulatedDisk disk(drive);
      auto store = Store::open(disk, test_directories(), nullptr, test_options(3));
      ASSERT_TRUE(store.ok()) << store.status().text();
      const bool complete = Store::open(disk, kHeld, nullptr, reading()).ok();
      const Status again = store.value()->checkpoint(kHeld);
      EXPECT_EQ(again.ok(), !complete) << again.text();
      if (complete) {
        EXPECT_NE(again.text().find("weir-fsck --discard /held/0 /held/1 --discard-committed"),
                  std::string::npos)
            << again.text();
      }
      replaced += complete ? 0 : 1;
      expect_checkpoint(disk, kHeld, 2, !complete);
      ASSERT_TRUE(commit_step(disk, *store.value(), 3).ok());
      ASSERT_TRUE(commit_step(disk, *store.value(), 4).ok());
      expect_checkpoint(disk, kHeld, 2, !complete);
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(replaced, 20u);
}

std::string name_of_parameter(const testing::TestParamInfo<Way>& parameter) {
  constexpr const char* kNames[] = {"Link", "Clone", "Copy"};
  return kNames[static_cast<size_t>(parameter.param)];
}

INSTANTIATE_TEST_SUITE_P(Store, CheckpointTest,
                         testing::Values(Way::kLink, Way::kClone, Way::kCopy), name_of_parameter);

TEST(Checkpoint, OnAFullDriveIsRefusedAndTheStoreGoesOn) {
  SimulatedDrive drive(1);
  SimulatedDisk disk(drive);
  auto made = Store::create(disk, test_directories(), test_description(), test_options(1));
  ASSERT_TRUE(made.ok());
  Store& store = *made.value();
  ASSERT_TRUE(commit_step(disk, store, 0).ok());
  // Its metadata has room, the store's next files have none.
  drive.capacity_bytes = 4 * 12288 + 4 * 12288 + 4 * 12288 + 4096;
  const size_t files = drive.paths().size();
  const Status status = store.checkpoint({"/held0", "/held1"});
  EXPECT_NE(status.text().find("No space left"), std::string::npos) << status.text();
  EXPECT_EQ(drive.paths().size(), files);
  ASSERT_TRUE(commit_step(disk, store, 1).ok());
  ASSERT_TRUE(commit_step(disk, store, 2).ok());
  drive.capacity_bytes *= 2;
  EXPECT_TRUE(store.checkpoint({"/held0", "/held1"}).ok());
  ASSERT_TRUE(commit_step(disk, store, 3).ok());
  EXPECT_TRUE(check_committed(disk, store).ok());
}

TEST(Checkpoint, IsNeverMadeWhereSomethingIsThatMayCount) {
  SimulatedDrive drive(1);
  SimulatedDisk disk(drive);
  auto made = Store::create(disk, test_directories(), test_description(), test_options(1));
  ASSERT_TRUE(made.ok());
  Store& store = *made.value();
  ASSERT_TRUE(commit_step(disk, store, 0).ok());
  EXPECT_NE(store.checkpoint(test_directories()).text().find("is in use"), std::string::npos);
  // One whose metadata is lost.
  ASSERT_TRUE(store.checkpoint({"/held0", "/held1"}).ok());
  for (const char* name : {"/held0", "/held1"}) {
    for (uint32_t copy = 0; copy < kMetaCopies; ++copy) drive.erase(meta_path(name, copy));
  }
  const auto before = drive.paths();
  const Status refused = store.checkpoint({"/held0", "/held1"});
  EXPECT_EQ(refused.code(), Code::kRefused);
  EXPECT_NE(refused.text().find("weir-fsck --discard /held0 /held1"), std::string::npos)
      << refused.text();
  EXPECT_EQ(drive.paths(), before);
}

TEST(Checkpoint, OfABadChunkIsRefusedWhereItIsCopied) {
  SimulatedDrive drive(1);
  drive.links = false;
  SimulatedDisk disk(drive);
  auto made = Store::create(disk, test_directories(), test_description(), test_options(1));
  ASSERT_TRUE(made.ok());
  ASSERT_TRUE(commit_step(disk, *made.value(), 0).ok());
  (*drive.content("/drive1/slot-a"))[100] ^= 1;
  drive.commit_edit("/drive1/slot-a");
  const Status status = made.value()->checkpoint({"/held0", "/held1"});
  EXPECT_NE(status.text().find("chunk 1 of 6 in '/drive1/slot-a' is bad"), std::string::npos)
      << status.text();
  for (const std::string& path : drive.paths()) EXPECT_EQ(path.find("/held"), std::string::npos);
  EXPECT_FALSE(disk.exists("/held0").value());
}

}  // namespace
}  // namespace weir::offload
