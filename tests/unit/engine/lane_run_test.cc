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

// Both kinds of stores are tried.
TEST(LaneRun, ARanksOwnBlockArrivesInItsOutputInEachOfManyOperations) {
  constexpr size_t kBytes = 200'001;
  Context context;
  weir_transport_functions_t functions{};
  functions.progress = progress;
  context.rank_count = 1;
  context.transport = &functions;
  algo::Problem problem;
  problem.collective = Collective::kAllGather;
  std::vector<unsigned char> input(kBytes), output(kBytes + 1);
  Call call;
  call.collective = Collective::kAllGather;
  call.type = DataType::kUint8;
  call.count = kBytes;
  call.input = input.data();
  call.output = output.data();
  const auto program =
      algo::compile(*algo::find_algorithm(Collective::kAllGather, "ring"), problem, 0);
  auto plan = LanePlan::bind(program, call, 0, 1, false, Arithmetic::kIeee);
  ASSERT_TRUE(plan.ok()) << plan.status().text();
  LaneRun run;
  for (int i = 0; i < 100; ++i) {
    for (size_t k = 0; k < kBytes; ++k) input[k] = static_cast<unsigned char>(k * 7 + k / 251 + i);
    run.start(*plan.value(), call, fingerprint(call, 1), context);
    Advance advance = Advance::kMoved;
    while (advance == Advance::kMoved) advance = run.advance(context);
    ASSERT_EQ(advance, Advance::kDone);
    ASSERT_EQ(std::memcmp(input.data(), output.data(), kBytes), 0) << i;
    ASSERT_EQ(output[kBytes], 0);
  }
}

// Sends that are complete when their receiver has taken them, which the test decides.
struct Sent {
  weir_transport_op_t* op;
  bool taken = false;
};
std::vector<Sent> sent;

weir_result_t send_and_wait(weir_transport_t*, uint32_t, uint32_t, const void*, uint64_t,
                            weir_transport_op_t* op) {
  sent.push_back({op});
  return WEIR_IN_PROGRESS;
}

weir_result_t test_sent(weir_transport_t*, weir_transport_op_t* op) {
  for (size_t i = sent.size(); i-- > 0;) {
    if (sent[i].op == op) return sent[i].taken ? WEIR_OK : WEIR_IN_PROGRESS;
  }
  return WEIR_ERROR_INTERNAL;
}

// Otherwise what it sends early would take the links before what others have folded.
TEST(LaneRun, ARankAtTheEndOfATreeIsTwoSlicesOfALaneAheadOfItsReceiverAtMost) {
  constexpr Rank kRanks = 4;
  constexpr size_t kSlices = 16;
  constexpr uint64_t kSliceBytes = 64;
  sent.clear();
  weir_transport_functions_t functions{};
  functions.send = send_and_wait;
  functions.recv = recv;
  functions.test = test_sent;
  functions.progress = progress;
  Context context;
  context.rank = 1;
  context.rank_count = kRanks;
  context.transport = &functions;
  algo::Problem problem;
  problem.collective = Collective::kReduce;
  problem.rank_count = kRanks;
  const unsigned char input[kSlices * kSliceBytes] = {};
  Call call;
  call.collective = Collective::kReduce;
  call.type = DataType::kUint8;
  call.count = sizeof input;
  call.input = input;
  const auto program =
      algo::compile(*algo::find_algorithm(Collective::kReduce, "binomial"), problem, context.rank);
  for (const sched::Op& op : program.ops) ASSERT_EQ(op.code, sched::OpCode::kSend);
  for (const uint32_t lanes : {1u, 4u}) {
    sent.clear();
    auto plan = LanePlan::bind(program, call, kSliceBytes, lanes, false, Arithmetic::kIeee);
    ASSERT_TRUE(plan.ok()) << plan.status().text();
    LaneRun run;
    run.start(*plan.value(), call, fingerprint(call, kRanks), context);
    size_t taken = 0;
    Advance advance = Advance::kMoved;
    while (advance != Advance::kDone) {
      ASSERT_NE(advance, Advance::kFailed);
      EXPECT_LE(sent.size() - taken, 2u * lanes);
      if (advance == Advance::kBlocked) {
        ASSERT_LT(taken, sent.size()) << "nothing is under way";
        sent[taken++].taken = true;
      }
      advance = run.advance(context);
    }
    EXPECT_EQ(sent.size(), kSlices + lanes) << "and a header of each lane";
  }
}

}  // namespace
}  // namespace weir::engine
