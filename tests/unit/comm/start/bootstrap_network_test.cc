// SPDX-License-Identifier: Apache-2.0
// The bootstrap between hosts: the same over the network, with a MAC on every frame.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>

#include "core/base/clock.h"
#include "core/comm/start/bootstrap_tree.h"
#include "net/ip_socket.h"
#include "unit/comm/start/bootstrap_support.h"

namespace weir::comm {
namespace {

Place loopback(unsigned char last = 1) {
  net::IpAddress address;
  address.family = 4;
  address.bytes = {127, 0, 0, last};
  return Place{{address}};
}

struct Setting {
  bool tls = false;
  Place place = loopback();
};

// A rank that behaves as if it were alone on its host, with rank 0 at the place.
Outcome play_alone(const Secret& secret, Rank rank, Rank rank_count, int rounds, size_t blob_bytes,
                   const Setting& setting = {}) {
  Outcome outcome;
  auto joined = Tree::join(secret, rank, rank_count, deadline_in_ms(20'000), setting.place,
                           {.own_hosts = true, .tls = setting.tls});
  outcome.status = joined.status();
  for (int round = 0; joined.ok() && outcome.status.ok() && round < rounds; ++round) {
    auto blobs = joined.value()->all_gather(std::to_string(rank) + std::string(blob_bytes, 'x'),
                                            deadline_in_ms(20'000));
    outcome.status = blobs.status();
    if (blobs.ok()) outcome.blobs = blobs.take();
  }
  return outcome;
}

std::vector<Outcome> play_over_network(const Secret& secret, Rank rank_count, size_t blob_bytes,
                                       const Setting& setting = {}) {
  std::vector<Outcome> outcomes(rank_count);
  std::vector<std::thread> ranks;
  for (Rank rank = 0; rank < rank_count; ++rank) {
    ranks.emplace_back([&, rank] {
      outcomes[rank] = play_alone(secret, rank, rank_count, 3, blob_bytes, setting);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return outcomes;
}

void expect_gathered(const std::vector<Outcome>& outcomes, size_t blob_bytes) {
  for (const Outcome& outcome : outcomes) {
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.text();
    ASSERT_EQ(outcome.blobs.size(), outcomes.size());
    for (size_t rank = 0; rank < outcomes.size(); ++rank) {
      EXPECT_EQ(outcome.blobs[rank], std::to_string(rank) + std::string(blob_bytes, 'x'));
    }
  }
}

TEST(BootstrapNetwork, RanksOfSeveralHostsGatherAsThoseOfOne) {
  for (const size_t blob_bytes : {size_t{0}, size_t{100}, size_t{300'000}}) {
    expect_gathered(play_over_network(fresh_secret(), 4, blob_bytes), blob_bytes);
  }
}

TEST(BootstrapNetwork, HostsThatTheRootHasNoRoomForAreSentOn) {
  for (const Rank rank_count : {18u, 60u}) {
    expect_gathered(play_over_network(fresh_secret(), rank_count, 500), 500);
  }
}

TEST(BootstrapNetwork, APortThatIsTakenIsPassedOver) {
  const Secret secret = fresh_secret();
  uint16_t port = place_port(secret, 0);
  const int stranger = net::listen_at(loopback().addresses[0], &port, 8);
  if (stranger < 0) GTEST_SKIP() << "somebody else has the port";
  // Who connects there is hung up on.
  std::atomic<bool> stop{false};
  std::thread rude([&] {
    while (!stop) {
      net::IpAddress from;
      const int fd = net::accept_from(stranger, &from);
      if (fd >= 0) close(fd);
      usleep(500);
    }
  });
  expect_gathered(play_over_network(secret, 3, 10), 10);
  stop = true;
  rude.join();
  close(stranger);
}

// A network that takes connections and loses what is sent on them.
TEST(BootstrapNetwork, AnAddressThatNeverAnswersDoesNotHideTheOthers) {
  for (const bool is_last : {false, true}) {
    const Secret secret = fresh_secret();
    uint16_t port = place_port(secret, 0);
    const int silent = net::listen_at(loopback(2).addresses[0], &port, 64);
    if (silent < 0) GTEST_SKIP() << "somebody else has the port";
    Setting setting;
    setting.place.addresses.insert(
        is_last ? setting.place.addresses.end() : setting.place.addresses.begin(),
        loopback(2).addresses[0]);
    std::vector<Outcome> outcomes(2);
    std::thread zero([&] { outcomes[0] = play_alone(secret, 0, 2, 3, 10); });
    outcomes[1] = play_alone(secret, 1, 2, 3, 10, setting);
    zero.join();
    close(silent);
    expect_gathered(outcomes, 10);
  }
}

// The caller's.
int begin_to_connect(uint16_t port) {
  return net::begin_connect(loopback().addresses[0], port, {});
}

bool is_connected(int fd) {
  std::vector<pollfd> entries{{fd, POLLOUT, 0}};
  return fd >= 0 && wait_for_events(&entries, deadline_in_ms(5'000)).ok() &&
         net::connect_error(fd) == 0;
}

net::Stream connect_to_root(const Secret& secret) {
  for (int i = 0; i < 5000; ++i) {
    net::Stream connection(begin_to_connect(place_port(secret, 0)));
    if (is_connected(connection.fd())) return connection;
    usleep(1000);
  }
  ADD_FAILURE() << "nobody listens";
  return net::Stream();
}

Stranger stranger_at_root(const Secret& secret) {
  return Stranger(connect_to_root(secret).release());
}

TEST(BootstrapNetwork, WithoutTheSecretIsTurnedAway) {
  const Secret secret = fresh_secret();
  std::vector<Outcome> outcomes(2);
  std::thread zero([&] { outcomes[0] = play_alone(secret, 0, 2, 1, 0); });
  {
    Stranger stranger = stranger_at_root(secret);
    EXPECT_EQ(prove(&stranger, secret_from_text("a guess"), 1, 2), "");
  }
  outcomes[1] = play_alone(secret, 1, 2, 1, 0);
  zero.join();
  expect_gathered(outcomes, 0);
}

TEST(BootstrapNetwork, AFrameWithoutItsMacIsNotBelieved) {
  const Secret secret = fresh_secret();
  Outcome outcome;
  std::thread zero([&] { outcome = play_alone(secret, 0, 2, 1, 0); });
  Stranger rank_1 = stranger_at_root(secret);
  ASSERT_NE(prove(&rank_1, secret, 1, 2), "");
  rank_1.send(give(1, record(1, "forged")) + std::string(net::kMacBytes, '\0'));
  zero.join();
  EXPECT_EQ(outcome.status.code(), Code::kInternal) << outcome.status.text();
  EXPECT_NE(outcome.status.text().find("rank 1"), std::string::npos) << outcome.status.text();
}

// ---- Inside TLS ----

constexpr const char* kBlobEnd = "0xxxxxxxxxxxxxxxx";  // of what rank 0 gives

// Between rank 1, which looks for the root at 127.0.0.2, and the root at 127.0.0.1: keeps what goes
// by, and changes a bit of what rank 1 says when so many bytes of it have gone by.
class Tap {
 public:
  Tap(const Secret& secret, size_t changed_at) : changed_at_(changed_at) {
    for (uint32_t i = 0; i < kPlacePortCount; ++i) {
      uint16_t port = place_port(secret, i);
      listeners_.push_back({net::Stream(net::listen_at(loopback(2).addresses[0], &port, 8)), port});
    }
    thread_ = std::thread([this] { run(); });
  }
  ~Tap() { stop(); }
  bool listens() const {
    return std::all_of(listeners_.begin(), listeners_.end(),
                       [](const Listener& one) { return one.socket.is_open(); });
  }
  // Both directions, one after the other.
  const std::string& seen() {
    stop();
    return seen_;
  }

 private:
  struct Listener {
    net::Stream socket;
    uint16_t port;
  };
  struct Lines {
    std::array<net::Stream, 2> ends;  // to rank 1, to the root
  };

  void stop() {
    stopped_ = true;
    if (thread_.joinable()) thread_.join();
  }

  static bool send_all(int fd, const char* data, size_t bytes) {
    while (bytes > 0) {
      const ssize_t sent = send(fd, data, bytes, MSG_NOSIGNAL);
      if (sent < 0 && errno != EAGAIN && errno != EINTR) return false;
      if (sent < 0) usleep(100);
      data += std::max<ssize_t>(sent, 0);
      bytes -= static_cast<size_t>(std::max<ssize_t>(sent, 0));
    }
    return true;
  }

  // False: the connection has ended.
  bool carry(Lines* lines, size_t from) {
    char data[4096];
    const ssize_t got = recv(lines->ends[from].fd(), data, sizeof data, MSG_DONTWAIT);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
    const auto bytes = static_cast<size_t>(got);
    seen_.append(data, bytes);
    if (from == 0) {
      if (told_bytes_ <= changed_at_ && changed_at_ < told_bytes_ + bytes) {
        data[changed_at_ - told_bytes_] = static_cast<char>(data[changed_at_ - told_bytes_] ^ 1);
      }
      told_bytes_ += bytes;
    }
    return send_all(lines->ends[1 - from].fd(), data, bytes);
  }

  void run() {
    std::vector<Lines> all;
    while (!stopped_) {
      for (const Listener& one : listeners_) {
        net::IpAddress from;
        net::Stream client(net::accept_from(one.socket.fd(), &from));
        if (!client.is_open()) continue;
        net::Stream root(begin_to_connect(one.port));
        if (!is_connected(root.fd())) continue;
        told_bytes_ = 0;
        all.push_back({{std::move(client), std::move(root)}});
      }
      std::erase_if(all, [this](Lines& one) { return !carry(&one, 0) || !carry(&one, 1); });
      usleep(100);
    }
  }

  size_t changed_at_;
  size_t told_bytes_ = 0;  // by rank 1, over the newest connection
  std::vector<Listener> listeners_;
  std::string seen_;
  std::atomic<bool> stopped_{false};
  std::thread thread_;
};

TEST(BootstrapTls, RanksOfSeveralHostsGatherInsideIt) {
  for (const size_t blob_bytes : {size_t{0}, size_t{100}, size_t{300'000}}) {
    expect_gathered(play_over_network(fresh_secret(), 4, blob_bytes, {.tls = true}), blob_bytes);
  }
}

TEST(BootstrapTls, HostsThatTheRootHasNoRoomForAreSentOn) {
  expect_gathered(play_over_network(fresh_secret(), 18, 500, {.tls = true}), 500);
}

TEST(BootstrapTls, NothingOfItIsReadOnTheWire) {
  for (const bool tls : {false, true}) {
    const Secret secret = fresh_secret();
    Tap tap(secret, SIZE_MAX);
    if (!tap.listens()) GTEST_SKIP() << "somebody else has a port";
    std::vector<Outcome> outcomes(2);
    std::thread zero([&] { outcomes[0] = play_alone(secret, 0, 2, 3, 2000, {.tls = tls}); });
    outcomes[1] = play_alone(secret, 1, 2, 3, 2000, {.tls = tls, .place = loopback(2)});
    zero.join();
    expect_gathered(outcomes, 2000);
    const std::string& seen = tap.seen();
    EXPECT_GT(seen.size(), 12'000u) << "the tap has seen it all";
    EXPECT_EQ(seen.find(kBlobEnd) != std::string::npos, !tls) << "what ranks give";
    // The first bytes of frames that each way through has.
    for (const HandshakeKind kind : {kHello, kProof, kWelcome}) {
      const std::string bytes = handshake_frame(kind, "").substr(0, 8);
      EXPECT_EQ(seen.find(bytes) != std::string::npos, !tls) << "handshake " << kind;
    }
    for (const Message message : {Message::kGive, Message::kTake}) {
      const std::string bytes = frame(message, 1, "").substr(0, 4);
      EXPECT_EQ(seen.find(bytes) != std::string::npos, !tls)
          << "message " << static_cast<int>(message);
    }
  }
}

TEST(BootstrapTls, ABitThatChangesOnTheWireEndsItWithTheNameOfTheSender) {
  const Secret secret = fresh_secret();
  Tap tap(secret, 100'000);
  if (!tap.listens()) GTEST_SKIP() << "somebody else has a port";
  std::vector<Outcome> outcomes(2);
  std::thread zero([&] { outcomes[0] = play_alone(secret, 0, 2, 3, 300'000, {.tls = true}); });
  outcomes[1] = play_alone(secret, 1, 2, 3, 300'000, {.tls = true, .place = loopback(2)});
  zero.join();
  EXPECT_EQ(outcomes[0].status.code(), Code::kSystem) << outcomes[0].status.text();
  EXPECT_NE(outcomes[0].status.text().find("rank 1 of 2"), std::string::npos);
  EXPECT_NE(outcomes[0].status.text().find("to rank 0 was altered in transit"), std::string::npos)
      << outcomes[0].status.text();
  EXPECT_FALSE(outcomes[1].status.ok());
}

TEST(BootstrapTls, RanksThatDisagreeAreToldWhoAndHow) {
  for (const bool root_has_it : {true, false}) {
    const Secret secret = fresh_secret();
    std::vector<Outcome> outcomes(2);
    std::thread zero([&] { outcomes[0] = play_alone(secret, 0, 2, 1, 0, {.tls = root_has_it}); });
    outcomes[1] = play_alone(secret, 1, 2, 1, 0, {.tls = !root_has_it});
    zero.join();
    const char* const expected[] = {
        "rank 1 of 2 (a process on another host) runs with WEIR_TLS=",
        root_has_it ? "WEIR_TLS=off, rank 0" : "rank 0 with WEIR_TLS=off"};
    for (const Outcome& outcome : outcomes) {
      EXPECT_EQ(outcome.status.code(), Code::kMismatch) << outcome.status.text();
      for (const char* words : expected) {
        EXPECT_NE(outcome.status.text().find(words), std::string::npos) << outcome.status.text();
      }
    }
  }
}

TEST(BootstrapTls, WithoutTheSecretIsTurnedAwayAndTheRanksMeet) {
  const Secret secret = fresh_secret();
  std::vector<Outcome> outcomes(2);
  std::thread zero([&] { outcomes[0] = play_alone(secret, 0, 2, 1, 0, {.tls = true}); });
  {
    // One that says TLS and no more, one with another secret, and one that shouts.
    Stranger silent = stranger_at_root(secret);
    silent.send(std::string("\x16\x03\x01", 3));
    std::string reason;
    const Secret other = fresh_secret();
    const auto guess = make_tls(other, &reason);
    ASSERT_NE(guess, nullptr) << reason;
    net::Stream stream = connect_to_root(secret);
    ASSERT_TRUE(stream.secure(*guess, net::Stream::Role::kClient));
    control::Link guesses(std::move(stream), false, client_of({other, 1, 2, 0}));
    control::Link::Step step = control::Link::Step::kGoesOn;
    for (const uint64_t end_ns = deadline_in_ms(15'000);
         step == control::Link::Step::kGoesOn && now_ns() < end_ns;) {
      int error_number = 0;
      step = guesses.advance(&error_number);
      ASSERT_EQ(guesses.handshake().state(), net::Handshake::State::kBusy);
      usleep(200);
    }
    EXPECT_EQ(step, control::Link::Step::kEnded);
    Stranger loud = stranger_at_root(secret);
    loud.send(std::string("\x16\x03\x01\xff\xff\x01", 6) + std::string(70'000, 'x'));
    EXPECT_TRUE(loud.is_hung_up(15'000));
  }
  outcomes[1] = play_alone(secret, 1, 2, 1, 0, {.tls = true});
  zero.join();
  expect_gathered(outcomes, 0);
}

TEST(BootstrapPlace, PassesThroughItsBytes) {
  Place place = loopback();
  place.addresses.push_back(place.addresses[0]);
  place.addresses[1].family = 6;
  place.host = 0x0123456789abcdef;
  Place read;
  ASSERT_TRUE(unpack(pack(place), &read));
  EXPECT_EQ(read.addresses, place.addresses);
  EXPECT_EQ(read.host, place.host);
  EXPECT_TRUE(unpack(pack(Place()) + "whatever follows", &read));
  EXPECT_TRUE(read.empty());
  EXPECT_FALSE(unpack("", &read));
  EXPECT_FALSE(unpack(pack(place).substr(0, 40), &read));
  EXPECT_FALSE(unpack(std::string(200, '\xff'), &read));
  EXPECT_LE(pack(place).size(), kPlaceBytesMax);
}

TEST(BootstrapPlace, PortsLieWhereTheKernelGivesNone) {
  for (int i = 0; i < 100; ++i) {
    const Secret secret = fresh_secret();
    for (uint32_t index = 0; index < kPlacePortCount; ++index) {
      EXPECT_GE(place_port(secret, index), kPlacePortFirst);
      EXPECT_LT(place_port(secret, index), kPlacePortFirst + kPlacePortRange);
    }
  }
}

}  // namespace
}  // namespace weir::comm
