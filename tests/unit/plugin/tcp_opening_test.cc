// SPDX-License-Identifier: Apache-2.0
// How rails get their connections, at first and after they were taken out: both ends are in our
// hands, step by step, and so is what comes of each attempt.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "plugins/tcp/bundle.h"
#include "plugins/tcp/rejoin.h"
#include "unit/plugin/pair.h"

namespace weir::plugins::tcp {
namespace {

constexpr uint64_t kPatienceNs = 60'000'000'000;

// Ranks 0 and 1 with three rails, each over its own link.
class TcpOpening : public testing::Test {
 protected:
  static constexpr uint32_t kRails = 3;

  // Attempts of one rank, until the test ends them.
  struct Attempts final : Rejoin::Connector {
    void connect(uint32_t, const Subject& subject, const std::vector<Way>& ways,
                 uint64_t) override {
      EXPECT_EQ(ways.size(), 1u);
      all.push_back(subject);
    }
    std::vector<Subject> all;
  };

  explicit TcpOpening(uint32_t link_count = kRails) {
    std::vector<std::vector<Way>> ways(kRails);
    for (uint32_t rail = 0; rail < kRails; ++rail) {
      Way way;
      way.device = "eth" + std::to_string(rail % link_count);
      ways[rail] = {way};
    }
    rejoin_[0].add(1, false, &bundle_[0], ways);
    rejoin_[1].add(0, true, &bundle_[1], ways);
  }
  static bool same(const Subject& a, const Subject& b) { return a.pack() == b.pack(); }
  // As the control network does: one connection for each subject, whoever began.
  void connect(size_t rank, size_t attempt) {
    const Subject subject = attempts_[rank].all[attempt];
    int fds[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    for (Attempts& one : attempts_) {
      std::erase_if(one.all, [&](const Subject& other) { return same(other, subject); });
    }
    for (uint32_t end = 0; end < 2; ++end) {
      rejoin_[end].joined(1 - end, subject, Stream(fds[end]), monotonic_ns());
    }
  }
  void fail(size_t rank, size_t attempt) {
    const Subject subject = attempts_[rank].all[attempt];
    attempts_[rank].all.erase(attempts_[rank].all.begin() + static_cast<std::ptrdiff_t>(attempt));
    rejoin_[rank].failed(static_cast<uint32_t>(1 - rank), subject, monotonic_ns());
  }
  void connect_all() {
    for (size_t rank = 0; rank < 2; ++rank) {
      while (!attempts_[rank].all.empty()) connect(rank, 0);
    }
  }
  void step(int rank) {
    bundle_[rank].drive();
    rejoin_[rank].step(monotonic_ns());
  }
  void cut(uint32_t rail) {
    for (Bundle& bundle : bundle_) {
      if (bundle.data_stream(rail).fd() >= 0) shutdown(bundle.data_stream(rail).fd(), SHUT_RDWR);
      if (bundle.control(rail).fd() >= 0) shutdown(bundle.control(rail).fd(), SHUT_RDWR);
    }
  }
  bool all_carry() { return !bundle_[0].any_down() && !bundle_[1].any_down(); }
  // Until all rails carry; `meanwhile` is called before each step, and connects.
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
      connect_all();
      step(0);
      step(1);
    }
    EXPECT_EQ(recv_op_.state, kOpDone);
    EXPECT_EQ(send_op_.state, kOpDone);
    EXPECT_TRUE(in_ == out_);
  }

  Attempts attempts_[2];
  Bundle bundle_[2] = {Bundle(kRails), Bundle(kRails)};
  Rejoin rejoin_[2] = {Rejoin(Report(), &attempts_[0]), Rejoin(Report(), &attempts_[1])};
  std::vector<unsigned char> out_, in_;
  Op send_op_{}, recv_op_{};
};

TEST_F(TcpOpening, TheHigherRankConnectsTheRailsForTheFirstTime) {
  step(0);
  EXPECT_TRUE(attempts_[0].all.empty()) << "the lower rank has nothing to send";
  step(1);
  EXPECT_EQ(attempts_[1].all.size(), 2 * kRails) << "two connections of each rail";
  for (const Subject& subject : attempts_[1].all) {
    EXPECT_EQ(subject.returns, 1u);
    EXPECT_EQ(subject.rail_count, kRails);
  }
  await_all([this] { connect_all(); });
  // A rail whose first bytes met a busy processor counts as slow until it is tried again.
  const auto least_sent = [this] {
    uint64_t least = UINT64_MAX;
    for (uint32_t rail = 0; rail < kRails; ++rail) {
      least = std::min(least, bundle_[0].rail(rail).sent_bytes());
    }
    return least;
  };
  const uint64_t end = monotonic_ns() + 20'000'000'000;
  do {
    post(16 << 20);
    expect_message();
  } while (least_sent() <= 1u << 20 && monotonic_ns() < end);
  EXPECT_GT(least_sent(), 1u << 20);
}

TEST_F(TcpOpening, TheLowerRankConnectsThemWhereItHasAMessage) {
  post(1 << 20);
  step(0);
  EXPECT_EQ(attempts_[0].all.size(), 2 * kRails);
  expect_message();
}

// If no path leads from the higher one to it.
TEST_F(TcpOpening, TheLowerRankConnectsThemWhenNothingHasComeForASecond) {
  step(0);
  EXPECT_TRUE(attempts_[0].all.empty());
  for (const uint64_t end = monotonic_ns() + kPatienceNs;
       attempts_[0].all.empty() && monotonic_ns() < end;) {
    usleep(1000);
    step(0);
  }
  EXPECT_EQ(attempts_[0].all.size(), 2 * kRails);
}

// Three rails over two links: rails 0 and 2 share one.
class TcpOpeningOfSharedLinks : public TcpOpening {
 protected:
  TcpOpeningOfSharedLinks() : TcpOpening(2) {}
};

TEST_F(TcpOpeningOfSharedLinks, ARailIsConnectedWhenTheOneBeforeItOverItsLinkIsThere) {
  step(1);
  ASSERT_EQ(attempts_[1].all.size(), 4u);
  for (const Subject& subject : attempts_[1].all) EXPECT_NE(subject.rail, 2u);
  while (!attempts_[1].all.empty()) {
    // Rail 1, over the other link, makes no difference.
    if (bundle_[1].is_down(0)) step(1);
    for (const Subject& subject : attempts_[1].all) {
      EXPECT_TRUE(subject.rail != 2 || !bundle_[1].is_down(0));
    }
    connect(1, attempts_[1].all.size() - 1);
  }
  step(1);
  ASSERT_EQ(attempts_[1].all.size(), 2u) << "at once";
  EXPECT_EQ(attempts_[1].all[0].rail, 2u);
  await_all([this] { connect_all(); });
}

// Many ranks of a host would otherwise wait long for connections that they need.
TEST_F(TcpOpeningOfSharedLinks, AFurtherRailWaitsWhileAnotherPeerHasNone) {
  Bundle other(kRails);
  rejoin_[1].add(2, false, &other, std::vector<std::vector<Way>>(kRails, {Way()}));
  step(1);
  ASSERT_EQ(attempts_[1].all.size(), 4u);
  while (!attempts_[1].all.empty()) connect(1, 0);
  for (int i = 0; i < 3; ++i) {
    usleep(11'000);
    step(1);
    EXPECT_TRUE(attempts_[1].all.empty());
  }
  int data[2], control[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, data), 0);
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, control), 0);
  other.attach(0, Stream(data[0]), Stream(control[0]), 1);
  usleep(11'000);
  step(1);
  ASSERT_EQ(attempts_[1].all.size(), 2u);
  EXPECT_EQ(attempts_[1].all[0].rail, 2u);
  close(data[1]);
  close(control[1]);
}

TEST_F(TcpOpening, MessagesGoAsSoonAsOneRailIsThere) {
  post(1 << 20);
  step(1);
  for (size_t i = attempts_[1].all.size(); i-- > 0;) {
    if (attempts_[1].all[i].rail == 2) connect(1, i);
  }
  for (const uint64_t end = monotonic_ns() + kPatienceNs;
       recv_op_.state == kOpPending && monotonic_ns() < end;) {
    step(0);
    step(1);
  }
  EXPECT_EQ(recv_op_.state, kOpDone);
  EXPECT_TRUE(in_ == out_);
  EXPECT_EQ(bundle_[0].up_count(), 1u);
}

TEST_F(TcpOpening, AnAttemptThatFailsIsMadeAgain) {
  step(1);
  while (!attempts_[1].all.empty()) fail(1, 0);
  await_all([this] { connect_all(); });
  post(1 << 20);
  expect_message();
}

TEST_F(TcpOpening, ARailThatFailedComesBackByTheHigherRankOnceTheOtherAgrees) {
  await_all([this] { connect_all(); });
  cut(1);
  while (!(bundle_[0].is_down(1) && bundle_[1].is_down(1))) {
    step(0);
    step(1);
  }
  for (const uint64_t end = monotonic_ns() + kPatienceNs;
       attempts_[1].all.empty() && monotonic_ns() < end;) {
    step(0);
    step(1);
  }
  EXPECT_TRUE(attempts_[0].all.empty());
  ASSERT_EQ(attempts_[1].all.size(), 2u);
  connect_all();
  EXPECT_FALSE(bundle_[0].is_down(1)) << "the lower rank knows that both have given the old one up";
  EXPECT_TRUE(bundle_[1].is_down(1)) << "the higher one has not heard of it";
  step(1);
  usleep(11'000);
  step(1);
  EXPECT_FALSE(bundle_[1].is_down(1));
  EXPECT_EQ(bundle_[0].returns(1), 2u);
  EXPECT_EQ(bundle_[1].returns(1), 2u);
  post(16 << 20);
  expect_message();
}

TEST_F(TcpOpening, WhateverFailsMeanwhileTheMessagesArriveExactly) {
  const char* text = getenv("WEIR_TEST_SEED");
  const uint64_t seed = text != nullptr ? strtoull(text, nullptr, 0) : std::random_device{}();
  printf("WEIR_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  post(8 << 20);
  // Rail 2 stays, so that both ends agree about the others.
  step(0);
  for (size_t i = attempts_[0].all.size(); i-- > 0;) {
    if (attempts_[0].all[i].rail == 2) connect(0, i);
  }
  int cuts = 0;
  await_all([&] {
    const auto rank = static_cast<size_t>(random() % 2);
    std::vector<Subject>& all = attempts_[rank].all;
    if (!all.empty() && random() % 4 == 0) {
      const size_t attempt = random() % all.size();
      // For the first time both ends see a connection or neither does.
      random() % 4 == 0 && all[attempt].returns > 1 ? fail(rank, attempt) : connect(rank, attempt);
    }
    if (cuts < 6 && random() % 16 == 0) {
      cut(static_cast<uint32_t>(random() % 2));
      ++cuts;
    }
  });
  expect_message();
}

TEST_F(TcpOpening, NothingIsBegunAnyMoreWhenThePeerDies) {
  await_all([this] { connect_all(); });
  post(32 << 20);
  for (uint32_t rail = 0; rail < kRails; ++rail) cut(rail);
  for (const uint64_t end = monotonic_ns() + kPatienceNs;
       recv_op_.state == kOpPending && monotonic_ns() < end;) {
    step(1);
  }
  EXPECT_EQ(recv_op_.state, kOpFailed + WEIR_ERROR_PEER_LOST);
  attempts_[1].all.clear();
  for (int i = 0; i < 20; ++i) {
    usleep(10'000);
    step(1);
  }
  EXPECT_TRUE(attempts_[1].all.empty());
}

}  // namespace
}  // namespace weir::plugins::tcp
