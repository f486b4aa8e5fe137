// SPDX-License-Identifier: Apache-2.0
// tcp inside TLS: what somebody on the way sees and can do, who is let in, and messages that the
// network takes in parts.
#include <gtest/gtest.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/plugin/registry.h"
#include "net/handshake.h"
#include "net/ip_socket.h"
#include "plugins/tcp/address.h"
#include "plugins/tcp/wire.h"
#include "unit/plugin/pair.h"

namespace weir::plugins::tcp {
namespace {

const weir_transport_functions_t* tcp() { return plugin::find_transport("tcp").value(); }

Offer loopback_of(const PeerAddress& address) {
  for (const Offer& offer : address.offers) {
    if (offer.is_loopback && offer.address.family == 4) return offer;
  }
  ADD_FAILURE() << "rank " << address.rank << " offers no loopback address";
  return {};
}

int connect_to(const Offer& offer) {
  sockaddr_storage name;
  const socklen_t bytes = net::to_sockaddr(offer.address, offer.port, &name);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(::connect(fd, reinterpret_cast<const sockaddr*>(&name), bytes), 0);
  return fd;
}

// Somebody on the way from rank 1 to rank 0, who reads all and changes a bit where told to.
class Wire {
 public:
  explicit Wire(const Offer& real) : real_(real) {
    listener_ = net::listen_at(real.address, &port_, 64);
    EXPECT_GE(listener_, 0);
    thread_ = std::thread([this] { run(); });
  }
  ~Wire() { stop(); }
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  uint16_t port() const { return port_; }
  void damage_next() { damages_ = true; }
  bool damaged() const { return !damages_; }
  // Ends all connections, as somebody on the way can.
  void stop() {
    stops_ = true;
    if (thread_.joinable()) thread_.join();
  }
  // After stop: whether these bytes went by.
  bool saw(const std::string& bytes) const {
    return std::any_of(ways_.begin(), ways_.end(),
                       [&](const auto& way) { return way->seen.find(bytes) != std::string::npos; });
  }

 private:
  struct Way {
    int from;
    int to;
    std::string seen;
  };

  void run() {
    while (!stops_) {
      std::vector<pollfd> entries = {{listener_, POLLIN, 0}};
      for (const auto& way : ways_) entries.push_back({way->from, POLLIN, 0});
      if (poll(entries.data(), entries.size(), 20) <= 0) continue;
      for (size_t i = 0; i + 1 < entries.size(); ++i) {
        if (entries[i + 1].revents != 0) carry(ways_[i].get());
      }
      if (entries[0].revents == 0) continue;
      net::IpAddress who;
      const int from = net::accept_from(listener_, &who);
      if (from < 0) continue;
      const int to = connect_to(real_);
      ways_.push_back(std::make_unique<Way>(Way{from, to, ""}));
      ways_.push_back(std::make_unique<Way>(Way{to, from, ""}));
    }
    close(listener_);
    for (const auto& way : ways_) {
      if (way->from >= 0) shutdown(way->from, SHUT_RDWR);
    }
    // Each is the `to` of one way only.
    for (const auto& way : ways_) close(way->to);
  }
  void carry(Way* way) {
    char bytes[65536];
    const ssize_t got = recv(way->from, bytes, sizeof bytes, MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) {
      (void)shutdown(way->to, SHUT_WR);
      way->from = -1;
      return;
    }
    way->seen.append(bytes, static_cast<size_t>(got));
    if (damages_.exchange(false)) bytes[got - 1] ^= 1;
    for (ssize_t sent = 0; sent < got && !stops_;) {
      pollfd entry = {way->to, POLLOUT, 0};
      if (poll(&entry, 1, 20) <= 0) continue;
      const ssize_t part =
          send(way->to, bytes + sent, static_cast<size_t>(got - sent), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (part < 0 && errno != EAGAIN) return;
      sent += std::max<ssize_t>(part, 0);
    }
  }

  Offer real_;
  uint16_t port_ = 0;
  int listener_ = -1;
  std::vector<std::unique_ptr<Way>> ways_;
  std::atomic<bool> stops_{false};
  std::atomic<bool> damages_{false};
  std::thread thread_;
};

class TcpTls : public testing::Test {
 protected:
  void open(const char* mode_of_0, const char* mode_of_1, int connections = 1) {
    const char* modes[] = {mode_of_0, mode_of_1};
    for (uint32_t i = 0; i < 2; ++i) {
      pair_.end[i].settings["WEIR_TLS"] = modes[i];
      pair_.end[i].settings["WEIR_TCP_CONNECTIONS"] = std::to_string(connections);
      ASSERT_EQ(pair_.open(i), WEIR_OK) << pair_.end[i].error;
    }
  }
  // Rank 1 finds rank 0 behind the wire only, and rank 0 does not find rank 1.
  std::unique_ptr<Wire> put_wire_between() {
    PeerAddress address;
    EXPECT_TRUE(decode(pair_.end[0].address, pair_.end[0].address_bytes, &address));
    Offer offer = loopback_of(address);
    auto wire = std::make_unique<Wire>(offer);
    offer.port = wire->port();
    address.offers = {offer};
    pair_.end[0].address_bytes = encode(address, pair_.end[0].address);
    EXPECT_TRUE(decode(pair_.end[1].address, pair_.end[1].address_bytes, &address));
    offer = loopback_of(address);
    offer.port = 0;
    close(net::listen_at(offer.address, &offer.port, 1));
    address.offers = {offer};
    pair_.end[1].address_bytes = encode(address, pair_.end[1].address);
    return wire;
  }
  void connect() {
    weir_result_t other = WEIR_OK;
    std::thread helper([&] { other = pair_.connect(1, 20'000); });
    EXPECT_EQ(pair_.connect(0, 20'000), WEIR_OK) << pair_.end[0].error;
    helper.join();
    ASSERT_EQ(other, WEIR_OK) << pair_.end[1].error;
  }
  // What each ends with.
  void connect_in_vain(uint64_t timeout_ms, weir_result_t* of_0, weir_result_t* of_1) {
    pair_.joins_apart = true;
    std::thread helper([&] { *of_1 = pair_.connect(1, timeout_ms); });
    *of_0 = pair_.connect(0, timeout_ms);
    helper.join();
  }
  void carry(uint32_t from, const std::string& text) {
    std::string got(text.size(), 0);
    weir_transport_op_t send_op{}, recv_op{};
    const weir_result_t received = pair_.recv(1 - from, got.data(), got.size(), &recv_op);
    const weir_result_t sent = pair_.send(from, text.data(), text.size(), &send_op);
    EXPECT_EQ(pair_.wait(1 - from, &recv_op, received), WEIR_OK) << pair_.end[1 - from].error;
    EXPECT_EQ(pair_.wait(from, &send_op, sent), WEIR_OK) << pair_.end[from].error;
    EXPECT_EQ(got, text);
  }
  // As both ends have told.
  int rails_down() const {
    int down = 0;
    for (const Pair::End& end : pair_.end) {
      down += count(end.log, "was taken out") - count(end.log, "is back");
    }
    return down;
  }
  static int count(const std::string& text, const std::string& words) {
    int found = 0;
    for (size_t at = 0; (at = text.find(words, at)) != std::string::npos; ++at) ++found;
    return found;
  }

  Pair pair_{tcp()};
};

TEST_F(TcpTls, WhatGoesByOnTheWireIsWhatTheSettingSays) {
  for (const int connections : {1, 2}) {
    for (const std::string mode : {"off", "control", "all"}) {
      SCOPED_TRACE(mode + ", connections: " + std::to_string(connections));
      open(mode.c_str(), mode.c_str(), connections);
      const std::unique_ptr<Wire> wire = put_wire_between();
      connect();
      const std::string data = "the data of users, forward";
      const std::string back = "the data of users, back";
      carry(1, data + std::string(100'000, 'x'));
      carry(0, std::string(100'000, 'x') + back);
      pair_.close();
      wire->stop();
      EXPECT_EQ(wire->saw(data), mode != "all");
      EXPECT_EQ(wire->saw(back), mode != "all");
      EXPECT_EQ(wire->saw("WEIR"), mode == "off") << "frames of the proofs";
      // Up to the first number of lane 0; less of it stands by chance in what is encrypted.
      EXPECT_EQ(wire->saw(std::string("WT\x10\0\0\0\0\0", 8)) ||
                    wire->saw(std::string("WT\x14\0\0\0\0\0", 8)),
                mode != "all")
          << "headers of messages";
    }
  }
}

// All lanes, also to itself, in both directions at once: more than the network takes at a time.
TEST_F(TcpTls, MessagesThatLeaveInPartsArriveWhole) {
  for (const int connections : {1, 3}) {
    for (const char* mode : {"control", "all"}) {
      const auto seed = static_cast<unsigned>(connections * 7 + mode[0]);
      SCOPED_TRACE(std::string(mode) + ", seed " + std::to_string(seed));
      open(mode, mode, connections);
      connect();
      std::mt19937 random(seed);
      constexpr size_t kSizes[] = {0, 1, 16, 64, 65, 600, 5000, 16384, 16385, 70'000, 3'000'000};
      struct Message {
        std::vector<unsigned char> sent, got;
        weir_transport_op_t send_op{}, recv_op{};
        weir_result_t send_result, recv_result;
        uint32_t from, to;
      };
      std::vector<std::unique_ptr<Message>> messages;
      for (int round = 0; round < 12; ++round) {
        for (uint32_t k = 0; k < 4 * kLaneCount; ++k) {
          auto one = std::make_unique<Message>();
          one->from = k & 1;
          one->to = k >> 1 & 1;
          one->sent.resize(kSizes[random() % std::size(kSizes)]);
          one->got.resize(one->sent.size());
          for (auto& byte : one->sent) byte = static_cast<unsigned char>(random());
          const uint32_t lane = k >> 2;
          const bool first = random() % 2 == 0;
          const auto receive = [&] {
            one->recv_result = pair_.f.recv(pair_.end[one->to].instance, one->from, lane,
                                            one->got.data(), one->got.size(), &one->recv_op);
          };
          if (first) receive();
          one->send_result = pair_.f.send(pair_.end[one->from].instance, one->to, lane,
                                          one->sent.data(), one->sent.size(), &one->send_op);
          if (!first) receive();
          messages.push_back(std::move(one));
        }
      }
      const uint64_t end = monotonic_ns() + 30'000'000'000;
      const auto finish = [&](uint32_t rank, weir_transport_op_t* op, weir_result_t result) {
        while (result == WEIR_IN_PROGRESS && monotonic_ns() < end) {
          // Not `test` of the operation: progress alone must find what has come.
          (void)pair_.f.progress(pair_.end[0].instance);
          (void)pair_.f.progress(pair_.end[1].instance);
          if (random() % 4 == 0) result = pair_.f.test(pair_.end[rank].instance, op);
        }
        EXPECT_EQ(result, WEIR_OK) << pair_.end[rank].error;
      };
      for (const auto& one : messages) {
        finish(one->to, &one->recv_op, one->recv_result);
        finish(one->from, &one->send_op, one->send_result);
        EXPECT_TRUE(one->sent == one->got) << one->sent.size();
      }
      pair_.close();
    }
  }
}

// With many channels poll tells which can move. The last message shares its record with the last
// one that a look at the channel takes, so it waits decrypted, where poll sees nothing.
TEST_F(TcpTls, WhatIsDecryptedAlreadyIsReceivedWithoutAnyMoreBytes) {
  for (Pair::End& end : pair_.end) end.settings["WEIR_TCP_LAZY"] = "0";
  open("all", "all");
  connect();
  constexpr uint32_t kCount = 33;
  constexpr uint32_t kLast = kLaneCount - 1;
  weir_transport_op_t idle[2 * kLaneCount] = {};
  uint64_t nothing = 0;
  for (uint32_t k = 0; k + 1 < 2 * kLaneCount; ++k) {
    ASSERT_EQ(pair_.f.recv(pair_.end[0].instance, k % 2, k / 2, &nothing, 8, &idle[k]),
              WEIR_IN_PROGRESS);
  }
  weir_transport_op_t recv_ops[kCount] = {}, send_ops[kCount] = {};
  std::string got[kCount];
  for (uint32_t k = 0; k < kCount; ++k) {
    got[k].resize(k == 0 ? 65 : 64);
    ASSERT_EQ(
        pair_.f.recv(pair_.end[0].instance, 1, kLast, got[k].data(), got[k].size(), &recv_ops[k]),
        WEIR_IN_PROGRESS);
  }
  std::vector<std::string> sent;
  for (uint32_t k = 0; k < kCount; ++k) {
    sent.emplace_back(got[k].size(), static_cast<char>('A' + k));
    EXPECT_LE(
        pair_.f.send(pair_.end[1].instance, 0, kLast, sent[k].data(), sent[k].size(), &send_ops[k]),
        WEIR_IN_PROGRESS);
  }
  for (const uint64_t end = monotonic_ns() + 20'000'000'000;
       got[kCount - 1] != sent[kCount - 1] && monotonic_ns() < end;) {
    (void)pair_.f.progress(pair_.end[0].instance);
  }
  for (uint32_t k = 0; k < kCount; ++k) EXPECT_EQ(got[k], sent[k]) << k;
}

TEST_F(TcpTls, WithoutTheSecretNobodyJoins) {
  for (const char* mode : {"control", "all"}) {
    unsigned char other[32] = {9, 9};
    pair_.end[1].config.secret = other;
    open(mode, mode);
    weir_result_t of_0 = WEIR_OK, of_1 = WEIR_OK;
    connect_in_vain(1500, &of_0, &of_1);
    EXPECT_EQ(of_0, WEIR_ERROR_TIMEOUT);
    EXPECT_NE(pair_.end[0].error.find("rank 1"), std::string::npos) << pair_.end[0].error;
    EXPECT_EQ(pair_.end[0].error.find(" 0 without the secret"), std::string::npos)
        << pair_.end[0].error;
    EXPECT_EQ(of_1, WEIR_ERROR_REFUSED);
    EXPECT_NE(pair_.end[1].error.find("does not accept the secret"), std::string::npos)
        << pair_.end[1].error;
    pair_.close();
    pair_.end[1].config.secret = pair_.secret;
  }
}

TEST_F(TcpTls, ARankWithAnotherSettingIsNamed) {
  const char* modes[] = {"off", "control", "all"};
  for (const std::string of_0 : modes) {
    for (const std::string of_1 : modes) {
      if (of_0 == of_1) continue;
      open(of_0.c_str(), of_1.c_str());
      weir_result_t result_0 = WEIR_OK, result_1 = WEIR_OK;
      connect_in_vain(20'000, &result_0, &result_1);
      EXPECT_EQ(result_0, WEIR_ERROR_REFUSED);
      EXPECT_EQ(result_1, WEIR_ERROR_REFUSED);
      std::string modes_of_both = "rank 1 runs with WEIR_TLS=";
      modes_of_both.append(of_1).append(", rank 0 with WEIR_TLS=").append(of_0);
      EXPECT_NE(pair_.end[0].error.find(modes_of_both), std::string::npos) << pair_.end[0].error;
      EXPECT_NE(pair_.end[1].error.find("rank 0 runs with WEIR_TLS=" + of_0), std::string::npos)
          << pair_.end[1].error;
      pair_.close();
    }
  }
}

TEST_F(TcpTls, StrangersKeepNobodyOut) {
  for (const char* mode : {"control", "all"}) {
    open(mode, mode);
    PeerAddress address;
    ASSERT_TRUE(decode(pair_.end[0].address, pair_.end[0].address_bytes, &address));
    const net::Identity somebody = {{}, 5, 1, 2};
    const net::Handshake hello(somebody, {}, 0, {1, 0, 0});
    const unsigned char longer[] = {22, 3, 1, 0x40, 0, 1, 0, 0x3f, 0xfc};  // 16 KiB to come
    std::vector<int> strangers;
    for (int i = 0; i < 30; ++i) {
      strangers.push_back(connect_to(loopback_of(address)));
      if (i % 3 == 0) (void)send(strangers.back(), hello.out(), hello.out_bytes(), MSG_NOSIGNAL);
      if (i % 3 == 1) (void)send(strangers.back(), longer, sizeof longer, MSG_NOSIGNAL);
    }
    connect();
    carry(1, "after them");
    for (const int fd : strangers) close(fd);
    pair_.close();
  }
}

TEST_F(TcpTls, AMessageThatWasChangedOnItsWayIsNotDelivered) {
  open("all", "all");
  const std::unique_ptr<Wire> wire = put_wire_between();
  connect();
  carry(1, "before");
  wire->damage_next();
  const std::string text(1000, 't');
  std::string got(text.size(), 0);
  weir_transport_op_t send_op{}, recv_op{};
  const weir_result_t received = pair_.recv(0, got.data(), got.size(), &recv_op);
  (void)pair_.send(1, text.data(), text.size(), &send_op);
  EXPECT_EQ(pair_.wait(0, &recv_op, received), WEIR_ERROR_INTERNAL);
  EXPECT_TRUE(wire->damaged());
  EXPECT_NE(pair_.end[0].error.find("the data that rank 1 sent to rank 0 on lane 0"),
            std::string::npos)
      << pair_.end[0].error;
  EXPECT_NE(pair_.end[0].error.find("damaged in transit"), std::string::npos) << pair_.end[0].error;
  EXPECT_EQ(got.find('t'), std::string::npos) << "not even in part";
}

TEST_F(TcpTls, ARailOnWhichABitWasChangedIsTakenOutAndTheMessagesArrive) {
  open("all", "all", 3);
  const std::unique_ptr<Wire> wire = put_wire_between();
  connect();
  for (int round = 0; round < 6; ++round) {
    std::string text(300'000, static_cast<char>('a' + round));
    std::string got(text.size(), 0);
    weir_transport_op_t send_op{}, recv_op{};
    weir_result_t received = pair_.recv(0, got.data(), got.size(), &recv_op);
    if (round % 2 == 0) wire->damage_next();
    weir_result_t sent = pair_.send(1, text.data(), text.size(), &send_op);
    for (const uint64_t end = monotonic_ns() + 20'000'000'000;
         (received == WEIR_IN_PROGRESS || sent == WEIR_IN_PROGRESS) && monotonic_ns() < end;) {
      (void)pair_.f.progress(pair_.end[0].instance);
      (void)pair_.f.progress(pair_.end[1].instance);
      if (received == WEIR_IN_PROGRESS) received = pair_.f.test(pair_.end[0].instance, &recv_op);
      if (sent == WEIR_IN_PROGRESS) sent = pair_.f.test(pair_.end[1].instance, &send_op);
    }
    ASSERT_EQ(received, WEIR_OK) << pair_.end[0].error;
    ASSERT_EQ(sent, WEIR_OK) << pair_.end[1].error;
    EXPECT_TRUE(got == text) << round;
    EXPECT_TRUE(wire->damaged());
    // Three rails stand three of these only if they come back.
    for (const uint64_t end = monotonic_ns() + 20'000'000'000;
         rails_down() != 0 && monotonic_ns() < end;) {
      carry(1, "x");
    }
    ASSERT_EQ(rails_down(), 0) << pair_.end[0].log << pair_.end[1].log;
  }
  EXPECT_NE(pair_.end[0].log.find("is back"), std::string::npos) << pair_.end[0].log;
}

TEST_F(TcpTls, ACutIsNoGoodbyeAndAGoodbyeIsNoDeath) {
  for (const char* mode : {"control", "all"}) {
    for (const int connections : {1, 2}) {
      SCOPED_TRACE(std::string(mode) + " " + std::to_string(connections));
      for (const bool cuts : {true, false}) {
        open(mode, mode, connections);
        const std::unique_ptr<Wire> wire = put_wire_between();
        connect();
        carry(0, "hello");
        uint64_t value = 0;
        weir_transport_op_t op{};
        weir_result_t result = pair_.recv(1, &value, sizeof value, &op);
        ASSERT_EQ(result, WEIR_IN_PROGRESS);
        if (cuts) {
          wire->stop();
        } else {
          pair_.f.close(pair_.end[0].instance);
          pair_.end[0].instance = nullptr;
        }
        for (const uint64_t end = monotonic_ns() + 20'000'000'000;
             result == WEIR_IN_PROGRESS && monotonic_ns() < end;) {
          (void)pair_.f.progress(pair_.end[1].instance);
          result = pair_.f.test(pair_.end[1].instance, &op);
        }
        EXPECT_EQ(result, WEIR_ERROR_PEER_LOST);
        if (cuts) {
          weir_result_t alive = WEIR_OK;
          for (const uint64_t end = monotonic_ns() + 20'000'000'000;
               alive == WEIR_OK && monotonic_ns() < end;) {
            alive = pair_.f.peer_alive(pair_.end[1].instance, 0);
          }
          EXPECT_EQ(alive, WEIR_ERROR_PEER_LOST);
          EXPECT_NE(pair_.end[1].error.find("is dead"), std::string::npos) << pair_.end[1].error;
        } else {
          EXPECT_NE(pair_.end[1].error.find("rank 0 has closed the communicator"),
                    std::string::npos)
              << pair_.end[1].error;
          EXPECT_EQ(pair_.f.peer_alive(pair_.end[1].instance, 0), WEIR_OK);
        }
        pair_.close();
      }
    }
  }
}

}  // namespace
}  // namespace weir::plugins::tcp
