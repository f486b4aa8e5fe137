// SPDX-License-Identifier: Apache-2.0
// Ranks that are threads: what they get when all goes well, when some do not come, and when they
// contradict each other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "core/base/clock.h"
#include "core/base/rank_list.h"
#include "unit/comm/start/bootstrap_support.h"

namespace weir::comm {
namespace {

using testing::HasSubstr;
using testing::Not;

void expect_all_gathered(const std::vector<Outcome>& outcomes, int rounds, size_t blob_bytes) {
  const Rank rank_count = static_cast<Rank>(outcomes.size());
  const std::vector<std::string> expected = expected_blobs(rank_count, rounds, blob_bytes);
  for (Rank rank = 0; rank < rank_count; ++rank) {
    ASSERT_TRUE(outcomes[rank].status.ok()) << rank << ": " << outcomes[rank].status.text();
    ASSERT_TRUE(outcomes[rank].blobs == expected) << rank;
  }
}

void expect_same_error(const std::vector<Outcome>& outcomes, Code code) {
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.status.code(), code) << outcome.status.text();
    EXPECT_EQ(outcome.status.text(), outcomes[0].status.text());
  }
}

TEST(RankList, WritesRangesAsPeopleDo) {
  EXPECT_EQ(describe_ranks({}), "no rank");
  EXPECT_EQ(describe_ranks({3}), "rank 3");
  EXPECT_EQ(describe_ranks({3, 4}), "ranks 3, 4");
  EXPECT_EQ(describe_ranks({3, 5, 6, 7}), "ranks 3, 5-7");
  EXPECT_EQ(describe_ranks({0, 1, 2, 9, 11, 12, 13, 14}), "ranks 0-2, 9, 11-14");
}

TEST(RankList, StopsAfterSixteenItemsAndCountsTheRest) {
  std::vector<Rank> even;
  for (Rank rank = 0; rank < 100; rank += 2) even.push_back(rank);
  EXPECT_EQ(describe_ranks(even),
            "ranks 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30 and 34 more");
}

// A rank that waits for others, while they join and afterwards, does other work now and then.
TEST(Bootstrap, WhoWaitsDoesOtherWorkMeanwhile) {
  const Secret secret = fresh_secret();
  std::atomic<int> before{0};
  std::atomic<int> after{0};
  std::atomic<bool> have_joined{false};
  std::thread late([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    auto joined = Bootstrap::join(secret, 1, 2, deadline_in_ms(20'000));
    ASSERT_TRUE(joined.ok()) << joined.status().text();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    EXPECT_TRUE(joined.value()->all_gather("1", deadline_in_ms(20'000)).ok());
  });
  auto joined = Bootstrap::join(secret, 0, 2, deadline_in_ms(20'000), {},
                                {.meanwhile = [&] { have_joined ? ++after : ++before; }});
  have_joined = true;
  ASSERT_TRUE(joined.ok()) << joined.status().text();
  EXPECT_TRUE(joined.value()->all_gather("0", deadline_in_ms(20'000)).ok());
  late.join();
  EXPECT_GE(before, 3);
  EXPECT_GE(after, 3);
}

TEST(Bootstrap, OneRankOpensNothing) {
  const size_t before = open_descriptor_count();
  auto alone = Bootstrap::join(fresh_secret(), 0, 1, 0);
  ASSERT_TRUE(alone.ok());
  EXPECT_EQ(open_descriptor_count(), before);
  auto blobs = alone.value()->all_gather("mine", 0);
  ASSERT_TRUE(blobs.ok());
  EXPECT_EQ(blobs.value(), std::vector<std::string>{"mine"});
}

TEST(Bootstrap, EveryRankCountTo12GathersAllBlobs) {
  for (Rank rank_count = 1; rank_count <= 12; ++rank_count) {
    expect_all_gathered(play_all(fresh_secret(), all_ranks(rank_count), 3), 3, 0);
  }
}

TEST(Bootstrap, ThousandRoundsStayInStep) {
  expect_all_gathered(play_all(fresh_secret(), all_ranks(3), 1000, 10), 1000, 10);
}

TEST(Bootstrap, BlobsLargerThanASocketHoldsArriveWhole) {
  expect_all_gathered(play_all(fresh_secret(), all_ranks(4), 2, kBlobBytesMax - 100), 2,
                      kBlobBytesMax - 100);
}

TEST(Bootstrap, ABlobAboveTheLimitIsRefusedAndTheNextOneGoesThrough) {
  const Secret secret = fresh_secret();
  const auto rank = [&](Rank self) {
    auto joined = Bootstrap::join(secret, self, 2, deadline_in_ms(20'000));
    ASSERT_TRUE(joined.ok());
    auto refused =
        joined.value()->all_gather(std::string(kBlobBytesMax + 1, 'x'), deadline_in_ms(20'000));
    EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
    EXPECT_THAT(refused.status().text(), HasSubstr("1048577"));
    EXPECT_TRUE(
        joined.value()->all_gather(std::string(kBlobBytesMax, 'x'), deadline_in_ms(20'000)).ok());
  };
  std::thread other(rank, 1);
  rank(0);
  other.join();
}

TEST(Bootstrap, BlobsMayHoldAnyBytesAndNone) {
  const Secret secret = fresh_secret();
  const std::string all_bytes("\0WEIR\xff\n", 7);
  std::thread other([&] {
    auto joined = Bootstrap::join(secret, 1, 2, deadline_in_ms(20'000));
    ASSERT_TRUE(joined.ok());
    auto blobs = joined.value()->all_gather("", deadline_in_ms(20'000));
    ASSERT_TRUE(blobs.ok());
    EXPECT_EQ(blobs.value(), (std::vector<std::string>{all_bytes, ""}));
  });
  auto joined = Bootstrap::join(secret, 0, 2, deadline_in_ms(20'000));
  ASSERT_TRUE(joined.ok());
  EXPECT_TRUE(joined.value()->all_gather(all_bytes, deadline_in_ms(20'000)).ok());
  other.join();
}

TEST(Bootstrap, RanksThatTheRootHasNoRoomForGatherToo) {
  for (const Rank rank_count : {16u, 17u, 18u, 19u, 40u, 128u}) {
    expect_all_gathered(play_all(fresh_secret(), all_ranks(rank_count), 2, 100), 2, 100);
  }
}

TEST(Bootstrap, NoRankHoldsADescriptorPerRank) {
  // All ranks are threads: what is open is bounded for each of them, whatever their number.
  const Secret secret = fresh_secret();
  constexpr Rank kCount = 100;
  const size_t before = open_descriptor_count();
  std::atomic<Rank> joined_count = 0;
  std::atomic<bool> counted = false;
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < kCount; ++rank) {
    threads.emplace_back([&, rank] {
      auto joined = Bootstrap::join(secret, rank, kCount, deadline_in_ms(20'000));
      ASSERT_TRUE(joined.ok()) << joined.status().text();
      ++joined_count;
      while (!counted) sleep_ns(1'000'000, UINT64_MAX);
      EXPECT_TRUE(joined.value()->all_gather("x", deadline_in_ms(20'000)).ok());
    });
  }
  for (int i = 0; i < 20'000 && joined_count < kCount; ++i) sleep_ns(1'000'000, UINT64_MAX);
  // One connection for each rank but the root, with two ends.
  EXPECT_EQ(open_descriptor_count() - before, 2 * (kCount - 1));
  counted = true;
  for (std::thread& thread : threads) thread.join();
}

TEST(Bootstrap, CommunicatorsWithDifferentSecretsDoNotMeet) {
  std::vector<std::vector<Outcome>> outcomes(4);
  std::vector<std::thread> threads;
  for (auto& outcome : outcomes) {
    threads.emplace_back([&outcome] { outcome = play_all(fresh_secret(), all_ranks(5), 4); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& outcome : outcomes) expect_all_gathered(outcome, 4, 0);
}

TEST(Bootstrap, TheNameIsFreeAgainAtOnce) {
  const Secret secret = fresh_secret();
  for (int i = 0; i < 20; ++i) expect_all_gathered(play_all(secret, all_ranks(3), 1), 1, 0);
}

TEST(Bootstrap, SignalsOnlyInterruptTheWait) {
  struct sigaction tick = {};
  struct sigaction before = {};
  tick.sa_handler = [](int) {};  // and no SA_RESTART
  ASSERT_EQ(sigaction(SIGALRM, &tick, &before), 0);
  const itimerval often = {{0, 300}, {0, 300}};
  ASSERT_EQ(setitimer(ITIMER_REAL, &often, nullptr), 0);
  const auto outcomes = play_all(fresh_secret(), all_ranks(4), 20, 200'000);
  const itimerval never = {};
  setitimer(ITIMER_REAL, &never, nullptr);
  sigaction(SIGALRM, &before, nullptr);
  expect_all_gathered(outcomes, 20, 200'000);
}

TEST(Bootstrap, ArgumentsOutOfRangeAreNamed) {
  auto no_ranks = Bootstrap::join(fresh_secret(), 0, 0, 0);
  EXPECT_EQ(no_ranks.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(no_ranks.status().text(), HasSubstr("rank_count 0"));
  auto too_high = Bootstrap::join(fresh_secret(), 4, 4, 0);
  EXPECT_EQ(too_high.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(too_high.status().text(), HasSubstr("rank 4"));
}

TEST(Bootstrap, MissingRanksAreNamedTheSameWayOnAllThatCame) {
  const auto outcomes =
      play_all(fresh_secret(), {{0, 8, 1'000}, {1, 8, 1'000}, {2, 8, 1'000}, {4, 8, 1'000}});
  expect_same_error(outcomes, Code::kTimeout);
  EXPECT_THAT(outcomes[0].status.text(), HasSubstr("ranks 3, 5-7 of 8 have not joined"));
  for (const Outcome& outcome : outcomes) {
    EXPECT_GT(outcome.seconds, 0.7);
    EXPECT_LT(outcome.seconds, kAtOnceSeconds);
  }
}

TEST(Bootstrap, AMissingRank0IsNamedByEachOfTheOthers) {
  const auto outcomes = play_all(fresh_secret(), {{1, 3, 2'000}, {2, 3, 2'000}});
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.status.code(), Code::kTimeout);
    EXPECT_THAT(outcome.status.text(), HasSubstr("rank 0 of 3 has not joined"));
  }
}

// It cannot know that they were there.
TEST(Bootstrap, ARank0ThatFindsNobodyIsToldThatItMayBeLate) {
  const Secret secret = fresh_secret();
  const Status early = Bootstrap::join(secret, 1, 2, deadline_in_ms(300)).status();
  const Status late = Bootstrap::join(secret, 0, 2, deadline_in_ms(300)).status();
  EXPECT_THAT(early.text(), HasSubstr("rank 0 of 2 has not joined"));
  EXPECT_THAT(late.text(), HasSubstr("rank 1 of 2 has not joined"));
  EXPECT_THAT(late.text(), HasSubstr("; if rank 0 itself came late, the others had given up"));
}

TEST(Bootstrap, TheMostImpatientRankDecidesForAll) {
  const auto outcomes = play_all(fresh_secret(), {{0, 4, 20'000}, {1, 4, 20'000}, {3, 4, 1'500}});
  expect_same_error(outcomes, Code::kTimeout);
  EXPECT_THAT(outcomes[0].status.text(), HasSubstr("rank 2 of 4 has not joined"));
  for (const Outcome& outcome : outcomes) EXPECT_LT(outcome.seconds, kAtOnceSeconds);
}

TEST(Bootstrap, ARankThatDoesNotComeToAGatherIsNamedByAll) {
  const Secret secret = fresh_secret();
  std::vector<Outcome> outcomes(3);
  std::atomic<int> failed_count = 0;
  std::thread absent([&] {
    await_root(secret);
    auto joined = Bootstrap::join(secret, 2, 4, deadline_in_ms(20'000));
    ASSERT_TRUE(joined.ok());
    ASSERT_TRUE(joined.value()->all_gather("2:1:", deadline_in_ms(20'000)).ok());
    while (failed_count < 3) sleep_ns(1'000'000, UINT64_MAX);
    auto late = joined.value()->all_gather("late", deadline_in_ms(20'000));
    EXPECT_EQ(late.status().code(), Code::kTimeout);
    EXPECT_THAT(late.status().text(), HasSubstr("rank 2 of 4 has not reached all_gather 2"));
  });
  const auto rank = [&](Rank self, size_t slot) {
    auto joined = Bootstrap::join(secret, self, 4, deadline_in_ms(20'000));
    ASSERT_TRUE(joined.ok());
    ASSERT_TRUE(joined.value()->all_gather("x", deadline_in_ms(20'000)).ok());
    auto failed = joined.value()->all_gather("x", deadline_in_ms(2'000));
    ++failed_count;
    ASSERT_FALSE(failed.ok());
    outcomes[slot].status = failed.status();
    // Broken for good.
    EXPECT_EQ(joined.value()->all_gather("x", deadline_in_ms(10)).status().text(),
              failed.status().text());
  };
  std::thread one(rank, 1, 1);
  std::thread three(rank, 3, 2);
  rank(0, 0);
  one.join();
  three.join();
  absent.join();
  expect_same_error(outcomes, Code::kTimeout);
  EXPECT_THAT(outcomes[0].status.text(), HasSubstr("rank 2 of 4 has not reached all_gather 2"));
}

TEST(Bootstrap, ARankThatCannotGoOnEndsTheGatherOfAllWithItsReason) {
  const Secret secret = fresh_secret();
  const auto rank = [&](Rank self) {
    auto joined = Bootstrap::join(secret, self, 4, deadline_in_ms(20'000));
    ASSERT_TRUE(joined.ok());
    ASSERT_TRUE(joined.value()->all_gather("x", deadline_in_ms(20'000)).ok());
    const Status reason(Code::kUnsupported, "the link of rank 2");
    const Status status = self == 2
                              ? joined.value()->give_up(reason)
                              : joined.value()->all_gather("x", deadline_in_ms(20'000)).status();
    EXPECT_EQ(status.code(), Code::kUnsupported);
    EXPECT_EQ(status.text(), "the link of rank 2");
    // Who fails later has the first reason, too.
    const Status later = joined.value()->give_up(Status(Code::kPeerLost, "another one"));
    EXPECT_EQ(later.text(), "the link of rank 2");
  };
  std::vector<std::thread> threads;
  for (Rank self = 0; self < 4; ++self) threads.emplace_back(rank, self);
  for (std::thread& thread : threads) thread.join();
}

// A parent that is stopped can tell nobody the first reason.
TEST(Bootstrap, AParentThatTakesNoNoticeOfAFailureIsNamedInIt) {
  for (const bool stands_still : {true, false}) {
    const Secret secret = fresh_secret();
    std::atomic<bool> is_told = false;
    std::thread child([&] {
      await_root(secret);
      auto joined = Bootstrap::join(secret, 1, 2, deadline_in_ms(20'000));
      ASSERT_TRUE(joined.ok());
      ASSERT_TRUE(joined.value()->all_gather("x", deadline_in_ms(20'000)).ok());
      const Status told = joined.value()->give_up(Status(Code::kTimeout, "a guess"));
      is_told = true;
      EXPECT_EQ(told.code(), Code::kTimeout);
      EXPECT_THAT(told.text(), testing::StartsWith("a guess"));
      EXPECT_EQ(told.text().find("rank 0 of 2 (process") != std::string::npos, stands_still)
          << told.text();
    });
    auto joined = Bootstrap::join(secret, 0, 2, deadline_in_ms(20'000));
    ASSERT_TRUE(joined.ok());
    ASSERT_TRUE(joined.value()->all_gather("x", deadline_in_ms(20'000)).ok());
    Status seen;
    while (!is_told || (!stands_still && seen.ok())) {
      if (!stands_still && seen.ok()) seen = joined.value()->look();
      sleep_ns(1'000'000, UINT64_MAX);
    }
    child.join();
    if (!stands_still) {
      EXPECT_THAT(seen.text(), HasSubstr("a guess"));
    }
  }
}

TEST(Bootstrap, ADeadlineThatHasAlmostPassedIsToldAsTheWholeTimeoutAndWhatUsedItUp) {
  const uint64_t now = now_ns();
  auto joined = Bootstrap::join(fresh_secret(), 0, 2, now + 300'000'000, {},
                                {.began_ns = now - 29'700'000'000});
  EXPECT_EQ(joined.status().code(), Code::kTimeout);
  EXPECT_THAT(joined.status().text(),
              testing::ContainsRegex("rank 1 of 2 has not joined within [23][0-9.]* s, of which "
                                     "29.[0-9] s had passed when rank 0 began to wait"));
}

TEST(Bootstrap, ARankThatCameWithLittleTimeLeftIsSaidToHaveHadLittle) {
  const Secret secret = fresh_secret();
  Status patient;
  std::thread root(
      [&] { patient = Bootstrap::join(secret, 0, 3, deadline_in_ms(20'000)).status(); });
  await_root(secret);
  const Status hasty = Bootstrap::join(secret, 1, 3, deadline_in_ms(900)).status();
  root.join();
  EXPECT_EQ(patient.code(), Code::kTimeout);
  EXPECT_EQ(hasty.text(), patient.text());
  EXPECT_THAT(patient.text(), HasSubstr("rank 2 of 3 has not joined in time: another rank has the "
                                        "earliest deadline, of which 0."));
}

TEST(Bootstrap, ARankThatEndsBehindItsBlobIsALossOfTheNextRoundOnAllRanks) {
  const Secret secret = fresh_secret();
  std::unique_ptr<Bootstrap> root;
  std::thread joining([&] {
    auto joined = Bootstrap::join(secret, 0, 3, deadline_in_ms(20'000));
    ASSERT_TRUE(joined.ok());
    root = joined.take();
  });
  await_root(secret);
  Stranger two(secret);
  ASSERT_NE(shake_hands(&two, secret, 2, 3), "");
  Stranger one(secret);
  ASSERT_NE(shake_hands(&one, secret, 1, 3), "");
  joining.join();
  ASSERT_NE(root, nullptr);
  ASSERT_TRUE(one.receive());  // all have joined
  // All that follows lies before the root when it comes to the round.
  two.send(give(1, record(2, "2")));
  two.hang_up();
  one.send(give(1, record(1, "1")));
  auto first = root->all_gather("0", deadline_in_ms(20'000));
  ASSERT_TRUE(first.ok()) << first.status().text();
  EXPECT_EQ(first.value(), (std::vector<std::string>{"0", "1", "2"}));
  auto told = one.receive();
  ASSERT_TRUE(told);
  EXPECT_EQ(told->message, Message::kTake);
  EXPECT_FALSE(one.receive(200)) << "a word of failure for who has the result";
  auto second = root->all_gather("0", deadline_in_ms(20'000));
  EXPECT_EQ(second.status().code(), Code::kPeerLost);
  EXPECT_THAT(second.status().text(), HasSubstr("rank 2 of 3"));
  told = one.receive();
  ASSERT_TRUE(told);
  EXPECT_EQ(told->message, Message::kFailure);
}

TEST(Bootstrap, WhyARankGaveUpIsToldToAll) {
  const Secret secret = fresh_secret();
  std::string first_text;
  std::thread impatient([&] {
    auto joined = Bootstrap::join(secret, 1, 2, deadline_in_ms(20'000));
    ASSERT_TRUE(joined.ok());
    auto failed = joined.value()->all_gather("x", deadline_in_ms(20));
    EXPECT_EQ(failed.status().code(), Code::kTimeout);
    first_text = failed.status().text();
  });
  auto joined = Bootstrap::join(secret, 0, 2, deadline_in_ms(20'000));
  ASSERT_TRUE(joined.ok());
  impatient.join();
  auto failed = joined.value()->all_gather("x", deadline_in_ms(20'000));
  EXPECT_EQ(failed.status().code(), Code::kTimeout);
  EXPECT_EQ(failed.status().text(), first_text);
  // Either may be the root of the tree.
  EXPECT_THAT(first_text, testing::AnyOf(HasSubstr("did not answer rank 1 before all_gather 1"),
                                         HasSubstr("rank 0 of 2 has not reached all_gather 1")));
}

TEST(Bootstrap, TwoRanksWithOneNumberAreRefusedForAll) {
  const auto outcomes = play_all(fresh_secret(), {{0, 4}, {1, 4}, {1, 4}});
  expect_same_error(outcomes, Code::kRefused);
  EXPECT_THAT(outcomes[0].status.text(), HasSubstr("two ranks joined as rank 1 of 4"));
  EXPECT_THAT(outcomes[0].status.text(), HasSubstr("process " + std::to_string(getpid())));
}

TEST(Bootstrap, TwoRanks0AreRefusedForAll) {
  const auto outcomes = play_all(fresh_secret(), {{0, 4}, {0, 4}, {1, 4, 2'000}});
  for (const Outcome& outcome : {outcomes[0], outcomes[1]}) {
    EXPECT_EQ(outcome.status.code(), Code::kRefused) << outcome.status.text();
    EXPECT_THAT(outcome.status.text(), HasSubstr("two ranks joined as rank 0 of 4"));
  }
}

TEST(Bootstrap, DifferentRankCountsAreRefusedForAllThatCameAndBothAreNamed) {
  const Secret secret = fresh_secret();
  std::vector<Outcome> outcomes(3);
  std::thread zero([&] { outcomes[0] = play(secret, {0, 4}); });
  await_root(secret);
  std::thread one([&] { outcomes[1] = play(secret, {1, 4, 2'000}); });
  outcomes[2] = play(secret, {2, 5});
  zero.join();
  one.join();
  for (const Outcome& outcome : outcomes) {
    if (outcome.status.code() == Code::kTimeout) continue;  // came too late to be told
    EXPECT_EQ(outcome.status.code(), Code::kRefused) << outcome.status.text();
    EXPECT_THAT(outcome.status.text(), HasSubstr("rank 2"));
    EXPECT_THAT(outcome.status.text(), HasSubstr("rank_count 5"));
    EXPECT_THAT(outcome.status.text(), HasSubstr("rank_count 4"));
  }
  EXPECT_EQ(outcomes[0].status.code(), Code::kRefused);
  EXPECT_EQ(outcomes[2].status.code(), Code::kRefused);
}

TEST(Bootstrap, NoDescriptorIsLeftBehindByAnyOutcome) {
  (void)play_all(fresh_secret(), all_ranks(2));
  const size_t before = open_descriptor_count();
  (void)play_all(fresh_secret(), all_ranks(9), 3);
  (void)play_all(fresh_secret(), {{0, 4, 100}, {1, 4, 100}});
  (void)play_all(fresh_secret(), {{0, 4, 100}, {1, 4, 100}, {1, 4, 100}});
  (void)play_all(fresh_secret(), {{0, 4, 100}, {0, 4, 100}});
  (void)play_all(fresh_secret(), {{0, 4, 100}, {1, 5, 100}});
  (void)play_all(fresh_secret(), {{1, 4, 50}});
  EXPECT_EQ(open_descriptor_count(), before);
}

TEST(Bootstrap, NoErrorTellsTheSecret) {
  const Secret secret = fresh_secret();
  std::string hex;
  for (const unsigned char byte : secret.bytes) {
    hex.push_back("0123456789abcdef"[byte >> 4]);
    hex.push_back("0123456789abcdef"[byte & 15]);
  }
  const auto outcomes = play_all(secret, {{0, 3, 100}, {1, 3, 100}});
  for (const Outcome& outcome : outcomes) {
    EXPECT_THAT(outcome.status.text(), Not(HasSubstr(hex.substr(0, 8))));
  }
}

}  // namespace
}  // namespace weir::comm
