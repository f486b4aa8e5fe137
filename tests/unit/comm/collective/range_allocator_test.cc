// SPDX-License-Identifier: Apache-2.0
#include "core/comm/collective/range_allocator.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>
#include <vector>

namespace weir::comm {
namespace {

TEST(RangeAllocator, RangesAreWholeLinesAndTheSmallestPieceThatFitsIsTaken) {
  RangeAllocator ranges(1000);  // 960 can be used
  EXPECT_EQ(ranges.largest_free_bytes(), 960u);
  EXPECT_EQ(ranges.allocate(1), 0u);
  EXPECT_EQ(ranges.allocate(65), 64u);
  EXPECT_EQ(ranges.allocate(64), 192u);
  EXPECT_EQ(ranges.used_bytes(), 256u);
  EXPECT_TRUE(ranges.free(64));
  EXPECT_EQ(ranges.allocate(100), 64u) << "of 128 and 704 bytes, the former";
  EXPECT_EQ(ranges.range_count(), 3u);
}

TEST(RangeAllocator, PiecesBesideAFreedRangeAreJoinedWithIt) {
  RangeAllocator ranges(640);
  std::vector<uint64_t> offsets;
  for (int i = 0; i < 10; ++i) offsets.push_back(*ranges.allocate(64));
  EXPECT_EQ(ranges.largest_free_bytes(), 0u);
  for (const int i : {3, 5}) EXPECT_TRUE(ranges.free(offsets[static_cast<size_t>(i)]));
  EXPECT_EQ(ranges.largest_free_bytes(), 64u);
  EXPECT_TRUE(ranges.free(offsets[4]));
  EXPECT_EQ(ranges.largest_free_bytes(), 192u);
  EXPECT_EQ(ranges.allocate(192), 192u);
}

TEST(RangeAllocator, WhatDoesNotFitAndWhatIsNotInUseChangeNothing) {
  RangeAllocator ranges(256);
  EXPECT_FALSE(ranges.allocate(0));
  EXPECT_FALSE(ranges.allocate(257));
  EXPECT_FALSE(ranges.allocate(UINT64_MAX));
  EXPECT_EQ(ranges.allocate(128), 0u);
  EXPECT_FALSE(ranges.free(64)) << "inside a range";
  EXPECT_FALSE(ranges.free(128)) << "free";
  EXPECT_TRUE(ranges.free(0));
  EXPECT_FALSE(ranges.free(0)) << "twice";
  EXPECT_EQ(ranges.largest_free_bytes(), 256u);
  EXPECT_EQ(ranges.used_bytes(), 0u);
}

// Against a byte for each line.
TEST(RangeAllocator, RandomRangesNeverOverlapAndNothingIsLost) {
  const char* text = std::getenv("WEIR_TEST_SEED");
  const uint64_t seed = text != nullptr ? std::strtoull(text, nullptr, 0) : std::random_device{}();
  SCOPED_TRACE(fmt::format("WEIR_TEST_SEED={}", seed));
  std::mt19937_64 random(seed);
  constexpr uint64_t kLines = 512;
  RangeAllocator ranges(kLines * 64);
  std::vector<bool> used(kLines);
  std::map<uint64_t, uint64_t> live;  // line: lines
  const auto longest_free = [&] {
    uint64_t best = 0, length = 0;
    for (const bool one : used) {
      length = one ? 0 : length + 1;
      best = std::max(best, length);
    }
    return best * 64;
  };
  for (int step = 0; step < 20'000; ++step) {
    if (random() % 2 == 0 || live.empty()) {
      const uint64_t bytes = 1 + random() % (random() % 4 == 0 ? 8192 : 512);
      const uint64_t lines = (bytes + 63) / 64;
      const auto offset = ranges.allocate(bytes);
      ASSERT_EQ(offset.has_value(), lines * 64 <= longest_free()) << "step " << step;
      if (!offset) continue;
      ASSERT_EQ(*offset % 64, 0u);
      for (uint64_t i = *offset / 64; i < *offset / 64 + lines; ++i) {
        ASSERT_LT(i, kLines);
        ASSERT_FALSE(used[i]) << "step " << step;
        used[i] = true;
      }
      live[*offset / 64] = lines;
    } else {
      auto victim = live.begin();
      std::advance(victim, static_cast<std::ptrdiff_t>(random() % live.size()));
      ASSERT_TRUE(ranges.free(victim->first * 64));
      for (uint64_t i = 0; i < victim->second; ++i) used[victim->first + i] = false;
      live.erase(victim);
    }
    ASSERT_EQ(ranges.largest_free_bytes(), longest_free()) << "step " << step;
    ASSERT_EQ(ranges.range_count(), live.size());
  }
  for (const auto& [line, lines] : live) ASSERT_TRUE(ranges.free(line * 64));
  EXPECT_EQ(ranges.largest_free_bytes(), kLines * 64);
}

}  // namespace
}  // namespace weir::comm
