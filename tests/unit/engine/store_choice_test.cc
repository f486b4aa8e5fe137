// SPDX-License-Identifier: Apache-2.0
// StoreChoice against a machine that is made up: what each kind of stores costs, and when it
// changes.
#include "core/engine/store_choice.h"

#include <gtest/gtest.h>

namespace weir::engine {
namespace {

class Machine {
 public:
  // ns per KiB.
  uint64_t plain = 100;
  uint64_t streamed = 40;
  int slow_every = 0;  // each such slice takes twice as long; 0: none

  // Share of plain slices. Each is an operation, or `per_operation` are.
  double run(StoreChoice& choice, int slices, int per_operation = 1) {
    int plain_slices = 0;
    for (int i = 0; i < slices; ++i) {
      if (i % per_operation == 0) choice.begin_operation([this] { return now_; });
      const bool streams = choice.streams();
      plain_slices += !streams;
      const bool slow = slow_every > 0 && i % slow_every == 0;
      const uint64_t ns = 64 * (streams ? streamed : plain) * (slow ? 2 : 1);
      now_ += ns;
      if (choice.measures()) choice.wrote(65536, ns, now_);
    }
    return static_cast<double>(plain_slices) / slices;
  }

 private:
  uint64_t now_ = 1;
};

TEST(StoreChoice, StaysPlainWhereCachesAreShared) {
  StoreChoice choice(4.5);
  Machine near;
  near.run(choice, 65);
  EXPECT_FALSE(choice.streams());
  EXPECT_GT(near.run(choice, 100'000), 0.95) << "trials cost too much";
}

TEST(StoreChoice, StreamsWherePlainStoresWaitForRoundTrips) {
  StoreChoice choice(4.5);
  Machine far;
  far.plain = 500;
  far.run(choice, 65);
  EXPECT_LT(far.run(choice, 1'000'000), 0.02) << "trials cost too much";
}

TEST(StoreChoice, StreamsOutputThatIsInNoCacheAndOnlyThat) {
  StoreChoice choice(1.1);
  Machine machine;
  machine.plain = 60;  // lines are fetched only to be overwritten
  machine.run(choice, 1'000);
  EXPECT_TRUE(choice.streams());
  machine.plain = 20;  // the caller uses the same buffer again and again
  machine.run(choice, 60'000);
  EXPECT_FALSE(choice.streams());
}

TEST(StoreChoice, FollowsAMachineThatChanges) {
  StoreChoice choice(4.5);
  Machine machine;
  machine.run(choice, 1'000);
  EXPECT_FALSE(choice.streams());
  machine.plain = 500;
  machine.run(choice, 10'000);
  EXPECT_TRUE(choice.streams());
  machine.plain = 100;
  machine.run(choice, 60'000);  // more than the time between two trials
  EXPECT_FALSE(choice.streams());
}

TEST(StoreChoice, OneInterruptedSliceDecidesNothing) {
  StoreChoice choice(4.5);
  Machine machine;
  machine.run(choice, 1'000);
  choice.wrote(65536, 50'000'000, 1'000'000'000);
  EXPECT_FALSE(choice.streams());
}

// What an operation of 64 slices finds in the caches is what the one before left there.
TEST(StoreChoice, AnOperationHasOneKindOfStores) {
  StoreChoice choice(1.1);
  Machine machine;
  for (int i = 0; i < 200; ++i) {
    const double plain = machine.run(choice, 64, 64);
    EXPECT_TRUE(plain == 0 || plain == 1) << plain;
  }
  EXPECT_TRUE(choice.streams());
}

// Slices that take twice as long now and then say nothing about the other kind.
TEST(StoreChoice, AnUnsteadyMachineChangesNothing) {
  StoreChoice choice(1.1);
  Machine machine;
  machine.plain = 40;
  machine.streamed = 42;
  machine.slow_every = 3;
  machine.run(choice, 65);
  EXPECT_GT(machine.run(choice, 500'000), 0.95);
}

}  // namespace
}  // namespace weir::engine
