// SPDX-License-Identifier: Apache-2.0
// A mesh of ranks over the loopback interface, each rank a thread, with and without TLS: what they tell each
// other arrives, and nobody else gets in or holds them up.
#include "net/control_mesh.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "net/ip_socket.h"

namespace weir::net {
namespace {

using mesh::Bytes;
using Outcome = ControlMesh::Outcome;

constexpr uint64_t kPatienceNs = 60'000'000'000;

uint64_t after(uint64_t ns) {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(t.tv_nsec) + ns;
}

class Meshes : public testing::TestWithParam<TlsMode> {
 protected:
  void make(uint32_t count, const std::function<void(uint32_t, MeshConfig*)>& change = {}) {
    InterfaceFilter filter;
    std::string reason;
    ASSERT_TRUE(InterfaceFilter::parse("lo", &filter, &reason)) << reason;
    addresses_.resize(count);
    for (uint32_t rank = 0; rank < count; ++rank) {
      MeshConfig config;
      std::string secret = "the secret of all";
      config.purpose = "test";
      config.comm_id = 7;
      config.rank = rank;
      config.rank_count = count;
      config.secret = secret.data();
      config.secret_bytes = secret.size();
      config.tls = GetParam();
      if (change) change(rank, &config);
      ranks_.push_back(std::make_unique<ControlMesh>(config));
      ASSERT_EQ(ranks_[rank]->listen(filter), Outcome::kOk) << ranks_[rank]->text();
      addresses_[rank].resize(mesh::kAddressBytesMax);
      addresses_[rank].resize(ranks_[rank]->address(addresses_[rank].data()));
    }
  }
  Outcome join(uint32_t rank, uint64_t deadline_ns) {
    std::vector<const unsigned char*> addresses;
    std::vector<size_t> sizes;
    for (const Bytes& one : addresses_) {
      addresses.push_back(one.data());
      sizes.push_back(one.size());
    }
    return ranks_[rank]->join(addresses.data(), sizes.data(), Bytes(3000 + rank, 'c'), deadline_ns);
  }
  std::vector<Outcome> join_all(uint64_t patience_ns = kPatienceNs) {
    std::vector<Outcome> outcomes(ranks_.size());
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
      threads.emplace_back([&, rank] { outcomes[rank] = join(rank, after(patience_ns)); });
    }
    for (std::thread& thread : threads) thread.join();
    return outcomes;
  }
  void expect_joined() {
    const std::vector<Outcome> outcomes = join_all();
    for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
      EXPECT_EQ(outcomes[rank], Outcome::kOk) << ranks_[rank]->text();
    }
  }
  // Connects to where a rank listens; the caller's.
  int connect_to(uint32_t rank) {
    mesh::Address address;
    EXPECT_TRUE(mesh::decode(addresses_[rank].data(), addresses_[rank].size(), &address));
    return begin_connect(address.offers[0].address, address.offers[0].port, {});
  }
  template <typename Condition>
  static bool comes_true(const Condition& condition) {
    const uint64_t end = after(kPatienceNs);
    while (!condition()) {
      if (after(0) > end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }

  std::vector<std::unique_ptr<ControlMesh>> ranks_;
  std::vector<Bytes> addresses_;
};

INSTANTIATE_TEST_SUITE_P(Tls, Meshes,
                         testing::Values(TlsMode::kOff, TlsMode::kControl, TlsMode::kAll),
                         [](const auto& one) { return std::string(name_of(one.param)); });

TEST_P(Meshes, WhatRanksTellEachOtherArrives) {
  make(4);
  expect_joined();
  for (uint32_t self = 0; self < 4; ++self) {
    for (uint32_t peer = 0; peer < 4; ++peer) {
      if (peer == self) continue;
      EXPECT_EQ(ranks_[self]->card(peer), Bytes(3000 + peer, 'c'));
      EXPECT_EQ(ranks_[self]->outbound_key(peer), ranks_[peer]->inbound_key(self));
      EXPECT_TRUE(ranks_[self]->local_address(peer).is_loopback());
      for (unsigned char i = 0; i < 5; ++i) {
        const Bytes word(i * 200u, static_cast<unsigned char>(self));
        ranks_[self]->tell(peer, word.data(), word.size());
      }
    }
    const Bytes notice(100 + self, 'n');
    ranks_[self]->show(notice.data(), notice.size());
  }
  for (uint32_t self = 0; self < 4; ++self) {
    for (uint32_t peer = 0; peer < 4; ++peer) {
      if (peer == self) continue;
      Bytes word;
      for (size_t i = 0; i < 5; ++i) {
        ASSERT_TRUE(comes_true([&] { return ranks_[self]->hear(peer, &word); }));
        EXPECT_EQ(word, Bytes(i * 200u, static_cast<unsigned char>(peer)));
      }
      bool arrived = false;
      EXPECT_TRUE(comes_true([&] {
        return ranks_[self]->read_notice(peer, &arrived) == Bytes(100 + peer, 'n') && arrived;
      }));
      EXPECT_TRUE(ranks_[self]->has_left(peer));
    }
  }
  // One leaves, one dies.
  for (uint32_t peer = 0; peer < 3; ++peer) ranks_[3]->leave(peer, {4, 2});
  ranks_.pop_back();
  ranks_[2].reset();
  ASSERT_TRUE(comes_true([&] { return ranks_[0]->look(3) == ControlMesh::Life::kLeft; }));
  EXPECT_EQ(ranks_[0]->farewell(3), (Bytes{4, 2}));
  ASSERT_TRUE(comes_true([&] { return ranks_[0]->look(2) == ControlMesh::Life::kLost; }));
  EXPECT_EQ(ranks_[0]->look(1), ControlMesh::Life::kHere);
}

TEST_P(Meshes, ARankWithAnotherSecretIsRefusedAndTheOthersAreTold) {
  static const char other[] = "another secret";
  make(2, [](uint32_t rank, MeshConfig* config) {
    if (rank != 1) return;
    config->secret = other;
    config->secret_bytes = sizeof other;
  });
  Outcome first = Outcome::kOk;
  std::thread host([&] { first = join(0, after(1'500'000'000)); });
  EXPECT_EQ(join(1, after(kPatienceNs)), Outcome::kRefused);
  host.join();
  EXPECT_NE(ranks_[1]->text().find("does not accept the secret"), std::string::npos)
      << ranks_[1]->text();
  EXPECT_EQ(first, Outcome::kTimeout);
  const std::string& told = ranks_[0]->text();
  EXPECT_NE(told.find(" without the secret"), std::string::npos) << told;
  EXPECT_EQ(told.find(" 0 without the secret"), std::string::npos) << told;
  for (const auto& rank : ranks_) {
    EXPECT_EQ(rank->text().find("the secret of all"), std::string::npos);
    EXPECT_EQ(rank->text().find(other), std::string::npos);
  }
}

TEST_P(Meshes, ARankWithAnotherModeIsNamedByAll) {
  const TlsMode other = GetParam() == TlsMode::kOff ? TlsMode::kControl : TlsMode::kOff;
  make(3, [&](uint32_t rank, MeshConfig* config) {
    if (rank == 2) config->tls = other;
  });
  for (const Outcome outcome : join_all()) EXPECT_EQ(outcome, Outcome::kRefused);
  const std::string mine = name_of(GetParam()), theirs = name_of(other);
  EXPECT_EQ(ranks_[0]->text(), "rank 2 runs with WEIR_TLS=" + theirs + ", rank 0 with WEIR_TLS=" +
                                   mine + "; it must be the same on all ranks");
  EXPECT_EQ(ranks_[2]->text(), "rank 0 runs with WEIR_TLS=" + mine + ", rank 2 with WEIR_TLS=" +
                                   theirs + "; it must be the same on all ranks");
}

TEST_P(Meshes, WhoIsToldToStopEndsLongBeforeTheDeadline) {
  std::atomic<int> asked = 0;
  make(2, [&](uint32_t rank, MeshConfig* config) {
    if (rank == 0) config->stop = [&] { return ++asked == 3; };
  });
  const uint64_t start_ns = after(0);
  EXPECT_EQ(join(0, after(kPatienceNs)), Outcome::kTimeout) << "rank 1 does not come";
  EXPECT_EQ(asked, 3);
  EXPECT_LT(after(0) - start_ns, kPatienceNs / 2);
}

TEST_P(Meshes, APortScanHoldsNobodyUp) {
  make(3, [](uint32_t, MeshConfig* config) { config->unproven_count = 16; });
  std::atomic<bool> stop = false;
  std::vector<int> held;
  std::thread scanner([&] {
    std::mt19937 random(3);
    const std::vector<Bytes> openings = {
        {},                                     // silence
        {'W', 'E', 'I', 'M', 3, 0, 1, 0},       // half a header
        {'G', 'E', 'T', ' ', '/', '\r', '\n'},  //
        {22, 3, 1, 0, 200, 1, 0, 0, 196, 3},    // half a ClientHello
        {22, 3, 1, 0x40, 0, 1, 0, 0x3f, 0xfc},  // a large one
        Bytes(5000, 0xff),
    };
    while (!stop) {
      const uint32_t rank = static_cast<uint32_t>(random() % 3);
      const int fd = connect_to(rank);
      if (fd < 0) continue;
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      const Bytes& opening = openings[random() % openings.size()];
      if (!opening.empty()) (void)send(fd, opening.data(), opening.size(), MSG_NOSIGNAL);
      held.push_back(fd);
      if (held.size() < 100) continue;
      close(held.front());
      held.erase(held.begin());
    }
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  expect_joined();
  stop = true;
  scanner.join();
  for (const int fd : held) close(fd);
}

// More than a rank holds without proof, and than its listener's queue has room for.
TEST_P(Meshes, AThousandSilentOnesDoNotKeepTheRanksFromMeeting) {
  make(3);
  std::atomic<bool> stop = false;
  std::thread crowd([&] {
    std::vector<int> held;
    for (uint32_t i = 0; i < 1000 && !stop; ++i) {
      if (const int fd = connect_to(i % 3); fd >= 0) held.push_back(fd);
    }
    while (!stop) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    for (const int fd : held) close(fd);
  });
  expect_joined();
  stop = true;
  crowd.join();
}

TEST_P(Meshes, WhoIsMissingIsNamedWithWhoWasTurnedAway) {
  make(2);
  std::vector<int> strangers;
  for (int i = 0; i < 3; ++i) {
    strangers.push_back(connect_to(0));
    (void)send(strangers.back(), "hello, hello, hello", 19, MSG_NOSIGNAL);
  }
  EXPECT_EQ(join(0, after(500'000'000)), Outcome::kTimeout);
  const std::string& text = ranks_[0]->text();
  EXPECT_NE(text.find("rank 1 of 2 is not connected to rank 0"), std::string::npos) << text;
  const char* whom = GetParam() == TlsMode::kOff ? "3 of another protocol" : "3 without TLS";
  EXPECT_NE(text.find(whom), std::string::npos) << text;
  for (const int fd : strangers) close(fd);
}

}  // namespace
}  // namespace weir::net
