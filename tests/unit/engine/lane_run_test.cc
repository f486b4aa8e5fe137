// SPDX-License-Identifier: Apache-2.0
// LaneRun over a transport that the test plays: what is posted, and when.
#include "core/engine/lane_run.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "core/algo/algorithm.h"

namespace weir::engine {
namespace {

struct Posted {
  Rank peer;
  unsigned char* data;
  uint64_t bytes;
  weir_transport_op_t* op;
  bool arrived = false;
};

// What rank 0 has posted to receive, in order. Sends are complete at once.
std::vector<Posted> posted;

weir_result_t send(weir_transport_t*, uint32_t, uint32_t, const void*, uint64_t,
                   weir_transport_op_t*) {
  return WEIR_OK;
}

weir_result_t recv(weir_transport_t*, uint32_t peer, uint32_t, void* data, uint64_t bytes,
                   weir_transport_op_t* op) {
  posted.push_back({peer, static_cast<unsigned char*>(data), bytes, op});
  return WEIR_IN_PROGRESS;
}

weir_result_t test(weir_transport_t*, weir_transport_op_t* op) {
  for (size_t i = posted.size(); i-- > 0;) {
    if (posted[i].op == op) return posted[i].arrived ? WEIR_OK : WEIR_IN_PROGRESS;
  }
  return WEIR_ERROR_INTERNAL;
}

weir_result_t progress(weir_transport_t*) { return WEIR_OK; }

class Lanes : public testing::Test {
 protected:
  static constexpr Rank kRanks = 4;

  Lanes() {
    posted.clear();
    functions_.send = send;
    functions_.recv = recv;
    functions_.test = test;
    functions_.progress = progress;
    functions_.caps.lane_count = 8;
    context_.rank = 0;
    context_.rank_count = kRanks;
    context_.transport = &functions_;
    algo::Problem problem;
    problem.collective = call_.collective = Collective::kAllToAll;
    problem.rank_count = kRanks;
    problem.lengths = algo::BlockLengths::kKnownToEnds;
    call_.type = DataType::kUint8;
    call_.block_counts = send_counts_;
    call_.recv_counts = recv_counts_;
    call_.input = input_;
    call_.output = output_;
    const auto program = algo::compile(*algo::find_algorithm(Collective::kAllToAll, "linear"),
                                       problem, context_.rank);
    auto plan =
        LanePlan::bind(program, call_, 0, functions_.caps.lane_count - 1, false, Arithmetic::kIeee);
    EXPECT_TRUE(plan.ok()) << plan.status().text();
    plan_ = plan.take();
    run_.start(*plan_, call_, fingerprint(call_, context_.rank_count), context_);
  }

  void arrive(Rank peer, const void* data) {
    for (size_t i = posted.size(); i-- > 0;) {
      if (posted[i].peer != peer || posted[i].arrived) continue;
      std::memcpy(posted[i].data, data, posted[i].bytes);
      posted[i].arrived = true;
      return;
    }
    FAIL() << "nothing is posted for rank " << peer;
  }

  size_t waiting() const {
    size_t count = 0;
    for (const Posted& one : posted) count += !one.arrived;
    return count;
  }

  weir_transport_functions_t functions_{};
  Context context_;
  const size_t send_counts_[kRanks] = {1, 2, 3, 4};
  const size_t recv_counts_[kRanks] = {1, 5, 6, 7};
  unsigned char input_[10] = {9};
  unsigned char output_[19] = {};
  Call call_;
  std::unique_ptr<LanePlan> plan_;
  LaneRun run_;
};

TEST_F(Lanes, ReceivesThatFollowEachOtherArePostedTogetherAndEndInAnyOrder) {
  EXPECT_NE(run_.advance(context_), Advance::kFailed);
  EXPECT_EQ(waiting(), 3u) << "a header of each peer";
  std::vector<Rank> awaited;
  run_.collect_awaited(context_, &awaited);
  EXPECT_EQ(awaited, (std::vector<Rank>{1, 2, 3}));
  const unsigned char bytes[7] = {1, 2, 3, 4, 5, 6, 7};
  for (const Rank peer : {Rank{2}, Rank{1}, Rank{3}}) {
    arrive(peer, &run_.header());
    EXPECT_NE(run_.advance(context_), Advance::kFailed);
    EXPECT_EQ(posted.back().peer, peer) << "whose header is there sends its block next";
    EXPECT_EQ(posted.back().bytes, recv_counts_[peer]);
  }
  for (const Rank peer : {Rank{3}, Rank{1}}) arrive(peer, bytes);
  EXPECT_NE(run_.advance(context_), Advance::kDone);
  run_.collect_awaited(context_, &awaited);
  EXPECT_EQ(awaited, std::vector<Rank>{2});
  arrive(2, bytes);
  while (run_.advance(context_) == Advance::kMoved) continue;
  EXPECT_EQ(run_.advance(context_), Advance::kDone);
  const unsigned char expected[19] = {9, 1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6, 7};
  EXPECT_EQ(std::memcmp(output_, expected, sizeof expected), 0);
}

TEST_F(Lanes, AHeaderOfAnotherCallIsAMismatchWhoeverItIsFrom) {
  EXPECT_NE(run_.advance(context_), Advance::kFailed);
  LaneRun::Header other = run_.header();
  other.flag ^= 1;
  arrive(3, &other);
  EXPECT_EQ(run_.advance(context_), Advance::kFailed);
  EXPECT_EQ(run_.status().code(), Code::kMismatch);
  EXPECT_EQ(run_.other_rank(), 3u);
}

}  // namespace
}  // namespace weir::engine
