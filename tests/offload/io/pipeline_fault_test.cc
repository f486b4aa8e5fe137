// SPDX-License-Identifier: Apache-2.0
// Whatever goes wrong at whichever transfer: it is reported, nothing is leaked, nothing stays under
// way, and the next run is whole.
#include <gtest/gtest.h>

#include "offload/io/counting_work.h"
#include "offload/io/disk_support.h"
#include "offload/io/faulty_disk.h"
#include "offload/io/open_disk.h"
#include "offload/io/pipeline.h"
#include "offload/io/step_disk.h"

namespace weir::offload {
namespace {

constexpr uint64_t kItemBytes = 4 * kDiskAlignment;
constexpr uint64_t kItems = 6;
constexpr uint64_t kTransfers = kItems * 4;  // two reads and two writes each

PipelineOptions small(uint32_t compute_threads) {
  PipelineOptions options;
  options.buffer_bytes = kItemBytes;
  options.buffer_count = 3;
  options.depth = 4;
  options.transfer_bytes = 2 * kDiskAlignment;
  options.compute_thread_count = compute_threads;
  options.timeout_ms = 10'000;
  return options;
}

// Each fault at each k, over `inner`. `clear` puts zeros where the items lie.
void inject_everywhere(Disk* inner, FileId file, const std::function<void()>& clear,
                       uint32_t threads) {
  const auto arena = Arena::create({.budget_bytes = 4 * kItemBytes}).take();
  for (const Fault fault : {Fault::kFail, Fault::kShorten, Fault::kCancel, Fault::kSubmit,
                            Fault::kReap, Fault::kDelay}) {
    uint64_t hits = 0;
    for (uint64_t k = 0; k <= kTransfers; ++k) {
      FaultyDisk disk(inner);
      const auto pipeline = Pipeline::create(&disk, arena.get(), small(threads)).take();
      CountingWork work(kItems, kItemBytes, file);
      disk.set(fault, k);
      PipelineReport report;
      const Status status = pipeline->run(&work, &report);
      const std::string where = "fault " + std::to_string(static_cast<int>(fault)) + " at " +
                                std::to_string(k) + ": " + (status.ok() ? "ok" : status.text());
      const bool harmless = !disk.hit() || fault == Fault::kDelay;
      ASSERT_EQ(status.ok(), harmless) << where;
      if (!harmless) {
        EXPECT_NE(status.text().find("injected"), std::string::npos) << where;
        EXPECT_EQ(status.code(), fault == Fault::kCancel ? Code::kAborted : Code::kSystem) << where;
        EXPECT_LE(report.item_count, kItems) << where;
      }
      hits += disk.hit() ? 1 : 0;
      ASSERT_EQ(disk.in_flight(), 0u) << where;
      ASSERT_EQ(inner->in_flight(), 0u) << where;
      // The same pipeline goes on.
      disk.set(Fault::kNone, 0);
      clear();
      work.begin();
      for (int sweep = 0; sweep < 2; ++sweep) {
        const Status again = pipeline->run(&work, nullptr);
        ASSERT_TRUE(again.ok()) << where << " then " << again.text();
      }
      const Memory content(kItems * kItemBytes);
      ASSERT_TRUE(transfer_one(inner, {.write = false,
                                       .file = file,
                                       .offset_bytes = 0,
                                       .buffer = content.at(0),
                                       .bytes = content.bytes,
                                       .tag = 0})
                      .ok());
      ASSERT_TRUE(work.holds(content.at(0), 2)) << where;
    }
    ASSERT_EQ(arena->used_bytes(), 0u);
    // Every transfer was hit; of calls there are fewer.
    if (fault == Fault::kSubmit || fault == Fault::kReap) {
      EXPECT_GT(hits, kItems);
    } else {
      EXPECT_EQ(hits, kTransfers);
    }
  }
}

TEST(PipelineFaults, AtEveryTransferOfASteppedDiskAreReportedAndLeakNothing) {
  for (const uint32_t threads : {0u, 1u, 3u})
    for (const uint64_t seed : {0, 9}) {
      StepDisk disk(kItems * kItemBytes, 4, seed);
      inject_everywhere(
          &disk, 0,
          [&] {
            std::fill(disk.content.begin(), disk.content.end(), static_cast<unsigned char>(0));
          },
          threads);
    }
}

TEST(PipelineFaults, AtEveryTransferOfTheDisksOfThisMachineAreReportedAndLeakNothing) {
  for (const DiskKind kind : {DiskKind::kAuto, DiskKind::kPosix}) {
    const TemporaryDirectory directory;
    const int descriptors = open_descriptor_count();
    {
      const auto disk = open_disk({.kind = kind, .depth = 4}).take();
      const FileId file =
          disk->open(directory / "state", OpenMode::kCreate, kItems * kItemBytes).take();
      const Memory zeros(kItems * kItemBytes);
      inject_everywhere(
          disk.get(), file,
          [&] {
            ASSERT_TRUE(transfer_one(disk.get(), {.write = true,
                                                  .file = file,
                                                  .offset_bytes = 0,
                                                  .buffer = zeros.at(0),
                                                  .bytes = zeros.bytes,
                                                  .tag = 0})
                            .ok());
          },
          0);
      EXPECT_TRUE(disk->close(file).ok());  // which it would refuse with a transfer under way
    }
    EXPECT_EQ(open_descriptor_count(), descriptors);
  }
}

TEST(PipelineFaults, AnErrorOfComputeOrOfTheCallersEndsTheRun) {
  for (const uint32_t threads : {0u, 1u, 3u})
    for (const bool in_compute : {true, false})
      for (uint64_t item = 0; item < kItems; ++item) {
        StepDisk disk(kItems * kItemBytes, 4);
        const auto arena = Arena::create({.budget_bytes = 4 * kItemBytes}).take();
        const auto pipeline = Pipeline::create(&disk, arena.get(), small(threads)).take();
        CountingWork work(kItems, kItemBytes);
        const auto refuse = [&](uint64_t at) {
          return at == item ? Status(Code::kRefused, "overflow") : Status();
        };
        (in_compute ? work.on_compute : work.on_written) = refuse;
        // With several threads a later item may have been computed, and be written, before this one
        // fails.
        uint64_t writes_after = 0;
        disk.on_submit = [&](const Transfer& t) {
          const uint64_t at = t.offset_bytes / kItemBytes;
          if (in_compute && t.write && (at == item || (at > item && threads < 2))) ++writes_after;
        };
        const Status status = pipeline->run(&work, nullptr);
        EXPECT_EQ(status.code(), Code::kRefused);
        EXPECT_NE(status.text().find("overflow"), std::string::npos) << status.text();
        EXPECT_EQ(writes_after, 0u)
            << "the item's writes, and with one thread later ones, are not submitted";
        EXPECT_EQ(disk.in_flight(), 0u);
      }
}

TEST(PipelineFaults, ATransferThatNeverEndsIsATimeoutAndKeepsItsBuffer) {
  for (const uint64_t k : {uint64_t{0}, kTransfers / 2, kTransfers - 1}) {
    StepDisk inner(kItems * kItemBytes, 4);
    FaultyDisk disk(&inner);
    const auto arena = Arena::create({.budget_bytes = 4 * kItemBytes}).take();
    {
      PipelineOptions options = small(0);
      options.timeout_ms = 1;
      const auto pipeline = Pipeline::create(&disk, arena.get(), options).take();
      CountingWork work(kItems, kItemBytes);
      disk.set(Fault::kHang, k);
      const Status status = pipeline->run(&work, nullptr);
      EXPECT_EQ(status.code(), Code::kTimeout) << status.text();
      EXPECT_NE(status.text().find("of items"), std::string::npos) << status.text();
      EXPECT_EQ(disk.in_flight(), 1u);
      EXPECT_EQ(pipeline->run(&work, nullptr).code(), Code::kInvalidUsage);
    }
    // One item's buffer is still the disk's; the others are back.
    EXPECT_EQ(arena->used_bytes(), kItemBytes);
  }
}

}  // namespace
}  // namespace weir::offload
