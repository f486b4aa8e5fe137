// SPDX-License-Identifier: Apache-2.0
// Chunks of the newest commit are damaged between two runs, or in one: the older commit is still
// there, the state goes back to it, and the caller is told.
#include <fcntl.h>
#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "offload/io/open_disk.h"
#include "offload/optimizer/optimizer_support.h"
#include "offload/store/file_names.h"
#include "offload/store/inspect.h"
#include "offload/store/metadata.h"

namespace weir::offload::test {
namespace {

constexpr uint64_t kSteps = 4;

class HealthTest : public testing::Test {
 protected:
  // `kSteps` committed steps, and nobody who has the store.
  void make_steps() {
    const auto optimizer = made(Optimizer::create(options_, groups_));
    ASSERT_NE(optimizer, nullptr);
    ASSERT_OK(set_first(*optimizer, groups_));
    for (uint64_t step = 0; step < kSteps; ++step) {
      ASSERT_OK(optimizer->peers_committed(step));
      ASSERT_OK(run_steps(*optimizer, groups_, step, step + 1));
    }
  }

  Metadata metadata() {
    auto disk = open_disk({});
    EXPECT_TRUE(disk.ok());
    auto read = read_metadata(*disk.value(), options_.directories, 10'000);
    EXPECT_TRUE(read.ok()) << read.status().text();
    return read.take();
  }

  // A byte of a chunk, of the newest commit or of the one before.
  void damage(uint64_t chunk, bool newest = true) {
    const uint32_t current = metadata().newest.current;
    const size_t count = options_.directories.size();
    const std::string path =
        slot_path(options_.directories[chunk % count], newest ? current : 1 - current);
    const int file = ::open(path.c_str(), O_RDWR);
    ASSERT_GE(file, 0);
    const auto at = static_cast<off_t>(chunk / count * options_.chunk_bytes + 100);
    unsigned char byte = 0;
    ASSERT_EQ(::pread(file, &byte, 1, at), 1);
    byte ^= 16;
    ASSERT_EQ(::pwrite(file, &byte, 1, at), 1);
    ASSERT_EQ(::fsync(file), 0);
    ::close(file);
  }

  StoreReport report_of(Optimizer& optimizer) {
    StoreReport report;
    const Status status = optimizer.store_report(&report);
    EXPECT_TRUE(status.ok()) << status.text();
    return report;
  }

  // The state is that of the step before the last, and goes on bit for bit.
  void expect_went_back(Optimizer& optimizer) {
    uint64_t step = 0;
    ASSERT_OK(optimizer.committed_step(&step));
    EXPECT_EQ(step, kSteps - 1);
    EXPECT_TRUE(same_bits(values_of(optimizer, groups_), in_memory(groups_, kSteps - 1)));
    const StoreReport report = report_of(optimizer);
    ASSERT_TRUE(report.went_back.has_value());
    EXPECT_EQ(report.went_back->lost_step, kSteps);
    EXPECT_EQ(report.went_back->step, kSteps - 1);
    EXPECT_EQ(report.went_back->lost_epoch, report.went_back->epoch + 1);
    ASSERT_OK(optimizer.peers_committed(kSteps - 1));
    ASSERT_OK(run_steps(optimizer, groups_, kSteps - 1, kSteps));
    ASSERT_OK(optimizer.peers_committed(kSteps));
    ASSERT_OK(run_steps(optimizer, groups_, kSteps, kSteps + 1));
    EXPECT_TRUE(same_bits(values_of(optimizer, groups_), in_memory(groups_, kSteps + 1)));
  }

  void wait_for_scrub(Optimizer& optimizer) {
    const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (report_of(optimizer).scrub.pass_count == 0) {
      ASSERT_LT(std::chrono::steady_clock::now(), late);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  // Up to the first error.
  Status read_all(Optimizer& optimizer) {
    for (uint32_t g = 0; g < groups_.size(); ++g) {
      std::vector<float> values(groups_[g].element_count);
      const Status read =
          optimizer.get_parameters(g, 0, values.size(), DataType::kFloat32, values.data());
      if (!read.ok()) return read;
    }
    return {};
  }

  // Neither a commit nor a checkpoint calls the committed state, with this bad chunk, good.
  void expect_not_held(Optimizer& optimizer, uint64_t chunk) {
    std::vector<std::string> held;
    for (size_t i = 0; i < options_.directories.size(); ++i)
      held.push_back(scratch_ / fmt::format("held-{}", i));
    for (const Status& refused : {optimizer.commit(), optimizer.checkpoint(held)}) {
      EXPECT_EQ(refused.code(), Code::kRefused);
      for (const std::string& part :
           {fmt::format("are bad ({})", chunk), std::string("says whether a commit is whole")})
        EXPECT_NE(refused.text().find(part), std::string::npos) << part << ": " << refused.text();
    }
    EXPECT_FALSE(std::filesystem::exists(held[0]));
  }

  ScratchDirectory scratch_;
  Groups groups_ = mixed_groups();
  OptimizerOptions options_ = [this] {
    OptimizerOptions options = small_options();
    options.directories = {scratch_ / "a", scratch_ / "b"};
    return options;
  }();
};

TEST_F(HealthTest, TheFirstStepOverADamagedCommitGoesBackAndDestroysNothing) {
  make_steps();
  damage(5);
  const auto optimizer = made(Optimizer::open(options_, groups_));
  ASSERT_NE(optimizer, nullptr);
  uint64_t step = 0;
  ASSERT_OK(optimizer->committed_step(&step));
  EXPECT_EQ(step, kSteps);
  Values outputs = in_memory(groups_, 0);
  for (uint32_t g = 0; g < groups_.size(); ++g)
    ASSERT_OK(optimizer->set_output(g, DataType::kFloat32, outputs[g].data(), false));
  Giver giver;
  ASSERT_OK(giver.give(*optimizer, groups_, kSteps + 1));
  StepReport report;
  const Status refused = optimizer->step({}, &report);
  EXPECT_EQ(refused.code(), Code::kRefused);
  for (const char* part :
       {"was damaged", "chunk 5 in '", "at 32768", "epoch 5 (step 4) was discarded",
        "epoch 4 (step 3), which is whole", "gradients of step 4"}) {
    EXPECT_NE(refused.text().find(part), std::string::npos) << part << ": " << refused.text();
  }
  EXPECT_EQ(report.step, kSteps - 1);
  EXPECT_TRUE(same_bits(outputs, in_memory(groups_, kSteps - 1)));
  // The gradients were of a step that is gone.
  EXPECT_EQ(optimizer->step({}, nullptr).code(), Code::kInvalidArgument);
  EXPECT_EQ(report_of(*optimizer).went_back->damage.chunks, std::vector<uint64_t>{5});
  expect_went_back(*optimizer);
}

TEST_F(HealthTest, AWholeStoreIsReadOnceBeforeTheFirstStepAndNotAgain) {
  make_steps();
  std::vector<uint64_t> told;
  options_.verify_progress = [&](uint64_t done, uint64_t total) {
    EXPECT_LE(done, total);
    told.push_back(total);
  };
  const auto optimizer = made(Optimizer::open(options_, groups_));
  ASSERT_NE(optimizer, nullptr);
  EXPECT_TRUE(told.empty());
  ASSERT_OK(run_steps(*optimizer, groups_, kSteps, kSteps + 1));
  ASSERT_FALSE(told.empty());
  const StoreReport first = report_of(*optimizer);
  EXPECT_GT(first.verify_bytes, 0u);
  EXPECT_EQ(first.verified_chunk_count, first.chunk_count);
  const size_t calls = told.size();
  ASSERT_OK(run_steps(*optimizer, groups_, kSteps + 1, kSteps + 3));
  EXPECT_EQ(told.size(), calls);
  EXPECT_EQ(report_of(*optimizer).verify_bytes, first.verify_bytes);
  EXPECT_FALSE(report_of(*optimizer).went_back.has_value());
}

TEST_F(HealthTest, OpenWithTheFlagReadsAllAndGoesBackAtOnce) {
  make_steps();
  options_.verify = true;
  uint64_t done = 0;
  options_.verify_progress = [&](uint64_t now, uint64_t) { done = now; };
  {
    const auto whole = made(Optimizer::open(options_, groups_));
    ASSERT_NE(whole, nullptr);
    const StoreReport report = report_of(*whole);
    EXPECT_EQ(report.verified_chunk_count, report.chunk_count);
    EXPECT_EQ(done, report.chunk_count * options_.chunk_bytes);
  }
  damage(0);
  damage(7);
  const auto optimizer = made(Optimizer::open(options_, groups_));
  ASSERT_NE(optimizer, nullptr);
  EXPECT_EQ(report_of(*optimizer).went_back->damage.chunks, (std::vector<uint64_t>{0, 7}));
  expect_went_back(*optimizer);
}

TEST_F(HealthTest, DamageOfWhatIsLoadedIntoMemoryIsFoundByOpen) {
  options_.memory_bytes = uint64_t{1} << 30;
  make_steps();
  damage(3);
  const auto optimizer = made(Optimizer::open(options_, groups_));
  ASSERT_NE(optimizer, nullptr);
  expect_went_back(*optimizer);
}

TEST_F(HealthTest, DamageOfBothCommitsIsAnErrorAndNothingIsWritten) {
  make_steps();
  damage(5);
  damage(2, false);
  const Metadata before = metadata();
  {
    const auto optimizer = made(Optimizer::open(options_, groups_));
    ASSERT_NE(optimizer, nullptr);
    Giver giver;
    ASSERT_OK(giver.give(*optimizer, groups_, kSteps + 1));
    const Status refused = optimizer->step({}, nullptr);
    EXPECT_EQ(refused.code(), Code::kRefused);
    EXPECT_NE(refused.text().find("restore a checkpoint"), std::string::npos) << refused.text();
    EXPECT_FALSE(report_of(*optimizer).went_back.has_value());
  }
  options_.verify = true;
  EXPECT_EQ(Optimizer::open(options_, groups_).status().code(), Code::kRefused);
  EXPECT_TRUE(metadata().newest == before.newest);
}

TEST_F(HealthTest, ASlotFileOfTheOlderCommitThatIsGoneIsMadeAnewAndTold) {
  make_steps();
  const std::string path = slot_path(options_.directories[1], 1 - metadata().newest.current);
  std::filesystem::remove(path);
  const auto optimizer = made(Optimizer::open(options_, groups_));
  ASSERT_NE(optimizer, nullptr);
  EXPECT_EQ(optimizer->describe().find("went back"), std::string::npos);
  const StoreReport report = report_of(*optimizer);
  EXPECT_FALSE(report.went_back.has_value());
  ASSERT_EQ(report.mended.size(), 1u);
  EXPECT_NE(report.mended[0].find("expected file '" + path + "', found none; it was created again"),
            std::string::npos)
      << report.mended[0];
  ASSERT_OK(run_steps(*optimizer, groups_, kSteps, kSteps + 2));
  EXPECT_TRUE(same_bits(values_of(*optimizer, groups_), in_memory(groups_, kSteps + 2)));
}

TEST_F(HealthTest, ASlotFileOfTheNewestCommitThatIsGoneOrShortTakesOpenBack) {
  for (const bool gone : {true, false}) {
    ScratchDirectory scratch;
    options_.directories = {scratch / "a", scratch / "b"};
    make_steps();
    const std::string path = slot_path(options_.directories[1], metadata().newest.current);
    gone ? static_cast<void>(std::filesystem::remove(path))
         : std::filesystem::resize_file(path, 3 * options_.chunk_bytes + 5);
    const auto optimizer = made(Optimizer::open(options_, groups_));
    ASSERT_NE(optimizer, nullptr);
    EXPECT_EQ(report_of(*optimizer).went_back->damage.file, path);
    expect_went_back(*optimizer);
  }
}

TEST_F(HealthTest, AFileThatIsRemovedWhileTheStoreIsOpenFailsTheStepAndOpeningGoesOn) {
  make_steps();
  {
    const auto optimizer = made(Optimizer::open(options_, groups_));
    ASSERT_NE(optimizer, nullptr);
    Giver giver;
    ASSERT_OK(giver.give(*optimizer, groups_, kSteps + 1));
    const std::string path = slot_path(options_.directories[0], 1 - metadata().newest.current);
    std::filesystem::remove(path);
    const Status refused = optimizer->step({}, nullptr);
    EXPECT_EQ(refused.code(), Code::kRefused);
    EXPECT_NE(refused.text().find("'" + path + "' was removed"), std::string::npos)
        << refused.text();
  }
  const auto optimizer = made(Optimizer::open(options_, groups_));
  ASSERT_NE(optimizer, nullptr);
  ASSERT_OK(run_steps(*optimizer, groups_, kSteps, kSteps + 1));
  EXPECT_TRUE(same_bits(values_of(*optimizer, groups_), in_memory(groups_, kSteps + 1)));
}

// What was whole when the run began is damaged while it steps: the commit before is being written
// over when that is found.
TEST_F(HealthTest, DamageThatAStepMeetsIsToldWithTheRemedyThatIsLeft) {
  const std::string remedy = "'weir-fsck " + options_.directories[0] + " " +
                             options_.directories[1] + "' says whether a commit is whole";
  for (const bool copies : {false, true}) {
    std::filesystem::remove_all(options_.directories[0]);
    std::filesystem::remove_all(options_.directories[1]);
    options_.scrub_bytes_per_s = 0;
    make_steps();
    const auto optimizer = made(Optimizer::open(options_, groups_));
    ASSERT_NE(optimizer, nullptr);
    ASSERT_OK(run_steps(*optimizer, groups_, kSteps, kSteps + 1));
    damage(14);
    if (copies) damage(report_of(*optimizer).chunk_count - 1);  // which going back reads
    Giver giver;
    ASSERT_OK(giver.give(*optimizer, groups_, kSteps + 2));
    const Status refused = optimizer->step({}, nullptr);
    EXPECT_EQ(refused.code(), Code::kRefused);
    EXPECT_NE(refused.text().find(remedy), std::string::npos) << refused.text();
    EXPECT_NE(refused.text().find("restore a checkpoint"), std::string::npos) << refused.text();
    EXPECT_EQ(refused.text().find("to continue from the last committed step"), std::string::npos)
        << refused.text();
    EXPECT_EQ(refused.text().find("can no longer be used") != std::string::npos, copies);
  }
}

// A commit and a checkpoint hold what is committed: not where that is known to be damaged.
TEST_F(HealthTest, DamageThatTheScrubHasFoundIsNeitherCommittedNorHeldByACheckpoint) {
  make_steps();
  damage(6);
  options_.scrub_bytes_per_s = uint64_t{1} << 30;
  const auto optimizer = made(Optimizer::open(options_, groups_));
  ASSERT_NE(optimizer, nullptr);
  wait_for_scrub(*optimizer);
  expect_not_held(*optimizer, 6);
  Giver giver;
  ASSERT_OK(giver.give(*optimizer, groups_, kSteps + 1));
  EXPECT_EQ(optimizer->step({}, nullptr).code(), Code::kRefused);
  expect_went_back(*optimizer);
  ASSERT_OK(optimizer->commit());
  ASSERT_OK(optimizer->checkpoint({scratch_ / "held-a", scratch_ / "held-b"}));
}

TEST_F(HealthTest, DamageThatAReadMeetsIsToldWithTheRemedyAndHeldByNoCheckpoint) {
  make_steps();
  damage(5);
  options_.scrub_bytes_per_s = 0;
  {
    const auto optimizer = made(Optimizer::open(options_, groups_));
    ASSERT_NE(optimizer, nullptr);
    const Status refused = read_all(*optimizer);
    EXPECT_EQ(refused.code(), Code::kRefused);
    for (const char* part :
         {"chunk 5 of", "says whether a commit is whole",
          "with WEIR_OFFLOAD_VERIFY, for writing, to continue from it", "restore a checkpoint"}) {
      EXPECT_NE(refused.text().find(part), std::string::npos) << part << ": " << refused.text();
    }
    expect_not_held(*optimizer, 5);
  }
  options_.verify = true;
  const auto optimizer = made(Optimizer::open(options_, groups_));
  ASSERT_NE(optimizer, nullptr);
  expect_went_back(*optimizer);
}

TEST_F(HealthTest, DamageThatAStepMeetsIsHeldByNoCheckpoint) {
  options_.scrub_bytes_per_s = 0;
  make_steps();
  const auto optimizer = made(Optimizer::open(options_, groups_));
  ASSERT_NE(optimizer, nullptr);
  ASSERT_OK(run_steps(*optimizer, groups_, kSteps, kSteps + 1));
  damage(14);
  Giver giver;
  ASSERT_OK(giver.give(*optimizer, groups_, kSteps + 2));
  EXPECT_EQ(optimizer->step({}, nullptr).code(), Code::kRefused);
  expect_not_held(*optimizer, 14);
}

// The scrub has read the chunk when it was whole still.
TEST_F(HealthTest, DamageThatAReadMeetsAfterTheScrubIsHeldByNoCheckpoint) {
  make_steps();
  options_.scrub_bytes_per_s = uint64_t{1} << 30;
  const auto optimizer = made(Optimizer::open(options_, groups_));
  ASSERT_NE(optimizer, nullptr);
  wait_for_scrub(*optimizer);
  damage(5);
  EXPECT_EQ(read_all(*optimizer).code(), Code::kRefused);
  EXPECT_EQ(report_of(*optimizer).damage.chunks, std::vector<uint64_t>{5});
  expect_not_held(*optimizer, 5);
}

// A checkpoint that copies reads the state.
TEST_F(HealthTest, DamageThatACopyMeetsIsHeldByNoLaterCheckpoint) {
  ScratchDirectory elsewhere("/dev/shm");
  options_.directories = {scratch_ / "a"};
  options_.scrub_bytes_per_s = 0;
  make_steps();
  damage(5);
  const auto optimizer = made(Optimizer::open(options_, groups_));
  ASSERT_NE(optimizer, nullptr);
  const Status refused = optimizer->checkpoint({elsewhere / "held"});
  if (refused.ok()) GTEST_SKIP() << "/dev/shm is the file system of the store";
  EXPECT_NE(refused.text().find("says whether a commit is whole"), std::string::npos)
      << refused.text();
  expect_not_held(*optimizer, 5);
}

TEST_F(HealthTest, ACommitOfWhatIsCommittedNamesAFileThatWasRemoved) {
  make_steps();
  const auto optimizer = made(Optimizer::open(options_, groups_));
  ASSERT_NE(optimizer, nullptr);
  ASSERT_OK(optimizer->commit());
  for (const std::string& directory : options_.directories) std::filesystem::remove_all(directory);
  for (int again = 0; again < 2; ++again) {
    const Status refused = optimizer->commit();
    EXPECT_EQ(refused.code(), Code::kRefused);
    EXPECT_NE(refused.text().find("was removed"), std::string::npos) << refused.text();
    EXPECT_NE(refused.text().find("open the directories again"), std::string::npos)
        << refused.text();
  }
}

TEST_F(HealthTest, ReadOnlyNeverGoesBack) {
  make_steps();
  damage(5);
  options_.read_only = true;
  options_.verify = true;
  const Status refused = Optimizer::open(options_, groups_).status();
  EXPECT_EQ(refused.code(), Code::kRefused);
  EXPECT_NE(refused.text().find("read only"), std::string::npos) << refused.text();
}

TEST_F(HealthTest, RanksGoBackToTheStepOfTheOneThatIsDamaged) {
  options_.rank_count = 2;
  const std::vector<std::string> directories[] = {{scratch_ / "r0"}, {scratch_ / "r1"}};
  for (uint32_t rank = 0; rank < 2; ++rank) {
    options_.rank = rank;
    options_.directories = directories[rank];
    make_steps();
    if (rank == 1) damage(4);
  }
  std::unique_ptr<Optimizer> ranks[2];
  uint64_t least = kSteps;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    options_.rank = rank;
    options_.directories = directories[rank];
    ranks[rank] = made(Optimizer::open(options_, groups_));
    ASSERT_NE(ranks[rank], nullptr);
    // Before the ranks agree, each knows what it has.
    const StoreReport report = report_of(*ranks[rank]);
    EXPECT_EQ(report.verified_chunk_count, report.chunk_count);
    EXPECT_EQ(report.went_back.has_value(), rank == 1);
    uint64_t step = 0;
    ASSERT_OK(ranks[rank]->committed_step(&step));
    least = std::min(least, step);
  }
  EXPECT_EQ(least, kSteps - 1);
  for (const auto& rank : ranks) {
    ASSERT_OK(rank->roll_back(least));
    ASSERT_OK(rank->peers_committed(least));
    ASSERT_OK(run_steps(*rank, groups_, least, least + 1));
    EXPECT_TRUE(same_bits(values_of(*rank, groups_), in_memory(groups_, least + 1)));
  }
}

TEST_F(HealthTest, OfSeveralRanksNoneGoesBackAloneOnceTheyMayGoOnAndAllCanTogether) {
  options_.rank_count = 2;
  bool found = false;
  // The scrub comes to the chunk more than a second after opening. Where the machine is so busy
  // that the damage comes later than that, once more.
  for (int attempt = 0; attempt < 10 && !found; ++attempt) {
    std::unique_ptr<Optimizer> ranks[2];
    for (uint32_t rank = 0; rank < 2; ++rank) {
      options_.rank = rank;
      options_.directories = {scratch_ / fmt::format("{}-{}", attempt, rank)};
      options_.scrub_bytes_per_s = 10 * options_.chunk_bytes;
      make_steps();
      ranks[rank] = made(Optimizer::open(options_, groups_));
      ASSERT_NE(ranks[rank], nullptr);
      ASSERT_OK(ranks[rank]->peers_committed(kSteps));
    }
    damage(14);
    const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!found && report_of(*ranks[1]).scrub.pass_count == 0) {
      ASSERT_LT(std::chrono::steady_clock::now(), late);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      found = report_of(*ranks[1]).scrub.damage.bad_count > 0;
    }
    if (!found) continue;
    Giver giver;
    ASSERT_OK(giver.give(*ranks[1], groups_, kSteps + 1));
    const Status refused = ranks[1]->step({}, nullptr);
    EXPECT_EQ(refused.code(), Code::kRefused);
    EXPECT_NE(refused.text().find("all 2 ranks must go back together, to epoch 4 (step 3)"),
              std::string::npos)
        << refused.text();
    for (const auto& rank : ranks) {
      ASSERT_OK(rank->roll_back(kSteps - 1));
      ASSERT_OK(rank->peers_committed(kSteps - 1));
      ASSERT_OK(run_steps(*rank, groups_, kSteps - 1, kSteps));
      EXPECT_TRUE(same_bits(values_of(*rank, groups_), in_memory(groups_, kSteps)));
    }
  }
  EXPECT_TRUE(found);
}

TEST_F(HealthTest, TheScrubFindsDamageWhileTheCommitBeforeIsThere) {
  // With the rate that is the default, and with one that reads all at once.
  for (const uint64_t rate : {kDefaultScrubBytesPerS, uint64_t{1} << 30}) {
    ScratchDirectory scratch;
    options_.directories = {scratch / "a"};
    options_.scrub_bytes_per_s = rate;
    make_steps();
    damage(6);
    const auto optimizer = made(Optimizer::open(options_, groups_));
    ASSERT_NE(optimizer, nullptr);
    wait_for_scrub(*optimizer);
    const StoreReport found = report_of(*optimizer);
    EXPECT_EQ(found.scrub.damage.chunks, std::vector<uint64_t>{6});
    EXPECT_EQ(found.scrub.damage.step, kSteps);
    EXPECT_FALSE(found.went_back.has_value());
    Giver giver;
    ASSERT_OK(giver.give(*optimizer, groups_, kSteps + 1));
    const Status refused = optimizer->step({}, nullptr);
    EXPECT_NE(refused.text().find("was discarded"), std::string::npos) << refused.text();
    // What is watched now is the commit before.
    EXPECT_EQ(report_of(*optimizer).scrub.damage.bad_count, 0u);
    expect_went_back(*optimizer);
  }
}

TEST_F(HealthTest, TheScrubGoesOnWithEachCommitBesideSteps) {
  options_.scrub_bytes_per_s = uint64_t{1} << 30;
  const auto optimizer = made(Optimizer::create(options_, groups_));
  ASSERT_NE(optimizer, nullptr);
  ASSERT_OK(set_first(*optimizer, groups_));
  for (uint64_t step = 0; step < 40; ++step) {
    ASSERT_OK(run_steps(*optimizer, groups_, step, step + 1));
    if (step % 8 != 0) continue;
    const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (report_of(*optimizer).scrub.pass_count == 0) {
      ASSERT_LT(std::chrono::steady_clock::now(), late);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  const StoreReport report = report_of(*optimizer);
  EXPECT_GT(report.scrub.read_bytes, 5 * report.chunk_count * options_.chunk_bytes - 1);
  EXPECT_EQ(report.scrub.damage.bad_count, 0u) << report.scrub.damage.text();
  EXPECT_TRUE(report.scrub.stopped.ok()) << report.scrub.stopped.text();
}

TEST_F(HealthTest, WithoutARateNothingIsScrubbed) {
  options_.scrub_bytes_per_s = 0;
  make_steps();
  const auto optimizer = made(Optimizer::open(options_, groups_));
  ASSERT_NE(optimizer, nullptr);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_EQ(report_of(*optimizer).scrub.read_bytes, 0u);
}

TEST_F(HealthTest, WhatTheScrubHasReadTheFirstStepDoesNotReadAgain) {
  make_steps();
  options_.scrub_bytes_per_s = uint64_t{1} << 30;
  const auto optimizer = made(Optimizer::open(options_, groups_));
  ASSERT_NE(optimizer, nullptr);
  wait_for_scrub(*optimizer);
  ASSERT_OK(run_steps(*optimizer, groups_, kSteps, kSteps + 1));
  EXPECT_EQ(report_of(*optimizer).verify_bytes, 0u);
}

TEST_F(HealthTest, ANewestRecordThatIsUnreadableInAllCopiesIsToldByTheReport) {
  make_steps();
  const uint64_t page = metadata().newest.sequence % 2;
  for (const std::string& directory : options_.directories) {
    for (uint32_t copy = 0; copy < kMetaCopies; ++copy) {
      const int file = ::open(meta_path(directory, copy).c_str(), O_RDWR);
      ASSERT_GE(file, 0);
      const unsigned char bad = 0xa5;
      ASSERT_EQ(::pwrite(file, &bad, 1, static_cast<off_t>(page * kRecordBytes + 60)), 1);
      ::close(file);
    }
  }
  const auto optimizer = made(Optimizer::open(options_, groups_));
  ASSERT_NE(optimizer, nullptr);
  const StoreReport report = report_of(*optimizer);
  ASSERT_TRUE(report.went_back.has_value());
  EXPECT_EQ(report.went_back->cause, Fallback::Cause::kUnreadableRecord);
  EXPECT_EQ(report.went_back->step, kSteps - 1);
  EXPECT_EQ(report.step, kSteps - 1);
}

}  // namespace
}  // namespace weir::offload::test
