// SPDX-License-Identifier: Apache-2.0
// Several rails between two ranks: both ends of them are in our hands, so that one can be broken at
// any moment.
#include <gtest/gtest.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "core/plugin/registry.h"
#include "plugins/tcp/bundle.h"
#include "plugins/tcp/instance.h"
#include "plugins/tcp/ways.h"
#include "unit/plugin/pair.h"

namespace weir::plugins::tcp {
namespace {

constexpr uint32_t kLane = 2;

uint64_t seed() {
  const char* text = getenv("WEIR_TEST_SEED");
  const uint64_t value = text != nullptr ? strtoull(text, nullptr, 0) : std::random_device{}();
  printf("WEIR_TEST_SEED=%llu\n", static_cast<unsigned long long>(value));
  return value;
}

struct Message {
  explicit Message(size_t bytes, unsigned char first = 0) : data(bytes) {
    for (size_t i = 0; i < bytes; ++i)
      data[i] = static_cast<unsigned char>(first + i * 7 + i / 251);
  }
  std::vector<unsigned char> data;
  Op op{};
};

class TcpRails : public testing::Test {
 protected:
  static constexpr uint32_t kRails = 3;

  void SetUp() override {
    for (Bundle*& end : ends_) end = (owned_.emplace_back(std::make_unique<Bundle>(kRails))).get();
    for (uint32_t rail = 0; rail < kRails; ++rail) connect(rail, 0);
  }
  void connect(uint32_t rail, uint32_t returns) {
    int data[2], control[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, data), 0);
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, control), 0);
    for (int i = 0; i < 2; ++i)
      ends_[i]->attach(rail, Stream(data[i]), Stream(control[i]), returns);
    is_cut_[rail] = false;
  }
  // End 1 waits for a message while every rail is cut.
  void lose_the_peer() {
    Message in(100);
    ends_[1]->post_recv(kLane, in.data.data(), in.data.size(), &in.op);
    for (uint32_t rail = 0; rail < kRails; ++rail) cut(rail);
    const uint64_t end = monotonic_ns() + 20'000'000'000;
    while (in.op.state == kOpPending && monotonic_ns() < end) drive();
    EXPECT_EQ(in.op.state, kOpFailed + WEIR_ERROR_PEER_LOST);
    EXPECT_TRUE(ends_[1]->lost());
  }
  // As the network would: neither end learns what the other has received.
  void cut(uint32_t rail) {
    is_cut_[rail] = true;
    for (Bundle* end : ends_) {
      if (end->data_stream(rail).fd() >= 0) shutdown(end->data_stream(rail).fd(), SHUT_RDWR);
      if (end->control(rail).fd() >= 0) shutdown(end->control(rail).fd(), SHUT_RDWR);
    }
  }
  void drive() {
    for (Bundle* end : ends_) end->drive();
  }
  // Both ends make progress until the operations are done, within twenty seconds.
  void await(std::initializer_list<const Op*> ops) {
    const uint64_t end = monotonic_ns() + 20'000'000'000;
    for (const Op* op : ops) {
      while (op->state == kOpPending && monotonic_ns() < end) drive();
      ASSERT_EQ(op->state, kOpDone);
    }
  }
  // A rail of which both ends know all.
  void give_back(uint32_t rail) {
    if (!ends_[0]->may_return(rail) || !ends_[1]->may_return(rail)) return;
    connect(rail, std::max(ends_[0]->returns(rail), ends_[1]->returns(rail)) + 1);
  }
  // Messages of one lane each way, of all sizes, posted by turns; `meanwhile` is told of some rail.
  void exchange_at_random(std::mt19937_64* source,
                          const std::function<void(uint32_t rail)>& meanwhile) {
    std::mt19937_64& random = *source;
    std::vector<std::unique_ptr<Message>> out[2], in[2];
    for (int from = 0; from < 2; ++from) {
      for (unsigned char k = 0; k < 24; ++k) {
        const size_t largest =
            std::initializer_list<size_t>{100, 9000, 300'000, 3'000'000}.begin()[random() % 4];
        const size_t bytes = random() % largest;
        out[from].push_back(std::make_unique<Message>(bytes, k));
        in[from].push_back(std::make_unique<Message>(bytes, 200));
      }
    }
    size_t sends[2] = {}, recvs[2] = {};
    const uint64_t end = monotonic_ns() + 20'000'000'000;
    for (bool all = false; !all;) {
      ASSERT_LT(monotonic_ns(), end) << "a message does not arrive";
      const int from = static_cast<int>(random() % 2);
      if (random() % 3 == 0 && sends[from] < out[from].size()) {
        Message& m = *out[from][sends[from]++];
        ends_[from]->post_send(kLane, m.data.data(), m.data.size(), &m.op);
      }
      if (random() % 3 == 0 && recvs[from] < in[from].size()) {
        Message& m = *in[from][recvs[from]++];
        ends_[1 - from]->post_recv(kLane, m.data.data(), m.data.size(), &m.op);
      }
      ends_[random() % 2]->drive();
      meanwhile(static_cast<uint32_t>(random() % kRails));
      all = true;
      for (int i = 0; i < 2; ++i) {
        all = all && sends[i] == out[i].size() && recvs[i] == in[i].size();
        for (const auto& m : out[i]) all = all && m->op.state == kOpDone;
        for (const auto& m : in[i]) all = all && m->op.state == kOpDone;
      }
    }
    for (int from = 0; from < 2; ++from) {
      for (size_t k = 0; k < in[from].size(); ++k) {
        ASSERT_EQ(in[from][k]->data, out[from][k]->data) << "message " << k;
      }
    }
  }
  uint64_t sent_on(int end, uint32_t rail) { return ends_[end]->rail(rail).sent_bytes(); }

  std::vector<std::unique_ptr<Bundle>> owned_;
  Bundle* ends_[2];
  bool is_cut_[kRails] = {};
};

TEST_F(TcpRails, AMessageArrivesWhenItsReceiveWasPostedBeforeOrLater) {
  for (const size_t bytes : {0, 1, 8192, 8193, 262'144, 262'145, 5'000'000}) {
    for (const bool recv_first : {true, false}) {
      Message out(bytes, 1), in(bytes, 9);
      if (recv_first) ends_[1]->post_recv(kLane, in.data.data(), bytes, &in.op);
      ends_[0]->post_send(kLane, out.data.data(), bytes, &out.op);
      for (int i = 0; i < 3; ++i) drive();
      if (!recv_first) ends_[1]->post_recv(kLane, in.data.data(), bytes, &in.op);
      await({&in.op, &out.op});
      EXPECT_EQ(in.data, out.data) << bytes;
    }
  }
}

TEST_F(TcpRails, ALargeMessageUsesEveryRail) {
  Message out(16 << 20), in(16 << 20, 5);
  ends_[1]->post_recv(kLane, in.data.data(), in.data.size(), &in.op);
  ends_[0]->post_send(kLane, out.data.data(), out.data.size(), &out.op);
  await({&in.op, &out.op});
  EXPECT_EQ(in.data, out.data);
  for (uint32_t rail = 0; rail < kRails; ++rail) EXPECT_GT(sent_on(0, rail), 1u << 20);
}

TEST_F(TcpRails, ASmallSendIsCompleteAtOnceAndItsBufferFree) {
  Message in(100);
  for (uint32_t i = 0; i < Bundle::kAheadCount; ++i) {
    Message out(100, static_cast<unsigned char>(i));
    EXPECT_EQ(ends_[0]->post_send(kLane, out.data.data(), 100, &out.op), WEIR_OK);
  }
  Message last(100);
  EXPECT_EQ(ends_[0]->post_send(kLane, last.data.data(), 100, &last.op), WEIR_IN_PROGRESS)
      << "there is an end to it";
  for (uint32_t i = 0; i < Bundle::kAheadCount; ++i) {
    in.op = {};
    ends_[1]->post_recv(kLane, in.data.data(), 100, &in.op);
    await({&in.op});
    EXPECT_EQ(in.data, Message(100, static_cast<unsigned char>(i)).data);
  }
}

TEST_F(TcpRails, WhatARailHadNotDeliveredGoesOverTheOthers) {
  for (const uint32_t broken : {0u, 1u}) {
    Message out(32 << 20, 3), in(32 << 20);
    ends_[1]->post_recv(kLane, in.data.data(), in.data.size(), &in.op);
    ends_[0]->post_send(kLane, out.data.data(), out.data.size(), &out.op);
    for (int i = 0; i < 5; ++i) drive();
    ASSERT_EQ(in.op.state, kOpPending);
    cut(broken);
    await({&in.op, &out.op});
    EXPECT_EQ(in.data, out.data);
    for (Bundle* end : ends_) {
      EXPECT_TRUE(end->is_down(broken));
      EXPECT_FALSE(end->lost());
      EXPECT_NE(end->take_news() & 1u << broken, 0u);
    }
  }
}

TEST_F(TcpRails, ARailThatIsBackCarriesAgain) {
  cut(1);
  const uint64_t end = monotonic_ns() + 20'000'000'000;
  while (!(ends_[0]->may_return(1) && ends_[1]->may_return(1)) && monotonic_ns() < end) drive();
  ASSERT_TRUE(ends_[0]->may_return(1));
  const uint64_t before = sent_on(0, 1);
  connect(1, 1);
  Message out(16 << 20, 3), in(16 << 20);
  ends_[1]->post_recv(kLane, in.data.data(), in.data.size(), &in.op);
  ends_[0]->post_send(kLane, out.data.data(), out.data.size(), &out.op);
  await({&in.op, &out.op});
  EXPECT_EQ(in.data, out.data);
  EXPECT_GT(sent_on(0, 1), before);
}

TEST_F(TcpRails, TheEndOfTheLastRailIsTheLossOfThePeer) {
  lose_the_peer();
  EXPECT_FALSE(ends_[1]->left());
}

TEST_F(TcpRails, WhatCameBeforeAPeerLeftIsStillReceived) {
  Message out[2] = {Message(100, 1), Message(20'000, 2)}, in[2] = {Message(100), Message(20'000)};
  for (Message& m : out) ends_[0]->post_send(kLane, m.data.data(), m.data.size(), &m.op);
  const uint64_t end = monotonic_ns() + 20'000'000'000;
  const auto came_bytes = [this] {
    uint64_t sum = 0;
    for (uint32_t rail = 0; rail < kRails; ++rail) sum += ends_[1]->rail(rail).received_bytes();
    return sum;
  };
  while (came_bytes() < 20'100 && monotonic_ns() < end) drive();
  ASSERT_EQ(came_bytes(), 20'100u);
  for (uint32_t rail = 0; rail < kRails; ++rail) ends_[0]->control(rail).say_goodbye();
  for (uint32_t rail = 0; rail < kRails; ++rail) cut(rail);
  while (!ends_[1]->lost() && monotonic_ns() < end) ends_[1]->drive();
  EXPECT_TRUE(ends_[1]->left());
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(ends_[1]->post_recv(kLane, in[i].data.data(), in[i].data.size(), &in[i].op), WEIR_OK);
    EXPECT_EQ(in[i].data, out[i].data);
  }
  Op op{};
  EXPECT_EQ(ends_[1]->post_recv(kLane, in[0].data.data(), 100, &op), WEIR_ERROR_PEER_LOST);
}

TEST_F(TcpRails, WhateverBreaksAndReturnsEveryMessageArrivesOnceAndInOrder) {
  std::mt19937_64 random(seed());
  for (int round = 0; round < 6; ++round) {
    SCOPED_TRACE(round);
    exchange_at_random(&random, [&](uint32_t rail) {
      // One rail at least stays: it is the one on which both ends agree.
      if (random() % 40 == 0 && rail != static_cast<uint32_t>(round) % kRails) cut(rail);
      give_back(rail);
    });
    if (HasFatalFailure()) return;
    // The next round keeps another rail: all are there again before it.
    const uint64_t end = monotonic_ns() + 20'000'000'000;
    for (uint32_t rail = 0; rail < kRails; ++rail) {
      // Also where neither end has noticed yet.
      while (is_cut_[rail] || ends_[0]->is_down(rail) || ends_[1]->is_down(rail)) {
        ASSERT_LT(monotonic_ns(), end) << "a rail cannot return";
        usleep(600);
        drive();
        give_back(rail);
      }
    }
  }
}

TEST_F(TcpRails, BytesThatAreNoFragmentAreAnError) {
  Message in(100);
  ends_[1]->post_recv(kLane, in.data.data(), in.data.size(), &in.op);
  unsigned char raw[wire::kFragmentHeaderBytes];
  wire::FragmentHeader header;
  header.lane = kLane;
  header.fragment_number = 7;  // of a connection that has just begun
  header.message_bytes = header.bytes = 100;
  wire::encode(header, raw);
  ASSERT_EQ(::send(ends_[0]->data_stream(0).fd(), raw, sizeof raw, 0),
            static_cast<ssize_t>(sizeof raw));
  ends_[1]->drive();
  EXPECT_EQ(in.op.state, kOpFailed + WEIR_ERROR_INTERNAL);
}

// A link that lets nothing through for long, and then all of it at once: what arrives late has been
// under way since it was sent, not since it was last looked for.
TEST(TcpRail, BytesThatArriveLateAtOnceShowASlowRail) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
  constexpr uint64_t kMs = 1'000'000;
  const std::vector<unsigned char> data(4096);
  Rail rail(0);
  rail.attach(Stream(ends[0]), kMs);
  Fragment fragment;
  fragment.data = data.data();
  fragment.message_bytes = fragment.bytes = static_cast<uint32_t>(data.size());
  rail.enqueue(fragment, 0, kMs);
  rail.push(kMs);
  for (uint64_t at_ms = 2; at_ms < 300; ++at_ms) rail.look_ahead(at_ms * kMs);
  std::vector<unsigned char> got(8192);
  ASSERT_GT(::recv(ends[1], got.data(), got.size(), 0), 4096);
  rail.look_ahead(300 * kMs);
  EXPECT_TRUE(rail.is_measured());
  EXPECT_LE(rail.rate() * 1e9, 4.0 * 4096);  // bytes per second
  EXPECT_GE(rail.rate() * 1e9, 2.0 * 4096);
  for (const int fd : ends) close(fd);
}

// What it has told its peer may have been lost with the rail.
TEST(TcpIdleRails, ARankThatWaitsForNothingSeesThatARailIsLost) {
  Pair pair(plugin::find_transport("tcp").value());
  for (Pair::End& end : pair.end) end.settings["WEIR_TCP_CONNECTIONS"] = "2";
  ASSERT_NO_FATAL_FAILURE(pair.join());
  uint64_t value = 7, got = 0;
  weir_transport_op_t in{}, out{};
  const weir_result_t posted = pair.recv(1, &got, sizeof got, &in);
  ASSERT_LE(pair.send(0, &value, sizeof value, &out), WEIR_IN_PROGRESS);
  ASSERT_EQ(pair.wait(1, &in, posted), WEIR_OK);
  Bundle& here = *from(pair.end[0].instance)->bundle_of(1);
  Bundle& there = *from(pair.end[1].instance)->bundle_of(0);
  const uint64_t both_ns = monotonic_ns() + 20'000'000'000;
  while ((here.any_down() || there.any_down()) && monotonic_ns() < both_ns) {
    for (Pair::End& end : pair.end) (void)pair.f.progress(end.instance);
  }
  ASSERT_TRUE(there.idle());
  for (const int fd : {here.data_stream(1).fd(), here.control(1).fd()}) shutdown(fd, SHUT_RDWR);
  const uint64_t end = monotonic_ns() + 20'000'000'000;
  while (!there.is_down(1) && monotonic_ns() < end) (void)pair.f.progress(pair.end[1].instance);
  EXPECT_TRUE(there.is_down(1));
  EXPECT_FALSE(there.lost());
}

net::Interface interface(const char* name, unsigned char subnet, unsigned char host,
                         uint32_t speed_mbits = 0) {
  net::Interface one;
  one.name = name;
  one.address.family = 4;
  one.address.bytes = {10, subnet, 0, host};
  one.prefix_bits = 24;
  one.speed_mbits = speed_mbits;
  return one;
}

PeerAddress offered(const std::vector<net::Interface>& interfaces, unsigned char host = 1) {
  PeerAddress address;
  address.host.bytes[0] = host;
  const std::vector<uint32_t> numbers = numbers_of(interfaces);
  for (size_t i = 0; i < interfaces.size(); ++i) {
    Offer offer;
    offer.address = interfaces[i].address;
    offer.port = 1;
    offer.speed_mbits = interfaces[i].speed_mbits;
    offer.prefix_bits = interfaces[i].prefix_bits;
    offer.interface_number = numbers[i];
    address.offers.push_back(offer);
  }
  return address;
}

// "0-0 1-1": the interfaces of the lower rank and of the higher one, by number.
std::string rails(const std::vector<net::Interface>& lower,
                  const std::vector<net::Interface>& higher) {
  std::string text;
  for (const RailEnds& rail : rails_between(offered(lower), offered(higher, 2))) {
    text += (text.empty() ? "" : " ") + std::to_string(rail.lower.interface_number) + "-" +
            std::to_string(rail.higher.interface_number);
  }
  return text;
}

TEST(TcpWays, InterfacesAreMatchedBySubnetAndNotByOrder) {
  EXPECT_EQ(rails({interface("b", 2, 2), interface("a", 1, 2)},
                  {interface("eth0", 1, 1), interface("eth1", 2, 1)}),
            "1-0 0-1");
}

TEST(TcpWays, AnInterfaceIsInOneRailOnly) {
  // All in one subnet, and one with two addresses.
  EXPECT_EQ(rails({interface("a", 1, 4), interface("b", 1, 5)},
                  {interface("eth0", 1, 1), interface("eth1", 1, 2), interface("eth1", 1, 3)}),
            "0-0 1-1");
}

TEST(TcpWays, WithoutACommonSubnetTheyAreTakenInStep) {
  EXPECT_EQ(rails({interface("a", 3, 2), interface("b", 4, 2)},
                  {interface("eth0", 1, 1), interface("eth1", 2, 1)}),
            "0-0 1-1");
}

TEST(TcpWays, OnePairOfInterfacesIsNoRail) {
  EXPECT_EQ(rails({interface("a", 1, 2)}, {interface("eth0", 1, 1), interface("eth1", 2, 1)}), "");
}

TEST(TcpWays, AMuchSlowerInterfaceIsNoRail) {
  EXPECT_EQ(rails({interface("a", 1, 2, 100'000), interface("b", 2, 2, 1000)},
                  {interface("eth0", 1, 1, 100'000), interface("eth1", 2, 1, 1000)}),
            "");
}

TEST(TcpWays, AnAddressThatBothHaveIsNoRail) {
  EXPECT_EQ(rails({interface("a", 1, 2), interface("b", 2, 1)},
                  {interface("eth0", 1, 1), interface("docker0", 2, 1)}),
            "");
}

TEST(TcpWays, OfInterfacesOfOneSpeedTheNearOnesComeFirst) {
  std::vector<net::Interface> all = {
      interface("fast", 1, 1, 200'000), interface("a", 2, 1, 100'000),
      interface("b", 3, 1, 100'000),    interface("c", 4, 1, 100'000),
      interface("slow", 5, 1, 1000),    interface("lo", 6, 1)};
  all.back().is_loopback = true;
  const auto order = [&](const std::vector<std::string>& near) {
    std::vector<net::Interface> sorted = all;
    put_near_first(near, &sorted);
    std::string names;
    for (const net::Interface& one : sorted) names += one.name + " ";
    return names;
  };
  EXPECT_EQ(order({}), "fast a b c slow lo ");
  EXPECT_EQ(order({"c", "b"}), "fast c b a slow lo ");
  EXPECT_EQ(order({"lo", "slow", "other"}), "fast a b c slow lo ");
}

TEST(TcpWays, RanksOfOneHostHaveNoRailsOverDifferentInterfaces) {
  const std::vector<net::Interface> both = {interface("eth0", 1, 1), interface("eth1", 2, 1)};
  EXPECT_TRUE(rails_between(offered(both), offered(both)).empty());
}

// At other addresses nobody listens: trying them only costs time.
TEST(TcpWays, WhereAllRanksShareAHostOnlyLoopbackIsTried) {
  const std::vector<net::Interface> all = {interface("eth0", 1, 1), interface("lo", 2, 1),
                                           interface("lo", 3, 1)};
  PeerAddress peer = offered(all);
  peer.offers[1].is_loopback = peer.offers[2].is_loopback = true;
  const std::vector<Way> here = ways_to(offered(all), all, peer, true);
  ASSERT_EQ(here.size(), 1u);
  EXPECT_EQ(here[0].offer.address, all[1].address);
  const std::vector<Way> elsewhere = ways_to(offered(all, 2), all, peer, false);
  ASSERT_EQ(elsewhere.size(), 1u);
  EXPECT_EQ(elsewhere[0].offer.address, all[0].address);
}

TEST(TcpWays, HowManyRailsThereAreCountsConnections) {
  const auto count = [](uint32_t one, uint32_t other, size_t pairs) {
    PeerAddress a, b;
    a.connections = one;
    b.connections = other;
    return rail_count_between(a, b, pairs);
  };
  EXPECT_EQ(count(1, 1, 0), 1u);
  EXPECT_EQ(count(1, 1, 2), 2u);
  EXPECT_EQ(count(8, 8, 0), 8u);
  EXPECT_EQ(count(3, 2, 2), 4u);
  EXPECT_EQ(count(8, 8, 8), 8u) << "eight rails at most";
}

}  // namespace
}  // namespace weir::plugins::tcp
