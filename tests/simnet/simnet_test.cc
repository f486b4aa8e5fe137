// SPDX-License-Identifier: Apache-2.0
// The real library over a simulated network, a few seeds of it; and that the simulation sees what it
// must see. The many seeds are in simnet_all_test.cc.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "simnet/job.h"

namespace weir::simnet {
namespace {

constexpr uint64_t kSeeds = 200;

uint64_t first_seed() {
  const char* text = std::getenv("WEIR_TEST_SEED");
  return text == nullptr ? 0 : std::strtoull(text, nullptr, 10);
}

// All of one rank's operations are an all-reduce of int32 that nobody splits, delays or fails.
Plan plain_plan(uint32_t rank_count, size_t count) {
  Plan plan;
  plan.seed = 1;
  plan.rank_count = rank_count;
  plan.host_of_rank.assign(rank_count, 0);
  plan.world.quiet_ns_max = 3000 * kMillisecond;
  Operation operation;
  operation.kind = Kind::kAllReduce;
  operation.type = WEIR_INT32;
  operation.count = count;
  plan.operations.assign(3, operation);
  return plan;
}

std::string all_of(const Verdict& verdict) {
  std::string text;
  for (const std::string& wrong : verdict.wrong) text += wrong + "\n";
  return text;
}

TEST(Simulation, EverySeedEndsAsItMust) {
  const uint64_t first = first_seed();
  RecordProperty("first_seed", std::to_string(first));
  for (uint64_t seed = first; seed < first + kSeeds; ++seed) {
    const Plan plan = draw_plan(seed);
    const Verdict verdict = run_job(plan);
    ASSERT_TRUE(verdict.wrong.empty()) << describe(plan, verdict);
  }
}

TEST(Simulation, TheSameSeedGivesTheSameTraceToTheByte) {
  std::string previous;
  for (uint64_t seed = first_seed(); seed < first_seed() + 40; ++seed) {
    const Verdict first = run_job(draw_plan(seed), true);
    const Verdict second = run_job(draw_plan(seed), true);
    ASSERT_EQ(first.trace, second.trace) << "seed " << seed;
    ASSERT_EQ(first.trace_hash, second.trace_hash) << "seed " << seed;
    ASSERT_EQ(first.trace_hash, run_job(draw_plan(seed), false).trace_hash) << "seed " << seed;
    ASSERT_FALSE(first.trace.empty());
    ASSERT_NE(first.trace, previous) << "seed " << seed << " does what the one before does";
    previous = first.trace;
  }
}

TEST(Simulation, AnotherProcessTellsTheSameTrace) {
  for (const uint64_t seed : {uint64_t{3}, uint64_t{4}, uint64_t{11}}) {
    const std::string command = fmt::format("{} {}", WEIR_SIMNET_REPLAY, seed);
    FILE* out = popen(command.c_str(), "r");
    ASSERT_NE(out, nullptr);
    std::string told;
    char buffer[4096];
    for (size_t got = 0; (got = fread(buffer, 1, sizeof buffer, out)) > 0;)
      told.append(buffer, got);
    EXPECT_EQ(pclose(out), 0) << "seed " << seed;
    const Verdict here = run_job(draw_plan(seed), true);
    EXPECT_NE(told.find(here.trace), std::string::npos) << "seed " << seed;
    EXPECT_NE(told.find(fmt::format("trace {:016x}\n", here.trace_hash)), std::string::npos);
  }
}

TEST(Simulation, AByteThatChangesOnItsWayIsSeen) {
  uint32_t seen = 0;
  const Plan whole = plain_plan(3, 500);
  ASSERT_EQ(all_of(run_job(whole)), "");
  for (uint64_t piece = 1; piece <= 12; ++piece) {
    Plan plan = whole;
    plan.fabric.damaged_piece = piece;
    const Verdict verdict = run_job(plan);
    if (!verdict.wrong.empty()) ++seen;
  }
  EXPECT_EQ(seen, 12u);
}

TEST(Simulation, WhenNothingMovesItSaysWhoWaitsForWhom) {
  Plan plan = plain_plan(3, 500);
  plan.paused = 1;
  plan.pause_at = 4;
  plan.pause_ns = kNever;
  const std::string wrong = all_of(run_job(plan));
  EXPECT_NE(wrong.find("nothing moves any more"), std::string::npos) << wrong;
  EXPECT_NE(wrong.find("bytes from rank 1"), std::string::npos) << wrong;
  EXPECT_EQ(wrong.find("bytes from rank 0 (lane 1, 0 of them there); rank 0 waits"),
            std::string::npos)
      << wrong;
}

TEST(Simulation, ADeadRankIsFoundOutWithinMilliseconds) {
  Plan plan = plain_plan(4, 500);
  plan.fault = Fault::kKill;
  plan.culprit = 2;
  plan.fault_at = 5;
  plan.timeout_ms = 20'000;
  plan.after = {plan.operations[0]};
  const Verdict verdict = run_job(plan);
  EXPECT_EQ(all_of(verdict), "");
  EXPECT_LT(verdict.virtual_ns, 2'000 * kMillisecond);
}

TEST(Simulation, ASeedThatGoesWrongPrintsTheCommandThatShowsIt) {
  Plan plan = plain_plan(2, 10);
  plan.seed = 77;
  plan.fabric.damaged_piece = 2;
  const std::string text = describe(plan, run_job(plan));
  EXPECT_NE(text.find("simnet_replay 77"), std::string::npos) << text;
  EXPECT_NE(text.find("all_reduce"), std::string::npos) << text;
}

}  // namespace
}  // namespace weir::simnet
