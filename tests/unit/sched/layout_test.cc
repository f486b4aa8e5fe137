// SPDX-License-Identifier: Apache-2.0
#include "core/sched/layout.h"

#include <gtest/gtest.h>

#include <set>

namespace weir::sched {
namespace {

TEST(Layout, HoldsWhatTheTableOfTheGridSays) {
  const Layout gather(Collective::kAllGather, 3, 0, {.chunk_count = 6}, false);
  EXPECT_NE(gather.find({2, 1, Space::kInput}, 2), Layout::kNowhere);
  EXPECT_EQ(gather.find({1, 1, Space::kInput}, 1), Layout::kNowhere);
  EXPECT_EQ(gather.find({3, 1, Space::kInput}, 2), Layout::kNowhere);
  EXPECT_NE(gather.find({0, 1, Space::kOutput}, 6), Layout::kNowhere);
  EXPECT_EQ(gather.find({0, 1, Space::kOutput}, 7), Layout::kNowhere);

  const Layout exchange(Collective::kAllToAll, 3, 0, {.chunk_count = 18}, false);
  EXPECT_NE(exchange.find({6, 1, Space::kInput}, 6), Layout::kNowhere);
  EXPECT_EQ(exchange.find({5, 1, Space::kInput}, 1), Layout::kNowhere);
  EXPECT_NE(exchange.find({2, 1, Space::kOutput}, 2), Layout::kNowhere);  // source 0, target 1
  EXPECT_EQ(exchange.find({2, 1, Space::kOutput}, 3), Layout::kNowhere);
  EXPECT_EQ(exchange.find({4, 1, Space::kOutput}, 1), Layout::kNowhere);  // source 0, target 2

  const Layout reduce(Collective::kReduce, 3, 2, {.chunk_count = 1}, false);
  EXPECT_NE(reduce.find({0, 2, Space::kOutput}, 1), Layout::kNowhere);
  EXPECT_EQ(reduce.find({0, 1, Space::kOutput}, 1), Layout::kNowhere);
}

TEST(Layout, SharesPlacesInPlaceAsTheUsersBuffersDo) {
  const auto place = [](const Layout& layout, Space space, uint32_t chunk, Rank rank) {
    return layout.find({chunk, rank, space}, 1);
  };
  for (Collective collective :
       {Collective::kAllReduce, Collective::kAllGather, Collective::kReduceScatter}) {
    const Layout layout(collective, 4, 0, {.chunk_count = 4}, true);
    for (Rank rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(place(layout, Space::kInput, rank, rank),
                place(layout, Space::kOutput, rank, rank));
    }
  }
  // Block i of the one buffer: what goes to rank i, then what came from rank i.
  const Layout exchange(Collective::kAllToAll, 4, 0, {.chunk_count = 16}, true);
  for (Rank rank = 0; rank < 4; ++rank) {
    for (Rank peer = 0; peer < 4; ++peer) {
      EXPECT_EQ(place(exchange, Space::kInput, rank * 4 + peer, rank),
                place(exchange, Space::kOutput, peer * 4 + rank, rank));
    }
  }
}

TEST(Layout, GivesEveryPlaceOnceAndKnowsItsOwner) {
  for (uint32_t c = 0; c < static_cast<uint32_t>(Collective::kBarrier); ++c) {
    for (bool in_place : {false, true}) {
      const auto collective = static_cast<Collective>(c);
      const Layout layout(collective, 3, 1,
                          {.chunk_count = 9, .scratch_slots = 2, .staging_slots = 1}, in_place);
      std::set<Layout::Place> places;
      for (Rank rank = 0; rank < 3; ++rank) {
        for (Space space : {Space::kInput, Space::kOutput, Space::kScratch, Space::kStaging}) {
          for (uint32_t chunk = 0; chunk < 9; ++chunk) {
            const Layout::Place place = layout.find({chunk, rank, space}, 1);
            if (place == Layout::kNowhere) continue;
            EXPECT_EQ(layout.owner(place), rank);
            const bool is_new = places.insert(place).second;
            EXPECT_TRUE(is_new || in_place);
          }
        }
      }
      EXPECT_EQ(places.size(), layout.place_count());
    }
  }
}

}  // namespace
}  // namespace weir::sched
