// SPDX-License-Identifier: Apache-2.0
// The kernel that moves messages, as a function of the host, on plain memory: ranks whose launches
// follow each other as in a stream, carried out in random turns. Whatever each rank puts into which
// launch, all end, and every byte arrives.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cuda/kernels/message_host.h"

namespace weir::kernels {
namespace {

using Random = std::mt19937_64;

size_t below(Random& random, size_t end) {
  return std::uniform_int_distribution<size_t>(0, end - 1)(random);
}

struct Message {
  uint32_t from;
  uint32_t to;
  std::vector<char> out;
  std::vector<char> in;
};

// The memory of a communicator.
class Ranks {
 public:
  Ranks(uint32_t n, uint64_t slot_bytes) : n_(n), slot_bytes_(slot_bytes), stops_(n) {
    lanes_.resize(size_t{n} * n * kMessageLanes);
    slots_.resize(size_t{n} * n, std::vector<char>(kMessageLanes * kMessageSlots * slot_bytes));
    streams_.resize(n);
  }

  // A launch of the rank with its ends of these messages, each of which is given by its number.
  void launch(uint32_t rank, std::vector<Message>& all, const std::vector<size_t>& numbers) {
    auto it = std::make_unique<Launch>();
    std::vector<std::vector<MessageData>> of_order;
    std::vector<std::pair<uint32_t, bool>> keys;
    for (const size_t number : numbers) {
      Message& message = all[number];
      for (const bool sends : {true, false}) {
        if ((sends ? message.from : message.to) != rank) continue;
        const std::pair key(sends ? message.to : message.from, sends);
        const auto known = std::find(keys.begin(), keys.end(), key);
        const auto at = static_cast<size_t>(known - keys.begin());
        if (known == keys.end()) {
          keys.push_back(key);
          of_order.emplace_back();
        }
        auto& buffer = sends ? message.out : message.in;
        of_order[at].push_back({buffer.data(), buffer.size()});
      }
    }
    for (size_t i = 0; i < keys.size(); ++i) {
      const auto [peer, sends] = keys[i];
      const size_t pair = sends ? rank * n_ + peer : peer * n_ + rank;
      MessageOrder order;
      order.fifo = slots_[pair].data();
      order.lanes = &lanes_[pair * kMessageLanes];
      order.first = static_cast<uint32_t>(it->messages.size());
      order.count = static_cast<uint32_t>(of_order[i].size());
      order.sends = sends ? 1 : 0;
      it->orders.push_back(order);
      it->messages.insert(it->messages.end(), of_order[i].begin(), of_order[i].end());
    }
    it->arguments.slot_bytes = slot_bytes_;
    it->arguments.stop = &stops_[rank];
    it->arguments.orders = it->orders.data();
    it->arguments.messages = it->messages.data();
    it->arguments.order_count = static_cast<uint32_t>(it->orders.size());
    it->arguments.message_count = static_cast<uint32_t>(it->messages.size());
    streams_[rank].push_back(std::move(it));
  }

  // In random turns. False: nothing moves any more, and something is left.
  bool run(Random& random) {
    for (;;) {
      bool any_left = false;
      bool any_moved = false;
      for (uint32_t turn = 0; turn < 3 * n_; ++turn) {
        const auto rank = static_cast<uint32_t>(below(random, n_));
        any_moved = advance(rank) || any_moved;
      }
      for (uint32_t rank = 0; rank < n_; ++rank) {
        any_moved = advance(rank) || any_moved;
        any_left = any_left || !streams_[rank].empty();
      }
      if (!any_left) return true;
      if (!any_moved) return false;
    }
  }

  void stop(uint32_t rank) { stops_[rank] = 1; }
  MessageLane& lane(uint32_t from, uint32_t to, uint32_t lane) {
    return lanes_[(from * n_ + to) * kMessageLanes + lane];
  }

 private:
  struct Launch {
    std::vector<MessageOrder> orders;
    std::vector<MessageData> messages;
    MessageArguments arguments;
    std::unique_ptr<MessageMover> mover;  // once the stream has come to it
  };

  // True when something moved or ended.
  bool advance(uint32_t rank) {
    auto& stream = streams_[rank];
    if (stream.empty()) return false;
    Launch& it = *stream.front();
    if (it.mover == nullptr) it.mover = std::make_unique<MessageMover>(it.arguments);
    bool any_moved = false;
    if (!it.mover->advance(&any_moved)) return any_moved;
    stream.pop_front();
    return true;
  }

  const uint32_t n_;
  const uint64_t slot_bytes_;
  std::vector<uint32_t> stops_;
  std::vector<MessageLane> lanes_;
  std::vector<std::vector<char>> slots_;
  std::vector<std::deque<std::unique_ptr<Launch>>> streams_;
};

std::vector<char> bytes_of(size_t count, size_t seed) {
  std::vector<char> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<char>(i * 31 + i / 251 + seed * 97);
  return bytes;
}

TEST(MessageKernel, StripesCoverEveryMessage) {
  for (uint64_t bytes = 0; bytes < 400000; bytes = bytes * 9 / 8 + 1) {
    const uint32_t lanes = lanes_of(bytes);
    EXPECT_GE(lanes, 1u);
    EXPECT_LE(lanes, kMessageLanes);
    uint64_t all = 0;
    for (uint32_t lane = 0; lane < lanes; ++lane) {
      EXPECT_EQ(stripe_begin(bytes, lane), all);
      EXPECT_TRUE(stripe_bytes(bytes, lane) > 0 || bytes == 0);
      all += stripe_bytes(bytes, lane);
    }
    EXPECT_EQ(all, bytes);
  }
}

TEST(MessageKernel, WhateverRanksPutIntoTheirLaunchesAllEndAndEveryByteArrives) {
  const char* const text = std::getenv("WEIR_TEST_SEED");
  const unsigned long first =
      text != nullptr ? std::strtoul(text, nullptr, 10) : std::random_device()();
  std::printf("WEIR_TEST_SEED=%lu\n", first);
  constexpr size_t kSizes[] = {0, 1, 255, 4000, 16384, 40000, 131072, 300001};
  for (unsigned long seed = first; seed < first + 150; ++seed) {
    SCOPED_TRACE("WEIR_TEST_SEED=" + std::to_string(seed));
    Random random(seed);
    const auto n = static_cast<uint32_t>(1 + below(random, 5));
    Ranks ranks(n, kMessageAlign << below(random, 5));
    for (int round = 0; round < 3; ++round) {
      std::vector<Message> all;
      for (size_t i = 0; i < 20; ++i) {
        const auto from = static_cast<uint32_t>(below(random, n));
        const auto to = static_cast<uint32_t>(below(random, n));
        const size_t size = kSizes[below(random, std::size(kSizes))];
        all.push_back({from, to, bytes_of(size, seed + i), std::vector<char>(size)});
      }
      for (uint32_t rank = 0; rank < n; ++rank) {
        std::vector<size_t> group;
        for (size_t i = 0; i < all.size(); ++i) {
          if (all[i].from != rank && all[i].to != rank) continue;
          group.push_back(i);
          if (below(random, 3) != 0) continue;
          ranks.launch(rank, all, group);
          group.clear();
        }
        if (!group.empty()) ranks.launch(rank, all, group);
      }
      ASSERT_TRUE(ranks.run(random));
      for (const Message& it : all) ASSERT_EQ(it.in, it.out);
    }
  }
}

TEST(MessageKernel, AMessageOfAnotherLengthIsToldAndNothingOfItIsTaken) {
  for (const size_t sent : {0, 1000, 200000}) {
    for (const size_t expected : {0, 999, 200001}) {
      if (sent == expected) continue;
      Random random(1);
      Ranks ranks(2, 4096);
      std::vector<Message> sends{{0, 1, bytes_of(sent, 1), {}}};
      std::vector<Message> receives{{0, 1, {}, std::vector<char>(expected, 7)}};
      ranks.launch(0, sends, {0});
      ranks.launch(1, receives, {0});
      EXPECT_FALSE(ranks.run(random));
      const MessageLane& lane = ranks.lane(0, 1, 0);
      EXPECT_EQ(lane.refused, 1u);
      EXPECT_EQ(lane.expected, expected);
      EXPECT_EQ(lane.bytes[lane.taken % kMessageSlots], sent);
      EXPECT_EQ(receives[0].in, std::vector<char>(expected, 7));
      for (const uint32_t rank : {0, 1}) ranks.stop(rank);
      EXPECT_TRUE(ranks.run(random));
    }
  }
}

TEST(MessageKernel, ARankThatIsStoppedEndsNowAndLater) {
  Random random(1);
  Ranks ranks(2, 256);
  std::vector<Message> all{{0, 1, bytes_of(100000, 1), std::vector<char>(100000)}};
  ranks.launch(0, all, {0});
  EXPECT_FALSE(ranks.run(random));
  EXPECT_EQ(ranks.lane(0, 1, 0).sends, 1u);
  EXPECT_EQ(ranks.lane(0, 1, 0).put - ranks.lane(0, 1, 0).taken, kMessageSlots);
  ranks.stop(0);
  EXPECT_TRUE(ranks.run(random));
  ranks.launch(0, all, {0});
  EXPECT_TRUE(ranks.run(random));
}

}  // namespace
}  // namespace weir::kernels
