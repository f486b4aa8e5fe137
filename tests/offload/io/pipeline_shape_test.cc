// SPDX-License-Identifier: Apache-2.0
#include "offload/io/pipeline_shape.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace weir::offload {
namespace {

constexpr uint64_t kMiB = 1 << 20;

PipelineShape shape(double disk, double compute, const PipelineLoad& load) {
  return choose_shape({.disk_bytes_per_s = disk, .compute_bytes_per_s = compute}, load);
}

TEST(PipelineShape, KeepsTwelveMiBUnderWayOnEachDriveWhereNothingIsKnown) {
  EXPECT_EQ(shape(0, 0, {4 * kMiB, kMiB}).depth, 12u);
  EXPECT_EQ(shape(0, 0, {4 * kMiB, 256 << 10}).depth, 48u);
  EXPECT_EQ(shape(0, 0, {4 * kMiB, kMiB, 3}).depth, 36u);
  EXPECT_EQ(shape(0, 0, {64 * kMiB, 8 * kMiB}).depth, 2u);  // one each way at least
  EXPECT_EQ(shape(0, 0, {4096, 4096}).depth, kPipelineDepthMax);
}

TEST(PipelineShape, CoversTheComputeOfAnItemWhereTheCallerComputes) {
  // A quarter of the disk's rate: four items' worth of transfers go by during one compute.
  EXPECT_EQ(shape(2e9, 0.5e9, {4 * kMiB, kMiB}).depth, 12u + 16);
  // Other threads compute: somebody always submits.
  EXPECT_EQ(shape(2e9, 0.5e9, {4 * kMiB, kMiB, 1, 2}).depth, 12u);
  // The quicker compute is, the less it takes.
  uint32_t last = kPipelineDepthMax + 1;
  for (const double compute : {0.1e9, 0.3e9, 1e9, 3e9, 30e9}) {
    const PipelineShape s = shape(2e9, compute, {4 * kMiB, kMiB});
    EXPECT_LE(s.depth, last);
    last = s.depth;
  }
  EXPECT_EQ(last, 13u);
}

TEST(PipelineShape, HasBuffersForEveryTransferUnderWayAndEveryThread) {
  for (const uint64_t buffer : {kMiB / 4, kMiB, 3 * kMiB, 12 * kMiB, 100 * kMiB})
    for (const uint64_t transfer : {kMiB / 4, kMiB, 4 * kMiB})
      for (const uint32_t threads : {0, 1, 2, 8})
        for (const double compute : {0.0, 0.2e9, 2e9, 20e9}) {
          const PipelineShape s = shape(2e9, compute, {buffer, transfer, 1, threads});
          EXPECT_GE(s.depth, 2u);
          EXPECT_GE(s.buffer_count, 3u);
          const uint64_t computing = std::max(1u, threads);
          EXPECT_GE((s.buffer_count - computing) * buffer, s.depth * std::min(buffer, transfer));
        }
}

}  // namespace
}  // namespace weir::offload
