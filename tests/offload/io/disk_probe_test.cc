// SPDX-License-Identifier: Apache-2.0
#include "offload/io/disk_probe.h"

#include <gtest/gtest.h>

#include "offload/io/arena.h"
#include "offload/io/disk_support.h"
#include "offload/io/faulty_disk.h"
#include "offload/io/open_disk.h"

namespace weir::offload {
namespace {

constexpr uint64_t kMiB = 1 << 20;

DiskProbeOptions quick(const std::string& directory) {
  DiskProbeOptions options;
  options.directory = directory;
  options.transfer_bytes = 256 << 10;
  options.depth = 4;
  options.file_bytes = 8 * kMiB;
  options.time_ms = 50;
  return options;
}

TEST(DiskProbe, MeasuresEachWayAndLeavesNothing) {
  const TemporaryDirectory directory;
  const auto arena = Arena::create({.budget_bytes = kMiB}).take();
  const int descriptors = open_descriptor_count();
  for (const DiskKind kind : {DiskKind::kAuto, DiskKind::kPosix}) {
    const auto disk = open_disk({.kind = kind, .arena = arena.get()}).take();
    const Result<DiskRates> rates = probe_disk(disk.get(), arena.get(), quick(directory.path()));
    ASSERT_TRUE(rates.ok()) << rates.status().text();
    const DiskRates& r = rates.value();
    EXPECT_GT(r.read_bytes_per_s, 0);
    EXPECT_GT(r.write_bytes_per_s, 0);
    EXPECT_GT(r.mixed_read_bytes_per_s, 0);
    EXPECT_GT(r.mixed_write_bytes_per_s, 0);
    EXPECT_DOUBLE_EQ(r.mixed_bytes_per_s, r.mixed_read_bytes_per_s + r.mixed_write_bytes_per_s);
    EXPECT_LE(r.file_bytes, 8 * kMiB);
    EXPECT_GE(r.file_bytes, 256u << 10);
    EXPECT_TRUE(disk->list(directory.path()).value().empty());
    EXPECT_EQ(arena->used_bytes(), 0u);
    EXPECT_EQ(disk->in_flight(), 0u);
  }
  EXPECT_EQ(open_descriptor_count(), descriptors);
}

TEST(DiskProbe, LeavesNothingWhicheverTransferFails) {
  const TemporaryDirectory directory;
  const auto arena = Arena::create({.budget_bytes = kMiB}).take();
  const auto inner = open_disk({.kind = DiskKind::kPosix}).take();
  const int descriptors = open_descriptor_count();
  DiskProbeOptions options = quick(directory.path());
  options.file_bytes = kMiB;
  options.time_ms = 4;
  for (const Fault fault : {Fault::kFail, Fault::kSubmit, Fault::kReap, Fault::kShorten})
    for (uint64_t k = 0; k < 7; ++k) {
      FaultyDisk disk(inner.get());
      disk.set(fault, k);
      const Result<DiskRates> rates = probe_disk(&disk, arena.get(), options);
      ASSERT_EQ(rates.ok(), !disk.hit());
      if (!rates.ok()) {
        EXPECT_NE(rates.status().text().find("injected"), std::string::npos);
      }
      EXPECT_TRUE(inner->list(directory.path()).value().empty());
      EXPECT_EQ(arena->used_bytes(), 0u);
      EXPECT_EQ(open_descriptor_count(), descriptors);
    }
}

TEST(DiskProbe, ErrorsOfItsOptionsComeBeforeAnythingIsTouched) {
  const TemporaryDirectory directory;
  const auto arena = Arena::create({.budget_bytes = 512 << 10}).take();
  const auto disk = open_disk({.kind = DiskKind::kPosix}).take();
  DiskProbeOptions options = quick(directory.path());
  options.read_share = 1.5;
  EXPECT_EQ(probe_disk(disk.get(), arena.get(), options).status().code(), Code::kInvalidArgument);
  options = quick(directory.path());
  EXPECT_EQ(probe_disk(disk.get(), arena.get(), options).status().code(), Code::kNoMemory);
  options = quick(directory / "missing");
  EXPECT_EQ(probe_disk(disk.get(), arena.get(), options).status().code(), Code::kSystem);
  EXPECT_TRUE(disk->list(directory.path()).value().empty());
  EXPECT_EQ(arena->used_bytes(), 0u);
}

}  // namespace
}  // namespace weir::offload
