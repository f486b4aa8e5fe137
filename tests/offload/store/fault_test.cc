// SPDX-License-Identifier: Apache-2.0
// Every request of a run fails once, in every way: it is reported, nothing leaks, and what was
// committed is still there.
#include <gtest/gtest.h>

#include "offload/store/simulated_disk.h"
#include "offload/store/store_run.h"

namespace weir::offload {
namespace {

struct Outcome {
  Status status;  // the first error
  bool created = false;
  bool poisoned = false;
  bool checkpointed = false;
  int64_t acknowledged = -1;
  int64_t committing = -1;
};

Outcome run(SimulatedDrive& drive, uint64_t seed) {
  Outcome outcome;
  SimulatedDisk disk(drive);
  {
    auto made = Store::create(disk, test_directories(), test_description(), test_options(seed));
    outcome.status = made.status();
    if (made.ok()) {
      outcome.created = true;
      Store& store = *made.value();
      for (uint64_t step = 0; step < 5 && outcome.status.ok(); ++step) {
        outcome.status = write_step(disk, store, step);
        if (!outcome.status.ok()) break;
        outcome.committing = static_cast<int64_t>(step);
        const std::vector<unsigned char> data(5, static_cast<unsigned char>(step));
        outcome.status = store.commit(data);
        if (outcome.status.ok()) outcome.acknowledged = static_cast<int64_t>(step);
        if (step == 2 && outcome.status.ok()) {
          outcome.status = store.checkpoint({"/held0", "/held1"});
          outcome.checkpointed = outcome.status.ok();
        }
      }
      if (!outcome.status.ok() && outcome.acknowledged >= 0) {
        const Status next = store.abandon_step();
        outcome.poisoned = !next.ok();
        if (outcome.poisoned) {
          // Every later call says why.
          EXPECT_NE(next.text().find("is poisoned"), std::string::npos) << next.text();
          EXPECT_EQ(store.begin_step(9).text(), next.text());
          EXPECT_EQ(store.commit().text(), next.text());
          EXPECT_EQ(store.end_step().text(), next.text());
          EXPECT_EQ(store.verify().text(), next.text());
          EXPECT_EQ(store.roll_back(1).text(), next.text());
          EXPECT_EQ(store.checkpoint({"/x", "/y"}).text(), next.text());
          AlignedBuffer buffer = AlignedBuffer::make(kTestChunkBytes).take();
          EXPECT_EQ(store.read_transfer(0, buffer.data()).status().text(), next.text());
          EXPECT_EQ(store.check_read(0, buffer.data()).text(), next.text());
          EXPECT_EQ(store.write_transfer(0, buffer.data()).status().text(), next.text());
          EXPECT_EQ(store.wrote(0).text(), next.text());
        } else {
          // The same process goes on.
          const Status state = check_committed(disk, store);
          EXPECT_TRUE(state.ok()) << state.text();
          const uint64_t again = static_cast<uint64_t>(outcome.acknowledged) + 1;
          outcome.committing = static_cast<int64_t>(again);
          const Status retried = commit_step(disk, store, again);
          EXPECT_TRUE(retried.ok()) << retried.text();
          if (retried.ok()) outcome.acknowledged = static_cast<int64_t>(again);
        }
      }
    }
  }
  EXPECT_EQ(disk.in_flight(), 0u);
  EXPECT_EQ(disk.open_files(), 0u);
  return outcome;
}

class FaultAtEveryRequest : public testing::TestWithParam<FaultKind> {};

TEST_P(FaultAtEveryRequest, IsReportedAndHarmsNoCommit) {
  SimulatedDrive good(1);
  ASSERT_TRUE(run(good, 1).status.ok());
  uint64_t poisoned = 0;
  for (uint64_t at = 0; at < good.requests(); ++at) {
    SCOPED_TRACE(testing::Message() << "request " << at << " of " << good.requests());
    SimulatedDrive drive(at + 7);
    drive.fail_at_request = at;
    drive.fault = GetParam();
    const Outcome outcome = run(drive, at);
    ASSERT_TRUE(drive.fault_happened());
    poisoned += outcome.poisoned ? 1 : 0;
    if (!outcome.created) {
      EXPECT_FALSE(outcome.status.ok());
      // Nothing of a failed creation is left, or it can be removed.
      SimulatedDisk disk(drive);
      EXPECT_TRUE(Store::remove(disk, test_directories()).ok());
      EXPECT_TRUE(drive.paths().empty());
      auto again = Store::create(disk, test_directories(), test_description(), test_options(at));
      EXPECT_TRUE(again.ok()) << again.status().text();
      continue;
    }
    drive.power_cycle(CrashMode::kDropped);
    SimulatedDisk disk(drive);
    auto opened = Store::open(disk, test_directories(), nullptr, test_options(at + 1));
    ASSERT_TRUE(opened.ok()) << opened.status().text();
    if (opened.value()->committed() == nullptr) {
      EXPECT_EQ(outcome.acknowledged, -1);
      continue;
    }
    const int64_t found = static_cast<int64_t>(opened.value()->committed()->step);
    EXPECT_TRUE(found == outcome.acknowledged || found == outcome.committing);
    const Status state = check_committed(disk, *opened.value());
    EXPECT_TRUE(state.ok()) << state.text();
    if (HasFailure()) return;
  }
  EXPECT_GT(poisoned, 10u);
}

TEST_P(FaultAtEveryRequest, OfOpenIsReportedOrRepaired) {
  SimulatedDrive drive(1);
  ASSERT_TRUE(run(drive, 1).status.ok());
  const uint64_t before = drive.requests();
  uint64_t count = 0;
  {
    SimulatedDisk disk(drive);
    StoreOptions options = test_options(2);
    options.verify_all = true;
    ASSERT_TRUE(Store::open(disk, test_directories(), nullptr, std::move(options)).ok());
    count = drive.requests() - before;
  }
  for (uint64_t at = 0; at < count; ++at) {
    SCOPED_TRACE(testing::Message() << "request " << at << " of " << count);
    const auto damaged = drive.copy(at);
    damaged->fail_at_request = damaged->requests() + at;
    damaged->fault = GetParam();
    SimulatedDisk disk(*damaged);
    {
      StoreOptions options = test_options(2);
      options.verify_all = true;
      auto opened = Store::open(disk, test_directories(), nullptr, std::move(options));
      ASSERT_TRUE(damaged->fault_happened());
      if (opened.ok()) {
        EXPECT_FALSE(opened.value()->problems().empty());
        EXPECT_EQ(opened.value()->committed()->step, 4u);
      }
    }
    EXPECT_EQ(disk.in_flight(), 0u);
    EXPECT_EQ(disk.open_files(), 0u);
    auto opened = Store::open(disk, test_directories(), nullptr, test_options(3));
    ASSERT_TRUE(opened.ok()) << opened.status().text();
    EXPECT_TRUE(check_committed(disk, *opened.value()).ok());
    if (HasFailure()) return;
  }
}

std::string name_of_parameter(const testing::TestParamInfo<FaultKind>& parameter) {
  constexpr const char* kNames[] = {"Eio", "NoSpace", "Short"};
  return kNames[static_cast<size_t>(parameter.param)];
}

// Six chunks over two directories: a commit syncs two slot files, looks at the names of eight
// files, writes four copies of its record, and syncs those.
TEST(Fault, OfAnyRequestOfACommitPoisonsUntilTheStoreIsOpenedAgain) {
  constexpr uint64_t kRequests = 2 + 8 + 4 + 4;
  for (uint64_t at = 0; at <= kRequests; ++at) {
    SCOPED_TRACE(testing::Message() << "request " << at << " of commit");
    SimulatedDrive drive(at);
    {
      SimulatedDisk disk(drive);
      auto made = Store::create(disk, test_directories(), test_description(), test_options(1));
      ASSERT_TRUE(made.ok());
      Store& store = *made.value();
      ASSERT_TRUE(commit_step(disk, store, 0).ok());
      ASSERT_TRUE(write_step(disk, store, 1).ok());
      drive.fail_at_request = drive.requests() + at;
      const std::vector<unsigned char> data(5, 1);
      const Status status = store.commit(data);
      ASSERT_EQ(status.ok(), at == kRequests) << status.text();
      if (status.ok()) break;
      EXPECT_NE(status.text().find("is poisoned"), std::string::npos) << status.text();
      EXPECT_NE(status.text().find("Input/output error"), std::string::npos) << status.text();
      EXPECT_EQ(store.commit(data).text(), status.text());
      EXPECT_EQ(store.abandon_step().text(), status.text());
      EXPECT_EQ(store.begin_step(1).text(), status.text());
    }
    drive.power_cycle(CrashMode::kTorn);
    SimulatedDisk disk(drive);
    auto opened = Store::open(disk, test_directories(), nullptr, test_options(2));
    ASSERT_TRUE(opened.ok()) << opened.status().text();
    ASSERT_TRUE(check_committed(disk, *opened.value()).ok());
    // Where the data's sync failed, the new step cannot have been committed.
    EXPECT_TRUE(at >= 2 || opened.value()->committed()->step == 0);
    EXPECT_TRUE(commit_step(disk, *opened.value(), 2).ok());
  }
}

INSTANTIATE_TEST_SUITE_P(Store, FaultAtEveryRequest,
                         testing::Values(FaultKind::kEio, FaultKind::kNoSpace, FaultKind::kShort),
                         name_of_parameter);

}  // namespace
}  // namespace weir::offload
