// SPDX-License-Identifier: Apache-2.0
#include "core/comm/start/learned_choices.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "core/algo/algorithm.h"

namespace weir::comm {
namespace {

class LearnedChoices : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "weir_choices_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    place_.directory = pattern;
    place_.of = {.topology_hash = 1, .transport = "tcp", .layout = "2 ranks", .rank_count = 2};
  }
  void TearDown() override { std::filesystem::remove_all(place_.directory); }

  // A log with one decision that explored two algorithms, and what both ranks measured.
  void run(double ring_ns, double tree_ns, int calls = 20, bool explores = true) {
    const algo::Algorithm* ring = algo::find_algorithm(Collective::kAllReduce, "ring");
    const algo::Algorithm* tree =
        algo::find_algorithm(Collective::kAllReduce, "double_binary_tree");
    cost::Request request;
    request.work.bytes = 4096;
    request.work.problem.rank_count = 2;
    cost::Decision decision;
    decision.algorithm = ring;
    decision.reason = "least predicted time";
    decision.candidates = {{ring, 900}, {tree, 1000}};
    if (explores) decision.explored = {ring, tree};
    cost::DecisionLog log;
    const uint64_t id = log.add(request, decision);
    for (int i = 0; i < calls; ++i) {
      log.measured(id, ring_ns, ring);
      log.measured(id, tree_ns, tree);
    }
    cost::TimesByKey all;
    for (const auto& one : log.find(id)->explored) {
      cost::RanksTimes& times = all[cost::times_key(*log.find(id), one.algorithm)];
      for (int rank = 0; rank < 2; ++rank) {
        times.add(one.times.count, one.times.least_ns, one.times.sum_ns,
                  one.times.middle_ns() * (rank == 0 ? 1 : 3));
      }
    }
    keep_learned(place_, log, all);
  }
  std::vector<cost::LearnedCall> kept() const {
    return cost::load_learned(place_.directory, place_.of).calls;
  }

  LearnedPlace place_;
};

TEST_F(LearnedChoices, AreKeptWithWhatAllRanksMeasured) {
  run(1000, 2000);
  ASSERT_EQ(kept().size(), 1u);
  const cost::LearnedCall call = kept()[0];
  EXPECT_EQ(call.choice, "ring");
  const cost::AlgorithmTime* tree = call.find("double_binary_tree");
  ASSERT_NE(tree, nullptr);
  EXPECT_EQ(tree->count, 20u);
  EXPECT_EQ(tree->predicted_ns, 1000);
  EXPECT_EQ(tree->average_ns, 2000);
  EXPECT_EQ(tree->middle_ns, 4000) << "the average over ranks of 2000 and 6000";
  run(1000, 2000);
  EXPECT_EQ(kept()[0].find("ring")->count, 40u);
}

TEST_F(LearnedChoices, StayTheSameWithinAProcess) {
  run(2000, 1000);
  const cost::LearnedTimes first = learned_times(place_);
  EXPECT_FALSE(first.empty());
  run(1000, 90'000, 2000);
  EXPECT_EQ(learned_times(place_).pack(), first.pack());
  EXPECT_NE(cost::LearnedTimes(kept()).pack(), first.pack()) << "the next process has others";
}

TEST_F(LearnedChoices, AreNotKeptWhereNothingWasExplored) {
  run(1000, 2000, 20, false);
  EXPECT_TRUE(cost::learned_files(place_.directory).empty());
}

TEST_F(LearnedChoices, ReplaceWhatCannotBeUsed) {
  run(1e6, 2e6);  // a thousand times what was predicted
  EXPECT_TRUE(kept().empty());
  run(1000, 2000);
  ASSERT_EQ(kept().size(), 1u);
  EXPECT_EQ(kept()[0].find("ring")->count, 20u);
}

TEST_F(LearnedChoices, AreLookedForOnlyWhereThereAreSome) {
  Settings settings{};
  settings.cache_dir = place_.directory;
  settings.probe = true;
  EXPECT_EQ(learned_directory(settings), "");
  settings.learn = true;
  EXPECT_EQ(learned_directory(settings), place_.directory);
  settings.hooks = "check";
  EXPECT_EQ(learned_directory(settings), "") << "hooks may delay on purpose";
  settings.hooks = "";
  settings.learn = false;
  run(1000, 2000);
  EXPECT_EQ(learned_directory(settings), place_.directory);
  settings.probe = false;
  EXPECT_EQ(learned_directory(settings), "") << "WEIR_PROBE=0: nothing that was measured";
}

TEST_F(LearnedChoices, AreToldBehindOtherBytes) {
  for (const std::string& learned : {std::string(), std::string("times\0and more", 14)}) {
    for (const std::string& before : {std::string(), std::string("table")}) {
      std::string told = append_learned(before, learned);
      std::string read = "other";
      ASSERT_TRUE(split_learned(&told, &read));
      EXPECT_EQ(told, before);
      EXPECT_EQ(read, learned);
    }
  }
  std::string read;
  for (std::string bad : {std::string(), std::string("abc"), std::string("\x01\x00\x00\x00", 4)}) {
    EXPECT_FALSE(split_learned(&bad, &read));
  }
}

}  // namespace
}  // namespace weir::comm
