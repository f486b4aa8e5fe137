// SPDX-License-Identifier: Apache-2.0
#include "core/comm/requests/requests.h"

#include <gtest/gtest.h>

#include <mutex>
#include <vector>

#include "unit/comm/parts_support.h"

namespace weir::comm {
namespace {

struct RequestsTest : testing::Test {
  CommState state;
  MappedRanks ranks{2, &state};
  PeerReports reports{state};
  Requests requests{state, reports};

  void begin(Request* request) {
    const std::lock_guard lock(state.lock);
    requests.begin(*request);
  }
  void complete(Request* request, const Status& status = {}) {
    const std::lock_guard lock(state.lock);
    requests.complete(*request, status);
  }
};

void count(void* context, weir_result_t result) {
  static_cast<std::vector<weir_result_t>*>(context)->push_back(result);
}

TEST_F(RequestsTest, OneIsUnderWayFromItsBeginningToItsEnd) {
  Request* request = requests.acquire();
  EXPECT_FALSE(requests.any());
  begin(request);
  EXPECT_TRUE(requests.any());
  complete(request, Status(Code::kTimeout, "late"));
  EXPECT_FALSE(requests.any());
  EXPECT_TRUE(request->done.load());
  EXPECT_EQ(request->status.code(), Code::kTimeout);
  requests.release(request);
  EXPECT_EQ(requests.acquire(), request) << "taken from the pool again";
  EXPECT_FALSE(request->done.load());
  EXPECT_TRUE(request->status.ok());
}

TEST_F(RequestsTest, WhatCouldNotBeStartedIsWithdrawn) {
  std::vector<weir_result_t> results;
  Request* request = requests.acquire();
  ASSERT_FALSE(requests.call_back(*request, {count, &results}).value());
  begin(request);
  EXPECT_TRUE(requests.any_with_callback());
  {
    const std::lock_guard lock(state.lock);
    requests.withdraw(*request);
  }
  EXPECT_FALSE(requests.any());
  EXPECT_FALSE(requests.any_with_callback());
  requests.end_unstarted(*request, Status(Code::kInvalidUsage, "no"));
  run_ready();
  EXPECT_EQ(results, std::vector<weir_result_t>{WEIR_ERROR_INVALID_USAGE});
}

TEST_F(RequestsTest, ACallbackIsCalledOnceAndASecondIsRefused) {
  std::vector<weir_result_t> results;
  Request* request = requests.acquire();
  begin(request);
  EXPECT_FALSE(requests.call_back(*request, {count, &results}).value());
  EXPECT_EQ(requests.call_back(*request, {count, &results}).status().code(), Code::kInvalidUsage);
  EXPECT_EQ(requests.next_with_callback(), request);
  complete(request);
  EXPECT_TRUE(results.empty()) << "it is not called under the lock";
  run_ready();
  run_ready();
  EXPECT_EQ(results, std::vector<weir_result_t>{WEIR_OK});
  EXPECT_EQ(requests.next_with_callback(), nullptr);
}

TEST_F(RequestsTest, OneThatNobodyHasWaitedForTellsLaterHowItEnded) {
  std::vector<weir_result_t> results;
  Request* finished = requests.acquire();
  Request* unfinished = requests.acquire();
  begin(finished);
  complete(finished);
  begin(unfinished);
  EXPECT_FALSE(requests.call_back(*unfinished, {count, &results}).value());
  requests.close(Status(Code::kAborted, "gone"));
  EXPECT_EQ(results, std::vector<weir_result_t>{WEIR_ERROR_ABORTED});
  EXPECT_EQ(finished->comm, nullptr);
  EXPECT_TRUE(Requests::end_of_left(finished).ok());
  EXPECT_EQ(Requests::end_of_left(unfinished).code(), Code::kAborted);
}

}  // namespace
}  // namespace weir::comm
