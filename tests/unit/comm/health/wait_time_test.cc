// SPDX-License-Identifier: Apache-2.0
#include "core/comm/state/wait_time.h"

#include <gtest/gtest.h>

namespace weir::comm {
namespace {

constexpr uint64_t kTimeoutNs = 1000;

TEST(WaitTime, SilenceCountsFromTheBeginningOfTheWaitOrTheLatestWord) {
  WaitTime time;
  time.note(100, 100, kTimeoutNs);
  time.note(100, 200, kTimeoutNs);
  EXPECT_EQ(time.silent_ns(0, 300), 200u) << "not heard of in this wait";
  EXPECT_EQ(time.silent_ns(250, 300), 50u);
  EXPECT_EQ(time.silent_ns(400, 300), 0u) << "heard of later than now";
}

TEST(WaitTime, WhatThisThreadDidNotHearWhileItDidNotRunIsNoSilence) {
  WaitTime time;
  time.note(100, 100, kTimeoutNs);
  time.note(100, 100 + 250, kTimeoutNs);  // a quarter of the timeout between two looks is usual
  EXPECT_EQ(time.stalled_ns(), 0u);
  time.note(100, 350 + 650, kTimeoutNs);
  EXPECT_EQ(time.stalled_ns(), 400u);
  EXPECT_EQ(time.silent_ns(100, 1000), 500u);
}

TEST(WaitTime, AnotherWaitBeginsAnew) {
  WaitTime time;
  time.note(100, 100, kTimeoutNs);
  time.note(100, 5000, kTimeoutNs);
  EXPECT_GT(time.stalled_ns(), 0u);
  time.note(5000, 5000, kTimeoutNs);
  EXPECT_EQ(time.stalled_ns(), 0u);
  EXPECT_EQ(time.began_ns(), 5000u);
}

}  // namespace
}  // namespace weir::comm
