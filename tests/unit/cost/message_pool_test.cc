// SPDX-License-Identifier: Apache-2.0
#include "core/cost/message_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <random>
#include <utility>

#include "core/cost/signal_board.h"

namespace weir::cost {
namespace {

struct Message {
  uint32_t next = kNoMessage;
  uint64_t number = 0;
};

TEST(MessagePool, MessagesAreTakenInTheOrderInWhichTheirSenderPutThemForTheLane) {
  const char* given = std::getenv("WEIR_TEST_SEED");
  const unsigned seed = given != nullptr ? static_cast<unsigned>(std::strtoul(given, nullptr, 10))
                                         : std::random_device{}();
  std::printf("WEIR_TEST_SEED=%u\n", seed);
  std::mt19937 random(seed);
  MessagePool<Message> pool;
  std::map<std::pair<Rank, uint32_t>, std::deque<uint64_t>> queues;
  uint64_t waiting = 0;
  uint64_t most = 0;
  // First mostly more arrive than are taken, then fewer: the table grows, then queues leave it.
  for (uint64_t number = 0; number < 40000; ++number) {
    const Rank source = random() % 40;
    const uint32_t lane = random() % 40;
    std::deque<uint64_t>& queue = queues[{source, lane}];
    if (random() % 4 < (number < 20000 ? 3 : 1)) {
      const uint32_t index = pool.acquire();
      pool.at(index).number = number;
      pool.put(source, lane, index);
      queue.push_back(number);
      most = std::max(most, ++waiting);
      continue;
    }
    ASSERT_EQ(pool.has(source, lane), !queue.empty()) << number;
    const uint32_t index = pool.take(source, lane);
    ASSERT_EQ(index == kNoMessage, queue.empty()) << number;
    if (queue.empty()) continue;
    ASSERT_EQ(pool.at(index).number, queue.front());
    queue.pop_front();
    pool.release(index);
    --waiting;
  }
  EXPECT_EQ(pool.in_flight(), waiting);
  EXPECT_EQ(pool.peak(), most);
}

struct Signal {
  uint64_t time = 0;
};

TEST(SignalBoard, SignalsToAllAndToOneCountTogetherInTheOrderOfTime) {
  SignalBoard<Signal> board(2, 3);
  board.give_all(1, 2, {10});
  board.give(1, 7, 2, {20});
  board.give_all(1, 2, {30});
  const auto time_of = [&](Rank target, uint64_t value) -> uint64_t {
    const Signal* signal = board.find(1, 1, target, 2, value);
    return signal == nullptr ? 0 : signal->time;
  };
  EXPECT_EQ(time_of(7, 1), 10u);
  EXPECT_EQ(time_of(7, 2), 20u);
  EXPECT_EQ(time_of(7, 3), 30u);
  EXPECT_EQ(time_of(7, 4), 0u);
  EXPECT_EQ(time_of(8, 2), 30u);
  EXPECT_EQ(time_of(8, 3), 0u);
  // A rank for which rank 1 stands: what it gave to all ranks, and its own to one.
  board.give(5, 7, 2, {5});
  EXPECT_EQ(board.find(5, 1, 7, 2, 1)->time, 5u);
  EXPECT_EQ(board.find(5, 1, 7, 2, 3)->time, 30u);
  EXPECT_EQ(board.find(1, 1, 7, 1, 1), nullptr);
}

}  // namespace
}  // namespace weir::cost
