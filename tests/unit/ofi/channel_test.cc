// SPDX-License-Identifier: Apache-2.0
// The order of a channel's operations, whatever order the provider finishes them in.
#include "plugins/ofi/channel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

namespace weir::plugins::ofi {
namespace {

uint64_t test_seed() {
  const char* text = getenv("WEIR_TEST_SEED");
  return text != nullptr ? strtoull(text, nullptr, 0) : std::random_device{}();
}

Op pending() {
  Op op{};
  op.state = kOpPending;
  return op;
}

TEST(OfiChannel, OperationsCompleteInOrderOfPostingInWhateverOrderTheyMove) {
  const uint64_t seed = test_seed();
  printf("WEIR_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 100; ++round) {
    Direction direction;
    std::vector<Op> ops(1 + random() % 30, pending());
    for (Op& op : ops) {
      direction.append(&op);
      direction.took_unposted();
      op.posted = 1;
    }
    std::vector<size_t> order(ops.size());
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    for (const size_t i : order) {
      direction.moved(&ops[i]);
      bool all_before = true;
      uint64_t done = 0;
      for (const Op& op : ops) {
        all_before = all_before && op.state != kOpPending;
        EXPECT_EQ(op.state == kOpDone, all_before);
        done += op.state == kOpDone ? 1 : 0;
      }
      EXPECT_EQ(direction.done(), done);
    }
    EXPECT_TRUE(direction.empty());
  }
}

TEST(OfiChannel, AFailureEndsItsOperationAndAllBehindItAndNoneBefore) {
  for (size_t failing = 0; failing < 6; ++failing) {
    for (size_t posted = 0; posted <= 6; ++posted) {
      Direction direction;
      std::vector<Op> ops(6, pending());
      for (Op& op : ops) direction.append(&op);
      for (size_t i = 0; i < posted; ++i) direction.took_unposted();
      std::vector<Op*> forgotten;
      direction.fail_from(&ops[failing], {.result = WEIR_ERROR_MISMATCH, .reason = ""},
                          [&](Op* op) { forgotten.push_back(op); });
      for (size_t i = 0; i < ops.size(); ++i) {
        EXPECT_EQ(ops[i].state,
                  i < failing ? kOpPending : kOpFailed + static_cast<uint64_t>(WEIR_ERROR_MISMATCH))
            << i << " of " << failing;
      }
      EXPECT_EQ(forgotten.size(), posted > failing ? posted - failing : 0);
      // Those before go on.
      EXPECT_EQ(direction.unposted(), posted < failing ? &ops[posted] : nullptr);
      while (direction.unposted() != nullptr) direction.took_unposted();
      for (size_t i = 0; i < failing; ++i) direction.moved(&ops[i]);
      EXPECT_TRUE(direction.empty());
      EXPECT_EQ(direction.done(), failing);
      EXPECT_EQ(direction.failure().result, WEIR_ERROR_MISMATCH);
    }
  }
}

TEST(OfiChannel, TheFirstFailureStays) {
  Direction direction;
  Op ops[2] = {pending(), pending()};
  for (Op& op : ops) direction.append(&op);
  direction.fail_from(&ops[1], {.result = WEIR_ERROR_MISMATCH, .reason = ""}, [](Op*) {});
  direction.fail_from(&ops[0], {.result = WEIR_ERROR_PEER_LOST, .reason = ""}, [](Op*) {});
  EXPECT_EQ(direction.failure().result, WEIR_ERROR_MISMATCH);
  EXPECT_EQ(ops[0].state, kOpFailed + static_cast<uint64_t>(WEIR_ERROR_PEER_LOST));
}

}  // namespace
}  // namespace weir::plugins::ofi
