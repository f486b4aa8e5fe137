// SPDX-License-Identifier: Apache-2.0
#include "core/control/overlay.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace weir::control {
namespace {

// How many of the ranks that are left can be reached from the first of them.
size_t reached(Rank count, const std::vector<bool>& gone) {
  std::vector<bool> seen(count);
  std::vector<Rank> left;
  for (Rank r = 0; r < count && left.empty(); ++r) {
    if (!gone[r]) left.push_back(r);
  }
  seen[left.front()] = true;
  size_t reached = 0;
  while (!left.empty()) {
    const Rank r = left.back();
    left.pop_back();
    ++reached;
    for (const Rank next : neighbors(r, count)) {
      if (gone[next] || seen[next]) continue;
      seen[next] = true;
      left.push_back(next);
    }
  }
  return reached;
}

TEST(Overlay, BothEndsNameEachOther) {
  for (Rank count = 1; count <= 70; ++count) {
    for (Rank rank = 0; rank < count; ++rank) {
      for (const Rank other : neighbors(rank, count)) {
        EXPECT_NE(other, rank);
        const std::vector<Rank> theirs = neighbors(other, count);
        EXPECT_TRUE(std::binary_search(theirs.begin(), theirs.end(), rank));
      }
    }
  }
}

TEST(Overlay, NoOneDeathSeparatesTheOthers) {
  for (Rank count = 3; count <= 130; ++count) {
    for (Rank dead = 0; dead < count; ++dead) {
      std::vector<bool> gone(count);
      gone[dead] = true;
      ASSERT_EQ(reached(count, gone), count - 1) << dead << " of " << count;
    }
  }
}

TEST(Overlay, ATenthOfTheRanksMayDieAtOnce) {
  std::mt19937 random(1);
  constexpr Rank kCount = 1024;
  for (int round = 0; round < 20; ++round) {
    std::vector<bool> gone(kCount);
    for (Rank i = 0; i < kCount / 10; ++i) gone[random() % kCount] = true;
    const auto dead = static_cast<size_t>(std::count(gone.begin(), gone.end(), true));
    EXPECT_EQ(reached(kCount, gone), kCount - dead);
  }
}

TEST(Overlay, TheTreeIsMadeOfLinks) {
  for (const Rank count : {2u, 3u, 7u, 16u, 100u, 1000u}) {
    for (Rank rank = 1; rank < count; ++rank) {
      const std::vector<Rank> all = neighbors(rank, count);
      EXPECT_TRUE(std::binary_search(all.begin(), all.end(), tree_parent(rank))) << rank;
      EXPECT_LT(tree_parent(rank), rank);
    }
  }
}

}  // namespace
}  // namespace weir::control
