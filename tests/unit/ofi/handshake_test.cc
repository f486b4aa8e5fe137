// SPDX-License-Identifier: Apache-2.0
// The proof that opens a control connection: who is let in, and what strangers may send.
#include "plugins/ofi/handshake.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace weir::plugins::ofi {
namespace {

using State = Handshake::State;

Nonce nonce(unsigned char first) {
  Nonce made{};
  made[0] = first;
  return made;
}

Identity identity(uint32_t rank, const char* secret = "12345678", uint64_t comm_id = 5,
                  uint32_t rank_count = 3) {
  return {handshake_key(secret, 8), comm_id, rank, rank_count};
}

void pump(Handshake* from, Handshake* to, std::vector<unsigned char>* record = nullptr) {
  while (from->out_bytes() > 0 && to->wanted() > 0) {
    const size_t part = std::min(from->out_bytes(), to->wanted());
    if (record != nullptr) record->insert(record->end(), from->out(), from->out() + part);
    to->feed(from->out(), part);
    from->sent(part);
  }
}

// The states in which the host and the guest end.
std::pair<State, State> meet(const Identity& host_identity, const Identity& guest_identity,
                             uint32_t meant) {
  Handshake host(host_identity, nonce(1));
  Handshake guest(guest_identity, nonce(2), meant);
  for (int i = 0; i < 3; ++i) {
    pump(&guest, &host);
    pump(&host, &guest);
    guest.prove();
  }
  return {host.state(), guest.state()};
}

TEST(OfiHandshake, TwoRanksOfACommunicatorLetEachOtherIn) {
  EXPECT_EQ(meet(identity(0), identity(2), 0), std::make_pair(State::kProven, State::kProven));
}

TEST(OfiHandshake, NobodyIsLetInWithoutTheRightProof) {
  const auto refused = std::make_pair(State::kRefused, State::kRefused);
  EXPECT_EQ(meet(identity(0), identity(2, "87654321"), 0), refused) << "another secret";
  EXPECT_EQ(meet(identity(0), identity(2, "12345678", 6), 0), refused) << "another communicator";
  EXPECT_EQ(meet(identity(0), identity(2, "12345678", 5, 4), 0), refused) << "another rank count";
  EXPECT_EQ(meet(identity(0), identity(2), 1), refused) << "meant for another rank";
  EXPECT_EQ(meet(identity(1), identity(0), 1), refused) << "a lower rank";
  EXPECT_EQ(meet(identity(0), identity(0), 0), refused) << "the same rank";
  EXPECT_EQ(meet(identity(0), identity(3), 0), refused) << "a rank that is not";
}

TEST(OfiHandshake, AReplayedProofIsRefused) {
  Handshake guest(identity(1), nonce(1), 0);
  Handshake host(identity(0), nonce(2));
  std::vector<unsigned char> recorded;
  pump(&guest, &host, &recorded);
  pump(&host, &guest);
  guest.prove();
  pump(&guest, &host, &recorded);
  ASSERT_EQ(host.state(), State::kProven);
  Handshake second(identity(0), nonce(3));
  for (size_t at = 0; at < recorded.size() && second.wanted() > 0;) {
    const size_t part = std::min(second.wanted(), recorded.size() - at);
    second.feed(recorded.data() + at, part);
    at += part;
  }
  EXPECT_EQ(second.state(), State::kRefused);
}

TEST(OfiHandshake, AProofIsNotReflected) {
  // Somebody without the secret answers with the guest's own proof, in a host's welcome.
  Handshake guest(identity(1), nonce(1), 0);
  Handshake host(identity(0, "whatever"), nonce(2));
  pump(&guest, &host);
  pump(&host, &guest);
  guest.prove();
  ASSERT_EQ(guest.out_bytes(), 16u + 12 + 32);
  std::vector<unsigned char> welcome(guest.out(), guest.out() + 16);
  welcome[6] = 4;   // kWelcome
  welcome[8] = 32;  // its payload
  welcome.insert(welcome.end(), guest.out() + 28, guest.out() + 60);
  guest.sent(guest.out_bytes());
  for (size_t at = 0; at < welcome.size() && guest.wanted() > 0;) {
    const size_t part = std::min(guest.wanted(), welcome.size() - at);
    guest.feed(welcome.data() + at, part);
    at += part;
  }
  EXPECT_EQ(guest.state(), State::kRefused);
}

TEST(OfiHandshake, RandomAndOversizedFramesEndTheConnection) {
  std::mt19937 random(3);
  for (int round = 0; round < 2000; ++round) {
    Handshake host(identity(0), nonce(1));
    for (int i = 0; i < 200 && host.wanted() > 0; ++i) {
      unsigned char bytes[kHandshakeFrameBytesMax];
      for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
      if (round % 2 == 0 && i == 0) std::copy_n("WEIM\1\0\1\0", 8, bytes);
      host.feed(bytes, std::min<size_t>(1 + random() % 60, host.wanted()));
    }
    EXPECT_NE(host.state(), State::kProven);
    EXPECT_NE(host.state(), State::kBusy);
  }
}

TEST(OfiHandshake, AnotherVersionIsToldOurs) {
  Handshake guest(identity(1), nonce(1), 0);
  std::vector<unsigned char> hello(guest.out(), guest.out() + 16);
  hello[4] = 9;
  Handshake host(identity(0), nonce(2));
  EXPECT_EQ(host.feed(hello.data(), hello.size()), State::kOtherVersion);
  EXPECT_EQ(host.other_version(), 9u);
  guest.sent(guest.out_bytes());
  pump(&host, &guest);
  EXPECT_EQ(guest.state(), State::kOtherVersion);
  EXPECT_EQ(guest.other_version(), kHandshakeVersion);
}

}  // namespace
}  // namespace weir::plugins::ofi
