// SPDX-License-Identifier: Apache-2.0
// The real library over a simulated network: thousands of seeds, each a job of its own with its own
// network, operations and faults. WEIR_TEST_SEED is the first of them, WEIR_TEST_SEEDS their
// number.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "simnet/job.h"

namespace weir::simnet {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kSeeds = 1000;  // each takes many times as long
#else
constexpr uint64_t kSeeds = 5000;
#endif
constexpr uint32_t kFailuresMax = 10;

uint64_t number_from(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

TEST(Simulation, EverySeedOfThousandsEndsAsItMust) {
  const uint64_t first = number_from("WEIR_TEST_SEED", 0);
  const uint64_t count = number_from("WEIR_TEST_SEEDS", kSeeds);
  uint64_t messages = 0;
  uint64_t virtual_ns = 0;
  uint32_t failures = 0;
  for (uint64_t seed = first; seed < first + count && failures < kFailuresMax; ++seed) {
    const Plan plan = draw_plan(seed);
    const Verdict verdict = run_job(plan);
    messages += verdict.message_count;
    virtual_ns += verdict.virtual_ns;
    if (!verdict.wrong.empty()) {
      ++failures;
      ADD_FAILURE() << describe(plan, verdict);
    }
    if (seed % 50 == 0) {
      EXPECT_EQ(verdict.trace_hash, run_job(plan).trace_hash)
          << "seed " << seed << " went another way the second time";
    }
  }
  fmt::print("seeds {} to {}: {} messages in {} virtual seconds\n", first, first + count - 1,
             messages, virtual_ns / 1'000'000'000u);
  EXPECT_GT(messages, count);
}

}  // namespace
}  // namespace weir::simnet
