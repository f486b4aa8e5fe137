// SPDX-License-Identifier: Apache-2.0
// A creation is cut short before every I/O event, and what it leaves is what open or create takes;
// what may be a store that lost its metadata is touched by neither.
#include <gtest/gtest.h>

#include <algorithm>

#include "offload/store/file_names.h"
#include "offload/store/inspect.h"
#include "offload/store/simulated_disk.h"
#include "offload/store/store_files.h"
#include "offload/store/store_run.h"

namespace weir::offload {
namespace {

struct Cut {
  const char* name;
  bool killed;  // else power is lost
  CrashMode mode;
};

constexpr Cut kCuts[] = {{"Killed", true, CrashMode::kDropped},
                         {"Dropped", false, CrashMode::kDropped},
                         {"Torn", false, CrashMode::kTorn},
                         {"Reordered", false, CrashMode::kReordered}};

class CreateCutShort : public testing::TestWithParam<Cut> {
 protected:
  static void cut(SimulatedDrive& drive) {
    if (GetParam().killed) {
      drive.kill_processes();
    } else {
      drive.power_cycle(GetParam().mode);
    }
  }

  // A drive on which a creation was cut short before event `at`, counted from its beginning. With
  // `replaces`, a store of another shape, without a commit, is there before. False: it was not cut.
  static bool create_and_cut(SimulatedDrive& drive, uint64_t at, bool replaces, uint64_t seed) {
    if (replaces) {
      SimulatedDisk disk(drive);
      StoreDescription old = test_description();
      old.groups.pop_back();
      EXPECT_TRUE(Store::create(disk, test_directories(), old, test_options(seed)).ok());
      drive.settle();
    }
    drive.crash_at_event = drive.events() + at;
    {
      SimulatedDisk disk(drive);
      auto made = Store::create(disk, test_directories(), test_description(), test_options(seed));
      EXPECT_EQ(made.ok(), !drive.crashed()) << made.status().text();
    }
    const bool was_cut = drive.crashed();
    cut(drive);
    drive.crash_at_event.reset();
    return was_cut;
  }
};

TEST_P(CreateCutShort, LeavesWhatOpenOrCreateTakes) {
  for (const bool replaces : {false, true}) {
    bool was_cut = true;
    uint64_t at = 0;
    for (; was_cut; ++at) {
      SCOPED_TRACE(testing::Message() << "before event " << at << ", replaces " << replaces);
      SimulatedDrive drive(at + 1);
      was_cut = create_and_cut(drive, at, replaces, at + 5);
      SimulatedDisk disk(drive);
      const auto names = test_directories();
      const StoreDescription description = test_description();
      auto store = Store::open(disk, names, &description, test_options(at));
      if (store.ok()) {
        EXPECT_EQ(store.value()->committed(), nullptr);
      } else {
        EXPECT_NE(store.status().code(), Code::kSystem) << store.status().text();
        store = Store::create(disk, names, description, test_options(at));
        ASSERT_TRUE(store.ok()) << store.status().text();
      }
      const Status stepped = commit_step(disk, *store.value(), 0);
      ASSERT_TRUE(stepped.ok()) << stepped.text();
      EXPECT_TRUE(check_committed(disk, *store.value()).ok());
    }
    EXPECT_GT(at, 20u);
  }
}

TEST_P(CreateCutShort, AndCutShortAgainLeavesWhatCreateTakes) {
  bool was_cut = true;
  for (uint64_t at = 0; was_cut; ++at) {
    bool again = true;
    for (uint64_t second = 0; again; second += 2) {
      SCOPED_TRACE(testing::Message() << "before event " << at << ", then " << second);
      SimulatedDrive drive(at * 1000 + second);
      was_cut = create_and_cut(drive, at, false, at + 5);
      again = create_and_cut(drive, second, false, at + 6);
      SimulatedDisk disk(drive);
      auto store =
          Store::create(disk, test_directories(), test_description(), test_options(second));
      ASSERT_TRUE(store.ok()) << store.status().text();
      ASSERT_TRUE(commit_step(disk, *store.value(), 0).ok());
    }
  }
}

std::string name_of_parameter(const testing::TestParamInfo<Cut>& parameter) {
  return parameter.param.name;
}

INSTANTIATE_TEST_SUITE_P(Store, CreateCutShort, testing::ValuesIn(kCuts), name_of_parameter);

class CreateTest : public testing::Test {
 protected:
  void make(uint64_t commits) {
    auto made = Store::create(disk_, names_, test_description(), test_options(1));
    ASSERT_TRUE(made.ok()) << made.status().text();
    for (uint64_t step = 0; step < commits; ++step) {
      ASSERT_TRUE(commit_step(disk_, *made.value(), step).ok());
    }
  }
  Status create() {
    return Store::create(disk_, names_, test_description(), test_options(2)).status();
  }
  void lose_metadata() {
    for (const std::string& name : names_) {
      for (uint32_t copy = 0; copy < kMetaCopies; ++copy) drive_.erase(meta_path(name, copy));
    }
  }

  std::vector<std::string> names_ = test_directories();
  SimulatedDrive drive_{1};
  SimulatedDisk disk_{drive_};
};

TEST_F(CreateTest, AStoreWithoutACommitIsReplacedUnlessSomebodyHasIt) {
  make(0);
  {
    SimulatedDisk other(drive_);
    auto holder = Store::open(other, names_, nullptr, test_options(3));
    ASSERT_TRUE(holder.ok());
    const auto before = drive_.paths();
    const Status refused = create();
    EXPECT_EQ(refused.code(), Code::kRefused);
    EXPECT_NE(refused.text().find("to be free"), std::string::npos) << refused.text();
    EXPECT_EQ(drive_.paths(), before);
  }
  const Status status = create();
  EXPECT_TRUE(status.ok()) << status.text();
}

TEST_F(CreateTest, ACreationThatFailsLeavesNothing) {
  for (uint64_t at = 0;; ++at) {
    SCOPED_TRACE(at);
    SimulatedDrive drive(at);
    SimulatedDisk disk(drive);
    drive.fail_at_request = at;
    const auto made = Store::create(disk, names_, test_description(), test_options(1));
    if (!drive.fault_happened()) break;
    if (made.ok()) continue;  // a copy of the metadata could not be read, and was written anew
    EXPECT_TRUE(drive.paths().empty()) << made.status().text();
    for (const std::string& name : names_) EXPECT_FALSE(disk.exists(name).value());
    EXPECT_EQ(disk.open_files(), 0u);
  }
}

TEST_F(CreateTest, ACommittedStoreIsRefusedWithItsEpochAlsoAfterDamageOfMostOfItsMetadata) {
  make(2);
  for (const char* path : {"/drive0/meta-a", "/drive0/meta-b", "/drive1/meta-a"}) {
    drive_.erase(path);
    const Status refused = create();
    EXPECT_EQ(refused.code(), Code::kRefused);
    EXPECT_NE(refused.text().find("epoch 2 (step 1) committed"), std::string::npos)
        << refused.text();
  }
  EXPECT_TRUE(Store::open(disk_, names_, nullptr, test_options(3)).ok());
}

TEST_F(CreateTest, SlotsWithoutMetadataAreRefusedByNameAndDiscarded) {
  make(2);
  lose_metadata();
  const auto before = drive_.paths();
  for (int twice = 0; twice < 2; ++twice) {
    const Status refused = create();
    EXPECT_EQ(refused.code(), Code::kRefused);
    for (const char* part : {"'/drive0/slot-a'", "'/drive1/slot-b'", "metadata was lost",
                             "weir-fsck --discard /drive0 /drive1"}) {
      EXPECT_NE(refused.text().find(part), std::string::npos) << part << ": " << refused.text();
    }
    EXPECT_EQ(drive_.paths(), before);
  }
  EXPECT_EQ(Store::open(disk_, names_, nullptr, test_options(3)).status().code(), Code::kRefused);
  {
    auto discard = Discard::prepare(disk_, names_, 1000);
    ASSERT_TRUE(discard.ok()) << discard.status().text();
    EXPECT_EQ(discard.value().files(),
              (std::vector<std::string>{"/drive0/slot-a", "/drive0/slot-b", "/drive1/slot-a",
                                        "/drive1/slot-b", "/drive0/lock", "/drive1/lock"}));
    EXPECT_FALSE(discard.value().commit().has_value());
    ASSERT_TRUE(discard.value().remove().ok());
  }
  EXPECT_TRUE(drive_.paths().empty());
  EXPECT_TRUE(create().ok());
}

TEST_F(CreateTest, DiscardTellsOfACommitTakesTheLockAndLeavesForeignFiles) {
  make(2);
  {
    auto own = OpenFile::open(disk_, "/drive0/notes", OpenMode::kCreate, 0);
    ASSERT_TRUE(own.ok());
  }
  {
    SimulatedDisk other(drive_);
    auto holder = Store::open(other, names_, nullptr, test_options(3));
    ASSERT_TRUE(holder.ok());
    EXPECT_EQ(Discard::prepare(disk_, names_, 1000).status().code(), Code::kRefused);
  }
  drive_.erase("/drive0/meta-a");  // one of four is enough to know of the commit
  drive_.erase("/drive0/meta-b");
  drive_.erase("/drive1/meta-a");
  auto discard = Discard::prepare(disk_, names_, 1000);
  ASSERT_TRUE(discard.ok()) << discard.status().text();
  ASSERT_TRUE(discard.value().commit().has_value());
  EXPECT_EQ(discard.value().commit()->slots[discard.value().commit()->current].step, 1u);
  EXPECT_EQ(Store::open(disk_, names_, nullptr, test_options(3)).status().code(), Code::kRefused);
  ASSERT_TRUE(discard.value().remove().ok());
  EXPECT_EQ(drive_.paths(), std::vector<std::string>{"/drive0/notes"});
}

TEST_F(CreateTest, DiscardChangesNothingBeforeItRemoves) {
  make(1);
  drive_.erase("/drive0/lock");
  const auto before = drive_.paths();
  {
    auto discard = Discard::prepare(disk_, names_, 1000);
    ASSERT_TRUE(discard.ok()) << discard.status().text();
    EXPECT_EQ(drive_.paths(), before);
    auto other = OpenFile::open(disk_, "/drive0/slot-a.next", OpenMode::kCreate, 0);
    ASSERT_TRUE(other.ok());
    EXPECT_EQ(discard.value().remove().code(), Code::kRefused);  // not what was listed
  }
  auto discard = Discard::prepare(disk_, names_, 1000);
  ASSERT_TRUE(discard.ok()) << discard.status().text();
  ASSERT_TRUE(discard.value().remove().ok());
  EXPECT_TRUE(drive_.paths().empty());
}

TEST_F(CreateTest, ADiscardThatFailsSaysWhatItHasRemoved) {
  make(0);
  lose_metadata();
  const std::unique_ptr<SimulatedDrive> whole = drive_.copy(2);
  const size_t files = drive_.paths().size();
  size_t in_part = 0;
  for (uint64_t at = 0;; ++at) {
    SCOPED_TRACE(at);
    const auto drive = whole->copy(at);
    SimulatedDisk disk(*drive);
    auto discard = Discard::prepare(disk, names_, 1000);
    ASSERT_TRUE(discard.ok()) << discard.status().text();
    drive->fail_at_request = drive->requests() + at;
    const Status status = discard.value().remove();
    drive->fail_at_request.reset();
    if (status.ok()) break;
    const size_t removed = files - drive->paths().size();
    if (removed == 0) continue;
    ++in_part;
    for (const std::string& part :
         {std::to_string(removed) + " of 6 files were removed", std::string("'/drive0/slot-a'")}) {
      EXPECT_NE(status.text().find(part), std::string::npos) << status.text();
    }
  }
  EXPECT_GT(in_part, 5u);
}

// Somebody else has the locks for so many more tries, and removes a file when it lets go.
class LateLocks : public SimulatedDisk {
 public:
  explicit LateLocks(SimulatedDrive& drive) : SimulatedDisk(drive), drive_(drive) {}
  Status lock(FileId file) override {
    if (taken == 0) {
      if (!removed.empty()) drive_.erase(std::exchange(removed, ""));
      return SimulatedDisk::lock(file);
    }
    --taken;
    return Status(Code::kRefused, "locked by another");
  }
  int taken = 0;
  std::string removed;

 private:
  SimulatedDrive& drive_;
};

TEST_F(CreateTest, ALockThatWasRemovedWhileItWasWaitedForIsMadeAnew) {
  make(1);
  LateLocks disk(drive_);
  disk.taken = 3;
  disk.removed = "/drive0/lock";
  const auto lock = hold_lock(disk, "/drive0", 60'000);
  ASSERT_TRUE(lock.ok()) << lock.status().text();
  EXPECT_EQ(disk.removed, "");
  EXPECT_EQ(hold_lock(disk_, "/drive0", 0).status().code(), Code::kRefused);
}

TEST_F(CreateTest, LocksThatAreLetGoALittleLateAreWaitedFor) {
  make(1);
  LateLocks disk(drive_);
  disk.taken = 9;
  EXPECT_EQ(hold_existing_locks(disk, names_, 0).status().code(), Code::kRefused);
  EXPECT_TRUE(hold_existing_locks(disk, names_, 60'000).ok());
  EXPECT_EQ(disk.taken, 0);
}

TEST_F(CreateTest, DiscardNeedsAllDirectoriesOfOneStore) {
  make(2);
  const auto other = Store::create(disk_, {"/other"}, test_description(), test_options(2)).status();
  ASSERT_TRUE(other.ok()) << other.text();
  const auto before = drive_.paths();
  for (const std::vector<std::string>& names :
       {std::vector<std::string>{"/drive0"}, {"/drive1"}, {"/drive0", "/other"}}) {
    const Status refused = Discard::prepare(disk_, names, 1000).status();
    EXPECT_EQ(refused.code(), Code::kMismatch);
    EXPECT_NE(refused.text().find("nothing was removed"), std::string::npos) << refused.text();
    EXPECT_EQ(drive_.paths(), before);
  }
  const Status half = Discard::prepare(disk_, {"/drive1"}, 1000).status();
  EXPECT_NE(half.text().find("'/drive1' to be one of 2"), std::string::npos) << half.text();
  // One drive is gone for good.
  drive_.erase_directory("/drive0");
  ASSERT_TRUE(disk_.make_directory("/drive0").ok());
  auto discard = Discard::prepare(disk_, names_, 1000);
  ASSERT_TRUE(discard.ok()) << discard.status().text();
  EXPECT_TRUE(discard.value().remove().ok());
}

TEST_F(CreateTest, ADirectoryThatHasLostItsMetadataIsSaidToBePerhapsOneOfSeveral) {
  make(2);
  for (uint32_t copy = 0; copy < kMetaCopies; ++copy) drive_.erase(meta_path("/drive0", copy));
  bool lost = false;
  const Status examined = inspect(disk_, {"/drive0"}, 1000, nullptr, &lost).status();
  EXPECT_TRUE(lost);
  const Status made = Store::create(disk_, {"/drive0"}, test_description(), {}).status();
  for (const Status& status : {examined, made}) {
    EXPECT_EQ(status.code(), Code::kRefused);
    EXPECT_NE(status.text().find("may be one of several directories of a store"), std::string::npos)
        << status.text();
  }
}

TEST_F(CreateTest, DiscardOfNothingSaysSo) {
  ASSERT_TRUE(disk_.make_directory("/drive0").ok());
  const auto discard = Discard::prepare(disk_, {"/drive0"}, 1000);
  EXPECT_NE(discard.status().text().find("no file of a store in '/drive0'"), std::string::npos);
}

TEST_F(CreateTest, ARemovalThatIsCutShortCanBeDoneAgain) {
  bool was_cut = true;
  for (uint64_t at = 0; was_cut; ++at) {
    SimulatedDrive drive(at);
    {
      SimulatedDisk disk(drive);
      ASSERT_TRUE(Store::create(disk, names_, test_description(), test_options(1)).ok());
    }
    drive.settle();
    drive.crash_at_event = drive.events() + at;
    {
      SimulatedDisk disk(drive);
      const bool removed = Store::remove(disk, names_).ok();
      EXPECT_EQ(removed, !drive.crashed());
    }
    was_cut = drive.crashed();
    drive.power_cycle(CrashMode::kDropped);
    drive.crash_at_event.reset();
    SimulatedDisk disk(drive);
    const Status made = Store::create(disk, names_, test_description(), test_options(2)).status();
    ASSERT_TRUE(made.ok()) << at << ": " << made.text();
    ASSERT_TRUE(Store::remove(disk, names_).ok());
    EXPECT_TRUE(drive.paths().empty());
  }
}

}  // namespace
}  // namespace weir::offload
