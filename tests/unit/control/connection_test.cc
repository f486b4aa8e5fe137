// SPDX-License-Identifier: Apache-2.0
// Connections that the control network makes and accepts for transports.
#include <errno.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/base/clock.h"
#include "core/control/host_control.h"
#include "core/control/socket_network.h"
#include "net/ip_socket.h"

namespace weir::control {
namespace {

using namespace std::chrono_literals;

constexpr uint64_t kSecondNs = 1'000'000'000;
constexpr uint64_t kPatienceNs = 20 * kSecondNs;
constexpr net::IpAddress kHere = {4, {127, 0, 0, 1}};

// Ranks of this process, each with a listener that its network serves.
class Connections : public testing::TestWithParam<net::TlsMode> {
 protected:
  void make(Rank count, uint64_t unproven_ns = 2 * kSecondNs) {
    std::vector<std::string> addresses;
    for (Rank rank = 0; rank < count; ++rank) {
      NetworkConfig config;
      config.comm_id = 7;
      config.rank = rank;
      config.rank_count = count;
      config.secret = secret_from_text("the secret of all");
      config.leaves_host = false;
      config.tls = GetParam();
      config.unproven_ns = unproven_ns;
      auto made = SocketNetwork::make(config);
      ASSERT_TRUE(made.ok()) << made.status().text();
      ranks_.push_back(made.take());
      addresses.push_back(ranks_.back()->address());
    }
    std::vector<std::thread> threads;
    for (Rank rank = 0; rank < count; ++rank) {
      threads.emplace_back([&, rank] {
        const Status joined = ranks_[rank]->join(addresses, now_ns() + kPatienceNs, {});
        EXPECT_TRUE(joined.ok()) << joined.text();
      });
    }
    for (std::thread& thread : threads) thread.join();
    ports_.resize(count);
    for (Rank rank = 0; rank < count; ++rank) listen(rank);
  }
  void listen(Rank rank) {
    const int listener = net::listen_at(kHere, &ports_[rank], 1024);
    ASSERT_GE(listener, 0);
    ASSERT_TRUE(ranks_[rank]->listen(listener).ok());
  }
  Path path_to(Rank rank) const { return {.address = kHere, .port = ports_[rank]}; }
  void connect(Rank from, Rank to, const Purpose& purpose, uint64_t patience_ns = kPatienceNs) {
    ranks_[from]->connect(to, purpose, {path_to(to)}, now_ns() + patience_ns);
  }
  // What comes next, within the patience.
  Connected next(Rank rank, uint8_t channel = 0) {
    Connected one;
    one.status = Status(Code::kTimeout, "nothing has come");
    const uint64_t until_ns = now_ns() + kPatienceNs;
    while (!ranks_[rank]->connected(channel, &one) && now_ns() < until_ns) {
      std::this_thread::sleep_for(1ms);
    }
    return one;
  }
  static bool carries(net::Stream* from, net::Stream* to, const std::string& text) {
    const uint64_t until_ns = now_ns() + kPatienceNs;
    size_t sent = 0;
    std::string got;
    while (got.size() < text.size() && now_ns() < until_ns) {
      char bytes[256];
      if (sent < text.size()) {
        sent += static_cast<size_t>(
            std::max<ssize_t>(from->send(text.data() + sent, text.size() - sent), 0));
      }
      const ssize_t part = to->recv(bytes, sizeof bytes);
      if (part > 0) got.append(bytes, static_cast<size_t>(part));
    }
    return got == text;
  }
  // Somebody who connects to the rank's listener.
  int intrude(Rank rank) const { return net::begin_connect(kHere, ports_[rank], {}); }

  std::vector<std::unique_ptr<SocketNetwork>> ranks_;
  std::vector<uint16_t> ports_;
};

INSTANTIATE_TEST_SUITE_P(Tls, Connections,
                         testing::Values(net::TlsMode::kOff, net::TlsMode::kControl,
                                         net::TlsMode::kAll),
                         [](const auto& one) { return std::string(net::name_of(one.param)); });

TEST_P(Connections, BothEndsGetWhatOneBegan) {
  make(3);
  for (const bool stays_secure : {false, true}) {
    const Purpose purpose{2, stays_secure, 0x123456789abcdefu};
    connect(2, 0, purpose);
    Connected there = next(0, 2);
    Connected here = next(2, 2);
    ASSERT_TRUE(here.status.ok()) << here.status.text();
    ASSERT_TRUE(there.status.ok()) << there.status.text();
    EXPECT_EQ(here.peer, 0u);
    EXPECT_EQ(there.peer, 2u);
    EXPECT_EQ(here.purpose, purpose);
    EXPECT_EQ(there.purpose, purpose);
    EXPECT_EQ(here.path, 0u);
    EXPECT_EQ(there.path, Connected::kPeerCame);
    const bool secure =
        GetParam() == net::TlsMode::kAll || (GetParam() == net::TlsMode::kControl && stays_secure);
    EXPECT_EQ(here.stream.is_secured(), secure);
    EXPECT_EQ(there.stream.is_secured(), secure);
    EXPECT_TRUE(carries(&here.stream, &there.stream, "forward"));
    EXPECT_TRUE(carries(&there.stream, &here.stream, "back"));
  }
}

TEST_P(Connections, WhatIsSentArrivesThoughNobodyTakesTheConnectionYet) {
  make(2);
  connect(0, 1, {});
  Connected here = next(0);
  ASSERT_TRUE(here.status.ok()) << here.status.text();
  ASSERT_EQ(here.stream.send("early", 5), 5);
  here.stream.close();
  Connected there = next(1);
  ASSERT_TRUE(there.status.ok()) << there.status.text();
  std::string text(5, 0);
  const uint64_t until_ns = now_ns() + kPatienceNs;
  while (there.stream.recv(text.data(), text.size()) < 0 && now_ns() < until_ns) {
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_EQ(text, "early");
}

TEST_P(Connections, OneComesOfTwoThatBeginAtOnce) {
  make(2);
  for (uint64_t number = 0; number < 300; ++number) {
    const Purpose purpose{0, false, number};
    std::thread other([&] { connect(1, 0, purpose); });
    connect(0, 1, purpose);
    other.join();
    Connected one = next(0);
    Connected two = next(1);
    ASSERT_TRUE(one.status.ok()) << one.status.text();
    ASSERT_TRUE(two.status.ok()) << two.status.text();
    EXPECT_EQ(one.purpose.number, number);
    ASSERT_TRUE(carries(&one.stream, &two.stream, "one and the same"));
  }
  std::this_thread::sleep_for(20ms);
  Connected more;
  EXPECT_FALSE(ranks_[0]->connected(0, &more));
  EXPECT_FALSE(ranks_[1]->connected(0, &more));
}

TEST_P(Connections, EachTransportGetsItsOwn) {
  make(2);
  connect(0, 1, {3, false, 5});
  connect(0, 1, {4, false, 5});
  EXPECT_EQ(next(1, 4).purpose.channel, 4);
  EXPECT_EQ(next(1, 3).purpose.channel, 3);
}

TEST_P(Connections, APathThatDoesNotAnswerIsPassedOver) {
  make(2);
  uint16_t port = 0;
  const int silent = net::listen_at(kHere, &port, 16);  // accepts, and says nothing
  ASSERT_GE(silent, 0);
  uint16_t closed = 0;
  close(net::listen_at(kHere, &closed, 1));
  ranks_[0]->connect(
      1, {}, {{.address = kHere, .port = closed}, {.address = kHere, .port = port}, path_to(1)},
      now_ns() + kPatienceNs);
  const Connected here = next(0);
  EXPECT_TRUE(here.status.ok()) << here.status.text();
  EXPECT_EQ(here.path, 2u);
  close(silent);
}

TEST_P(Connections, WhoDoesNotAnswerIsAnErrorAtTheDeadline) {
  make(2);
  uint16_t port = 0;
  const int silent = net::listen_at(kHere, &port, 16);
  ASSERT_GE(silent, 0);
  ranks_[0]->connect(1, {1, false, 9}, {{.address = kHere, .port = port}}, now_ns() + 100'000'000);
  const Connected none = next(0, 1);
  EXPECT_EQ(none.status.code(), Code::kTimeout) << none.status.text();
  EXPECT_EQ(none.peer, 1u);
  EXPECT_EQ(none.purpose.number, 9u);
  close(silent);
}

TEST_P(Connections, APeerThatDiesEndsTheAttempt) {
  make(3);
  uint16_t port = 0;
  const int silent = net::listen_at(kHere, &port, 16);
  ASSERT_GE(silent, 0);
  ranks_[0]->connect(1, {}, {{.address = kHere, .port = port}}, now_ns() + 2 * kPatienceNs);
  ranks_[1].reset();
  EXPECT_EQ(next(0).status.code(), Code::kPeerLost);
  // And it is not begun any more.
  ranks_[0]->connect(1, {}, {path_to(1)}, now_ns() + kPatienceNs);
  EXPECT_EQ(next(0).status.code(), Code::kPeerLost);
  close(silent);
}

TEST_P(Connections, WithoutFreeDescriptorsTheAttemptEndsAtOnce) {
  make(2);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int free = dup(0);
  ASSERT_GE(free, 0);
  close(free);
  rlimit limit = before;
  limit.rlim_cur = static_cast<rlim_t>(free);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  connect(0, 1, {});
  const Connected none = next(0);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(none.status.code(), Code::kSystem) << none.status.text();
}

// Ranks that are threads share the limit: the peer cannot accept, and this side sees only silence.
TEST_P(Connections, ATimeoutInAProcessWithoutFreeDescriptorsIsToldAsThat) {
  make(2);
  uint16_t port = 0;
  const int silent = net::listen_at(kHere, &port, 16);
  ASSERT_GE(silent, 0);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  ranks_[0]->connect(1, {}, {{.address = kHere, .port = port}}, now_ns() + 300'000'000);
  const int free = dup(0);
  ASSERT_GE(free, 0);
  close(free);
  rlimit limit = before;
  limit.rlim_cur = static_cast<rlim_t>(free);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  const Connected none = next(0);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(none.status.code(), Code::kSystem) << none.status.text();
  EXPECT_NE(none.status.text().find("Too many open files"), std::string::npos)
      << none.status.text();
  close(silent);
}

TEST_P(Connections, StrangersAreNotHandedOverAndKeepNobodyOut) {
  make(2, kSecondNs);
  std::mt19937 random(5);
  std::vector<int> strangers;
  for (int i = 0; i < 600; ++i) {
    strangers.push_back(intrude(1));
    ASSERT_GE(strangers.back(), 0);
    if (i % 2 == 0) continue;
    std::array<unsigned char, 64> garbage;
    for (unsigned char& byte : garbage) byte = static_cast<unsigned char>(random());
    (void)send(strangers.back(), garbage.data(), garbage.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  connect(0, 1, {});
  Connected here = next(0);
  ASSERT_TRUE(here.status.ok()) << here.status.text();
  Connected there = next(1);
  ASSERT_TRUE(there.status.ok()) << there.status.text();
  EXPECT_EQ(there.peer, 0u);
  Connected more;
  EXPECT_FALSE(ranks_[1]->connected(0, &more));
  for (const int fd : strangers) close(fd);
}

TEST_P(Connections, WhoHoldsAnotherSecretIsRefusedAndTold) {
  make(2);
  NetworkConfig config;
  config.comm_id = 7;
  config.rank_count = 2;
  config.secret = secret_from_text("another secret");
  config.leaves_host = false;
  config.tls = GetParam();
  auto other = SocketNetwork::make(config);
  ASSERT_TRUE(other.ok());
  other.value()->connect(1, {}, {path_to(1)}, now_ns() + kSecondNs / 2);
  Connected one;
  const uint64_t until_ns = now_ns() + kPatienceNs;
  while (!other.value()->connected(0, &one) && now_ns() < until_ns) {
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_EQ(one.status.code(), Code::kRefused) << one.status.text();
  EXPECT_FALSE(ranks_[1]->connected(0, &one));
}

// Of the C interface that transports are given.
TEST_P(Connections, TransportsSendAndReceiveInsideTlsAsOutside) {
  make(2);
  HostControl hosts[] = {HostControl(ranks_[0].get(), 6, [](const std::string&) {}),
                         HostControl(ranks_[1].get(), 6, [](const std::string&) {})};
  const weir_control_t& here = *hosts[0].functions();
  const weir_control_t& there = *hosts[1].functions();
  weir_control_way_t way{};
  std::copy(kHere.bytes.begin(), kHere.bytes.end(), way.address);
  way.address_family = kHere.family;
  way.port = ports_[1];
  const uint64_t subject = 0x7f01020304050607u;
  here.connect(here.context, 1, subject, &way, 1, now_ns() + kPatienceNs);
  weir_control_connection_t ends[2]{};
  for (int i = 0; i < 2; ++i) {
    ends[i].struct_bytes = sizeof ends[i];
    const weir_control_t& f = i == 0 ? here : there;
    weir_result_t result = WEIR_IN_PROGRESS;
    const uint64_t until_ns = now_ns() + kPatienceNs;
    while (result == WEIR_IN_PROGRESS && now_ns() < until_ns) {
      result = f.connected(f.context, &ends[i]);
    }
    ASSERT_EQ(result, WEIR_OK) << ends[i].reason;
    EXPECT_EQ(ends[i].peer, static_cast<uint32_t>(1 - i));
    EXPECT_EQ(ends[i].subject, subject);
    EXPECT_EQ(ends[i].session != nullptr, GetParam() == net::TlsMode::kAll);
  }
  char text[] = "some words", got[sizeof text] = {};
  const iovec out = {text, sizeof text};
  const iovec in = {got, sizeof got};
  if (ends[0].session == nullptr) {
    ASSERT_EQ(send(ends[0].fd, text, sizeof text, 0), static_cast<ssize_t>(sizeof text));
    pollfd entry = {ends[1].fd, POLLIN, 0};
    ASSERT_EQ(poll(&entry, 1, 10'000), 1);
    ASSERT_EQ(recv(ends[1].fd, got, sizeof got, 0), static_cast<ssize_t>(sizeof got));
    close(ends[0].fd);
    close(ends[1].fd);
  } else {
    ASSERT_EQ(here.session_send(ends[0].session, &out, 1), static_cast<ssize_t>(sizeof text));
    pollfd entry = {ends[1].fd, there.session_events(ends[1].session, 0), 0};
    ASSERT_EQ(poll(&entry, 1, 10'000), 1);
    ASSERT_EQ(there.session_receive(ends[1].session, &in, 1), static_cast<ssize_t>(sizeof got));
    EXPECT_EQ(there.session_has_unread(ends[1].session), 0);
    here.session_shut(ends[0].session);
    here.session_close(ends[0].session);
    there.session_close(ends[1].session);
  }
  EXPECT_STREQ(got, text);
}

}  // namespace
}  // namespace weir::control
