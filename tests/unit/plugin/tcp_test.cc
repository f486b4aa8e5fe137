// SPDX-License-Identifier: Apache-2.0
// What is particular to tcp: strangers at its door, bytes that are no messages, and the choice of
// addresses.
#include <gtest/gtest.h>
#include <poll.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "core/plugin/registry.h"
#include "net/handshake.h"
#include "net/ip_socket.h"
#include "net/little_endian.h"
#include "plugins/tcp/address.h"
#include "plugins/tcp/channel.h"
#include "plugins/tcp/wire.h"
#include "unit/plugin/pair.h"

namespace weir::plugins::tcp {
namespace {

const weir_transport_functions_t* tcp() { return plugin::find_transport("tcp").value(); }

PeerAddress address_of(const Pair& pair, uint32_t rank) {
  PeerAddress address;
  EXPECT_TRUE(decode(pair.end[rank].address, pair.end[rank].address_bytes, &address));
  return address;
}

Offer loopback_of(const PeerAddress& address) {
  for (const Offer& offer : address.offers) {
    if (offer.is_loopback && offer.address.family == 4) return offer;
  }
  ADD_FAILURE() << "rank " << address.rank << " offers no loopback address";
  return {};
}

// A blocking connection to a rank's listener.
class Stranger {
 public:
  Stranger(const Pair& pair, uint32_t rank) : Stranger(address_of(pair, rank)) {}
  explicit Stranger(const PeerAddress& address) {
    const Offer offer = loopback_of(address);
    sockaddr_storage name;
    const socklen_t bytes = net::to_sockaddr(offer.address, offer.port, &name);
    fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(::connect(fd_, reinterpret_cast<const sockaddr*>(&name), bytes), 0);
  }
  ~Stranger() { close(fd_); }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;

  void send(const void* data, size_t bytes) { (void)::send(fd_, data, bytes, MSG_NOSIGNAL); }
  // What arrives until the other end closes, or ten seconds have passed.
  std::vector<unsigned char> receive_all() {
    std::vector<unsigned char> all;
    unsigned char part[256];
    for (pollfd entry = {fd_, POLLIN, 0}; poll(&entry, 1, 10'000) > 0;) {
      const ssize_t got = recv(fd_, part, sizeof part, 0);
      if (got <= 0) return all;
      all.insert(all.end(), part, part + got);
    }
    ADD_FAILURE() << "the connection was not closed";
    return all;
  }
  // Speaks for `handshake` until it ends.
  net::Handshake::State play(net::Handshake handshake) {
    for (;;) {
      while (handshake.out_bytes() > 0) {
        const ssize_t sent = ::send(fd_, handshake.out(), handshake.out_bytes(), MSG_NOSIGNAL);
        if (sent <= 0) return handshake.state();
        handshake.sent(static_cast<size_t>(sent));
      }
      if (handshake.state() == net::Handshake::State::kChallenged) {
        handshake.prove();
        continue;
      }
      unsigned char bytes[64];
      pollfd entry = {fd_, POLLIN, 0};
      if (handshake.wanted() == 0 || poll(&entry, 1, 10'000) <= 0) return handshake.state();
      const ssize_t got = recv(fd_, bytes, std::min(handshake.wanted(), sizeof bytes), 0);
      if (got <= 0) return handshake.state();
      handshake.feed(bytes, static_cast<size_t>(got));
    }
  }

 private:
  int fd_;
};

// As the control network's.
net::Identity identity_of(const unsigned char* secret, size_t bytes, uint32_t rank) {
  return {net::key_for(secret, bytes, "control"), 5, rank, 2};
}

net::Subject subject_of(uint32_t lane) {
  return {1, static_cast<uint32_t>(Subject{.lane = lane}.pack()), 0};
}

// With which a stranger may begin.
std::vector<unsigned char> first_frame() {
  const unsigned char secret[8] = {};
  const net::Handshake client(identity_of(secret, sizeof secret, 1), {}, 0, subject_of(0));
  return {client.out(), client.out() + client.out_bytes()};
}

class TcpStrangers : public testing::Test {
 protected:
  TcpStrangers() : pair_(tcp()) {
    EXPECT_EQ(pair_.open(0), WEIR_OK) << pair_.end[0].error;
    EXPECT_EQ(pair_.open(1), WEIR_OK) << pair_.end[1].error;
  }
  // Rank 0 waits; `intrude` does its worst; then rank 1 comes, and all is as if nothing had been.
  void expect_join_in_spite_of(const std::function<void()>& intrude) {
    weir_result_t host = WEIR_OK;
    std::thread helper([&] { host = pair_.connect(0, 20'000); });
    intrude();
    EXPECT_EQ(pair_.connect(1, 20'000), WEIR_OK) << pair_.end[1].error;
    helper.join();
    EXPECT_EQ(host, WEIR_OK) << pair_.end[0].error;
    exchange_a_word();
  }
  void exchange_a_word() {
    uint64_t value = 7;
    uint64_t got = 0;
    weir_transport_op_t send_op{}, recv_op{};
    const weir_result_t sent = pair_.send(0, &value, sizeof value, &send_op);
    const weir_result_t received = pair_.recv(1, &got, sizeof got, &recv_op);
    EXPECT_EQ(pair_.wait(1, &recv_op, received), WEIR_OK);
    EXPECT_EQ(pair_.wait(0, &send_op, sent), WEIR_OK);
    EXPECT_EQ(got, 7u);
  }
  net::Identity identity(uint32_t rank, unsigned char first_byte_of_secret = 1) {
    unsigned char secret[32] = {1, 2, 3, 4};
    secret[0] = first_byte_of_secret;
    return identity_of(secret, sizeof secret, rank);
  }
  Pair pair_;
};

TEST_F(TcpStrangers, SilentOnesDoNotKeepTheRanksWaiting) {
  std::vector<std::unique_ptr<Stranger>> strangers;
  for (int i = 0; i < 60; ++i) strangers.push_back(std::make_unique<Stranger>(pair_, 0));
  expect_join_in_spite_of([] {});
}

// Default limits; half of them go on to be challenged, and then say nothing more.
TEST_F(TcpStrangers, AThousandThatGoNoFurtherDoNotKeepTheRanksFromMeeting) {
  std::vector<std::unique_ptr<Stranger>> strangers;
  expect_join_in_spite_of([&] {
    const std::vector<unsigned char> hello = first_frame();
    for (int i = 0; i < 1000; ++i) {
      strangers.push_back(std::make_unique<Stranger>(pair_, 0));
      if (i % 2 == 0) strangers.back()->send(hello.data(), hello.size());
    }
  });
}

TEST_F(TcpStrangers, GarbageIsTurnedAway) {
  expect_join_in_spite_of([this] {
    std::mt19937 random(1);
    for (int i = 0; i < 40; ++i) {
      Stranger stranger(pair_, 0);
      std::vector<unsigned char> bytes(random() % 400);
      for (auto& byte : bytes) byte = static_cast<unsigned char>(random());
      if (bytes.size() > 4 && i % 2 == 0) memcpy(bytes.data(), "WEIR", 4);
      stranger.send(bytes.data(), bytes.size());
    }
  });
}

TEST_F(TcpStrangers, ALengthThatItsKindCannotHaveEndsTheConnection) {
  expect_join_in_spite_of([this] {
    Stranger stranger(pair_, 0);
    std::vector<unsigned char> hello = first_frame();
    memset(hello.data() + 8, 0xff, 4);  // four gigabytes to come
    stranger.send(hello.data(), net::Handshake::kHeaderBytes);
    EXPECT_TRUE(stranger.receive_all().empty());
  });
}

TEST_F(TcpStrangers, AnotherVersionIsToldOurs) {
  std::vector<unsigned char> answer;
  expect_join_in_spite_of([&] {
    Stranger stranger(pair_, 0);
    std::vector<unsigned char> hello = first_frame();
    hello[4] = 77;
    stranger.send(hello.data(), net::Handshake::kHeaderBytes);
    answer = stranger.receive_all();
  });
  ASSERT_EQ(answer.size(), net::Handshake::kHeaderBytes + 8);
  const unsigned char* const payload = answer.data() + net::Handshake::kHeaderBytes;
  EXPECT_EQ(net::get<uint32_t>(payload), 1u) << "another version";
  EXPECT_EQ(net::get<uint32_t>(payload + 4), net::Handshake::kProtocolVersion);
}

// While rank 1 is not there, so that rank 0 is listening for sure.
TEST_F(TcpStrangers, NobodyIsLetInWithoutTheRightProof) {
  weir_result_t host_result = WEIR_OK;
  std::thread host([&] { host_result = pair_.connect(0, 5000); });
  const auto attempt = [&](const net::Identity& who, uint32_t peer, uint32_t lane) {
    Stranger stranger(pair_, 0);
    net::Handshake::Nonce nonce;
    EXPECT_TRUE(net::fill_random(nonce.data(), nonce.size()));
    return stranger.play(net::Handshake(who, nonce, peer, subject_of(lane)));
  };
  EXPECT_EQ(attempt(identity(1, 99), 0, 0), net::Handshake::State::kRefused) << "another secret";
  net::Identity other_comm = identity(1);
  other_comm.comm_id = 6;
  EXPECT_EQ(attempt(other_comm, 0, 0), net::Handshake::State::kRefused) << "another communicator";
  net::Identity other_count = identity(1);
  other_count.rank_count = 3;
  EXPECT_EQ(attempt(other_count, 0, 0), net::Handshake::State::kRefused) << "another rank count";
  EXPECT_EQ(attempt(identity(1), 1, 0), net::Handshake::State::kRefused)
      << "meant for another rank";
  EXPECT_EQ(attempt(identity(0), 0, 0), net::Handshake::State::kRefused) << "says it is rank 0";
  EXPECT_EQ(attempt(identity(7), 0, 0), net::Handshake::State::kRefused) << "a rank that is not";
  EXPECT_EQ(attempt(identity(1), 0, 99), net::Handshake::State::kProven)
      << "rank 1, but for a lane that is not";
  EXPECT_EQ(pair_.connect(1, 5000), WEIR_OK) << pair_.end[1].error;
  host.join();
  EXPECT_EQ(host_result, WEIR_OK) << pair_.end[0].error;
  exchange_a_word();
}

// A channel whose other end is in our hands.
class TcpBytes : public testing::Test {
 protected:
  TcpBytes() {
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds_), 0);
    channel_.attach(Stream(fds_[0]), Stream(fds_[0]), 3);
  }
  ~TcpBytes() override {
    close(fds_[0]);
    if (fds_[1] >= 0) close(fds_[1]);
  }
  void write_header(wire::MessageHeader header, size_t bytes = wire::kHeaderBytes) {
    unsigned char raw[wire::kHeaderBytes];
    wire::encode(header, raw);
    ASSERT_EQ(write(fds_[1], raw, bytes), static_cast<ssize_t>(bytes));
  }
  weir_result_t receive(uint64_t bytes) {
    buffer_.assign(bytes, 0);
    op_ = {};
    return channel_.post_recv(buffer_.data(), bytes, &op_);
  }
  int fds_[2];
  Channel channel_;
  Op op_{};
  std::vector<unsigned char> buffer_;
};

TEST_F(TcpBytes, AMessageMayArriveInPiecesOfAnySize) {
  unsigned char raw[wire::kHeaderBytes + 5] = {};
  wire::encode({wire::MessageKind::kMessage, 3, 0, 5}, raw);
  memcpy(raw + wire::kHeaderBytes, "hello", 5);
  EXPECT_EQ(receive(5), WEIR_IN_PROGRESS);
  for (const unsigned char byte : raw) {
    EXPECT_EQ(op_.state, kOpPending);
    ASSERT_EQ(write(fds_[1], &byte, 1), 1);
    channel_.drive_recv();
  }
  EXPECT_EQ(op_.state, kOpDone);
  EXPECT_EQ(memcmp(buffer_.data(), "hello", 5), 0);
}

TEST_F(TcpBytes, WhatIsNoMessageIsAnError) {
  const wire::MessageHeader bad[] = {
      {wire::MessageKind::kMessage, 2, 0, 5},             // another lane
      {wire::MessageKind::kMessage, 3, 1, 5},             // another number
      {wire::MessageKind::kState, 3, 0, 56},              // no message
      {static_cast<wire::MessageKind>(99), 3, 0, 5},      // no kind
      {wire::MessageKind::kMessage, 3, 0, ~uint64_t{0}},  // more than a message may have
  };
  for (const wire::MessageHeader& header : bad) {
    int fds[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    Channel channel;
    channel.attach(Stream(fds[0]), Stream(fds[0]), 3);
    unsigned char raw[wire::kHeaderBytes];
    wire::encode(header, raw);
    ASSERT_EQ(write(fds[1], raw, sizeof raw), static_cast<ssize_t>(sizeof raw));
    Op op{};
    unsigned char data[5];
    EXPECT_EQ(channel.post_recv(data, sizeof data, &op), WEIR_ERROR_INTERNAL);
    EXPECT_EQ(channel.post_recv(data, sizeof data, &op), WEIR_ERROR_INTERNAL) << "it stays so";
    close(fds[0]);
    close(fds[1]);
  }
}

TEST_F(TcpBytes, OnlyThePostedBufferIsWrittenWhateverTheLength) {
  // The posted buffer is followed by bytes that must stay.
  unsigned char data[16];
  memset(data, 0x55, sizeof data);
  write_header({wire::MessageKind::kMessage, 3, 0, 4000});
  std::vector<unsigned char> payload(4000, 0xaa);
  ASSERT_EQ(write(fds_[1], payload.data(), payload.size()), 4000);
  EXPECT_EQ(channel_.post_recv(data, 8, &op_), WEIR_ERROR_MISMATCH);
  EXPECT_EQ(channel_.recv_failure().sent_bytes, 4000u);
  EXPECT_EQ(channel_.recv_failure().expected_bytes, 8u);
  for (size_t i = 8; i < sizeof data; ++i) EXPECT_EQ(data[i], 0x55);
}

TEST_F(TcpBytes, AnEndInTheMiddleOfAMessageIsALoss) {
  EXPECT_EQ(receive(100), WEIR_IN_PROGRESS);
  write_header({wire::MessageKind::kMessage, 3, 0, 100});
  ASSERT_EQ(write(fds_[1], "part", 4), 4);
  channel_.drive_recv();
  EXPECT_EQ(op_.state, kOpPending);
  close(fds_[1]);
  fds_[1] = -1;
  channel_.drive_recv();
  EXPECT_EQ(op_.state, kOpFailed + WEIR_ERROR_PEER_LOST);
}

TEST_F(TcpBytes, MessagesThatWereReadAheadFindTheirReceives) {
  // Three messages and the beginning of a fourth arrive at once.
  std::vector<unsigned char> raw;
  const size_t sizes[] = {5, 0, 40, 600};
  for (uint32_t i = 0; i < 4; ++i) {
    unsigned char header[wire::kHeaderBytes];
    wire::encode({wire::MessageKind::kMessage, 3, i, sizes[i]}, header);
    raw.insert(raw.end(), header, header + sizeof header);
    raw.insert(raw.end(), sizes[i], static_cast<unsigned char>('a' + i));
  }
  for (const size_t first_part : {raw.size() - 590, raw.size() - 610, size_t{30}}) {
    int fds[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    Channel channel;
    channel.attach(Stream(fds[0]), Stream(fds[0]), 3);
    ASSERT_EQ(write(fds[1], raw.data(), first_part), static_cast<ssize_t>(first_part));
    Op ops[4] = {};
    std::vector<unsigned char> buffers[4];
    for (uint32_t i = 0; i < 4; ++i) {
      buffers[i].resize(sizes[i]);
      channel.post_recv(buffers[i].data(), sizes[i], &ops[i]);
    }
    EXPECT_EQ(ops[3].state, kOpPending);
    ASSERT_EQ(write(fds[1], raw.data() + first_part, raw.size() - first_part),
              static_cast<ssize_t>(raw.size() - first_part));
    channel.drive_recv();
    for (uint32_t i = 0; i < 4; ++i) {
      EXPECT_EQ(ops[i].state, kOpDone) << i << " of " << first_part;
      EXPECT_EQ(buffers[i],
                std::vector<unsigned char>(sizes[i], static_cast<unsigned char>('a' + i)));
    }
    close(fds[0]);
    close(fds[1]);
  }
}

TEST_F(TcpBytes, AVerySmallMessageLeavesWithTheNextOrWhenItIsDriven) {
  unsigned char bytes[1024];
  uint64_t first = 1, second = 2;
  Op ops[3] = {};
  EXPECT_EQ(channel_.post_send(&first, sizeof first, &ops[0]), WEIR_IN_PROGRESS);
  EXPECT_EQ(read(fds_[1], bytes, sizeof bytes), -1);
  EXPECT_EQ(channel_.post_send(&second, sizeof second, &ops[1]), WEIR_OK);
  EXPECT_EQ(read(fds_[1], bytes, sizeof bytes), 2 * (16 + 8));
  EXPECT_EQ(ops[0].state, kOpDone);
  EXPECT_EQ(channel_.post_send(&first, sizeof first, &ops[2]), WEIR_IN_PROGRESS);
  channel_.drive_send();
  EXPECT_EQ(ops[2].state, kOpDone);
  EXPECT_EQ(read(fds_[1], bytes, sizeof bytes), 16 + 8);
}

TEST(TcpAddress, PassesThroughItsBytes) {
  PeerAddress address;
  address.rank = 3;
  address.host.bytes[5] = 9;
  for (uint8_t i = 0; i < kOffersMax; ++i) {
    Offer offer;
    offer.address.family = i % 2 == 0 ? 4 : 6;
    offer.address.bytes[0] = 10;
    offer.address.bytes[3] = i;
    offer.port = static_cast<uint16_t>(4000 + i);
    offer.speed_mbits = 100'000;
    offer.prefix_bits = 24;
    offer.is_loopback = i == 1;
    offer.is_asked_for = i == 2;
    address.offers.push_back(offer);
  }
  unsigned char bytes[WEIR_TRANSPORT_ADDRESS_BYTES_MAX];
  const size_t size = encode(address, bytes);
  PeerAddress read;
  ASSERT_TRUE(decode(bytes, size, &read));
  EXPECT_EQ(read.rank, 3u);
  EXPECT_EQ(read.host, address.host);
  ASSERT_EQ(read.offers.size(), kOffersMax);
  for (size_t i = 0; i < kOffersMax; ++i) {
    EXPECT_EQ(read.offers[i].address, address.offers[i].address);
    EXPECT_EQ(read.offers[i].port, address.offers[i].port);
    EXPECT_EQ(read.offers[i].speed_mbits, 100'000u);
    EXPECT_EQ(read.offers[i].is_loopback, i == 1);
    EXPECT_EQ(read.offers[i].is_asked_for, i == 2);
  }
  for (size_t cut = 0; cut < size; ++cut) EXPECT_FALSE(decode(bytes, cut, &read)) << cut;
}

TEST(TcpChoice, AnAddressThatDoesNotAnswerIsPassedOverAndTheReasonIsLogged) {
  Pair pair(tcp());
  ASSERT_EQ(pair.open(0), WEIR_OK) << pair.end[0].error;
  ASSERT_EQ(pair.open(1), WEIR_OK) << pair.end[1].error;
  PeerAddress address = address_of(pair, 0);
  // Before the one that works: one at which nobody listens.
  Offer alive = loopback_of(address);
  // As of another host: of ranks that share one, a single address is tried.
  address.host.bytes[0] ^= 1;
  alive.is_loopback = false;
  Offer dead = alive;
  uint16_t port = 0;
  const int listener = net::listen_at(dead.address, &port, 1);
  ASSERT_GE(listener, 0);
  close(listener);
  dead.port = port;
  address.offers = {dead, alive};
  pair.end[0].address_bytes = encode(address, pair.end[0].address);
  weir_result_t other = WEIR_OK;
  std::thread helper([&] { other = pair.connect(1, 20'000); });
  EXPECT_EQ(pair.connect(0, 20'000), WEIR_OK) << pair.end[0].error;
  helper.join();
  EXPECT_EQ(other, WEIR_OK) << pair.end[1].error;
  uint64_t value = 7, got = 0;
  weir_transport_op_t in{}, out{};
  const weir_result_t received = pair.recv(0, &got, sizeof got, &in);
  const weir_result_t sent = pair.send(1, &value, sizeof value, &out);
  EXPECT_EQ(pair.wait(0, &in, received), WEIR_OK) << pair.end[0].error;
  EXPECT_EQ(pair.wait(1, &out, sent), WEIR_OK) << pair.end[1].error;
  const std::string log = pair.end[1].log;
  EXPECT_NE(log.find("uses rank 0 at 127.0.0.1:"), std::string::npos) << log;
  EXPECT_NE(log.find("by routing"), std::string::npos) << log;
  EXPECT_NE(log.find("refused"), std::string::npos) << log;
}

TEST(TcpChoice, AnInterfaceThatIsNotThereIsAnErrorThatNamesTheSetting) {
  Pair pair(tcp());
  pair.end[0].settings["WEIR_IFNAME"] = "=nosuch0";
  EXPECT_EQ(pair.open(0), WEIR_ERROR_UNSUPPORTED);
  EXPECT_NE(pair.end[0].error.find("=nosuch0"), std::string::npos) << pair.end[0].error;
  pair.end[0].settings["WEIR_IFNAME"] = "^";
  EXPECT_EQ(pair.open(0), WEIR_ERROR_INVALID_ARGUMENT);
  EXPECT_NE(pair.end[0].error.find("WEIR_IFNAME"), std::string::npos) << pair.end[0].error;
}

TEST(TcpChoice, OnlyInterfacesThatAreAllowedAreOffered) {
  Pair pair(tcp());
  pair.end[0].settings["NCCL_SOCKET_IFNAME"] = "=lo";
  ASSERT_EQ(pair.open(0), WEIR_OK) << pair.end[0].error;
  PeerAddress address = address_of(pair, 0);
  for (const Offer& offer : address.offers) {
    EXPECT_TRUE(offer.is_loopback);
    EXPECT_TRUE(offer.is_asked_for);
  }
}

TEST(TcpLimits, TooFewDescriptorsAreAnErrorThatSaysHowManyAreNeeded) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  for (const char* connections : {"1", "8"}) {
    Pair pair(tcp());
    for (Pair::End& end : pair.end) {
      end.settings["WEIR_TCP_CONNECTIONS"] = connections;
    }
    ASSERT_EQ(pair.open(0), WEIR_OK) << pair.end[0].error;
    ASSERT_EQ(pair.open(1), WEIR_OK) << pair.end[1].error;
    pair.join_networks(monotonic_ns() + 20'000'000'000);
    const int next = dup(0);  // all below are open
    ASSERT_GE(next, 0);
    close(next);
    rlimit limit = before;
    limit.rlim_cur = static_cast<rlim_t>(next) + 4;  // not for another rank
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    const weir_result_t result = pair.connect(0);
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    EXPECT_EQ(result, WEIR_ERROR_SYSTEM);
    const std::string needed =
        *connections == '1' ? "needs 6 file descriptors" : "needs 16 file descriptors";
    EXPECT_NE(pair.end[0].error.find(needed), std::string::npos) << pair.end[0].error;
    EXPECT_NE(pair.end[0].error.find("ulimit -n"), std::string::npos) << pair.end[0].error;
  }
}

TEST(TcpLoss, ARankThatClosesIsToldApartFromOneThatDies) {
  Pair pair(tcp());
  pair.join();
  uint64_t value = 0;
  weir_transport_op_t op{};
  ASSERT_EQ(pair.recv(1, &value, sizeof value, &op), WEIR_IN_PROGRESS);
  pair.f.close(pair.end[0].instance);
  pair.end[0].instance = nullptr;
  pair.end[0].control->network->leave();
  weir_result_t result = WEIR_IN_PROGRESS;
  for (const uint64_t end = monotonic_ns() + 10'000'000'000;
       result == WEIR_IN_PROGRESS && monotonic_ns() < end;) {
    result = pair.f.test(pair.end[1].instance, &op);
  }
  EXPECT_EQ(result, WEIR_ERROR_PEER_LOST);
  EXPECT_NE(pair.end[1].error.find("rank 0 has closed the communicator"), std::string::npos)
      << pair.end[1].error;
  EXPECT_EQ(pair.f.peer_alive(pair.end[1].instance, 0), WEIR_OK) << "it has not died";
}

}  // namespace
}  // namespace weir::plugins::tcp
