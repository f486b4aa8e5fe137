// SPDX-License-Identifier: Apache-2.0
// A rank of another host that comes again over another path of the network, as its root sees it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <thread>

#include "core/base/clock.h"
#include "core/comm/start/bootstrap_connection.h"
#include "core/comm/start/bootstrap_tree.h"
#include "unit/comm/start/bootstrap_support.h"

namespace weir::comm {
namespace {

using testing::HasSubstr;

Place loopback() {
  Place place;
  for (const unsigned char last : {1, 2}) {
    net::IpAddress address;
    address.family = 4;
    address.bytes = {127, 0, 0, last};
    place.addresses.push_back(address);
  }
  return place;
}

struct Heard {
  Message message;
  uint32_t round;
  std::string payload;
};

// Rank 1 of 2: one of its connections.
class Path {
 public:
  Path(const Secret& secret, uint32_t instance) {
    JoiningRank self{secret, 1, 2, deadline_in_ms(20'000)};
    self.instance = instance;
    for (uint32_t look = 0; link_ == nullptr && now_ns() < self.deadline_ns; ++look) {
      auto parent = connect_to_place(self, loopback(), look, nullptr);
      if (parent.ok()) link_ = std::move(parent.value().link);
    }
    EXPECT_NE(link_, nullptr);
  }

  void say(Message message, uint32_t round, std::string_view payload) {
    link_->queue({control::Frame::Kind::kStart, static_cast<uint8_t>(message), 0, round, payload});
    EXPECT_TRUE(link_->flush());
  }
  // The next message; nothing: the root has hung up, or says nothing for so long.
  std::optional<Heard> hear(uint64_t patience_ms = 20'000) {
    const uint64_t until_ns = deadline_in_ms(patience_ms);
    while (heard_.empty() && !ended_ && now_ns() < until_ns) {
      std::vector<pollfd> entries{{link_->fd(), POLLIN, 0}};
      EXPECT_TRUE(wait_for_events(&entries, until_ns).ok());
      ended_ = !link_->receive([this](const control::Frame& frame) {
        heard_.push_back(
            {static_cast<Message>(frame.detail), frame.version, std::string(frame.payload)});
        return true;
      });
    }
    if (heard_.empty()) return std::nullopt;
    Heard first = heard_.front();
    heard_.pop_front();
    return first;
  }
  // How many messages of this rank have come, as the root says to one that it knows.
  std::optional<uint32_t> known_count() {
    const auto admitted = hear();
    uint32_t count = 0;
    if (!admitted || admitted->message != Message::kAdmit) return std::nullopt;
    if (!unpack_count(admitted->payload, &count)) return std::nullopt;
    return count;
  }
  void expect(Message message, uint32_t round, std::string_view payload) {
    const auto next = hear();
    ASSERT_TRUE(next.has_value());
    EXPECT_EQ(next->message, message);
    EXPECT_EQ(next->round, round);
    EXPECT_EQ(next->payload, payload);
  }
  bool is_hung_up() { return !hear() && ended_; }

 private:
  std::unique_ptr<control::Link> link_;
  std::deque<Heard> heard_;
  bool ended_ = false;
};

std::string patient(std::string_view records) {
  std::string bytes(8, '\0');
  bytes[4] = 1;  // patience: 2^32 us
  return bytes + std::string(records);
}

// A path over which all have come, and the one over which rank 1 comes again.
struct TwoPaths {
  explicit TwoPaths(const Secret& secret) : first(secret, 77), second(secret, 77) {
    first.expect(Message::kAdmit, 0, "");
    first.expect(Message::kTake, 0, "");
    EXPECT_EQ(second.known_count(), 0u);
  }
  Path first;
  Path second;
};

// Rank 0, in a thread of its own.
class Root {
 public:
  Root(const Secret& secret, int rounds)
      : thread_([this, secret, rounds] {
          auto joined =
              Tree::join(secret, 0, 2, deadline_in_ms(20'000), loopback(), {.own_hosts = true});
          status_ = joined.status();
          for (int round = 0; joined.ok() && status_.ok() && round < rounds; ++round) {
            auto blobs = joined.value()->all_gather("zero", deadline_in_ms(20'000));
            status_ = blobs.status();
            if (blobs.ok()) blobs_.push_back(blobs.take());
          }
        }) {}
  ~Root() {
    if (thread_.joinable()) thread_.join();
  }
  Status finish() {
    thread_.join();
    return status_;
  }
  const std::vector<std::vector<std::string>>& blobs() const { return blobs_; }

 private:
  Status status_;
  std::vector<std::vector<std::string>> blobs_;
  std::thread thread_;
};

TEST(BootstrapPaths, NothingIsLostAndNothingComesTwiceWhereARankComesAgain) {
  const Secret secret = fresh_secret();
  Root root(secret, 2);
  Path first(secret, 77);
  first.expect(Message::kAdmit, 0, "");
  // What the root says over this path is lost, and the rank has said nothing.
  Path second(secret, 77);
  EXPECT_EQ(second.known_count(), 0u);
  second.say(Message::kAgain, 0, pack_count(0));
  second.expect(Message::kTake, 0, "");
  while (first.hear()) {
  }
  EXPECT_TRUE(first.is_hung_up());
  second.say(Message::kGive, 1, patient(record(1, "one")));
  second.expect(Message::kTake, 1, record(0, "zero") + record(1, "one"));
  second.say(Message::kHere, 0, "");
  second.say(Message::kGive, 2, patient(record(1, "two")));
  second.expect(Message::kTake, 2, record(0, "zero") + record(1, "two"));
  EXPECT_TRUE(root.finish().ok());
  ASSERT_EQ(root.blobs().size(), 2u);
  EXPECT_EQ(root.blobs()[0], (std::vector<std::string>{"zero", "one"}));
  EXPECT_EQ(root.blobs()[1], (std::vector<std::string>{"zero", "two"}));
}

TEST(BootstrapPaths, WhatALostPathHasCarriedIsNotAskedForAgain) {
  const Secret secret = fresh_secret();
  Root root(secret, 1);
  TwoPaths paths(secret);
  paths.second.say(Message::kAgain, 0, pack_count(1));
  paths.second.say(Message::kGive, 1, patient(record(1, "one")));
  paths.second.expect(Message::kTake, 1, record(0, "zero") + record(1, "one"));
  EXPECT_TRUE(root.finish().ok());
}

TEST(BootstrapPaths, ARankThatHasReceivedMoreThanWasSentIsNamed) {
  const Secret secret = fresh_secret();
  Root root(secret, 1);
  TwoPaths paths(secret);
  paths.second.say(Message::kAgain, 0, pack_count(9));
  const Status status = root.finish();
  EXPECT_EQ(status.code(), Code::kInternal);
  EXPECT_THAT(status.text(), HasSubstr("rank 1 of 2 (a process on another host) sent an unexpected"
                                       " frame before all_gather 1"));
}

TEST(BootstrapPaths, ATellerOfACountThatNobodyAskedForIsNamed) {
  const Secret secret = fresh_secret();
  Root root(secret, 1);
  Path path(secret, 77);
  path.expect(Message::kAdmit, 0, "");
  path.say(Message::kAgain, 0, pack_count(0));
  const Status status = root.finish();
  EXPECT_EQ(status.code(), Code::kInternal);
  EXPECT_THAT(status.text(), HasSubstr("sent an unexpected frame"));
}

// It may be of another start with the same secret.
TEST(BootstrapPaths, AnotherProcessIsHungUpOnOnceAllHaveCome) {
  const Secret secret = fresh_secret();
  Root root(secret, 1);
  Path path(secret, 77);
  path.expect(Message::kAdmit, 0, "");
  path.expect(Message::kTake, 0, "");
  Path other(secret, 78);
  EXPECT_TRUE(other.is_hung_up());
  path.say(Message::kGive, 1, patient(record(1, "one")));
  path.expect(Message::kTake, 1, record(0, "zero") + record(1, "one"));
  EXPECT_TRUE(root.finish().ok());
}

}  // namespace
}  // namespace weir::comm
