// SPDX-License-Identifier: Apache-2.0
#include "core/cost/rules.h"

#include <gtest/gtest.h>

namespace weir::cost {
namespace {

constexpr const char* kGood = R"(
[[rule]]
collective = "all_reduce"
algorithm = "ring"
bytes_min = "64K"
bytes_max = 1048576
ranks_min = 2
ranks_max = 8
slice_bytes = "32K"

[[rule]]
collective = "all_reduce"
algorithm = "direct"
bytes_max = 65535

[[rule]]
collective = "broadcast"
algorithm = "binomial"
)";

TEST(Rules, ApplyWithinTheirInclusiveRanges) {
  const Result<Rules> parsed = parse_rules(kGood, "r.toml");
  ASSERT_TRUE(parsed.ok()) << parsed.status().text();
  const Rules& rules = parsed.value();
  const auto name = [&](Collective collective, uint64_t bytes, uint32_t ranks) -> std::string {
    const Rule* rule = rules.find(collective, bytes, ranks);
    return rule == nullptr ? "" : rule->algorithm->name;
  };
  EXPECT_EQ(name(Collective::kAllReduce, 65535, 100), "direct");
  EXPECT_EQ(name(Collective::kAllReduce, 65536, 2), "ring");
  EXPECT_EQ(name(Collective::kAllReduce, 1048576, 8), "ring");
  EXPECT_EQ(name(Collective::kAllReduce, 1048577, 8), "");
  EXPECT_EQ(name(Collective::kAllReduce, 65536, 9), "");
  EXPECT_EQ(name(Collective::kBroadcast, 0, 1), "binomial");
  EXPECT_EQ(name(Collective::kReduce, 0, 1), "");
  EXPECT_EQ(rules.rules[0].slice_bytes, 32768u);
  EXPECT_EQ(rules.rules[1].line, 11u);
}

TEST(Rules, AnEmptyFileHasNone) {
  const Result<Rules> parsed = parse_rules("# nothing\n", "r.toml");
  ASSERT_TRUE(parsed.ok());
  EXPECT_TRUE(parsed.value().rules.empty());
}

struct BadRule {
  const char* text;
  const char* error;  // one of the lines of the text begins with it
};

class BadRules : public testing::TestWithParam<BadRule> {};

TEST_P(BadRules, AreNamedWithFileLineAndReason) {
  const Result<Rules> parsed = parse_rules(GetParam().text, "r.toml");
  ASSERT_FALSE(parsed.ok()) << GetParam().text;
  EXPECT_EQ(parsed.status().code(), Code::kInvalidArgument);
  EXPECT_NE(("\n" + parsed.status().text()).find(std::string("\n") + GetParam().error),
            std::string::npos)
      << parsed.status().text();
}

constexpr BadRule kBad[] = {
    {"[[rule]\n", "r.toml:1: "},
    {"colour = 1\n", "r.toml:1: unknown key 'colour'"},
    {"rule = 1\n", "r.toml:1: 'rule' needs double brackets"},
    {"[rule]\ncollective = \"barrier\"\n", "r.toml:1: 'rule' needs double brackets"},
    {"[[rule]]\nalgorithm = \"ring\"\n", "r.toml:1: the rule has no 'collective'"},
    {"[[rule]]\ncollective = \"all_reduce\"\n", "r.toml:1: the rule has no 'algorithm'"},
    {"[[rule]]\ncollective = \"allreduce\"\nalgorithm = \"ring\"\n",
     "r.toml:2: unknown collective 'allreduce'; known are all_reduce"},
    {"[[rule]]\ncollective = \"all_reduce\"\n\nalgorithm = \"rign\"\n",
     "r.toml:4: unknown algorithm 'rign' of all_reduce; known are direct"},
    {"[[rule]]\ncollective = 3\nalgorithm = \"ring\"\n", "r.toml:2: 'collective' needs text"},
    {"[[rule]]\ncollective = \"all_reduce\"\nalgorithm = true\n",
     "r.toml:3: 'algorithm' needs text"},
    {"[[rule]]\ncollective = \"all_reduce\"\nalgorithm = \"ring\"\nbyte_min = 3\n",
     "r.toml:4: unknown key 'byte_min'"},
    {"[[rule]]\ncollective = \"all_reduce\"\nalgorithm = \"ring\"\nbytes_min = -3\n",
     "r.toml:4: 'bytes_min' needs bytes"},
    {"[[rule]]\ncollective = \"all_reduce\"\nalgorithm = \"ring\"\nbytes_min = 1.5\n",
     "r.toml:4: 'bytes_min' needs bytes"},
    {"[[rule]]\ncollective = \"all_reduce\"\nalgorithm = \"ring\"\nbytes_max = \"12Q\"\n",
     "r.toml:4: 'bytes_max' needs bytes"},
    {"[[rule]]\ncollective = \"all_reduce\"\nalgorithm = \"ring\"\nbytes_max = "
     "\"99999999999999999G\"\n",
     "r.toml:4: 'bytes_max' needs bytes"},
    {"[[rule]]\ncollective = \"all_reduce\"\nalgorithm = \"ring\"\nbytes_min = 9\nbytes_max = 8\n",
     "r.toml:4: empty range: bytes_min 9 is above bytes_max 8"},
    {"[[rule]]\ncollective = \"all_reduce\"\nalgorithm = \"ring\"\nranks_min = 4\nranks_max = 2\n",
     "r.toml:4: empty range: ranks_min 4 is above ranks_max 2"},
    {"[[rule]]\ncollective = \"all_reduce\"\nalgorithm = \"ring\"\nranks_min = 0\n",
     "r.toml:4: 'ranks_min' needs an integer >= 1"},
    {"[[rule]]\ncollective = \"all_reduce\"\nalgorithm = \"ring\"\nranks_max = \"8\"\n",
     "r.toml:4: 'ranks_max' needs an integer >= 1"},
    {"[[rule]]\ncollective = \"all_reduce\"\nalgorithm = \"ring\"\nslice_bytes = 100\n",
     "r.toml:4: 'slice_bytes' is 100; allowed are multiples of 64"},
    {"[[rule]]\ncollective = \"all_reduce\"\nalgorithm = \"ring\"\nbytes_max = 100\n"
     "[[rule]]\ncollective = \"all_reduce\"\nalgorithm = \"direct\"\nbytes_min = 100\n",
     "r.toml:5: overlaps with the rule of line 1: both apply to all_reduce of 100 bytes on 1"},
};

INSTANTIATE_TEST_SUITE_P(Each, BadRules, testing::ValuesIn(kBad));

TEST(Rules, EveryMistakeIsListed) {
  const Result<Rules> parsed = parse_rules(
      "[[rule]]\ncollective = \"x\"\nalgorithm = 1\n[[rule]]\nranks_min = 0\n", "r.toml");
  ASSERT_FALSE(parsed.ok());
  const std::string& text = parsed.status().text();
  EXPECT_NE(text.find("r.toml:2: "), std::string::npos) << text;
  EXPECT_NE(text.find("r.toml:5: "), std::string::npos) << text;
  EXPECT_NE(text.find("r.toml:4: the rule has no 'collective'"), std::string::npos) << text;
}

TEST(Rules, AMissingFileIsASystemErrorWithItsName) {
  const Result<Rules> loaded = load_rules("/nonexistent/rules.toml");
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.status().code(), Code::kSystem);
  EXPECT_NE(loaded.status().text().find("/nonexistent/rules.toml"), std::string::npos);
}

}  // namespace
}  // namespace weir::cost
