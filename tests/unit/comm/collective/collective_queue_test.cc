// SPDX-License-Identifier: Apache-2.0
// The queues of two ranks that share memory, polled in turn by one thread.
#include "core/comm/collective/collective_queue.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "core/cost/table.h"
#include "unit/comm/parts_support.h"

namespace weir::comm {
namespace {

// One rank's parts.
struct One {
  One(const MappedRanks& ranks, Rank rank) {
    ranks.join(rank, &state);
    reports.open(nullptr);
    engine::PlannerOptions options;
    options.table = cost::built_in_table();
    queue.open(std::make_unique<engine::Planner>(state.context, std::move(options)));
  }

  void enqueue(Request* request) {
    requests.begin(*request);
    queue.enqueue(*request);
  }

  CommState state;
  PeerReports reports{state};
  Requests requests{state, reports};
  Windows windows{state};
  CollectiveQueue queue{state, requests, windows};
};

struct CollectiveQueueTest : testing::Test {
  MappedRanks ranks{2};
  One a{ranks, 0};
  One b{ranks, 1};
  OperationFailure failure_of_a, failure_of_b;

  static engine::Call all_reduce(const std::vector<float>& in, std::vector<float>* out) {
    engine::Call call;
    call.collective = Collective::kAllReduce;
    call.type = DataType::kFloat32;
    call.count = in.size();
    call.input = in.data();
    call.output = out->data();
    return call;
  }

  // Until neither moves.
  void poll() {
    for (bool moved = true; moved && !failure_of_a.happened() && !failure_of_b.happened();) {
      moved = a.queue.poll(&failure_of_a);
      moved = b.queue.poll(&failure_of_b) || moved;
    }
  }
};

TEST_F(CollectiveQueueTest, CallsRunOneAfterTheOtherInTheOrderOfTheCalls) {
  const std::vector<float> ones(1000, 1.0f), twos(1000, 2.0f);
  std::vector<float> first_a(1000), first_b(1000), second_a(1000), second_b(1000);
  Request requests[4];
  requests[0].call = all_reduce(ones, &first_a);
  requests[1].call = all_reduce(first_a, &second_a);  // of the first one's result
  requests[2].call = all_reduce(twos, &first_b);
  requests[3].call = all_reduce(first_b, &second_b);
  a.enqueue(&requests[0]);
  a.enqueue(&requests[1]);
  poll();
  EXPECT_FALSE(requests[0].done.load()) << "the other rank has not called yet";
  std::vector<Rank> awaited;
  a.queue.collect_awaited(&awaited);
  EXPECT_EQ(awaited, std::vector<Rank>{1});
  EXPECT_EQ(a.queue.first(), &requests[0]);
  b.enqueue(&requests[2]);
  b.enqueue(&requests[3]);
  poll();
  for (const Request& request : requests) {
    EXPECT_TRUE(request.done.load());
    EXPECT_TRUE(request.status.ok()) << request.status.text();
  }
  EXPECT_TRUE(a.queue.is_empty());
  EXPECT_EQ(second_a, std::vector<float>(1000, 6.0f));
  EXPECT_EQ(second_b, std::vector<float>(1000, 6.0f));
}

TEST_F(CollectiveQueueTest, AWarmCallThatIsSlowGoesOnAsARequest) {
  const std::vector<float> ones(2, 1.0f);
  std::vector<float> out_a(2), out_b(2);
  const engine::Call call_a = all_reduce(ones, &out_a);
  EXPECT_EQ(a.queue.run_warm(call_a), CollectiveQueue::Warm::kRefused) << "it has no plan";
  {
    Request of_a, of_b;
    of_a.call = call_a;
    of_b.call = all_reduce(ones, &out_b);
    a.enqueue(&of_a);
    b.enqueue(&of_b);
    poll();
    ASSERT_TRUE(of_a.done.load() && of_b.done.load());
  }
  EXPECT_EQ(a.queue.run_warm(call_a), CollectiveQueue::Warm::kUnderWay);
  Request rest;
  rest.call = call_a;
  a.requests.begin_watch();
  a.queue.take_over(rest, CollectiveQueue::Warm::kUnderWay);
  EXPECT_EQ(a.queue.run_warm(call_a), CollectiveQueue::Warm::kRefused) << "another call runs";
  EXPECT_EQ(b.queue.run_warm(all_reduce(ones, &out_b)), CollectiveQueue::Warm::kDone);
  poll();
  EXPECT_TRUE(rest.done.load());
  EXPECT_FALSE(a.requests.any());
  EXPECT_EQ(out_a, std::vector<float>(2, 2.0f));
}

TEST_F(CollectiveQueueTest, AWarmCallOfSlotsRunsUnlessItIsLongOrWindowsMustBeAgreedOn) {
  for (const size_t count : {size_t{16'000}, size_t{1} << 20}) {
    const bool is_long = count > 16'000;
    const std::vector<float> ones(count, 1.0f);
    std::vector<float> out_a(count), out_b(count);
    const engine::Call call_a = all_reduce(ones, &out_a);
    const engine::Call call_b = all_reduce(ones, &out_b);
    {
      Request of_a, of_b;
      of_a.call = call_a;
      of_b.call = call_b;
      a.enqueue(&of_a);
      b.enqueue(&of_b);
      poll();
      ASSERT_TRUE(of_a.done.load() && of_b.done.load());
    }
    out_a.assign(count, 0.0f);
    out_b.assign(count, 0.0f);
    if (is_long) {
      EXPECT_EQ(a.queue.run_warm(call_a), CollectiveQueue::Warm::kRefused);
      continue;
    }
    EXPECT_EQ(a.queue.run_warm(call_a), CollectiveQueue::Warm::kUnderWay);
    Request rest;
    rest.call = call_a;
    a.requests.begin_watch();
    a.queue.take_over(rest, CollectiveQueue::Warm::kUnderWay);
    std::vector<Rank> awaited;
    a.queue.collect_awaited(&awaited);
    EXPECT_EQ(awaited, std::vector<Rank>{1});
    EXPECT_EQ(b.queue.run_warm(call_b), CollectiveQueue::Warm::kDone);
    poll();
    EXPECT_TRUE(rest.done.load());
    EXPECT_FALSE(a.requests.any());
    EXPECT_EQ(out_a, std::vector<float>(count, 2.0f));
    EXPECT_EQ(out_b, std::vector<float>(count, 2.0f));
    std::vector<unsigned char> memory(64);
    const uint64_t number =
        a.windows.add_reachable({memory.data(), memory.data()}, {memory.size(), memory.size()});
    EXPECT_EQ(a.queue.run_warm(call_a), CollectiveQueue::Warm::kRefused);
    a.windows.withdraw_reachable(number);
  }
}

TEST_F(CollectiveQueueTest, AnotherCallOfAPeerThatRunsWarmIsAFailure) {
  constexpr size_t kCount = 16'000;
  const std::vector<float> in(kCount, 1.0f);
  std::vector<float> out_a(kCount), out_b(kCount);
  {
    Request of_a, of_b;
    of_a.call = all_reduce(in, &out_a);
    of_b.call = all_reduce(in, &out_b);
    a.enqueue(&of_a);
    b.enqueue(&of_b);
    poll();
  }
  const std::vector<float> shorter(kCount - 1, 1.0f);
  Request of_b;
  of_b.call = all_reduce(shorter, &out_b);
  b.enqueue(&of_b);
  b.queue.poll(&failure_of_b);
  const engine::Call call_a = all_reduce(in, &out_a);
  ASSERT_EQ(a.queue.run_warm(call_a), CollectiveQueue::Warm::kOtherCalled);
  Request rest;
  rest.call = call_a;
  a.requests.begin_watch();
  a.queue.take_over(rest, CollectiveQueue::Warm::kOtherCalled);
  a.queue.fail_all(Status(Code::kMismatch, "different calls"));
  b.queue.fail_all(Status(Code::kMismatch, "different calls"));
  EXPECT_EQ(rest.status.text(), "different calls");
  EXPECT_TRUE(a.queue.is_empty());
}

TEST_F(CollectiveQueueTest, AnotherCallOfAPeerIsAFailureWithoutAText) {
  const std::vector<float> in(1000, 1.0f);
  const std::vector<float> shorter(999, 1.0f);
  std::vector<float> out_a(1000), out_b(1000);
  Request of_a, of_b;
  of_a.call = all_reduce(in, &out_a);
  of_b.call = all_reduce(shorter, &out_b);
  a.enqueue(&of_a);
  b.enqueue(&of_b);
  poll();
  const OperationFailure& failure = failure_of_a.happened() ? failure_of_a : failure_of_b;
  ASSERT_TRUE(failure.happened());
  EXPECT_EQ(failure.status.code(), Code::kMismatch);
  EXPECT_TRUE(failure.status.text().empty());
  EXPECT_EQ(failure.request, failure_of_a.happened() ? &of_a : &of_b);
  a.queue.fail_all(Status(Code::kMismatch, "different calls"));
  b.queue.fail_all(Status(Code::kMismatch, "different calls"));
  EXPECT_EQ(of_a.status.text(), "different calls");
  EXPECT_TRUE(a.queue.is_empty());
}

TEST_F(CollectiveQueueTest, ARequestThatRepeatsStaysAtTheHeadUntilItIsTakenOut) {
  const std::vector<float> in(4, 1.0f);
  std::vector<float> out_a(4), out_b(4);
  Request of_a, of_b, next_a;
  of_a.call = next_a.call = all_reduce(in, &out_a);
  of_b.call = all_reduce(in, &out_b);
  of_a.repeats = of_b.repeats = true;
  a.enqueue(&of_a);
  a.enqueue(&next_a);
  b.enqueue(&of_b);
  for (int round = 0; round < 3; ++round) {
    poll();
    ASSERT_TRUE(of_a.paused && of_b.paused) << round;
    EXPECT_FALSE(of_a.done.load());
    EXPECT_EQ(a.queue.first(), &of_a);
    of_a.paused = of_b.paused = false;
  }
  of_a.paused = true;
  a.queue.remove(of_a);
  EXPECT_EQ(a.queue.first(), &next_a);
  a.queue.fail_all(Status(Code::kAborted, "the end"));
  EXPECT_TRUE(next_a.done.load());
}

// An all_to_all_v of one rank of two: what it sends and what it receives, by rank.
struct Uneven {
  Uneven(size_t to_0, size_t to_1, size_t from_0, size_t from_1, float value)
      : counts{to_0, to_1},
        recv_counts{from_0, from_1},
        in(to_0 + to_1, value),
        out(from_0 + from_1, -1.0f) {
    call.collective = Collective::kAllToAll;
    call.type = DataType::kFloat32;
    call.block_counts = counts;
    call.recv_counts = recv_counts;
    call.input = in.data();
    call.output = out.data();
  }
  Uneven(const Uneven&) = delete;
  Uneven& operator=(const Uneven&) = delete;

  size_t counts[2], recv_counts[2];
  std::vector<float> in, out;
  engine::Call call;
};

TEST_F(CollectiveQueueTest, AWarmAllToAllVRunsAtOnceOrGoesOnAsARequestOnceItsBlocksArePublished) {
  using Warm = CollectiveQueue::Warm;
  Uneven of_a(1, 2, 1, 3, 1.0f), of_b(3, 1, 2, 1, 2.0f);
  EXPECT_EQ(a.queue.run_warm(of_a.call), Warm::kRefused) << "it has no plan";
  {
    Request first_a, first_b;
    first_a.call = of_a.call;
    first_b.call = of_b.call;
    a.enqueue(&first_a);
    b.enqueue(&first_b);
    poll();
    ASSERT_TRUE(first_a.done.load() && first_b.done.load());
  }
  for (int round = 0; round < 3; ++round) {
    of_a.out.assign(4, -1.0f);
    of_b.out.assign(3, -1.0f);
    ASSERT_EQ(a.queue.run_warm(of_a.call), Warm::kPublished);
    Request rest;
    rest.call = of_a.call;
    a.requests.begin_watch();
    a.queue.take_over(rest, Warm::kPublished);
    EXPECT_EQ(a.queue.run_warm(of_a.call), Warm::kRefused) << "another call is under way";
    EXPECT_EQ(b.queue.run_warm(of_b.call), Warm::kDone);
    poll();
    EXPECT_TRUE(rest.done.load());
    EXPECT_FALSE(a.requests.any());
    EXPECT_EQ(of_a.out, (std::vector<float>{1, 2, 2, 2}));
    EXPECT_EQ(of_b.out, (std::vector<float>{1, 1, 2}));
  }
}

TEST_F(CollectiveQueueTest, ShortBlocksThatWerePublishedAreNotReadIfAPeerHasALongOne) {
  using Warm = CollectiveQueue::Warm;
  constexpr size_t kLong = 5000;
  Uneven short_a(1, 2, 1, 3, 1.0f), short_b(3, 1, 2, 1, 2.0f);
  Uneven long_b(3, kLong, 2, kLong, 4.0f);  // to itself, which rank 0 cannot know
  for (Uneven* of_b : {&short_b, &long_b, &short_b}) {
    short_a.out.assign(4, -1.0f);
    Request request_a, request_b;
    request_a.call = short_a.call;
    request_b.call = of_b->call;
    const Warm warm = a.queue.run_warm(short_a.call);
    if (warm == Warm::kPublished) {
      a.requests.begin_watch();
      a.queue.take_over(request_a, warm);
    } else {
      ASSERT_EQ(warm, Warm::kRefused);
      a.enqueue(&request_a);
    }
    b.enqueue(&request_b);
    poll();
    ASSERT_TRUE(request_a.done.load() && request_b.done.load());
    const float sent = of_b->in[0];
    EXPECT_EQ(short_a.out, (std::vector<float>{1, sent, sent, sent}));
  }
}

TEST_F(CollectiveQueueTest, ABlockOfAnotherLengthThanItsReceiverExpectsIsNamed) {
  Uneven of_a(1, 2, 1, 3, 1.0f), of_b(4, 1, 2, 1, 2.0f);
  Request request_a, request_b;
  request_a.call = of_a.call;
  request_b.call = of_b.call;
  a.enqueue(&request_a);
  b.enqueue(&request_b);
  poll();
  ASSERT_TRUE(failure_of_a.happened());
  EXPECT_EQ(failure_of_a.status.code(), Code::kMismatch);
  EXPECT_NE(failure_of_a.status.text().find("rank 1 sends 4 elements to rank 0, which expects 3"),
            std::string::npos)
      << failure_of_a.status.text();
  a.queue.fail_all(Status(Code::kMismatch, "different lengths"));
  b.queue.fail_all(Status(Code::kMismatch, "different lengths"));
}

TEST_F(CollectiveQueueTest, ARankThatIsBehindPublishesItsEndsRarelyAndAllBeforeALongOperation) {
  std::vector<float> root(2000, 3.0f), copy(2000, -1.0f);
  const auto broadcast = [](size_t count, std::vector<float>* data) {
    engine::Call call;
    call.collective = Collective::kBroadcast;
    call.type = DataType::kFloat32;
    call.count = count;
    call.in_place = true;
    call.input = call.output = data->data();
    return call;
  };
  const auto finished_b = [&] { return b.state.context.control(1).done.position.load(); };
  for (int round = 0; round < 3; ++round) {
    for (int k = 0; k < 5; ++k) {
      Request request;
      request.call = broadcast(2, &root);
      a.enqueue(&request);
      a.queue.poll(&failure_of_a);
      ASSERT_TRUE(request.done.load()) << "the root works ahead";
    }
    int published = 0;
    for (int k = 0; k < 5; ++k) {
      const uint64_t before = finished_b();
      Request request;
      request.call = broadcast(2, &copy);
      b.enqueue(&request);
      b.queue.poll(&failure_of_b);
      ASSERT_TRUE(request.done.load());
      published += finished_b() != before ? 1 : 0;
    }
    EXPECT_LE(published, 1);
    copy.assign(2000, -1.0f);
    // Its slots lie where those of the lines lay: all ranks must have finished what was before.
    Request long_a, long_b;
    long_a.call = broadcast(2000, &root);
    long_b.call = broadcast(2000, &copy);
    a.enqueue(&long_a);
    b.enqueue(&long_b);
    poll();
    EXPECT_TRUE(long_a.done.load() && long_b.done.load());
    EXPECT_EQ(copy, root);
  }
}

}  // namespace
}  // namespace weir::comm
