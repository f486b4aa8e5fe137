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

  // Share of plain slices.
  double run(StoreChoice& choice, int slices) {
    int plain_slices = 0;
    for (int i = 0; i < slices; ++i) {
      const bool streams = choice.streams();
      plain_slices += !streams;
      const uint64_t ns = 64 * (streams ? streamed : plain);
      now_ += ns;
      choice.wrote(65536, ns, now_);
    }
    return static_cast<double>(plain_slices) / slices;
  }

 private:
  uint64_t now_ = 1;
};

TEST(StoreChoice, StaysPlainWhereCachesAreShared) {
  StoreChoice choice(4.5);
  Machine near;
  near.run(choice, 48);
  EXPECT_EQ(near.run(choice, 100'000), 1.0);
}

TEST(StoreChoice, StreamsWherePlainStoresWaitForRoundTrips) {
  StoreChoice choice(4.5);
  Machine far;
  far.plain = 500;
  far.run(choice, 48);
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
  machine.run(choice, 100);
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

}  // namespace
}  // namespace weir::engine
