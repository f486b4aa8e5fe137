// SPDX-License-Identifier: Apache-2.0
#include "core/comm/state/wait.h"

#include <gtest/gtest.h>

#include "core/base/clock.h"

namespace weir::comm {
namespace {

// However many polls the policy allows: polls may be long.
TEST(Waiter, YieldsForAWhileOnlyAndBeginsAnewWhenSomethingMoved) {
  constexpr uint32_t kYields =
      4'000'000'000;  // of which no machine makes so many in the time below
  Waiter waiter(WaitPolicy{2, kYields, 50});
  for (int round = 0; round < 2; ++round) {
    const uint64_t end_ns = now_ns() + 60'000'000'000;
    EXPECT_FALSE(waiter.should_sleep());
    while (!waiter.should_sleep() && now_ns() < end_ns) (void)waiter.pause();
    EXPECT_TRUE(waiter.should_sleep());
    waiter.reset();
  }
}

}  // namespace
}  // namespace weir::comm
