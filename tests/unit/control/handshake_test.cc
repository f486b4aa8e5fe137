// SPDX-License-Identifier: Apache-2.0
// Both ends of a connection, without sockets: who holds the secret is let in, nobody else is.
#include "net/handshake.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace weir::net {
namespace {

using State = Handshake::State;

Identity identity(uint32_t rank, const std::string& secret = "secret",
                  const std::string& purpose = "test") {
  return {key_for(secret.data(), secret.size(), purpose), 7, rank, 4};
}

Handshake::Nonce nonce(unsigned char first) {
  Handshake::Nonce made{};
  made[0] = first;
  return made;
}

std::vector<unsigned char> take(Handshake* from) {
  std::vector<unsigned char> bytes(from->out(), from->out() + from->out_bytes());
  from->sent(bytes.size());
  return bytes;
}

void give(Handshake* to, const std::vector<unsigned char>& bytes, size_t step = 4096) {
  for (size_t at = 0; at < bytes.size() && to->wanted() > 0;) {
    const size_t part = std::min({step, to->wanted(), bytes.size() - at});
    to->feed(bytes.data() + at, part);
    at += part;
  }
}

void proceed(Handshake* client, Handshake* server, size_t step = 4096) {
  for (int i = 0; i < 6; ++i) {
    give(server, take(client), step);
    server->welcome();
    give(client, take(server), step);
    client->prove();
  }
}

constexpr Subject kSubject = {1, 2, 3};

TEST(Handshake, BothEndsLearnWhoAndWhatForAndShareTheirKeys) {
  for (const size_t step : {1u, 7u, 4096u}) {
    Handshake client(identity(3), nonce(1), 1, kSubject);
    Handshake server(identity(1), nonce(2));
    EXPECT_TRUE(server.is_silent());
    proceed(&client, &server, step);
    ASSERT_EQ(client.state(), State::kProven);
    ASSERT_EQ(server.state(), State::kProven);
    EXPECT_EQ(server.peer(), 3u);
    EXPECT_EQ(client.peer(), 1u);
    EXPECT_EQ(server.subject(), kSubject);
    EXPECT_EQ(client.own_key(), server.peer_key());
    EXPECT_EQ(client.peer_key(), server.own_key());
    EXPECT_NE(client.own_key(), client.peer_key());
  }
}

TEST(Handshake, AnotherSecretPurposeCommunicatorCountOrRankIsRefused) {
  std::vector<Identity> others = {identity(3, "other"), identity(3, "secret", "other"),
                                  identity(3),          identity(3),
                                  identity(1),          identity(4)};
  others[2].comm_id = 8;
  others[3].rank_count = 5;
  for (const Identity& other : others) {
    Handshake client(other, nonce(1), 1, kSubject);
    Handshake server(identity(1), nonce(2));
    proceed(&client, &server);
    EXPECT_EQ(client.state(), State::kRefused);
    EXPECT_EQ(server.state(), State::kRefused);
  }
  Handshake lost(identity(3), nonce(1), 2, kSubject);  // reached rank 1, meant rank 2
  Handshake server(identity(1), nonce(2));
  proceed(&lost, &server);
  EXPECT_EQ(lost.state(), State::kRefused);
}

// Before the ranks know who is where.
TEST(Handshake, StrangersProveTheSecretAndWhoTheyAreToAnyOfThem) {
  const auto stranger = [](uint32_t rank, uint32_t rank_count, const std::string& secret) {
    Identity made = identity(rank, secret);
    made.rank_count = rank_count;
    made.is_of_strangers = true;
    return made;
  };
  Handshake client(stranger(9, 5, "secret"), nonce(1), kAnyRank, kSubject);
  Handshake server(stranger(1, 4, "secret"), nonce(2));
  proceed(&client, &server);
  ASSERT_EQ(client.state(), State::kProven);
  ASSERT_EQ(server.state(), State::kProven);
  EXPECT_EQ(server.peer(), 9u) << "to be judged by who asked";
  EXPECT_EQ(server.rank_count(), 5u);
  EXPECT_EQ(server.subject(), kSubject);
  EXPECT_EQ(client.own_key(), server.peer_key());

  // Another secret; a client that means a rank; a server that is a rank, and not just any.
  const auto refused = [](Identity of_client, uint32_t peer, Identity of_server) {
    Handshake one(of_client, nonce(1), peer, kSubject);
    Handshake other(of_server, nonce(2));
    proceed(&one, &other);
    return one.state() == State::kRefused && other.state() == State::kRefused &&
           one.is_refused_by_peer();
  };
  EXPECT_TRUE(refused(stranger(2, 4, "other"), kAnyRank, stranger(1, 4, "secret")));
  EXPECT_TRUE(refused(stranger(2, 4, "secret"), 1, stranger(1, 4, "secret")));
  EXPECT_TRUE(refused(identity(2), kAnyRank, identity(1)));
}

TEST(Handshake, AServerThatDoesNotHoldTheSecretIsNotBelieved) {
  Handshake client(identity(3), nonce(1), 1, kSubject);
  Handshake server(identity(1, "other"), nonce(2));
  give(&server, take(&client));
  give(&client, take(&server));
  client.prove();
  (void)take(&client);
  // Reflects the client's own proof, or makes one up.
  std::vector<unsigned char> welcome = {
      'W', 'E', 'I', 'R', Handshake::kProtocolVersion, 0, 4, 0, 32, 0, 0, 0, 0, 0, 0, 0};
  welcome.resize(48, 0x5a);
  give(&client, welcome);
  EXPECT_EQ(client.state(), State::kRefused);
  EXPECT_FALSE(client.is_refused_by_peer());
}

TEST(Handshake, AReplayedProofIsRefused) {
  Handshake client(identity(3), nonce(1), 1, kSubject);
  Handshake server(identity(1), nonce(2));
  const std::vector<unsigned char> hello = take(&client);
  give(&server, hello);
  give(&client, take(&server));
  client.prove();
  const std::vector<unsigned char> proof = take(&client);
  give(&server, proof);
  ASSERT_EQ(server.state(), State::kClaimed);
  Handshake second(identity(1), nonce(4));
  give(&second, hello);
  (void)take(&second);
  give(&second, proof);
  EXPECT_EQ(second.state(), State::kRefused);
}

TEST(Handshake, AProofIsNotReflected) {
  Handshake client(identity(3), nonce(1), 1, kSubject);
  std::vector<unsigned char> challenge = take(&client);  // its own nonce, sent back
  challenge[6] = 2;
  give(&client, challenge);
  client.prove();
  const std::vector<unsigned char> proof = take(&client);
  std::vector<unsigned char> welcome(challenge.begin(), challenge.begin() + 16);
  welcome[6] = 4;
  welcome.insert(welcome.end(), proof.end() - 32, proof.end());
  give(&client, welcome);
  EXPECT_EQ(client.state(), State::kRefused);
}

TEST(Handshake, EveryChangedBitOfEitherEndIsFound) {
  for (size_t frame = 0; frame < 4; ++frame) {
    const size_t sizes[] = {48, 48, 72, 48};
    for (size_t bit = 0; bit < sizes[frame] * 8; ++bit) {
      Handshake client(identity(3), nonce(1), 1, kSubject);
      Handshake server(identity(1), nonce(2));
      Handshake* const ends[] = {&client, &server};
      for (size_t i = 0; i <= frame; ++i) {
        std::vector<unsigned char> bytes = take(ends[i % 2]);
        ASSERT_EQ(bytes.size(), sizes[i]);
        if (i == frame) bytes[bit / 8] ^= static_cast<unsigned char>(1 << bit % 8);
        give(ends[1 - i % 2], bytes);
        if (i == 1) client.prove();
        if (i == 2) server.welcome();
      }
      proceed(&client, &server);
      EXPECT_FALSE(client.state() == State::kProven && server.state() == State::kProven)
          << "frame " << frame << ", bit " << bit;
    }
  }
}

TEST(Handshake, AnotherVersionIsNamed) {
  Handshake client(identity(3), nonce(1), 1, kSubject);
  Handshake server(identity(1), nonce(2));
  std::vector<unsigned char> hello = take(&client);
  hello[4] = 9;
  give(&server, hello);
  EXPECT_EQ(server.state(), State::kOtherVersion);
  EXPECT_EQ(server.other_version(), 9u);
  give(&client, take(&server));
  EXPECT_EQ(client.state(), State::kOtherVersion);
}

TEST(Handshake, NoiseIsMalformed) {
  std::mt19937 random(3);
  for (int i = 0; i < 2000; ++i) {
    Handshake server(identity(1), nonce(2));
    std::vector<unsigned char> noise(1 + random() % 200);
    for (unsigned char& byte : noise) byte = static_cast<unsigned char>(random());
    give(&server, noise);
    EXPECT_NE(server.state(), State::kProven);
    EXPECT_NE(server.state(), State::kClaimed);
  }
}

}  // namespace
}  // namespace weir::net
