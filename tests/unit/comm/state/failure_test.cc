// SPDX-License-Identifier: Apache-2.0
#include "core/comm/state/failure.h"

#include <gtest/gtest.h>

#include <vector>

namespace weir::comm {
namespace {

TEST(Failure, TheFirstErrorCounts) {
  Failure failure;
  EXPECT_FALSE(failure.is_set());
  EXPECT_TRUE(failure.status().ok());
  EXPECT_TRUE(failure.set(Status(Code::kPeerLost, "rank 2 died"), {2}));
  EXPECT_FALSE(failure.set(Status(Code::kTimeout, "later"), {1}));
  EXPECT_TRUE(failure.is_set());
  EXPECT_EQ(failure.code(), Code::kPeerLost);
  EXPECT_EQ(failure.status().text(), "rank 2 died");
  EXPECT_EQ(failure.blamed(), std::vector<Rank>{2});
  EXPECT_EQ(failure.text(), "rank 2 died");
}

TEST(Failure, AnErrorThatIsOnlyNotedBreaksNothing) {
  Failure failure;
  failure.note(Status(Code::kInvalidArgument, "a bad count"));
  EXPECT_FALSE(failure.is_set());
  EXPECT_EQ(failure.text(), "a bad count");
  EXPECT_FALSE(failure.abort_asked());
  failure.ask_abort();
  EXPECT_TRUE(failure.abort_asked());
  EXPECT_FALSE(failure.is_set());
}

}  // namespace
}  // namespace weir::comm
