// SPDX-License-Identifier: Apache-2.0
// Who is no rank of the communicator gets nowhere and holds nobody up: other secrets and modes of
// TLS, silence, garbage, floods, and a process that has no descriptors left for a while.
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/base/clock.h"
#include "core/control/socket_network.h"
#include "net/ip_socket.h"

namespace weir::control {
namespace {

using namespace std::chrono_literals;

constexpr uint64_t kSecondNs = 1'000'000'000;
constexpr uint64_t kPatienceNs = 60 * kSecondNs;

// Ranks that are on different hosts, as far as they can tell, over the loopback interface.
class Strangers : public testing::TestWithParam<net::TlsMode> {
 protected:
  using Change = std::function<void(Rank, NetworkConfig*)>;

  void make(Rank count, const Change& change = {}) {
    for (Rank rank = 0; rank < count; ++rank) {
      NetworkConfig config;
      config.comm_id = 7;
      config.rank = rank;
      config.rank_count = count;
      config.secret = secret_from_text("the secret of all");
      config.tls = GetParam();
      std::string reason;
      ASSERT_TRUE(net::InterfaceFilter::parse("lo", &config.filter, &reason)) << reason;
      if (change) change(rank, &config);
      auto made = SocketNetwork::make(config);
      ASSERT_TRUE(made.ok()) << made.status().text();
      ranks_.push_back(made.take());
      NetworkAddress address;
      ASSERT_TRUE(NetworkAddress::unpack(ranks_.back()->address(), &address));
      // Loopback is for ranks of one host only.
      for (Offer& offer : address.offers) offer.is_loopback = false;
      address.host.bytes[0] = static_cast<unsigned char>(rank + 1);
      addresses_.push_back(address);
    }
  }
  Status join(Rank rank, uint64_t patience_ns, const Network::StillPossible& possible = {}) {
    std::vector<std::string> packed;
    for (const NetworkAddress& address : addresses_) packed.push_back(address.pack());
    return ranks_[rank]->join(packed, now_ns() + patience_ns, possible);
  }
  std::vector<Status> join_all(uint64_t patience_ns = kPatienceNs) {
    std::vector<Status> statuses(ranks_.size());
    std::vector<std::thread> threads;
    for (Rank rank = 0; rank < ranks_.size(); ++rank) {
      threads.emplace_back([&, rank] { statuses[rank] = join(rank, patience_ns); });
    }
    for (std::thread& thread : threads) thread.join();
    return statuses;
  }
  void expect_joined() {
    for (const Status& status : join_all()) EXPECT_TRUE(status.ok()) << status.text();
  }
  // Connects to where a rank listens; the caller's.
  int connect_to(Rank rank) const {
    const Offer& offer = addresses_[rank].offers[0];
    return net::begin_connect(offer.address, offer.port, {});
  }

  std::vector<std::unique_ptr<SocketNetwork>> ranks_;
  std::vector<NetworkAddress> addresses_;
};

INSTANTIATE_TEST_SUITE_P(Tls, Strangers,
                         testing::Values(net::TlsMode::kOff, net::TlsMode::kControl,
                                         net::TlsMode::kAll),
                         [](const auto& one) { return std::string(net::name_of(one.param)); });

TEST_P(Strangers, ARankWithAnotherSecretIsRefusedAndTheOthersAreTold) {
  make(2, [](Rank rank, NetworkConfig* config) {
    if (rank == 1) config->secret = secret_from_text("another secret");
  });
  Status first;
  std::thread host([&] { first = join(0, 3 * kSecondNs / 2); });
  const Status second = join(1, kPatienceNs);
  host.join();
  EXPECT_EQ(second.code(), Code::kRefused);
  EXPECT_NE(second.text().find("does not accept the secret"), std::string::npos) << second.text();
  EXPECT_EQ(first.code(), Code::kTimeout);
  EXPECT_NE(first.text().find(" without the secret"), std::string::npos) << first.text();
  EXPECT_EQ(first.text().find(" 0 without the secret"), std::string::npos) << first.text();
}

TEST_P(Strangers, ARankWithAnotherModeOfTlsIsNamedByAll) {
  const net::TlsMode other =
      GetParam() == net::TlsMode::kOff ? net::TlsMode::kControl : net::TlsMode::kOff;
  make(3, [&](Rank rank, NetworkConfig* config) {
    if (rank == 2) config->tls = other;
  });
  const std::vector<Status> statuses = join_all();
  for (const Status& status : statuses) EXPECT_EQ(status.code(), Code::kRefused);
  const std::string mine = net::name_of(GetParam()), theirs = net::name_of(other);
  EXPECT_EQ(statuses[0].text(), "rank 2 runs with WEIR_TLS=" + theirs + ", rank 0 with WEIR_TLS=" +
                                    mine + "; it must be the same on all ranks");
  EXPECT_EQ(statuses[2].text(), "rank 0 runs with WEIR_TLS=" + mine + ", rank 2 with WEIR_TLS=" +
                                    theirs + "; it must be the same on all ranks");
}

TEST_P(Strangers, WhoHearsThatNotAllWillComeEndsLongBeforeTheDeadline) {
  make(2);
  int asked = 0;
  const uint64_t began_ns = now_ns();
  const Status status = join(0, kPatienceNs, [&] {
    return ++asked == 3 ? Status(Code::kPeerLost, "rank 1 will not come") : Status();
  });
  EXPECT_EQ(status.code(), Code::kPeerLost);
  EXPECT_EQ(status.text(), "rank 1 will not come");
  EXPECT_EQ(asked, 3);
  EXPECT_LT(now_ns() - began_ns, kPatienceNs / 2);
}

TEST_P(Strangers, APortScanHoldsNobodyUp) {
  make(3, [](Rank, NetworkConfig* config) { config->unproven_count = 16; });
  std::atomic<bool> stop = false;
  std::vector<int> held;
  std::thread scanner([&] {
    std::mt19937 random(3);
    const std::vector<std::string> openings = {
        "",                                                       // silence
        std::string("WEIR\4\0\1\0", 8),                           // half a header
        std::string("WEIR\4\0\1\0\377\377\377\377\0\0\0\0", 16),  // a header that promises much
        "GET /\r\n",                                              //
        std::string("\26\3\1\0\310\1\0\0\304\3", 10),             // half a ClientHello
        std::string("\26\3\1\100\0\1\0\77\374", 9),               // a large one
        std::string(5000, '\377'),
    };
    while (!stop) {
      const int fd = connect_to(static_cast<Rank>(random() % 3));
      if (fd < 0) continue;
      std::this_thread::sleep_for(200us);
      const std::string& opening = openings[random() % openings.size()];
      if (!opening.empty()) (void)send(fd, opening.data(), opening.size(), MSG_NOSIGNAL);
      held.push_back(fd);
      if (held.size() < 100) continue;
      close(held.front());
      held.erase(held.begin());
    }
  });
  std::this_thread::sleep_for(20ms);
  expect_joined();
  stop = true;
  scanner.join();
  for (const int fd : held) close(fd);
}

// More than a rank holds without proof, and than its listener's queue has room for.
TEST_P(Strangers, AThousandSilentOnesDoNotKeepTheRanksFromMeeting) {
  make(3);
  std::atomic<bool> stop = false;
  std::thread crowd([&] {
    std::vector<int> held;
    for (uint32_t i = 0; i < 1000 && !stop; ++i) {
      if (const int fd = connect_to(i % 3); fd >= 0) held.push_back(fd);
    }
    while (!stop) std::this_thread::sleep_for(1ms);
    for (const int fd : held) close(fd);
  });
  expect_joined();
  stop = true;
  crowd.join();
}

TEST_P(Strangers, WhoIsMissingIsNamedWithWhoWasTurnedAway) {
  make(2);
  std::vector<int> strangers;
  for (int i = 0; i < 3; ++i) {
    strangers.push_back(connect_to(0));
    (void)send(strangers.back(), "hello, hello, hello", 19, MSG_NOSIGNAL);
  }
  const Status status = join(0, kSecondNs / 2);
  EXPECT_EQ(status.code(), Code::kTimeout);
  const std::string& text = status.text();
  EXPECT_NE(text.find("rank 1 of 2 is not connected to rank 0"), std::string::npos) << text;
  const char* whom = GetParam() == net::TlsMode::kOff ? "3 of another protocol" : "3 without TLS";
  EXPECT_NE(text.find(whom), std::string::npos) << text;
  for (const int fd : strangers) close(fd);
}

// Runs `body` in a process that has no descriptors left: `taken` are those that it may close.
void expect_without_descriptors(const std::function<void()>& make_ranks,
                                const std::function<void(const std::vector<int>& taken)>& body) {
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limit = {256, 256};
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) _exit(2);
    make_ranks();
    std::vector<int> taken;
    for (int fd; (fd = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) taken.push_back(fd);
    const uint64_t began_ns = now_ns();
    body(taken);
    EXPECT_LT(now_ns() - began_ns, 20 * kSecondNs);
    std::fflush(nullptr);
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// Neither can be reached nor reach anybody, until somebody else gives descriptors back.
TEST_P(Strangers, RanksWithoutDescriptorsMeetWhenThereAreSomeAgain) {
  expect_without_descriptors([&] { make(3); },
                             [&](const std::vector<int>& taken) {
                               std::thread giver([&] {
                                 std::this_thread::sleep_for(300ms);
                                 for (const int fd : taken) close(fd);
                               });
                               const uint64_t began_ns = now_ns();
                               expect_joined();
                               giver.join();
                               EXPECT_GE(now_ns() - began_ns, 200'000'000u);
                             });
}

TEST_P(Strangers, RanksThatGetNoDescriptorsSaySoBeforeTheDeadline) {
  expect_without_descriptors([&] { make(3); },
                             [&](const std::vector<int>&) {
                               std::vector<std::thread> threads;
                               for (Rank rank = 1; rank < 3; ++rank) {  // rank 0 connects to none
                                 threads.emplace_back([&, rank] {
                                   const Status status = join(rank, 30 * kSecondNs);
                                   const std::string& text = status.text();
                                   EXPECT_EQ(status.code(), Code::kSystem) << text;
                                   EXPECT_NE(text.find("ulimit -n"), std::string::npos) << text;
                                 });
                               }
                               for (std::thread& thread : threads) thread.join();
                             });
}

TEST_P(Strangers, TheOwnAddressOfALinkIsOneThatLeadsToThePeer) {
  make(3);
  expect_joined();
  for (Rank rank = 0; rank < 3; ++rank) {
    for (Rank peer = 0; peer < 3; ++peer) {
      EXPECT_EQ(ranks_[rank]->own_address(peer).is_loopback(), rank != peer);
      EXPECT_EQ(ranks_[rank]->own_address(peer).valid(), rank != peer);
    }
  }
}

}  // namespace
}  // namespace weir::control
