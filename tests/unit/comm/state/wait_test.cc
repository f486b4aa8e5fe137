// SPDX-License-Identifier: Apache-2.0
#include "core/comm/state/wait.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <thread>

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

void compute(uint64_t ns) {
  timespec begin{}, now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
  do {
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  } while (static_cast<uint64_t>((now.tv_sec - begin.tv_sec) * 1'000'000'000 + now.tv_nsec -
                                 begin.tv_nsec) < ns);
}

// Another thread of the program, or another program, may be what the peers wait for.
TEST(Waiter, SpinsNoMoreWhereAnotherThreadWantsTheCore) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu) {
    if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  std::atomic<bool> over = false;
  std::atomic<bool> begun = false;
  std::thread other([&] {
    begun = true;
    while (!over) compute(10'000);
  });
  while (!begun) sched_yield();
  constexpr uint32_t kSpins = 10'000'000;  // half a second
  Waiter waiter(WaitPolicy{kSpins, 100});
  uint32_t polls = 0;
  for (; !waiter.yields(); ++polls) (void)waiter.pause();
  EXPECT_LT(polls, kSpins / 4);
  over = true;
  other.join();
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
}

uint64_t nap_ns(Waiter* waiter) {
  const uint64_t begin_ns = now_ns();
  waiter->sleep(SleepPlace{}, [] { return true; });
  return now_ns() - begin_ns;
}

// Otherwise the polls of many ranks would take a core from what they wait for.
TEST(Waiter, InACrowdNapsAsLongAsThePollsOfAllTheOthersTwice) {
  constexpr uint64_t kPollNs = 200'000;
  Waiter waiter(WaitPolicy{0, 0, 50, 20});
  uint64_t least_ns = UINT64_MAX;
  for (int i = 0; i < 20; ++i) {
    waiter.reset();
    (void)nap_ns(&waiter);
    compute(kPollNs);
    EXPECT_GE(nap_ns(&waiter), 40 * kPollNs);
    // What is done between two naps is no poll when something has moved.
    compute(kPollNs);
    waiter.reset();
    least_ns = std::min(least_ns, nap_ns(&waiter));
  }
  EXPECT_LT(least_ns, 20 * kPollNs);
}

}  // namespace
}  // namespace weir::comm
