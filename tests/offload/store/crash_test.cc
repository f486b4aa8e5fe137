// SPDX-License-Identifier: Apache-2.0
// Power is lost before every I/O event of a run, in every way, and again during the recovery.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "offload/store/simulated_disk.h"
#include "offload/store/store_run.h"

namespace weir::offload {
namespace {

constexpr uint64_t kStepCount = 3;
constexpr CrashMode kModes[] = {CrashMode::kDropped, CrashMode::kTorn, CrashMode::kReordered,
                                CrashMode::kMisdirected};

uint64_t base_seed() {
  const char* text = std::getenv("WEIR_TEST_SEED");
  return text != nullptr ? std::strtoull(text, nullptr, 0) : 1;
}

// How far a run came.
struct Progress {
  bool created = false;
  int64_t acknowledged = -1;  // step of the last commit that returned ok
  int64_t committing = -1;    // step of the last commit that was called
};

// Steps up to kStepCount, each committed, or every `interval`-th one.
Progress run_steps(SimulatedDrive& drive, Store& store, Progress progress, uint64_t interval,
                   SimulatedDisk& disk) {
  for (uint64_t step = static_cast<uint64_t>(progress.acknowledged + 1); step <= kStepCount;
       ++step) {
    if (!write_step(disk, store, step).ok()) break;
    if (step % interval != 0) {
      if (!store.end_step().ok()) break;
      continue;
    }
    progress.committing = static_cast<int64_t>(step);
    if (!store.commit(std::vector<unsigned char>(5, static_cast<unsigned char>(step))).ok()) break;
    progress.acknowledged = static_cast<int64_t>(step);
  }
  EXPECT_TRUE(drive.crashed() ||
              progress.acknowledged == static_cast<int64_t>(kStepCount / interval * interval));
  return progress;
}

Progress run(SimulatedDrive& drive, uint64_t seed, uint64_t interval) {
  SimulatedDisk disk(drive);
  Progress progress;
  auto store = Store::create(disk, test_directories(), test_description(), test_options(seed));
  if (!store.ok()) {
    EXPECT_TRUE(drive.crashed()) << store.status().text();
    return progress;
  }
  progress.created = true;
  return run_steps(drive, *store.value(), progress, interval, disk);
}

// After the power came back: the last acknowledged commit or the one that was under way, whole; or,
// only where a write went astray, an error. Never wrong data. Then the store must be as good as
// new.
void check_recovery(SimulatedDrive& drive, const Progress& progress, bool may_fail, uint64_t seed) {
  SimulatedDisk disk(drive);
  const StoreDescription description = test_description();
  auto opened = Store::open(disk, test_directories(), &description, test_options(seed));
  if (!opened.ok()) {
    EXPECT_TRUE(may_fail || !progress.created) << opened.status().text();
    EXPECT_EQ(disk.open_files(), 0u);
    return;
  }
  Store& store = *opened.value();
  const int64_t step =
      store.committed() == nullptr ? -1 : static_cast<int64_t>(store.committed()->step);
  EXPECT_TRUE(step == progress.acknowledged || step == progress.committing)
      << "at step " << step << " after " << progress.acknowledged << ", " << progress.committing;
  if (step >= 0) {
    const Status status = check_committed(disk, store);
    EXPECT_NE(status.code(), Code::kInternal) << status.text();
    EXPECT_TRUE(status.ok() || may_fail) << status.text();
    if (!status.ok()) return;
  }
  const uint64_t next = static_cast<uint64_t>(step + 1);
  const Status status = commit_step(disk, store, next, 77);
  EXPECT_TRUE(status.ok() || may_fail) << status.text();
  if (status.ok()) {
    EXPECT_TRUE(check_state(disk, store, next, 77).ok());
  }
}

uint64_t events_of_a_run(uint64_t interval) {
  SimulatedDrive drive(1);
  run(drive, 1, interval);
  return drive.events();
}

class CrashAtEveryEvent : public testing::TestWithParam<CrashMode> {};

TEST_P(CrashAtEveryEvent, LeavesTheLastOrThePreviousCommit) {
  for (const uint64_t interval : {uint64_t{1}, uint64_t{3}}) {
    const uint64_t events = events_of_a_run(interval);
    ASSERT_GT(events, 60u);
    for (uint64_t at = 0; at <= events; ++at) {
      for (uint64_t variant = 0; variant < 4; ++variant) {
        const uint64_t seed = base_seed() * 1'000'003 + at * 31 + variant;
        SCOPED_TRACE(testing::Message() << "crash before event " << at << " of " << events
                                        << ", interval " << interval << ", seed " << seed);
        SimulatedDrive drive(seed);
        drive.crash_at_event = at;
        const Progress progress = run(drive, seed, interval);
        drive.power_cycle(GetParam());
        check_recovery(drive, progress, GetParam() == CrashMode::kMisdirected, seed + 1);
        if (HasFailure()) return;
      }
    }
  }
}

// The process dies first, with its writes cached; another goes on; then the power fails.
TEST_P(CrashAtEveryEvent, AfterAKilledProcessLeavesTheLastOrThePreviousCommit) {
  const uint64_t events = events_of_a_run(1);
  for (uint64_t at = 0; at <= events; ++at) {
    const uint64_t seed = base_seed() * 1'000'033 + at * 37;
    SimulatedDrive killed(seed);
    killed.crash_at_event = at;
    Progress progress = run(killed, seed, 1);
    killed.kill_processes();
    for (uint64_t second = 0;; second += 3) {
      SCOPED_TRACE(testing::Message() << "killed before event " << at << ", crash " << second
                                      << " events later, seed " << seed);
      const auto drive = killed.copy(seed + second);
      drive->crash_at_event = drive->events() + second;
      Progress later = progress;
      {
        SimulatedDisk disk(*drive);
        auto opened = Store::open(disk, test_directories(), nullptr, test_options(seed + 5));
        if (opened.ok()) {
          Store& store = *opened.value();
          const int64_t step =
              store.committed() == nullptr ? -1 : static_cast<int64_t>(store.committed()->step);
          EXPECT_TRUE(step == progress.acknowledged || step == progress.committing) << step;
          // What open has shown is what must stay.
          later.created = true;
          later.acknowledged = later.committing = step;
          later = run_steps(*drive, store, later, 1, disk);
        } else {
          EXPECT_TRUE(drive->crashed() || !progress.created) << opened.status().text();
        }
      }
      const bool ended = !drive->crashed();
      drive->power_cycle(GetParam());
      check_recovery(*drive, later, GetParam() == CrashMode::kMisdirected, seed + 2);
      if (HasFailure()) return;
      if (ended) break;
    }
  }
}

std::string name_of_parameter(const testing::TestParamInfo<CrashMode>& parameter) {
  constexpr const char* kNames[] = {"Dropped", "Torn", "Reordered", "Misdirected"};
  return kNames[static_cast<size_t>(parameter.param)];
}

INSTANTIATE_TEST_SUITE_P(Store, CrashAtEveryEvent, testing::ValuesIn(kModes), name_of_parameter);

TEST(Crash, RepeatedAtRandomLeavesTheLastOrThePreviousCommitEachTime) {
  for (uint64_t round = 0; round < 150; ++round) {
    const uint64_t seed = base_seed() * 1'000'037 + round;
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    SimulatedDrive drive(seed);
    uint64_t step = 0;
    {
      SimulatedDisk disk(drive);
      auto made = Store::create(disk, test_directories(), test_description(), test_options(seed));
      ASSERT_TRUE(made.ok());
      ASSERT_TRUE(commit_step(disk, *made.value(), step).ok());
    }
    for (uint64_t crash = 0; crash < 12; ++crash) {
      drive.crash_at_event = drive.events() + random() % 60;
      uint64_t committing = step;
      {
        SimulatedDisk disk(drive);
        auto opened =
            Store::open(disk, test_directories(), nullptr, test_options(seed * 100 + crash));
        if (opened.ok()) {
          Store& store = *opened.value();
          step = committing = store.committed()->step;
          while (!drive.crashed()) {
            if (random() % 5 == 0) {
              if (!write_step(disk, store, step + 1, 1).ok()) break;
              if (!store.abandon_step().ok()) break;
            }
            if (!write_step(disk, store, step + 1).ok()) break;
            committing = step + 1;
            const std::vector<unsigned char> data(5, static_cast<unsigned char>(step + 1));
            if (!store.commit(data).ok()) break;
            step = committing;
          }
        }
        ASSERT_TRUE(drive.crashed());
      }
      if (random() % 4 == 0) {
        drive.kill_processes();
      } else {
        drive.power_cycle(kModes[random() % 3]);  // no astray writes: those may lose a commit
      }
      SimulatedDisk disk(drive);
      auto opened = Store::open(disk, test_directories(), nullptr, test_options(seed + crash));
      ASSERT_TRUE(opened.ok()) << opened.status().text();
      const uint64_t found = opened.value()->committed()->step;
      ASSERT_TRUE(found == step || found == committing) << found << " " << step;
      const Status status = check_committed(disk, *opened.value());
      ASSERT_TRUE(status.ok()) << status.text();
      step = found;
    }
  }
}

TEST(Crash, AnyWriteThatGoesAstrayIsFoundOrDoesNotMatter) {
  SimulatedDrive counted(1);
  run(counted, 1, 1);
  for (uint64_t at = 0; at < counted.writes(); ++at) {
    for (uint64_t variant = 0; variant < 30; ++variant) {
      const uint64_t seed = base_seed() * 1'000'039 + at * 101 + variant;
      SCOPED_TRACE(testing::Message() << "write " << at << " astray, seed " << seed);
      SimulatedDrive drive(seed);
      drive.misdirect_at_write = at;
      {
        SimulatedDisk disk(drive);
        auto made = Store::create(disk, test_directories(), test_description(), test_options(seed));
        for (uint64_t step = 0; made.ok() && step <= kStepCount; ++step) {
          const Status status = commit_step(disk, *made.value(), step);
          ASSERT_NE(status.code(), Code::kInternal);
          if (!status.ok()) break;
        }
      }
      SimulatedDisk disk(drive);
      auto opened = Store::open(disk, test_directories(), nullptr, test_options(seed));
      if (!opened.ok() || opened.value()->committed() == nullptr) continue;
      const Status status = check_committed(disk, *opened.value());
      ASSERT_NE(status.code(), Code::kInternal) << status.text();
    }
  }
}

}  // namespace
}  // namespace weir::offload
