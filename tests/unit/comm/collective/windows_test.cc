// SPDX-License-Identifier: Apache-2.0
#include "core/comm/collective/windows.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "unit/comm/parts_support.h"

namespace weir::comm {
namespace {

struct WindowsTest : testing::Test {
  CommState state;
  MappedRanks ranks{2, &state};
  Windows windows{state};
};

TEST_F(WindowsTest, MemoryThatNoRankSharesLiesInNoWindow) {
  auto made = windows.allocate(100);
  ASSERT_TRUE(made.ok());
  auto* memory = static_cast<unsigned char*>(made.value());
  for (int i = 0; i < 100; ++i) ASSERT_EQ(memory[i], 0);
  EXPECT_EQ(windows.need(), Windows::Need::kAgree) << "every rank has one";
  EXPECT_EQ(windows.word_of(memory, 100), 0u);
  EXPECT_TRUE(windows.free(memory).ok());
  EXPECT_EQ(windows.free(memory).code(), Code::kInvalidArgument);
  EXPECT_EQ(windows.need(), Windows::Need::kNothing);
}

TEST_F(WindowsTest, RanksTellWhereBuffersLieOnlyOnceTheyHadAnArena) {
  auto made = windows.allocate(100);
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(windows.need(), Windows::Need::kAgree);
  auto arena = windows.create_arena(4096);
  ASSERT_TRUE(arena.ok());
  EXPECT_EQ(windows.need(), Windows::Need::kTell);
  EXPECT_FALSE(windows.only_arenas());
  windows.destroy_arena(*arena.value());
  EXPECT_EQ(windows.need(), Windows::Need::kTell) << "others may have theirs still";
  EXPECT_TRUE(windows.free(made.value()).ok());
  EXPECT_TRUE(windows.only_arenas());
}

TEST_F(WindowsTest, SizesThatCannotBeAndABrokenCommunicatorAreRefused) {
  EXPECT_EQ(windows.allocate(0).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(windows.allocate(uint64_t{1} << 60).status().code(), Code::kInvalidArgument);
  state.failure.set(Status(Code::kPeerLost, "rank 1 died"));
  EXPECT_EQ(windows.allocate(8).status().code(), Code::kPeerLost);
}

TEST_F(WindowsTest, AWordNamesTheSamePlaceInTheMemoryOfEachRank) {
  std::vector<unsigned char> own(64), other(32);
  const uint64_t number = windows.add_reachable({own.data(), other.data()}, {64, 32});
  ASSERT_NE(number, 0u);
  const uint64_t word = windows.word_of(own.data() + 8, 16);
  ASSERT_NE(word, 0u);
  EXPECT_EQ(windows.at_peer(word, word, 0, 16), own.data() + 8);
  EXPECT_EQ(windows.at_peer(word, word, 1, 16), other.data() + 8);
  EXPECT_EQ(windows.at_peer(word, word, 1, 25), nullptr) << "beyond the other's end";
  EXPECT_EQ(windows.at_peer(word, 0, 1, 16), nullptr) << "rank 0 names another window";
  EXPECT_EQ(windows.word_of(own.data() + 60, 8), 0u);
  EXPECT_EQ(windows.word_of(other.data(), 8), 0u) << "memory of another rank";
}

TEST_F(WindowsTest, WithdrawnMemoryIsReachedNoMore) {
  std::vector<unsigned char> own(64), other(64);
  const uint64_t number = windows.add_reachable({own.data(), other.data()}, {64, 64});
  const uint64_t word = windows.word_of(own.data(), 64);
  windows.withdraw_reachable(number);
  EXPECT_EQ(windows.word_of(own.data(), 64), 0u);
  EXPECT_EQ(windows.at_peer(word, word, 1, 64), nullptr);
  EXPECT_EQ(windows.need(), Windows::Need::kAgree) << "other ranks may not have withdrawn theirs";
  EXPECT_NE(windows.add_reachable({own.data(), other.data()}, {64, 64}), number);
}

TEST_F(WindowsTest, WordsThatNameNoWindowLeadNowhere) {
  std::vector<unsigned char> own(64), other(64);
  windows.add_reachable({own.data(), other.data()}, {64, 64});
  for (const uint64_t word :
       {uint64_t{0}, uint64_t{1} << 48, uint64_t{0xffff} << 48, ~uint64_t{0}}) {
    EXPECT_EQ(windows.at_peer(word, word, 1, 1), nullptr) << word;
  }
}

}  // namespace
}  // namespace weir::comm
