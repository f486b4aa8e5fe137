// SPDX-License-Identifier: Apache-2.0
#include "core/sched/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "core/algo/check.h"
#include "core/sched/print.h"
#include "sched/problems.h"

namespace weir::sched {
namespace {

using testing::HasSubstr;

TEST(Json, EveryAlgorithmComesBackAsItWas) {
  for (const algo::Algorithm* algorithm : algo::all_algorithms()) {
    algo::for_each_problem(*algorithm, 5, {3}, [&](const algo::TestProblem& test) {
      const ProgramSet set{algo::access_of(test.get()), algo::compile_all(*algorithm, test.get())};
      const std::string text = to_json(set);
      const Result<ProgramSet> back = from_json(text);
      ASSERT_TRUE(back.ok()) << test.text << ": " << back.status().text();
      EXPECT_EQ(to_json(back.value()), text);
      ASSERT_EQ(back.value().programs.size(), set.programs.size());
      for (size_t rank = 0; rank < set.programs.size(); ++rank) {
        EXPECT_EQ(print(back.value().programs[rank]), print(set.programs[rank]));
      }
      const Verdict verdict =
          verify(back.value().programs, {.access = back.value().access, .credit = 1});
      EXPECT_TRUE(verdict.ok()) << verdict.flaw.text;
    });
  }
}

constexpr const char* kGood = R"({
  "format": "weir-programs", "version": 1, "collective": "all_reduce", "rank_count": 2,
  "shape": { "chunk_count": 1, "scratch_slots": 1 },
  "programs": [
    { "rank": 0, "ops": [ { "op": "send", "peer": 1, "src": ["in", 0] },
                          { "op": "recv", "peer": 1, "dst": ["scratch", 0] },
                          { "op": "reduce", "dst": ["out", 0],
                            "operands": [["in", 0], ["scratch", 0]] } ] },
    { "rank": 1, "ops": [ { "op": "send", "peer": 0, "src": ["in", 0] },
                          { "op": "recv", "peer": 0, "dst": ["scratch", 0] },
                          { "op": "reduce", "dst": ["out", 0],
                            "operands": [["scratch", 0], ["in", 0]] } ] } ] })";

std::string replaced(const std::string& from, const std::string& to) {
  std::string text = kGood;
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(Json, ReadsAProgramWrittenByHand) {
  const Result<ProgramSet> set = from_json(kGood);
  ASSERT_TRUE(set.ok()) << set.status().text();
  EXPECT_TRUE(verify(set.value().programs, {}).ok());
}

TEST(Json, ErrorsNameTheField) {
  struct Case {
    std::string text;
    const char* expected;
  };
  const Case cases[] = {
      {"", "not valid JSON"},
      {"[]", "document: must be an object, is array"},
      {"{}", "format: is missing"},
      {replaced("weir-programs", "other"), "format: must be \"weir-programs\""},
      {replaced("\"version\": 1", "\"version\": 2"), "version: 2 is not 1"},
      {replaced("all_reduce", "all_reduced"), "collective: \"all_reduced\" is not known"},
      {replaced("\"rank_count\": 2", "\"rank_count\": -2"), "rank_count: -2 is not in 0..4096"},
      {replaced("\"rank_count\": 2", "\"rank_count\": 3"), "programs: 2 entries for 3 ranks"},
      {replaced("\"rank_count\": 2", "\"rank_count\": 0"), "rank_count 0 is not in 1..4096"},
      {replaced("\"chunk_count\": 1", "\"chunk_count\": 1.5"),
       "shape.chunk_count: must be a whole number, is 1.5"},
      {replaced("\"chunk_count\": 1", "\"chunk_count\": 0"), "chunk_count 0 does not suit"},
      {replaced("\"scratch_slots\"", "\"scratch\""), "shape.scratch: unknown field"},
      {replaced("\"rank\": 1", "\"rank\": 0"), "programs[1].rank: is 0 and must be 1"},
      {replaced("\"op\": \"send\"", "\"op\": \"sent\""),
       "programs[0].ops[0].op: unknown operation \"sent\""},
      {replaced("\"peer\": 1, \"src\"", "\"peer\": \"1\", \"src\""),
       "programs[0].ops[0].peer: must be a whole number, is \"1\""},
      {replaced("\"peer\": 1, \"src\"", "\"src\""), "programs[0].ops[0].peer: is missing"},
      {replaced("[\"in\", 0]", "[\"input\", 0]"), "programs[0].ops[0].src[0]: unknown space"},
      {replaced("[\"in\", 0]", "[\"in\"]"), "programs[0].ops[0].src: must be [space, chunk]"},
      {replaced("[[\"in\", 0]", "[[\"in\", -1]"),
       "programs[0].ops[2].operands[0][1]: -1 is not in"},
      {replaced("\"peer\": 1, \"src\"", "\"lane\": 1, \"peer\": 1, \"src\""),
       "programs[0].ops[0].lane: 1 is not in 0..0"},
      {replaced("\"peer\": 1, \"src\"", "\"tag\": 1, \"peer\": 1, \"src\""),
       "programs[0].ops[0].tag: unknown field"},
  };
  for (const Case& test : cases) {
    const Result<ProgramSet> set = from_json(test.text);
    ASSERT_FALSE(set.ok()) << test.expected;
    EXPECT_EQ(set.status().code(), Code::kInvalidArgument);
    EXPECT_THAT(set.status().text(), HasSubstr(test.expected));
  }
}

// Whatever is done to the text, reading it ends with programs or an error, and the programs can be
// verified.
TEST(Json, DamagedTextNeverDoesHarm) {
  const char* seed_text = std::getenv("WEIR_TEST_SEED");
  const uint64_t seed = seed_text != nullptr ? std::strtoull(seed_text, nullptr, 10) : 7;
  RecordProperty("seed", std::to_string(seed));
  std::mt19937_64 random(seed);
  const std::string alphabet = "0123456789[]{}\",:-.einoutscraghdpk \n";
  int read_count = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string text = kGood;
    for (uint64_t i = 0; i <= random() % 4; ++i) {
      const size_t at = random() % text.size();
      switch (random() % 3) {
        case 0:
          text[at] = alphabet[random() % alphabet.size()];
          break;
        case 1:
          text.erase(at, 1 + random() % 8);
          break;
        default:
          text.insert(at, 1, alphabet[random() % alphabet.size()]);
          break;
      }
    }
    const Result<ProgramSet> set = from_json(text);
    if (!set.ok()) continue;
    ++read_count;
    const Verdict verdict = verify(set.value().programs, {.access = set.value().access});
    EXPECT_EQ(verdict.ok(), verdict.flaw.text.empty()) << "seed " << seed;
  }
  EXPECT_GT(read_count, 0) << "seed " << seed;
}

}  // namespace
}  // namespace weir::sched
