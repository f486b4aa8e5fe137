// SPDX-License-Identifier: Apache-2.0
#include "net/give_way.h"

#include <gtest/gtest.h>

#include <vector>

namespace weir::net {
namespace {

struct One {
  uint64_t accepted_ns;
  bool is_silent;
  bool is_unproven = true;
};

GivesWay ask(const std::vector<One>& all, uint64_t now_ns) {
  return who_gives_way(
      all.size(), now_ns, [&](size_t i) { return all[i].is_unproven; },
      [&](size_t i) { return all[i].is_silent; }, [&](size_t i) { return all[i].accepted_ns; });
}

constexpr uint64_t kStart = 7;
constexpr uint64_t kLater = kStart + kHeardSparedNs;

TEST(GivesWay, TheOldestThatHasSaidNothingHoweverYoungItIs) {
  const GivesWay who = ask({{kStart, false}, {kStart + 1, true}, {kStart + 2, true}}, kStart + 2);
  EXPECT_EQ(who.index, 1u);
  EXPECT_EQ(who.room_ns, kStart + 2);
}

TEST(GivesWay, NobodyWhileAllHaveJustBegun) {
  const GivesWay who = ask({{kStart, false}, {kStart + 1, false}}, kLater - 1);
  EXPECT_EQ(who.index, GivesWay::kNobody);
  EXPECT_EQ(who.room_ns, kLater);
}

TEST(GivesWay, TheOldestWhenItHasHadItsTime) {
  const GivesWay who = ask({{kStart, false}, {kStart + 1, false}}, kLater);
  EXPECT_EQ(who.index, 0u);
  EXPECT_LE(who.room_ns, kLater);
}

TEST(GivesWay, NeverOneThatIsProven) {
  const GivesWay who = ask({{kStart, true, false}, {kStart + 1, false}}, kLater + 1);
  EXPECT_EQ(who.index, 1u);
  EXPECT_EQ(ask({{kStart, true, false}}, kLater).index, GivesWay::kNobody);
}

}  // namespace
}  // namespace weir::net
