// SPDX-License-Identifier: Apache-2.0
// Connections that come to a rank's door, and those of rails that are made after the meeting: both ends
// are in our hands, step by step.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "net/ip_socket.h"
#include "plugins/tcp/acceptor.h"
#include "plugins/tcp/bundle.h"
#include "plugins/tcp/joiner.h"
#include "plugins/tcp/rejoin.h"
#include "unit/plugin/pair.h"

namespace weir::plugins::tcp {
namespace {

constexpr uint64_t kPatienceNs = 60'000'000'000;

Identity identity(uint32_t rank) { return {wire::handshake_key("12345678", 8), 5, rank, 2}; }

Way way_to_listener(int* listener) {
  Way way;
  way.offer.address = {4, {127, 0, 0, 1}};
  *listener = net::listen_at(way.offer.address, &way.offer.port, 64);
  EXPECT_GE(*listener, 0);
  return way;
}

class TcpAcceptor : public testing::Test, public Acceptor::Owner {
 protected:
  TcpAcceptor() {
    way_ = way_to_listener(&listener_);
    acceptor_.add(listener_);
  }
  ~TcpAcceptor() override {
    for (const int fd : strangers_) close(fd);
  }
  bool may_come(const Handshake&) override { return true; }
  void join(const Handshake& shown, Stream stream, uint64_t) override {
    joined_.push_back(shown.lane());
    stream.close();
  }
  // Somebody who says nothing, and waits at the listener.
  void connect() {
    sockaddr_storage name;
    const socklen_t bytes = net::to_sockaddr(way_.offer.address, way_.offer.port, &name);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ASSERT_EQ(::connect(fd, reinterpret_cast<const sockaddr*>(&name), bytes), 0);
    strangers_.push_back(fd);
    pollfd entry = {listener_, POLLIN, 0};
    ASSERT_EQ(poll(&entry, 1, 60'000), 1);
  }
  void serve(uint64_t now_ns) {
    std::vector<pollfd> entries;
    acceptor_.append_entries(now_ns, &entries);
    ASSERT_EQ(entries.size(), acceptor_.entry_count());
    ASSERT_GE(poll(entries.data(), entries.size(), 0), 0);
    acceptor_.serve(entries.data(), now_ns, this);
  }
  bool was_closed(size_t stranger) {
    char byte;
    return recv(strangers_[stranger], &byte, 1, MSG_DONTWAIT) == 0;
  }
  // The latest one begins to prove itself.
  void say_hello() {
    const auto hello = wire::encode_nonce(wire::Kind::kHello, {});
    ASSERT_EQ(send(strangers_.back(), hello.bytes, hello.size, MSG_NOSIGNAL),
              static_cast<ssize_t>(hello.size));
  }
  bool is_challenged(size_t stranger) {
    unsigned char bytes[256];
    return recv(strangers_[stranger], bytes, sizeof bytes, MSG_DONTWAIT) > 0;
  }
  static bool awaits_closing(int fd) {
    pollfd entry = {fd, POLLIN, 0};
    return poll(&entry, 1, 60'000) == 1;
  }

  int listener_ = -1;
  Way way_;
  Acceptor acceptor_{identity(0), {.unproven_ns = 1'000'000'000, .unproven_count = 2}};
  std::vector<int> strangers_;
  std::vector<uint32_t> joined_;
};

TEST_F(TcpAcceptor, TheOldestGivesWayWhenThereAreTooMany) {
  for (int i = 0; i < 3; ++i) {
    connect();
    serve(1000);
  }
  EXPECT_TRUE(awaits_closing(strangers_[0]));
  EXPECT_TRUE(was_closed(0));
  EXPECT_FALSE(was_closed(1));
  EXPECT_FALSE(was_closed(2));
  EXPECT_NE(acceptor_.turned_away().text(false).find("1 silent"), std::string::npos);
}

TEST_F(TcpAcceptor, WhoSaysNothingGivesWayBeforeWhoHasBegun) {
  for (const bool speaks : {true, false, true}) {
    connect();
    if (speaks) say_hello();
    serve(1000);
  }
  EXPECT_TRUE(awaits_closing(strangers_[1]));
  EXPECT_TRUE(was_closed(1));
  EXPECT_TRUE(is_challenged(0));
  EXPECT_TRUE(is_challenged(2));
}

TEST_F(TcpAcceptor, WhoHasBegunKeepsItsPlaceForAWhile) {
  for (int i = 0; i < 3; ++i) {
    connect();
    say_hello();
    serve(1000);
  }
  EXPECT_TRUE(is_challenged(0));
  EXPECT_TRUE(is_challenged(1));
  const uint64_t room_ns = 1000 + net::kHeardSparedNs;
  EXPECT_EQ(acceptor_.next_event_ns(1000), room_ns);
  serve(room_ns - 1);
  EXPECT_FALSE(was_closed(0));
  EXPECT_FALSE(is_challenged(2));  // it waits to be accepted
  serve(room_ns);
  EXPECT_TRUE(awaits_closing(strangers_[0]));
  EXPECT_TRUE(was_closed(0));
  EXPECT_FALSE(was_closed(1));
  EXPECT_TRUE(is_challenged(2));
}

TEST_F(TcpAcceptor, WhoSaysNothingHasABoundedTime) {
  connect();
  serve(1000);
  EXPECT_EQ(acceptor_.next_event_ns(1000), 1'000'001'000u);
  serve(1'000'000'999);
  EXPECT_FALSE(was_closed(0));
  serve(1'000'001'000);
  EXPECT_TRUE(awaits_closing(strangers_[0]));
  EXPECT_FALSE(acceptor_.has_visitors());
}

TEST_F(TcpAcceptor, WhoProvesHimselfIsHandedOver) {
  int error_number = 0;
  auto attempt = begin_attempt(identity(1), way_, 0, 3, &error_number);
  ASSERT_TRUE(attempt) << error_number;
  Step step = Step::kGoesOn;
  for (const uint64_t end = monotonic_ns() + kPatienceNs;
       step == Step::kGoesOn && monotonic_ns() < end;) {
    serve(1000);
    pollfd entry = {attempt->stream.fd(), attempt->events(), 0};
    if (poll(&entry, 1, 1) <= 0) continue;
    step = attempt->move(&error_number);
    attempt->handshake.prove();
  }
  EXPECT_EQ(step, Step::kProven);
  EXPECT_EQ(joined_, std::vector<uint32_t>{3});
  attempt->stream.close();
}

// Two ranks of which rank 1 connects, with three rails; the control connections are there.
class TcpOpening : public testing::Test {
 protected:
  static constexpr uint32_t kRails = 3;

  TcpOpening() {
    int listener = -1;
    const Way way = way_to_listener(&listener);
    for (uint32_t i = 0; i < 2; ++i) {
      auto acceptor = std::make_unique<Acceptor>(identity(i));
      if (i == 0) acceptor->add(listener);
      joiner_[i] = std::make_unique<Joiner>(identity(i), std::move(acceptor));
      rejoin_[i] = std::make_unique<Rejoin>(Report(), joiner_[i].get());
      joiner_[i]->set_owners(rejoin_[i].get(), nullptr);
    }
    for (uint32_t rail = 0; rail < kRails; ++rail) {
      int data[2], control[2];
      EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, control), 0);
      if (rail == 0) {
        EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, data), 0);
      }
      for (int i = 0; i < 2; ++i) {
        if (rail == 0) bundle_[i].attach(0, Stream(data[i]), Stream(control[i]), 0);
        if (rail != 0) bundle_[i].attach_control(rail, Stream(control[i]));
      }
    }
    rejoin_[0]->add(1, &bundle_[0]);
    rejoin_[1]->add(0, &bundle_[1], std::vector<Way>(kRails, way));
  }
  void step(int rank) {
    bundle_[rank].drive();
    rejoin_[rank]->step(monotonic_ns());
  }
  void cut(uint32_t rail) {
    for (Bundle& bundle : bundle_) {
      if (bundle.data_stream(rail).fd() >= 0) shutdown(bundle.data_stream(rail).fd(), SHUT_RDWR);
      if (bundle.control(rail).fd() >= 0) shutdown(bundle.control(rail).fd(), SHUT_RDWR);
    }
  }
  bool all_carry() {
    for (const Bundle& bundle : bundle_) {
      if (bundle.any_down() || bundle.resting_count() > 0) return false;
    }
    return true;
  }
  // Until all rails carry; `meanwhile` is called before each step.
  template <typename Meanwhile>
  void await_all(Meanwhile meanwhile) {
    for (const uint64_t end = monotonic_ns() + kPatienceNs; !all_carry();) {
      ASSERT_LT(monotonic_ns(), end) << "a rail does not come";
      meanwhile();
      step(0);
      step(1);
    }
  }
  void post(size_t bytes) {
    out_.resize(bytes);
    in_.assign(bytes, 0);
    for (size_t i = 0; i < bytes; ++i) out_[i] = static_cast<unsigned char>(i * 7 + i / 251);
    recv_op_ = send_op_ = {};
    (void)bundle_[1].post_recv(2, in_.data(), bytes, &recv_op_);
    (void)bundle_[0].post_send(2, out_.data(), bytes, &send_op_);
  }
  void expect_message() {
    for (const uint64_t end = monotonic_ns() + kPatienceNs;
         (recv_op_.state == kOpPending || send_op_.state == kOpPending) && monotonic_ns() < end;) {
      step(0);
      step(1);
    }
    EXPECT_EQ(recv_op_.state, kOpDone);
    EXPECT_EQ(send_op_.state, kOpDone);
    EXPECT_TRUE(in_ == out_);
  }

  std::unique_ptr<Joiner> joiner_[2];
  std::unique_ptr<Rejoin> rejoin_[2];
  Bundle bundle_[2] = {Bundle(kRails), Bundle(kRails)};
  std::vector<unsigned char> out_, in_;
  Op send_op_{}, recv_op_{};
};

TEST_F(TcpOpening, RailsThatAreNotNeededGoOnResting) {
  post(Bundle::kEagerBytes);
  expect_message();
  for (int i = 0; i < 100; ++i) {
    step(0);
    step(1);
  }
  EXPECT_EQ(bundle_[0].resting_count(), kRails - 1);
  EXPECT_FALSE(joiner_[1]->is_busy());
}

TEST_F(TcpOpening, RailsThatAreNeededComeWithTheWholeProofAndCarry) {
  post(Bundle::kEagerBytes + 1);
  await_all([] {});
  expect_message();
  for (const Bundle& bundle : bundle_) {
    for (uint32_t rail = 0; rail < kRails; ++rail) EXPECT_EQ(bundle.returns(rail), 0u);
    EXPECT_TRUE(bundle.idle());
  }
  post(16 << 20);
  expect_message();
  for (uint32_t rail = 0; rail < kRails; ++rail) {
    EXPECT_GT(bundle_[0].rail(rail).sent_bytes(), 1u << 20) << rail;
  }
}

TEST_F(TcpOpening, ARailThatFailsWhileItIsConnectingComesBackWithBothConnections) {
  post(32 << 20);
  step(1);
  ASSERT_TRUE(joiner_[1]->is_busy()) << "it connects, and the host has not looked yet";
  cut(1);
  await_all([] {});
  for (const Bundle& bundle : bundle_) {
    EXPECT_GE(bundle.returns(1), 1u);
    EXPECT_EQ(bundle.returns(2), 0u);
  }
  expect_message();
}

TEST_F(TcpOpening, WhenTheFirstRailFailsTheOthersComeWithoutBeingAskedFor) {
  for (int i = 0; i < 3; ++i) {
    step(0);
    step(1);
  }
  cut(0);
  await_all([] {});
  EXPECT_EQ(bundle_[0].returns(0), 1u);
  EXPECT_EQ(bundle_[1].returns(1), 0u);
  post(4 << 20);
  expect_message();
}

TEST_F(TcpOpening, WhateverFailsMeanwhileTheMessagesArriveExactly) {
  const char* text = getenv("WEIR_TEST_SEED");
  const uint64_t seed = text != nullptr ? strtoull(text, nullptr, 0) : std::random_device{}();
  printf("WEIR_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  post(8 << 20);
  // Rail 2 stays, so that both ends agree about the others.
  int cuts = 0;
  await_all([&] {
    if (cuts < 6 && random() % 16 == 0) {
      cut(static_cast<uint32_t>(random() % 2));
      ++cuts;
    }
  });
  expect_message();
}

TEST_F(TcpOpening, NothingIsLeftUnderWayWhenThePeerDies) {
  post(32 << 20);
  step(1);
  ASSERT_TRUE(joiner_[1]->is_busy());
  for (uint32_t rail = 0; rail < kRails; ++rail) cut(rail);
  for (const uint64_t end = monotonic_ns() + kPatienceNs;
       (recv_op_.state == kOpPending || joiner_[1]->is_busy()) && monotonic_ns() < end;) {
    step(1);
  }
  EXPECT_EQ(recv_op_.state, kOpFailed + WEIR_ERROR_PEER_LOST);
  EXPECT_FALSE(joiner_[1]->is_busy());
}

}  // namespace
}  // namespace weir::plugins::tcp
