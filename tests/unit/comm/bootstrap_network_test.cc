// SPDX-License-Identifier: Apache-2.0
// The bootstrap between hosts: the same meeting at a network door, with a MAC on every frame.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "core/base/clock.h"
#include "core/comm/bootstrap_door.h"
#include "core/comm/bootstrap_tree.h"
#include "net/ip_socket.h"
#include "unit/comm/bootstrap_support.h"

namespace weir::comm {
namespace {

using wire::Kind;

Place loopback() {
  net::IpAddress address;
  address.family = 4;
  address.bytes = {127, 0, 0, 1};
  return Place{{address}};
}

// A rank that behaves as if it were alone on its host, with rank 0 at the place.
Outcome play_alone(const Secret& secret, Rank rank, Rank rank_count, int rounds,
                   size_t blob_bytes) {
  Outcome outcome;
  auto joined = Tree::join(secret, rank, rank_count, deadline_in_ms(20'000), loopback(), {},
                           {.door = {}, .own_hosts = true});
  outcome.status = joined.status();
  for (int round = 0; joined.ok() && outcome.status.ok() && round < rounds; ++round) {
    auto blobs = joined.value()->all_gather(std::to_string(rank) + std::string(blob_bytes, 'x'),
                                            deadline_in_ms(20'000));
    outcome.status = blobs.status();
    if (blobs.ok()) outcome.blobs = blobs.take();
  }
  return outcome;
}

std::vector<Outcome> play_over_network(const Secret& secret, Rank rank_count, size_t blob_bytes) {
  std::vector<Outcome> outcomes(rank_count);
  std::vector<std::thread> ranks;
  for (Rank rank = 0; rank < rank_count; ++rank) {
    ranks.emplace_back(
        [&, rank] { outcomes[rank] = play_alone(secret, rank, rank_count, 3, blob_bytes); });
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

Fd connect_to_door(const Secret& secret) {
  Fd connection;
  for (int i = 0; i < 5000; ++i) {
    begin_connect_to(loopback().addresses[0], place_port(secret, 0), &connection);
    std::vector<pollfd> entries{{connection.get(), POLLOUT, 0}};
    if (wait_for_events(&entries, deadline_in_ms(1000)).ok() && is_connected(connection.get())) {
      return connection;
    }
    usleep(1000);
  }
  ADD_FAILURE() << "nobody listens";
  return connection;
}

TEST(BootstrapNetwork, WithoutTheSecretIsTurnedAway) {
  const Secret secret = fresh_secret();
  std::vector<Outcome> outcomes(2);
  std::thread zero([&] { outcomes[0] = play_alone(secret, 0, 2, 1, 0); });
  {
    Stranger stranger(connect_to_door(secret));
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
  Stranger rank_1(connect_to_door(secret));
  ASSERT_NE(prove(&rank_1, secret, 1, 2), "");
  rank_1.send(wire::encode_give(1, 20'000'000, record(1, "forged")) +
              std::string(wire::kProofBytes, '\0'));
  zero.join();
  EXPECT_EQ(outcome.status.code(), Code::kInternal) << outcome.status.text();
  EXPECT_NE(outcome.status.text().find("rank 1"), std::string::npos) << outcome.status.text();
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
