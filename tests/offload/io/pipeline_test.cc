// SPDX-License-Identifier: Apache-2.0
#include "offload/io/pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <numeric>
#include <thread>

#include "offload/io/counting_work.h"
#include "offload/io/disk_support.h"
#include "offload/io/open_disk.h"
#include "offload/io/step_disk.h"

namespace weir::offload {
namespace {

constexpr uint64_t kItemBytes = 8 * kDiskAlignment;
// With more than one the order of computes is open.
constexpr uint32_t kThreadCounts[] = {0, 1};

PipelineOptions small(uint32_t compute_threads = 0) {
  PipelineOptions options;
  options.buffer_bytes = kItemBytes;
  options.buffer_count = 4;
  options.depth = 8;
  options.transfer_bytes = 2 * kDiskAlignment;
  options.compute_thread_count = compute_threads;
  return options;
}

std::unique_ptr<Arena> arena_of(uint64_t bytes) {
  return Arena::create({.budget_bytes = bytes}).take();
}

TEST(Pipeline, EveryItemIsReadComputedAndWrittenOnceInTheOrderOfTheSweep) {
  for (const uint32_t threads : kThreadCounts) {
    for (const uint64_t seed : {0, 1, 2, 3}) {
      for (const uint64_t items : {0, 1, 2, 3, 4, 5, 40}) {
        StepDisk disk(items * kItemBytes, 8, seed);
        const auto arena = arena_of(4 * kItemBytes);
        const auto pipeline = Pipeline::create(&disk, arena.get(), small(threads)).take();
        CountingWork work(items, kItemBytes);
        for (uint64_t sweep = 0; sweep < 3; ++sweep) {
          work.begin();
          PipelineReport report;
          const Status status = pipeline->run(&work, &report);
          ASSERT_TRUE(status.ok()) << status.text();
          std::vector<uint64_t> expected(items);
          std::iota(expected.begin(), expected.end(), 0);
          EXPECT_EQ(work.order, expected) << seed;
          std::vector<uint64_t> finished = work.finished;
          std::sort(finished.begin(), finished.end());
          std::sort(expected.begin(), expected.end());
          EXPECT_EQ(finished, expected);
          EXPECT_TRUE(work.holds(disk.content.data(), sweep + 1));
          EXPECT_EQ(report.item_count, items);
          EXPECT_EQ(report.read_bytes, items * kItemBytes);
          EXPECT_EQ(report.written_bytes, items * kItemBytes);
          EXPECT_EQ(report.transfer_count, items * 8);
          EXPECT_LE(report.in_flight_max, 8u);
        }
      }
    }
  }
}

TEST(Pipeline, AnItemIsWrittenOnlyAfterItsCompute) {
  for (const uint32_t threads : kThreadCounts) {
    for (const uint64_t seed : {0, 7}) {
      StepDisk disk(30 * kItemBytes, 8, seed);
      CountingWork work(30, kItemBytes);
      uint64_t writes = 0;
      disk.on_submit = [&](const Transfer& t) {
        if (!t.write) return;
        ++writes;
        EXPECT_TRUE(work.computed[t.offset_bytes / kItemBytes]);
      };
      const auto arena = arena_of(4 * kItemBytes);
      const auto pipeline = Pipeline::create(&disk, arena.get(), small(threads)).take();
      ASSERT_TRUE(pipeline->run(&work, nullptr).ok());
      EXPECT_EQ(writes, 30u * 4);
    }
  }
}

// On a disk that completes only what is waited for, what is under way while an item is computed is
// a fact and no matter of time.
TEST(Pipeline, ReadsOfTheNextAndWritesOfTheLastItemAreUnderWayWhileOneIsComputed) {
  constexpr uint64_t kItems = 32;
  StepDisk disk(kItems * kItemBytes, 64);
  const auto arena = arena_of(4 * kItemBytes);
  PipelineOptions options = small();
  options.depth = 16;
  const auto pipeline = Pipeline::create(&disk, arena.get(), options).take();
  CountingWork work(kItems, kItemBytes);
  uint64_t with_reads = 0, with_writes = 0;
  work.on_compute = [&](uint64_t item) {
    if (disk.under_way_count(false) > 0) ++with_reads;
    if (disk.under_way_count(true) > 0) ++with_writes;
    if (item > 0 && item + 1 < kItems) {
      EXPECT_GT(disk.in_flight(), 0u) << item;
    }
    return Status();
  };
  PipelineReport report;
  ASSERT_TRUE(pipeline->run(&work, &report).ok());
  EXPECT_GE(with_reads, kItems / 2);
  EXPECT_GE(with_writes, kItems / 2);
  EXPECT_GE(report.overlapped_compute_count, kItems - 1);
  EXPECT_GT(report.in_flight_max, 8u);
  EXPECT_GT(report.compute_hidden(), 0.5);
}

TEST(Pipeline, AWorkerComputesWhileTheCallersThreadFeedsTheDisk) {
  constexpr uint64_t kItems = 16;
  StepDisk disk(kItems * kItemBytes, 8);
  const auto arena = arena_of(4 * kItemBytes);
  const auto pipeline = Pipeline::create(&disk, arena.get(), small(1)).take();
  CountingWork work(kItems, kItemBytes);
  // The first item's compute ends only once the second's reads have been submitted: with one thread
  // for both this would never end.
  std::atomic<bool> second_is_read{false};
  disk.on_submit = [&](const Transfer& t) {
    if (t.offset_bytes / kItemBytes >= 2) second_is_read = true;
  };
  const std::thread::id caller = std::this_thread::get_id();
  work.on_compute = [&](uint64_t item) {
    EXPECT_NE(std::this_thread::get_id(), caller);
    while (item == 0 && !second_is_read) std::this_thread::yield();
    return Status();
  };
  PipelineReport report;
  ASSERT_TRUE(pipeline->run(&work, &report).ok());
  EXPECT_TRUE(work.holds(disk.content.data(), 1));
}

TEST(Pipeline, SeveralThreadsComputeAtTheSameTimeButNotPastABarrier) {
  constexpr uint64_t kItems = 30;
  constexpr uint64_t kBarrier = 17;
  StepDisk disk(kItems * kItemBytes, 8);
  const auto arena = arena_of(5 * kItemBytes);
  PipelineOptions options = small(3);
  options.buffer_count = 5;
  const auto pipeline = Pipeline::create(&disk, arena.get(), options).take();
  CountingWork work(kItems, kItemBytes);
  work.barriers.insert(kBarrier);
  std::atomic<uint64_t> begun{0};
  std::atomic<int> at_work{0};
  std::atomic<int> at_work_max{0};
  work.on_compute = [&](uint64_t item) {
    const int now = ++at_work;
    for (int most = at_work_max; most < now && !at_work_max.compare_exchange_weak(most, now);) {
    }
    ++begun;
    // The first three end only when all of them have begun: with fewer threads this would never
    // end.
    while (item < 3 && begun < 3) std::this_thread::yield();
    for (uint64_t before = 0; item >= kBarrier && before < kBarrier; ++before) {
      EXPECT_TRUE(work.computed[before]) << before << " before " << item;
    }
    --at_work;
    return Status();
  };
  PipelineReport report;
  ASSERT_TRUE(pipeline->run(&work, &report).ok());
  EXPECT_TRUE(work.holds(disk.content.data(), 1));
  EXPECT_EQ(at_work_max, 3);
  EXPECT_EQ(report.item_count, kItems);
}

// Items that are not read, not written, or neither.
class Partial : public CountingWork {
 public:
  using CountingWork::CountingWork;
  Status reads(uint64_t item, std::vector<PipelineTransfer>* transfers) override {
    return item % 2 == 0 ? CountingWork::reads(item, transfers) : Status();
  }
  Status writes(uint64_t item, std::vector<PipelineTransfer>* transfers) override {
    return item % 3 == 0 ? CountingWork::writes(item, transfers) : Status();
  }
};

TEST(Pipeline, ItemsMayHaveNoReadsOrNoWrites) {
  for (const uint32_t threads : kThreadCounts) {
    StepDisk disk(24 * kItemBytes, 8, 5);
    const auto arena = arena_of(4 * kItemBytes);
    const auto pipeline = Pipeline::create(&disk, arena.get(), small(threads)).take();
    Partial work(24, kItemBytes);
    PipelineReport report;
    ASSERT_TRUE(pipeline->run(&work, &report).ok());
    EXPECT_EQ(report.item_count, 24u);
    EXPECT_EQ(report.read_bytes, 12 * kItemBytes);
    EXPECT_EQ(report.written_bytes, 8 * kItemBytes);
    EXPECT_EQ(work.finished.size(), 24u);
  }
}

TEST(Pipeline, RunsOverTheDisksOfThisMachine) {
  constexpr uint64_t kItems = 50;
  for (const DiskKind kind : {DiskKind::kAuto, DiskKind::kPosix}) {
    for (const uint32_t threads : kThreadCounts) {
      const TemporaryDirectory directory;
      const auto arena = arena_of(2 << 20);
      const auto disk = open_disk({.kind = kind, .arena = arena.get()}).take();
      const FileId file =
          disk->open(directory / "state", OpenMode::kCreate, kItems * kItemBytes).take();
      PipelineOptions options = small(threads);
      options.depth = 0;
      options.transfer_bytes = 4 * kDiskAlignment;
      options.buffer_count = 6;
      const auto pipeline = Pipeline::create(disk.get(), arena.get(), options).take();
      CountingWork work(kItems, kItemBytes, file);
      for (uint64_t sweep = 0; sweep < 3; ++sweep) {
        work.begin();
        PipelineReport report;
        const Status status = pipeline->run(&work, &report);
        ASSERT_TRUE(status.ok()) << status.text();
        EXPECT_GT(report.rates().disk_bytes_per_s, 0);
      }
      ASSERT_TRUE(disk->sync(file).ok());
      ASSERT_TRUE(disk->close(file).ok());
      std::ifstream stream(directory / "state", std::ios::binary);
      std::vector<char> content(kItems * kItemBytes);
      stream.read(content.data(), static_cast<std::streamsize>(content.size()));
      EXPECT_TRUE(work.holds(reinterpret_cast<const unsigned char*>(content.data()), 3));
    }
  }
}

TEST(Pipeline, ABudgetThatDoesNotSufficeIsFoundBeforeAnythingStarts) {
  StepDisk disk(kItemBytes, 8);
  const auto arena = arena_of(3 * kItemBytes);
  const Status status = Pipeline::create(&disk, arena.get(), small()).status();
  EXPECT_EQ(status.code(), Code::kNoMemory);
  EXPECT_NE(status.text().find("4 buffers of 32768 bytes"), std::string::npos) << status.text();
  EXPECT_EQ(arena->used_bytes(), 0u);
}

TEST(Pipeline, OptionsAndTransfersThatMakeNoSenseAreNamed) {
  StepDisk disk(kItemBytes, 8);
  const auto arena = arena_of(4 * kItemBytes);
  const auto text_of = [&](auto change) {
    PipelineOptions options = small();
    change(&options);
    return Pipeline::create(&disk, arena.get(), options).status().text();
  };
  EXPECT_NE(text_of([](auto* o) { o->buffer_bytes = 100; }).find("buffer_bytes"),
            std::string::npos);
  EXPECT_NE(text_of([](auto* o) { o->transfer_bytes = 0; }).find("transfer_bytes"),
            std::string::npos);
  EXPECT_NE(text_of([](auto* o) { o->compute_thread_count = 5000; }).find("5000 compute threads"),
            std::string::npos);
  EXPECT_NE(text_of([](auto* o) { o->timeout_ms = 0; }).find("timeout_ms"), std::string::npos);

  const auto pipeline = Pipeline::create(&disk, arena.get(), small()).take();
  CountingWork too_long(1, 2 * kItemBytes);
  const Status status = pipeline->run(&too_long, nullptr);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.text().find("item 0"), std::string::npos) << status.text();
}

}  // namespace
}  // namespace weir::offload
