// SPDX-License-Identifier: Apache-2.0
// How an operation's route is chosen, as a user sees it: WEIR_EXPLAIN, rules in a file, forced
// algorithms, and measured costs that are kept for the next start.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "perf/command.h"
#include "support/attempts.h"

namespace weir::test {
namespace {

namespace fs = std::filesystem;

class Routing : public testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        fs::temp_directory_path() / ("weir-routing-" + std::to_string(getpid()) + "-" +
                                     testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder_);
    fs::permissions(folder_, fs::perms::owner_all);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name) << text;
    return (folder_ / name).string();
  }
  // Two ranks, all-reduce of 64 bytes and of 64 KiB, with what else `environment` says.
  CommandResult all_reduce(std::vector<std::string> environment) {
    environment.push_back("WEIR_EXPLAIN=1");
    environment.push_back("WEIR_CACHE_DIR=" + folder_.string());
    return run_tool("all_reduce_perf",
                    {"--ranks", "2", "-b", "64", "-e", "64K", "-f", "1024", "-n", "3", "-w", "1",
                     "--fixed-buffers"},
                    environment);
  }
  // What it tells once these parts are in it: a choice follows from what was measured at the start,
  // beside other work perhaps.
  std::string explained(const std::vector<std::string>& environment,
                        const std::vector<std::string>& parts) {
    std::string told;
    const auto has_all = [&] {
      return std::all_of(parts.begin(), parts.end(),
                         [&](const std::string& part) { return told.find(part) != told.npos; });
    };
    for (Attempts attempts; !has_all() && attempts.next();) {
      for (const fs::path& file : cached()) fs::remove(file);
      const CommandResult run = all_reduce(environment);
      EXPECT_EQ(run.status, 0) << run.out << run.err;
      told = run.err;
    }
    EXPECT_TRUE(has_all()) << told;
    return told;
  }
  std::vector<fs::path> cached() const {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      if (entry.path().extension() != ".toml") files.push_back(entry.path());
    }
    return files;
  }

  fs::path folder_;
};

size_t times(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST_F(Routing, ExplainPrintsEachDecisionOnceWithCandidatesReasonAndMeasuredTime) {
  const std::string told = explained({}, {"all_reduce of 64 B float32 on 2 ranks: direct",
                                          "all_reduce of 64 KiB float32 on 2 ranks: direct"});
  for (const char* size : {"64 B", "64 KiB"}) {
    const std::string call = std::string("all_reduce of ") + size + " float32 on 2 ranks: ";
    const size_t at = told.find(call);
    ASSERT_NE(at, std::string::npos) << told;
    const std::string decision = told.substr(at, told.find("\n\n", at) - at);
    // Which of the two is better for 64 KiB depends on the machine.
    const bool in_two = decision.starts_with(call + "direct_two_phase");
    const std::string chosen = in_two ? "direct_two_phase" : "direct";
    const std::string other = in_two ? "direct" : "direct_two_phase";
    EXPECT_NE(decision.find("  > " + chosen + " "), std::string::npos) << decision;
    EXPECT_NE(decision.find("    " + other + " "), std::string::npos) << decision;
    // After the first execution, and in the end for all of them.
    const size_t first = told.find(call + chosen + " predicted ");
    ASSERT_NE(first, std::string::npos) << told;
    const std::string line = told.substr(first, told.find('\n', first) - first);
    EXPECT_NE(line.find(", measured "), std::string::npos) << line;
    EXPECT_NE(line.find(" the first time"), std::string::npos) << line;
    const size_t last = told.rfind(call + chosen + " predicted ");
    EXPECT_NE(told.find(" on average of ", last), std::string::npos) << told;
    // What was not offered has its reason.
    EXPECT_NE(decision.find("window                       needs user windows"), std::string::npos)
        << decision;
    // Messages are predicted, like all else.
    const size_t ring = decision.find("    ring ");
    ASSERT_NE(ring, std::string::npos) << decision;
    const std::string messages = decision.substr(ring, decision.find('\n', ring) - ring);
    EXPECT_EQ(messages.find_last_of('s'), messages.size() - 1) << "a time: " << messages;
    EXPECT_NE(decision.find("forest                       has no trees here"), std::string::npos)
        << decision;
    EXPECT_EQ(times(told, call), 3u) << "a decision and two measurements: " << told;
  }
}

TEST_F(Routing, ExplainShowsTheAverageOverAllRanksBesideThatOfRankZero) {
  // Rank 0 does not wait for what the other one tells.
  std::string printed;
  for (Attempts attempts; times(printed, "; 2 of 2 ranks: ") < 2 && attempts.next();) {
    const CommandResult run = all_reduce({});
    ASSERT_EQ(run.status, 0) << run.out << run.err;
    printed = run.err;
  }
  const size_t at = printed.find("; 2 of 2 ranks: ");
  ASSERT_NE(at, std::string::npos) << printed;
  const std::string rest = printed.substr(at, printed.find('\n', at) - at);
  EXPECT_NE(rest.find(" at best, "), std::string::npos) << rest;
  EXPECT_NE(rest.find(" on average of "), std::string::npos) << rest;
}

// What is chosen follows from what was measured at the start, beside other work perhaps.
TEST_F(Routing, ExplainPrintsTheDecisionForBlocksThatDifferInLength) {
  for (const auto& [transport, winner] : {std::pair{"shm", "direct"}, std::pair{"tcp", "linear"}}) {
    std::string decision;
    const std::string wanted = std::string("  > ") + winner + " ";
    int measured = 0;
    for (Attempts attempts; times(decision, wanted) == 0 && attempts.next();) {
      const fs::path folder = folder_ / (transport + std::to_string(++measured));
      fs::create_directories(folder);
      fs::permissions(folder, fs::perms::owner_all);
      const CommandResult run = run_tool(
          "alltoallv_perf", {"--ranks", "3", "-b", "3000", "-e", "3000", "-n", "3", "-w", "1"},
          {"WEIR_EXPLAIN=1", "WEIR_CACHE_DIR=" + folder.string(),
           std::string("WEIR_TRANSPORT=") + transport});
      ASSERT_EQ(run.status, 0) << run.out << run.err;
      const size_t at = run.err.find("all_to_all_v of up to ");
      ASSERT_NE(at, std::string::npos) << run.err;
      decision = run.err.substr(at, run.err.find("\n\n", at) - at);
      EXPECT_NE(run.err.find(", measured ", at), std::string::npos) << run.err;
    }
    EXPECT_NE(decision.find(wanted), std::string::npos) << decision;
  }
}

TEST_F(Routing, ARuleOfTheUserIsFollowedInItsRangeAndNamed) {
  const std::string rules = write("rules.toml",
                                  "[[rule]]\n"
                                  "collective = \"all_reduce\"\n"
                                  "algorithm = \"ring\"\n"
                                  "bytes_min = \"4K\"\n"
                                  "slice_bytes = 8192\n");
  (void)explained({"WEIR_TUNING_FILE=" + rules},
                  {"all_reduce of 64 KiB float32 on 2 ranks: ring, rule of " + rules + ":1",
                   "slices of 8 KiB", "all_reduce of 64 B float32 on 2 ranks: direct, "});
}

TEST_F(Routing, AWrongRuleStopsEveryRankWithFileLineAndReason) {
  const std::string rules = write("rules.toml",
                                  "[[rule]]\n"
                                  "collective = \"all_reduce\"\n"
                                  "algorithm = \"rign\"\n");
  const CommandResult run = all_reduce({"WEIR_TUNING_FILE=" + rules});
  EXPECT_NE(run.status, 0);
  EXPECT_NE(run.err.find(rules + ":3"), std::string::npos) << run.err;
  EXPECT_NE(run.err.find("rign"), std::string::npos) << run.err;
}

TEST_F(Routing, AForcedAlgorithmIsUsedAndAnUnknownOneRefusedWithTheKnownOnes) {
  const CommandResult forced = all_reduce({"WEIR_ALGORITHM=all_reduce=ring"});
  EXPECT_EQ(forced.status, 0) << forced.err;
  // Of each size once out of place and once in place.
  EXPECT_EQ(times(forced.err, "ring, forced by WEIR_ALGORITHM"), 4u) << forced.err;
  const CommandResult unknown = all_reduce({"WEIR_ALGORITHM=all_reduce=rign"});
  EXPECT_NE(unknown.status, 0);
  EXPECT_NE(unknown.err.find("'rign' is not an algorithm of all_reduce; known:"), std::string::npos)
      << unknown.err;
}

TEST_F(Routing, WhatWasExploredIsKeptAndShownByWeirInfo) {
  const auto learn = [&](const std::string& set) {
    return run_tool("all_gather_perf",
                    {"--ranks", "3", "-b", "6K", "-e", "6K", "-n", "60", "-w", "1"},
                    {"WEIR_CACHE_DIR=" + folder_.string(), "WEIR_TRANSPORT=tcp", set});
  };
  ASSERT_EQ(learn("WEIR_LEARN=1").status, 0);
  const CommandResult shown = run_tool("weir-info", {"--decisions", folder_.string()});
  EXPECT_EQ(shown.status, 0) << shown.err;
  EXPECT_NE(shown.out.find("tcp: 3 ranks on one host"), std::string::npos) << shown.out;
  EXPECT_NE(shown.out.find("  all_gather of 6 KiB "), std::string::npos) << shown.out;
  EXPECT_NE(shown.out.find("    regret: predicted "), std::string::npos) << shown.out;
  const CommandResult json =
      run_tool("weir-info", {"--decisions", "--json"}, {"WEIR_CACHE_DIR=" + folder_.string()});
  EXPECT_EQ(json.status, 0) << json.err;
  EXPECT_NE(json.out.find("\"regret_predicted\""), std::string::npos) << json.out;
}

TEST_F(Routing, CostsAreMeasuredOnceAndTakenFromTheCacheAfterwards) {
  // What a busy machine measures is not always believed.
  for (Attempts attempts; cached().empty() && attempts.next();) {
    ASSERT_EQ(all_reduce({}).status, 0);
  }
  ASSERT_EQ(cached().size(), 1u);
  const fs::path file = cached()[0];
  struct stat before = {};
  ASSERT_EQ(stat(file.c_str(), &before), 0);
  EXPECT_EQ(before.st_mode & 0077, 0u) << "the cache is the user's own";
  ASSERT_EQ(all_reduce({}).status, 0);
  struct stat after = {};
  ASSERT_EQ(stat(file.c_str(), &after), 0);
  EXPECT_EQ(before.st_ino, after.st_ino) << "measured and written again";

  // A damaged cache costs a measurement and nothing else.
  const std::string damage = "{\"not\": ";
  std::ofstream(file, std::ios::trunc) << damage;
  for (Attempts attempts; fs::file_size(file) == damage.size() && attempts.next();) {
    EXPECT_EQ(all_reduce({}).status, 0);
  }
  EXPECT_NE(fs::file_size(file), damage.size());

  // Without the probe nothing is read or written.
  fs::remove(file);
  EXPECT_EQ(all_reduce({"WEIR_PROBE=0"}).status, 0);
  EXPECT_TRUE(cached().empty());
}

}  // namespace
}  // namespace weir::test
