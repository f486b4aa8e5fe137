// SPDX-License-Identifier: Apache-2.0
// What weir-info --decisions prints of a file that a run of 4 ranks over tcp left.
#include "weir_info/decisions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace weir::info {
namespace {

using testing::HasSubstr;

constexpr const char* kName = "decisions-v1-f947fd92a572e73c.json";

class DecisionsOfAFolder : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "weir_decisions_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string path(const std::string& name = kName) const { return directory_ + "/" + name; }
  void record(const std::string& name = kName) {
    std::filesystem::copy_file(std::string(WEIR_TEST_FIXTURES) + "/decisions/" + kName, path(name));
    ASSERT_EQ(chmod(path(name).c_str(), 0600), 0);
  }

  std::string directory_;
};

TEST_F(DecisionsOfAFolder, AreATableWithPredictedAndMeasuredTimesAndRegret) {
  record();
  const std::string text = text_of(read_decisions(directory_));
  EXPECT_THAT(text,
              testing::StartsWith(
                  path() + "\n  tcp: 4 ranks on one host with 2 cores; staging memory of 2097152 "
                           "bytes; topology bfc188713b44f414\n"));
  EXPECT_THAT(
      text,
      HasSubstr("  all_reduce of 256 KiB float32 on 4 ranks: recursive_halving_doubling, least "
                "predicted time\n"
                "      candidate                  predicted   calls       least     average      "
                "median\n"
                "    > recursive_halving_doubling   373.74 us      11   188.53 us   882.85 us   "
                "277.60 us\n"
                "      recursive_doubling         450.14 us       8   127.80 us     3.62 ms   "
                "358.67 us\n"));
  EXPECT_THAT(text, HasSubstr("      double_binary_tree         585.00 us       0           -"
                              "           -           -\n"
                              "    regret: predicted 1.00, measured 1.00\n"));
  EXPECT_THAT(text, HasSubstr("    regret: predicted 1.00, measured -\n")) << "hardly measured";
  EXPECT_THAT(text, HasSubstr("  regret measured over 3 of 4 decisions: geometric mean 1.000, "
                              "worst 1.00 (all_reduce of "));
}

TEST_F(DecisionsOfAFolder, AreTheSameAsJson) {
  record();
  const auto json = nlohmann::json::parse(json_of(read_decisions(directory_)));
  EXPECT_EQ(json["directory"], directory_);
  ASSERT_EQ(json["files"].size(), 1u);
  const auto& file = json["files"][0];
  EXPECT_EQ(file["name"], kName);
  EXPECT_EQ(file["error"], "");
  EXPECT_EQ(file["not_used"], "");
  EXPECT_EQ(file["ranks"], 4);
  ASSERT_EQ(file["decisions"].size(), 4u);
  EXPECT_EQ(file["regret_measured"]["decisions"], 3);
  for (const auto& decision : file["decisions"]) {
    EXPECT_EQ(decision["regret_predicted"], 1.0);
    const bool measured = decision["call"] == "all_reduce";
    EXPECT_EQ(decision["regret_measured"].is_number(), measured) << decision;
    for (const auto& candidate : decision["candidates"]) {
      EXPECT_EQ(candidate.contains("median_ns"), candidate["count"] > 0);
    }
  }
}

TEST(Regret, IsTheChoiceOverTheBestThatWasMeasuredOftenEnough) {
  cost::LearnedCall call;
  call.choice = "a";
  call.times = {{"a", 120, 20, 80, 110, 100}, {"b", 100, 20, 40, 60, 50}, {"c", 50, 7, 1, 1, 1}};
  EXPECT_DOUBLE_EQ(*regret_of(call).measured, 2);
  EXPECT_DOUBLE_EQ(*regret_of(call).predicted, 2.4);
  call.times[1].count = 7;
  EXPECT_FALSE(regret_of(call).measured) << "only the choice was measured";
  call.times[0].count = 7;
  call.times[1].count = 20;
  EXPECT_FALSE(regret_of(call).measured) << "the choice was not";
  cost::Learned learned;
  for (const double best : {50., 100., 25.}) {
    cost::LearnedCall one;
    one.shape.bytes = static_cast<uint64_t>(best);
    one.choice = "a";
    one.times = {{"a", 1, 20, 100, 100, 100}, {"b", 1, 20, best, best, best}};
    learned.calls.push_back(one);
  }
  learned.of.rank_count = 2;
  const RegretSummary summary = summary_of(learned);
  EXPECT_EQ(summary.call_count, 3u);
  EXPECT_DOUBLE_EQ(summary.mean, 2);
  EXPECT_DOUBLE_EQ(summary.worst, 4);
  EXPECT_EQ(summary.worst_call, "all_reduce of 25 B float32 on 2 ranks");
}

TEST_F(DecisionsOfAFolder, ThatCannotBeReadOrUsedSayWhy) {
  EXPECT_EQ(text_of(read_decisions(directory_)),
            "no decisions are kept in '" + directory_ + "'; WEIR_LEARN=1 keeps them\n");
  record();
  std::ofstream(path("decisions-v1-0000000000000001.json")) << "{";
  ASSERT_EQ(chmod(path("decisions-v1-0000000000000001.json").c_str(), 0600), 0);
  record("decisions-v1-0000000000000002.json");
  record("decisions-v1-0000000000000003.json");
  ASSERT_EQ(chmod(path("decisions-v1-0000000000000003.json").c_str(), 0622), 0);
  std::ofstream(path("tasks-v4-0000000000000004.json")) << "a table";
  const Decisions decisions = read_decisions(directory_);
  ASSERT_EQ(decisions.files.size(), 4u);
  EXPECT_THAT(decisions.files[0].error, HasSubstr("not a JSON object"));
  EXPECT_THAT(decisions.files[1].not_used, HasSubstr(std::string("belongs into ") + kName));
  EXPECT_THAT(decisions.files[2].error, HasSubstr("others may write"));
  EXPECT_EQ(decisions.files[3].error + decisions.files[3].not_used, "");
  const std::string text = text_of(decisions);
  EXPECT_THAT(text, HasSubstr("  cannot be read: "));
  EXPECT_THAT(text, HasSubstr("  not used: what it holds belongs into "));
}

TEST_F(DecisionsOfAFolder, CannotCommandATerminal) {
  record();
  std::ifstream input(path());
  std::string text((std::istreambuf_iterator<char>(input)), std::istreambuf_iterator<char>());
  input.close();
  const std::string key = "\"reason\": \"";
  const size_t at = text.find(key);
  ASSERT_NE(at, std::string::npos) << text;
  text.insert(at + key.size(), "\\u001b[2J");
  std::ofstream(path()) << text;
  const std::string shown = text_of(read_decisions(directory_));
  EXPECT_THAT(shown, HasSubstr("?[2J"));
  EXPECT_EQ(shown.find('\x1b'), std::string::npos);
}

TEST_F(DecisionsOfAFolder, ThatDoesNotExistAreAnError) {
  record();
  for (const std::string& wrong : {directory_ + "/none", path()}) {
    const Decisions decisions = read_decisions(wrong);
    EXPECT_EQ(decisions.directory, "");
    EXPECT_THAT(text_of(decisions), HasSubstr("is no folder"));
  }
}

TEST_F(DecisionsOfAFolder, AreThoseOfTheCacheWhereNoneIsNamed) {
  record();
  ASSERT_EQ(setenv("WEIR_CACHE_DIR", directory_.c_str(), 1), 0);
  EXPECT_EQ(read_decisions("").directory, directory_);
  EXPECT_EQ(read_decisions("").files.size(), 1u);
  unsetenv("WEIR_CACHE_DIR");
  unsetenv("XDG_CACHE_HOME");
  unsetenv("HOME");
  const Decisions none = read_decisions("");
  EXPECT_EQ(none.directory, "");
  EXPECT_THAT(text_of(none), HasSubstr("set WEIR_CACHE_DIR"));
}

}  // namespace
}  // namespace weir::info
