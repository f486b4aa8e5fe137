// SPDX-License-Identifier: Apache-2.0
// Bits of the files change while nobody looks.
#include <gtest/gtest.h>

#include <optional>
#include <random>

#include "offload/store/file_names.h"
#include "offload/store/inspect.h"
#include "offload/store/simulated_disk.h"
#include "offload/store/store_run.h"

namespace weir::offload {
namespace {

constexpr uint64_t kLastStep = 2;

class DamageTest : public testing::Test {
 protected:
  void SetUp() override {
    SimulatedDisk disk(drive_);
    auto made = Store::create(disk, names_, test_description(), test_options(1));
    ASSERT_TRUE(made.ok());
    for (uint64_t step = 0; step <= kLastStep; ++step) {
      ASSERT_TRUE(commit_step(disk, *made.value(), step).ok());
    }
  }
  void flip(const std::string& path, uint64_t at, unsigned char mask) {
    std::vector<unsigned char>& bytes = *drive_.content(path);
    bytes[at] = static_cast<unsigned char>(bytes[at] ^ mask);
    drive_.commit_edit(path);
  }

  std::vector<std::string> names_ = test_directories(1);
  SimulatedDrive drive_{1};
};

TEST_F(DamageTest, OfAnyByteOfAMetadataFileIsRepairedFromItsCopy) {
  SimulatedDisk disk(drive_);
  for (uint32_t copy = 0; copy < kMetaCopies; ++copy) {
    const std::string path = meta_path(names_[0], copy);
    const std::vector<unsigned char> good = *drive_.content(path);
    for (uint64_t at = 0; at < good.size(); ++at) {
      SCOPED_TRACE(testing::Message() << path << " byte " << at);
      flip(path, at, static_cast<unsigned char>(1u << at % 8));
      auto opened = Store::open(disk, names_, nullptr, test_options(at));
      ASSERT_TRUE(opened.ok()) << opened.status().text();
      ASSERT_FALSE(opened.value()->problems().empty());
      ASSERT_EQ(opened.value()->committed()->step, kLastStep);
      ASSERT_EQ(*drive_.content(path), good);
    }
  }
  auto opened = Store::open(disk, names_, nullptr, test_options(5));
  ASSERT_TRUE(opened.ok());
  EXPECT_TRUE(opened.value()->problems().empty());
  EXPECT_TRUE(check_committed(disk, *opened.value()).ok());
}

TEST_F(DamageTest, OfTheSameByteOfBothCopiesIsReported) {
  SimulatedDisk disk(drive_);
  const std::vector<unsigned char> good = *drive_.content("/drive0/meta-a");
  for (uint64_t at = 0; at < good.size(); at += 3) {
    SCOPED_TRACE(testing::Message() << "byte " << at);
    for (const char* path : {"/drive0/meta-a", "/drive0/meta-b"}) flip(path, at, 4);
    StoreOptions options = test_options(at);
    options.read_only = true;
    const auto opened = Store::open(disk, names_, nullptr, std::move(options));
    if (opened.ok()) {
      // The header cannot be lost so; of the records, the other one counts, and open says why.
      ASSERT_LT(at, kHeaderOffset);
      ASSERT_EQ(opened.value()->problems().size(), 2u);
      const bool newest = at / kRecordBytes == (kLastStep + 1) % 2;
      ASSERT_EQ(opened.value()->committed()->step, newest ? kLastStep - 1 : kLastStep);
      const Status status = check_committed(disk, *opened.value());
      ASSERT_TRUE(status.ok()) << status.text();
    } else {
      ASSERT_GE(at, kHeaderOffset);
    }
    for (const char* path : {"/drive0/meta-a", "/drive0/meta-b"}) flip(path, at, 4);
  }
}

TEST_F(DamageTest, OfAMetadataFileThatIsGoneOrCutShortIsRepaired) {
  SimulatedDisk disk(drive_);
  const std::vector<unsigned char> good = *drive_.content("/drive0/meta-a");
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{100}, uint64_t{4096}, uint64_t{8192},
                               uint64_t{10'000}, uint64_t{40'960}}) {
    drive_.content("/drive0/meta-a")->resize(bytes);
    drive_.commit_edit("/drive0/meta-a");
    auto opened = Store::open(disk, names_, nullptr, test_options(bytes));
    ASSERT_TRUE(opened.ok()) << opened.status().text();
    EXPECT_TRUE(bytes > 10'000 || *drive_.content("/drive0/meta-a") == good) << bytes;
    drive_.content("/drive0/meta-a")->resize(good.size());
    drive_.commit_edit("/drive0/meta-a");
  }
  drive_.erase("/drive0/meta-b");
  auto opened = Store::open(disk, names_, nullptr, test_options(9));
  ASSERT_TRUE(opened.ok()) << opened.status().text();
  EXPECT_EQ(*drive_.content("/drive0/meta-b"), good);
}

TEST_F(DamageTest, OfAnyBitOfTheCommittedSlotIsFoundAndItsChunkNamed) {
  SimulatedDisk disk(drive_);
  const std::string path = slot_path(names_[0], kLastStep % 2);
  const uint64_t bytes = drive_.content(path)->size();
  std::mt19937_64 random(3);
  for (uint64_t round = 0; round < 1500; ++round) {
    // Every byte of a trailer, and random ones.
    const uint64_t at =
        round < kChunkTrailerBytes ? 2 * kTestChunkBytes - 1 - round : random() % bytes;
    const auto mask = static_cast<unsigned char>(1u << random() % 8);
    SCOPED_TRACE(testing::Message() << "byte " << at);
    flip(path, at, mask);
    StoreOptions options = test_options(round);
    options.verify_all = true;
    const auto refused = Store::open(disk, names_, nullptr, std::move(options));
    ASSERT_FALSE(refused.ok());
    const std::string chunk = "chunk " + std::to_string(at / kTestChunkBytes);
    ASSERT_NE(refused.status().text().find(chunk), std::string::npos) << refused.status().text();
    // Without verification at open it is found when the chunk is read.
    auto opened = Store::open(disk, names_, nullptr, test_options(round));
    ASSERT_TRUE(opened.ok());
    const Status status = check_committed(disk, *opened.value());
    ASSERT_EQ(status.code(), Code::kRefused);
    ASSERT_NE(status.text().find(chunk), std::string::npos) << status.text();
    flip(path, at, mask);
  }
}

TEST_F(DamageTest, OfTheCommittedSlotLeavesThePreviousEpochToGoBackTo) {
  SimulatedDisk disk(drive_);
  flip(slot_path(names_[0], kLastStep % 2), 5000, 1);
  auto opened = Store::open(disk, names_, nullptr, test_options(4));
  ASSERT_TRUE(opened.ok());
  EXPECT_FALSE(opened.value()->verify().ok());
  ASSERT_TRUE(opened.value()->roll_back(kLastStep).ok());  // epoch of the step before
  EXPECT_EQ(opened.value()->committed()->step, kLastStep - 1);
  EXPECT_TRUE(check_committed(disk, *opened.value()).ok());
}

TEST_F(DamageTest, OfAnyBitOfTheOtherSlotDoesNotMatter) {
  SimulatedDisk disk(drive_);
  flip(slot_path(names_[0], 1 - kLastStep % 2), 5000, 1);
  StoreOptions options = test_options(4);
  options.verify_all = true;
  auto opened = Store::open(disk, names_, nullptr, std::move(options));
  ASSERT_TRUE(opened.ok());
  EXPECT_EQ(opened.value()->roll_back(kLastStep).code(), Code::kRefused);
  EXPECT_TRUE(commit_step(disk, *opened.value(), kLastStep + 1).ok());
}

TEST_F(DamageTest, OfTheCommittedSlotIsFoundBeforeTheFirstWriteAndTakesTheStoreBack) {
  for (const bool told : {true, false}) {
    SimulatedDrive drive(4);
    SimulatedDisk disk(drive);
    {
      auto made = Store::create(disk, names_, test_description(), test_options(1));
      ASSERT_TRUE(made.ok());
      for (uint64_t step = 0; step <= kLastStep; ++step) {
        ASSERT_TRUE(commit_step(disk, *made.value(), step).ok());
      }
    }
    const std::string newest = slot_path(names_[0], kLastStep % 2);
    const std::string older = slot_path(names_[0], 1 - kLastStep % 2);
    (*drive.content(newest))[4 * kTestChunkBytes + 77] ^= 1;  // late in the sweep of a step
    drive.commit_edit(newest);
    const std::vector<unsigned char> before = *drive.content(older);
    auto opened = Store::open(disk, names_, nullptr, test_options(7));
    ASSERT_TRUE(opened.ok());
    Store& store = *opened.value();
    EXPECT_EQ(store.unverified_chunks().size(), store.chunk_count());
    if (told) {
      const Status refused = store.begin_step(kLastStep + 1);
      EXPECT_EQ(refused.code(), Code::kRefused);
      EXPECT_NE(refused.text().find("chunk 4 in '" + newest + "' at 16384"), std::string::npos)
          << refused.text();
    }
    ASSERT_EQ(*drive.content(older), before);
    uint64_t last = 0;
    const Status whole = store.ensure_whole([&](uint64_t done, uint64_t) { last = done; });
    ASSERT_TRUE(whole.ok()) << whole.text();
    EXPECT_EQ(last, told ? 1 : store.chunk_count());  // those that were whole are not read again
    ASSERT_TRUE(store.fallback().has_value());
    const Fallback& fallback = *store.fallback();
    EXPECT_EQ(fallback.lost_step, kLastStep);
    EXPECT_EQ(fallback.lost_epoch, kLastStep + 1);
    EXPECT_EQ(fallback.step, kLastStep - 1);
    EXPECT_EQ(fallback.epoch, kLastStep);
    EXPECT_EQ(fallback.damage.chunks, std::vector<uint64_t>{4});
    EXPECT_EQ(fallback.damage.file, newest);
    EXPECT_EQ(fallback.damage.offset_bytes, 4 * kTestChunkBytes);
    EXPECT_EQ(store.committed()->step, kLastStep - 1);
    EXPECT_TRUE(check_committed(disk, store).ok());
    ASSERT_TRUE(commit_step(disk, store, kLastStep).ok());
    opened.value().reset();
    auto again = Store::open(disk, names_, nullptr, test_options(8));
    ASSERT_TRUE(again.ok());
    EXPECT_EQ(again.value()->committed()->step, kLastStep);
    EXPECT_FALSE(again.value()->fallback().has_value());
    EXPECT_TRUE(again.value()->ensure_whole().ok());
  }
}

TEST_F(DamageTest, OfBothSlotsIsAnErrorThatWritesNothing) {
  SimulatedDisk disk(drive_);
  flip(slot_path(names_[0], kLastStep % 2), 5000, 1);
  flip(slot_path(names_[0], 1 - kLastStep % 2), 9000, 1);
  auto opened = Store::open(disk, names_, nullptr, test_options(4));
  ASSERT_TRUE(opened.ok());
  const uint64_t events = drive_.events();
  const Status status = opened.value()->ensure_whole();
  EXPECT_EQ(status.code(), Code::kRefused);
  for (const char* part :
       {"epoch 3 (step 2)", "epoch 2 is no longer whole", "restore a checkpoint"}) {
    EXPECT_NE(status.text().find(part), std::string::npos) << status.text();
  }
  EXPECT_EQ(opened.value()->begin_step(kLastStep + 1).code(), Code::kRefused);
  EXPECT_EQ(drive_.events(), events);
  EXPECT_FALSE(opened.value()->fallback().has_value());
}

TEST_F(DamageTest, AChunkThatCannotBeReadIsABadOne) {
  SimulatedDisk disk(drive_);
  auto opened = Store::open(disk, names_, nullptr, test_options(4));
  ASSERT_TRUE(opened.ok());
  drive_.fail_at_request = drive_.requests() + 2;
  const Status status = opened.value()->ensure_whole();
  EXPECT_TRUE(status.ok()) << status.text();
  EXPECT_EQ(opened.value()->committed()->step, kLastStep - 1);
}

TEST_F(DamageTest, WithSeveralRanksNoneGoesBackOnceTheOthersMayHaveGoneOn) {
  SimulatedDrive drive(3);
  SimulatedDisk disk(drive);
  auto made = Store::create(disk, names_, test_description(0, 2), test_options(1));
  ASSERT_TRUE(made.ok());
  Store& store = *made.value();
  for (uint64_t step = 0; step <= kLastStep; ++step) {
    store.peers_committed(step);
    ASSERT_TRUE(commit_step(disk, store, step).ok());
  }
  const std::string newest = slot_path(names_[0], kLastStep % 2);
  (*drive.content(newest))[5] ^= 1;
  drive.commit_edit(newest);
  store.doubt(0);
  store.peers_committed(kLastStep + 1);
  const uint64_t events = drive.events();
  const Status status = store.ensure_whole();
  EXPECT_EQ(status.code(), Code::kRefused);
  EXPECT_NE(status.text().find("all 2 ranks must go back together, to epoch 2 (step 1)"),
            std::string::npos)
      << status.text();
  EXPECT_EQ(drive.events(), events);
  EXPECT_TRUE(store.roll_back(kLastStep).ok());  // what all of them do then
}

TEST_F(DamageTest, OfTheNewestRecordInAllCopiesIsToldByTheStore) {
  const size_t newest = (kLastStep + 1) % 2;
  for (const char* path : {"/drive0/meta-a", "/drive0/meta-b"}) {
    flip(path, newest * kRecordBytes + 40, 1);
  }
  SimulatedDisk disk(drive_);
  {
    StoreOptions options = test_options(3);
    options.read_only = true;
    const auto reader = Store::open(disk, names_, nullptr, std::move(options));
    ASSERT_TRUE(reader.ok());
    EXPECT_TRUE(reader.value()->fallback().has_value());
  }
  auto opened = Store::open(disk, names_, nullptr, test_options(4));
  ASSERT_TRUE(opened.ok());
  ASSERT_TRUE(opened.value()->fallback().has_value());
  const Fallback& fallback = *opened.value()->fallback();
  EXPECT_EQ(fallback.cause, Fallback::Cause::kUnreadableRecord);
  EXPECT_EQ(fallback.lost_epoch, kLastStep + 1);
  EXPECT_EQ(fallback.epoch, kLastStep);
  EXPECT_EQ(fallback.step, kLastStep - 1);
}

TEST_F(DamageTest, OfTheOlderRecordInAllCopiesLosesNothingAndSaysNothingOfAStep) {
  const size_t older = kLastStep % 2;
  for (const char* path : {"/drive0/meta-a", "/drive0/meta-b"}) {
    flip(path, older * kRecordBytes + 40, 1);
  }
  SimulatedDisk disk(drive_);
  auto opened = Store::open(disk, names_, nullptr, test_options(4));
  ASSERT_TRUE(opened.ok());
  EXPECT_EQ(opened.value()->problems().size(), 2u);
  EXPECT_EQ(opened.value()->committed()->step, kLastStep);
  EXPECT_FALSE(opened.value()->fallback().has_value());
}

TEST_F(DamageTest, ACopyOfAnotherStoresMetadataBesideAnOwnOneIsRepaired) {
  SimulatedDisk disk(drive_);
  {
    auto made = Store::create(disk, {"/other"}, test_description(), test_options(77));
    ASSERT_TRUE(made.ok());
    for (uint64_t step = 0; step <= kLastStep + 1; ++step) {
      ASSERT_TRUE(commit_step(disk, *made.value(), step).ok());
    }
  }
  const std::vector<unsigned char> good = *drive_.content("/drive0/meta-a");
  for (uint32_t copy = 0; copy < kMetaCopies; ++copy) {
    *drive_.content(meta_path(names_[0], copy)) = *drive_.content("/other/meta-a");
    drive_.commit_edit(meta_path(names_[0], copy));
    auto opened = Store::open(disk, names_, nullptr, test_options(5));
    ASSERT_TRUE(opened.ok()) << opened.status().text();
    ASSERT_EQ(opened.value()->problems().size(), 1u);
    EXPECT_NE(opened.value()->problems()[0].find("a copy of another store's file"),
              std::string::npos)
        << opened.value()->problems()[0];
    EXPECT_TRUE(check_committed(disk, *opened.value()).ok());
    EXPECT_EQ(*drive_.content(meta_path(names_[0], copy)), good);
  }
  // Both copies: the chunks are of another store, and nothing is changed.
  for (uint32_t copy = 0; copy < kMetaCopies; ++copy) {
    *drive_.content(meta_path(names_[0], copy)) = *drive_.content("/other/meta-a");
    drive_.commit_edit(meta_path(names_[0], copy));
  }
  auto opened = Store::open(disk, names_, nullptr, test_options(5));
  if (opened.ok()) {
    EXPECT_FALSE(check_committed(disk, *opened.value()).ok());
  }
}

// ---- Of a slot's file as a whole ----------------------------------------------------------------

// No value: the file is missing.
void resize(SimulatedDrive& drive, const std::string& path, std::optional<uint64_t> bytes) {
  if (!bytes) return drive.erase(path);
  drive.content(path)->resize(*bytes);
  drive.commit_edit(path);
}

class SlotFileDamage : public DamageTest {
 protected:
  // Steps go on, and the next opening has nothing to mend.
  void expect_goes_on(SimulatedDrive& drive, std::unique_ptr<Store> store, uint64_t from) {
    SimulatedDisk disk(drive);
    store.reset();
    for (uint64_t step = from + 1; step < from + 3; ++step) {
      auto opened = Store::open(disk, names_, nullptr, test_options(step));
      ASSERT_TRUE(opened.ok()) << opened.status().text();
      EXPECT_TRUE(opened.value()->mended().empty());
      const Status status = commit_step(disk, *opened.value(), step);
      ASSERT_TRUE(status.ok()) << status.text();
      EXPECT_TRUE(check_committed(disk, *opened.value()).ok());
    }
  }
  Verdict verdict(SimulatedDrive& drive) {
    SimulatedDisk disk(drive);
    bool lost = false;
    const auto report = inspect(disk, names_, 1000, nullptr, &lost);
    EXPECT_TRUE(report.ok()) << report.status().text();
    return report.ok() ? report.value().verdict() : Verdict::kLost;
  }

  const std::string newest_ = slot_path(names_[0], kLastStep % 2);
  const std::string older_ = slot_path(names_[0], 1 - kLastStep % 2);
  const uint64_t bytes_ = 6 * kTestChunkBytes;
};

TEST_F(SlotFileDamage, OfTheOlderSlotIsMendedByOpenAndTold) {
  for (const std::optional<uint64_t> bytes :
       {std::optional<uint64_t>(), {0}, {4096}, {bytes_ - 1}, {bytes_ + 5000}}) {
    SCOPED_TRACE(testing::Message() << static_cast<int64_t>(bytes.value_or(-1)) << " bytes");
    const auto drive = drive_.copy(5);
    resize(*drive, older_, bytes);
    EXPECT_EQ(verdict(*drive), Verdict::kRecoverable);
    SimulatedDisk disk(*drive);
    {
      StoreOptions options = test_options(3);
      options.read_only = true;
      EXPECT_TRUE(Store::open(disk, names_, nullptr, std::move(options)).ok());
      EXPECT_EQ(verdict(*drive), Verdict::kRecoverable);
    }
    auto opened = Store::open(disk, names_, nullptr, test_options(3));
    ASSERT_TRUE(opened.ok()) << opened.status().text();
    Store& store = *opened.value();
    ASSERT_EQ(store.mended().size(), 1u);
    EXPECT_NE(store.mended()[0].find(older_), std::string::npos) << store.mended()[0];
    EXPECT_EQ(store.committed()->step, kLastStep);
    EXPECT_FALSE(store.fallback().has_value());
    EXPECT_TRUE(check_committed(disk, store).ok());
    EXPECT_EQ(drive->content(older_)->size(), bytes_);
    // What has only grown still has its chunks.
    const bool grown = bytes.value_or(0) > bytes_;
    EXPECT_EQ(store.previous() != nullptr, grown);
    EXPECT_EQ(store.roll_back(kLastStep).ok(), grown);
    expect_goes_on(*drive, opened.take(), grown ? kLastStep - 1 : kLastStep);
    EXPECT_EQ(verdict(*drive), Verdict::kGood);
  }
}

TEST_F(SlotFileDamage, OfTheNewestSlotTakesOpenBackToTheCommitBefore) {
  for (const std::optional<uint64_t> bytes :
       {std::optional<uint64_t>(), {0}, {2 * kTestChunkBytes}, {bytes_ - 1}}) {
    SCOPED_TRACE(testing::Message() << static_cast<int64_t>(bytes.value_or(-1)) << " bytes");
    const auto drive = drive_.copy(5);
    resize(*drive, newest_, bytes);
    EXPECT_EQ(verdict(*drive), Verdict::kRecoverable);
    SimulatedDisk disk(*drive);
    {
      StoreOptions options = test_options(3);
      options.read_only = true;
      const uint64_t events = drive->events();
      const Status refused = Store::open(disk, names_, nullptr, std::move(options)).status();
      EXPECT_EQ(refused.code(), Code::kRefused);
      EXPECT_NE(refused.text().find("opening it for writing"), std::string::npos) << refused.text();
      EXPECT_EQ(drive->events(), events);
    }
    auto opened = Store::open(disk, names_, nullptr, test_options(3));
    ASSERT_TRUE(opened.ok()) << opened.status().text();
    Store& store = *opened.value();
    ASSERT_TRUE(store.fallback().has_value());
    const Fallback& fallback = *store.fallback();
    EXPECT_EQ(fallback.cause, Fallback::Cause::kBadChunk);
    EXPECT_EQ(fallback.lost_step, kLastStep);
    EXPECT_EQ(fallback.step, kLastStep - 1);
    EXPECT_EQ(fallback.damage.file, newest_);
    const uint64_t there = bytes.value_or(0) / kTestChunkBytes;
    EXPECT_EQ(fallback.damage.bad_count, 6 - there);
    EXPECT_EQ(fallback.damage.chunks[0], there);
    EXPECT_EQ(fallback.damage.offset_bytes, there * kTestChunkBytes);
    EXPECT_EQ(store.mended().size(), 1u);
    EXPECT_EQ(store.committed()->step, kLastStep - 1);
    EXPECT_TRUE(check_committed(disk, store).ok());
    EXPECT_EQ(drive->content(newest_)->size(), bytes_);
    expect_goes_on(*drive, opened.take(), kLastStep - 1);
  }
}

TEST_F(SlotFileDamage, OfTheNewestSlotThatHasOnlyGrownLosesNothing) {
  resize(drive_, newest_, bytes_ + 4096);
  EXPECT_EQ(verdict(drive_), Verdict::kRecoverable);
  SimulatedDisk disk(drive_);
  auto opened = Store::open(disk, names_, nullptr, test_options(3));
  ASSERT_TRUE(opened.ok()) << opened.status().text();
  EXPECT_EQ(opened.value()->mended().size(), 1u);
  EXPECT_FALSE(opened.value()->fallback().has_value());
  EXPECT_EQ(opened.value()->committed()->step, kLastStep);
  EXPECT_EQ(drive_.content(newest_)->size(), bytes_);
  expect_goes_on(drive_, opened.take(), kLastStep);
}

TEST_F(SlotFileDamage, OfBothSlotsIsAnErrorThatNamesBothAndWritesNothing) {
  resize(drive_, older_, 4096);
  resize(drive_, newest_, std::nullopt);
  flip(meta_path(names_[0], 0), 9000, 1);
  EXPECT_EQ(verdict(drive_), Verdict::kLost);
  SimulatedDisk disk(drive_);
  const uint64_t events = drive_.events();
  const Status refused = Store::open(disk, names_, nullptr, test_options(3)).status();
  EXPECT_EQ(refused.code(), Code::kRefused);
  for (const std::string& part :
       {"expected file '" + newest_ + "', found none",
        "expected '" + older_ + "' to have 24576 bytes, found 4096", std::string("mounted?"),
        std::string("nothing was written: restore a checkpoint")}) {
    EXPECT_NE(refused.text().find(part), std::string::npos) << refused.text();
  }
  EXPECT_EQ(drive_.events(), events);
}

TEST_F(SlotFileDamage, OfTheNewestSlotBesideABadChunkOfTheOlderIsAnError) {
  resize(drive_, newest_, 4096);
  flip(older_, 9000, 1);
  SimulatedDisk disk(drive_);
  const Status refused = Store::open(disk, names_, nullptr, test_options(3)).status();
  EXPECT_EQ(refused.code(), Code::kRefused);
  EXPECT_NE(refused.text().find("epoch 2 is no longer whole"), std::string::npos) << refused.text();
  EXPECT_EQ(drive_.content(newest_)->size(), 4096u);
}

TEST_F(SlotFileDamage, MendedByAnOpenThatIsCutShortIsMendedByTheNext) {
  for (const bool newest : {false, true}) {
    bool was_cut = true;
    for (uint64_t at = 0; was_cut; ++at) {
      for (const CrashMode mode : {CrashMode::kDropped, CrashMode::kTorn, CrashMode::kReordered}) {
        SCOPED_TRACE(testing::Message() << (newest ? "newest" : "older") << ", event " << at);
        const auto drive = drive_.copy(at);
        resize(*drive, newest ? newest_ : older_, 4096);
        drive->crash_at_event = drive->events() + at;
        {
          SimulatedDisk disk(*drive);
          const auto opened = Store::open(disk, names_, nullptr, test_options(at));
          EXPECT_EQ(opened.ok(), !drive->crashed()) << opened.status().text();
        }
        was_cut = drive->crashed();
        drive->crash_at_event.reset();
        drive->power_cycle(mode);
        SimulatedDisk disk(*drive);
        auto opened = Store::open(disk, names_, nullptr, test_options(at + 1));
        ASSERT_TRUE(opened.ok()) << opened.status().text();
        const uint64_t step = opened.value()->committed()->step;
        EXPECT_EQ(step, newest ? kLastStep - 1 : kLastStep);
        EXPECT_TRUE(check_committed(disk, *opened.value()).ok());
        expect_goes_on(*drive, opened.take(), step);
      }
    }
  }
}

TEST_F(SlotFileDamage, AndAMissingLockLeaveAStoreThatOneProcessHas) {
  drive_.erase(older_);
  drive_.erase(lock_path(names_[0]));
  SimulatedDisk disk(drive_);
  auto opened = Store::open(disk, names_, nullptr, test_options(3));
  ASSERT_TRUE(opened.ok()) << opened.status().text();
  SimulatedDisk other(drive_);
  EXPECT_EQ(Store::open(other, names_, nullptr, test_options(4)).status().code(), Code::kRefused);
}

TEST_F(SlotFileDamage, OfOneThatACheckpointHoldsLeavesTheCheckpointAlone) {
  SimulatedDisk disk(drive_);
  for (const bool newest : {false, true}) {
    const auto drive = drive_.copy(6);
    SimulatedDisk own(*drive);
    {
      auto store = Store::open(own, names_, nullptr, test_options(3));
      ASSERT_TRUE(store.ok());
      ASSERT_TRUE(store.value()->checkpoint({"/held"}).ok());
      if (!newest) {
        ASSERT_TRUE(commit_step(own, *store.value(), kLastStep + 1).ok());
      }
    }
    drive->erase(newest_);  // which is the older one after the next step
    auto opened = Store::open(own, names_, nullptr, test_options(4));
    ASSERT_TRUE(opened.ok()) << opened.status().text();
    EXPECT_EQ(opened.value()->fallback().has_value(), newest);
    const uint64_t step = opened.value()->committed()->step;
    EXPECT_EQ(step, newest ? kLastStep - 1 : kLastStep + 1);
    expect_goes_on(*drive, opened.take(), step);
    StoreOptions options = test_options(5);
    options.read_only = true;
    options.verify_all = true;
    auto held = Store::open(own, {"/held"}, nullptr, std::move(options));
    ASSERT_TRUE(held.ok()) << held.status().text();
    EXPECT_EQ(held.value()->committed()->step, kLastStep);
    // One of its own has nothing to go back to.
    held.value().reset();
    resize(*drive, "/held/slot-a", 4096);
    options = test_options(6);
    options.read_only = true;
    const Status refused = Store::open(own, {"/held"}, nullptr, std::move(options)).status();
    EXPECT_NE(refused.text().find("take another checkpoint"), std::string::npos) << refused.text();
  }
}

// ---- Files that lose their names while the store is open ----------------------------------------

TEST_F(SlotFileDamage, AFileThatWasRemovedOrReplacedIsNoticedBeforeTheCommitCounts) {
  for (const std::string& path :
       {older_, meta_path(names_[0], 0), meta_path(names_[0], 1), lock_path(names_[0])}) {
    for (const bool replaced : {false, true}) {
      SCOPED_TRACE(path);
      const auto drive = drive_.copy(5);
      SimulatedDisk disk(*drive);
      {
        auto opened = Store::open(disk, names_, nullptr, test_options(3));
        ASSERT_TRUE(opened.ok());
        Store& store = *opened.value();
        ASSERT_TRUE(write_step(disk, store, kLastStep + 1).ok());
        drive->erase(path);
        if (replaced) {
          ASSERT_TRUE(OpenFile::open(disk, path, OpenMode::kCreate, bytes_).ok());
        }
        const Status status = store.commit();
        EXPECT_EQ(status.code(), Code::kRefused);
        EXPECT_NE(status.text().find("'" + path + "' was removed, or another file"),
                  std::string::npos)
            << status.text();
        EXPECT_EQ(store.commit().text(), status.text());
      }
      auto opened = Store::open(disk, names_, nullptr, test_options(4));
      ASSERT_TRUE(opened.ok()) << opened.status().text();
      EXPECT_EQ(opened.value()->committed()->step, kLastStep);
      EXPECT_TRUE(check_committed(disk, *opened.value()).ok());
    }
  }
}

TEST_F(SlotFileDamage, ACommittedFileThatWasRemovedIsNoticedBeforeTheCommitBeforeIsWrittenOver) {
  SimulatedDisk disk(drive_);
  const std::vector<unsigned char> before = *drive_.content(older_);
  {
    auto opened = Store::open(disk, names_, nullptr, test_options(3));
    ASSERT_TRUE(opened.ok());
    drive_.erase(newest_);
    const Status status = opened.value()->begin_step(kLastStep + 1);
    EXPECT_EQ(status.code(), Code::kRefused);
    EXPECT_NE(status.text().find("nothing was written"), std::string::npos) << status.text();
  }
  EXPECT_EQ(*drive_.content(older_), before);
  auto opened = Store::open(disk, names_, nullptr, test_options(4));
  ASSERT_TRUE(opened.ok()) << opened.status().text();
  EXPECT_EQ(opened.value()->committed()->step, kLastStep - 1);
}

TEST_F(DamageTest, AFileOfAnotherStoreIsNotTakenForOnesOwn) {
  SimulatedDisk disk(drive_);
  auto made = Store::create(disk, {"/other"}, test_description(), test_options(77));
  ASSERT_TRUE(made.ok());
  for (uint64_t step = 0; step <= kLastStep; ++step) {
    ASSERT_TRUE(commit_step(disk, *made.value(), step).ok());
  }
  const std::string name = slot_path("", kLastStep % 2);
  *drive_.content("/drive0" + name) = *drive_.content("/other" + name);
  drive_.commit_edit("/drive0" + name);
  auto opened = Store::open(disk, names_, nullptr, test_options(5));
  ASSERT_TRUE(opened.ok());
  const Status status = check_committed(disk, *opened.value());
  EXPECT_NE(status.text().find("expected a chunk of store"), std::string::npos) << status.text();
}

}  // namespace
}  // namespace weir::offload
