// SPDX-License-Identifier: Apache-2.0
// Both ends of a mesh connection, without sockets: who holds the secret is let in, nobody else is.
#include "net/mesh_link.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

namespace weir::net::mesh {
namespace {

Identity identity(uint32_t rank, const std::string& secret, const std::string& purpose = "test") {
  Identity made;
  made.key = mesh_key(secret.data(), secret.size(), purpose);
  made.comm_id = 7;
  made.rank = rank;
  made.rank_count = 4;
  return made;
}

Nonce nonce(unsigned char first) {
  Nonce made{};
  made[0] = first;
  return made;
}

Bytes take(MeshLink* link) {
  Bytes bytes(link->out(), link->out() + link->out_bytes());
  link->sent(bytes.size());
  return bytes;
}

// Gives all of `bytes`, as many at a time as are wanted and at most `step`; how many were taken.
size_t give(MeshLink* link, const Bytes& bytes, size_t step = 4096) {
  size_t at = 0;
  while (at < bytes.size() && link->wanted() > 0) {
    const size_t part = std::min({step, link->wanted(), bytes.size() - at});
    link->feed(bytes.data() + at, part);
    at += part;
  }
  return at;
}

class Links : public testing::Test {
 protected:
  void proceed(size_t step = 4096) {
    for (int i = 0; i < 8; ++i) {
      give(&host_, take(&guest_), step);
      give(&guest_, take(&host_), step);
      guest_.prove();
    }
  }
  void make_guest(const Identity& who) { guest_ = MeshLink(who, nonce(1), &guest_card_, 1); }

  Bytes guest_card_ = {1, 2, 3};
  Bytes host_card_ = Bytes(5000, 9);
  MeshLink guest_{identity(3, "secret"), nonce(1), &guest_card_, 1};
  MeshLink host_{identity(1, "secret"), nonce(2), &host_card_};
};

TEST_F(Links, WhoHoldsTheSecretLearnsTheOthersCardAndKeys) {
  for (const size_t step : {1u, 7u, 4096u}) {
    make_guest(identity(3, "secret"));
    host_ = MeshLink(identity(1, "secret"), nonce(2), &host_card_);
    proceed(step);
    ASSERT_EQ(guest_.state(), MeshLink::State::kJoined);
    ASSERT_EQ(host_.state(), MeshLink::State::kJoined);
    EXPECT_EQ(host_.peer(), 3u);
    EXPECT_EQ(guest_.card(), host_card_);
    EXPECT_EQ(host_.card(), guest_card_);
    EXPECT_EQ(guest_.own_key(), host_.peer_key());
    EXPECT_EQ(guest_.peer_key(), host_.own_key());
    EXPECT_NE(guest_.own_key(), guest_.peer_key());
  }
}

TEST_F(Links, AGoodbyeArrivesWithItsFarewell) {
  proceed();
  const Bytes farewell = {4, 5, 6};
  host_.say_goodbye(farewell.data(), farewell.size());
  give(&guest_, take(&host_));
  EXPECT_EQ(guest_.state(), MeshLink::State::kLeft);
  EXPECT_EQ(guest_.farewell(), farewell);
}

TEST_F(Links, TheLatestNoticeIsKeptBeyondTheGoodbye) {
  proceed();
  EXPECT_TRUE(guest_.notice().empty());
  const unsigned char* place = guest_.notice().data();
  for (const size_t bytes : {size_t{5}, kNoticeBytesMax, size_t{0}, size_t{77}}) {
    const Bytes notice(bytes, static_cast<unsigned char>(bytes));
    host_.say_notice(notice.data(), notice.size());
    for (const size_t step : {size_t{3}, size_t{4096}}) give(&guest_, take(&host_), step);
    EXPECT_EQ(guest_.notice(), notice);
    EXPECT_EQ(guest_.state(), MeshLink::State::kJoined);
  }
  EXPECT_EQ(guest_.notice().data(), place) << "a notice allocates nothing";
  host_.say_goodbye(nullptr, 0);
  give(&guest_, take(&host_));
  EXPECT_EQ(guest_.state(), MeshLink::State::kLeft);
  EXPECT_EQ(guest_.notice(), Bytes(77, 77));
}

TEST_F(Links, ANoticeWaitsUntilTheOneBeforeHasLeft) {
  proceed();
  const Bytes first = {1}, second = {2};
  host_.say_notice(first.data(), first.size());
  const size_t bytes = host_.out_bytes();
  host_.say_notice(second.data(), second.size());
  EXPECT_EQ(host_.out_bytes(), bytes);
  give(&guest_, take(&host_));
  EXPECT_EQ(guest_.notice(), first);
}

TEST_F(Links, ANoticeOutOfOrderEndsTheLink) {
  proceed();
  Bytes frame;
  put_notice(&frame, 1, host_card_.data(), 10);
  give(&guest_, frame);
  EXPECT_EQ(guest_.state(), MeshLink::State::kMalformed);
  EXPECT_TRUE(guest_.notice().empty());
}

TEST_F(Links, WordsAreHeardOnceEachInOrderAndBeyondTheGoodbye) {
  proceed();
  Bytes word;
  EXPECT_FALSE(guest_.hear_word(&word));
  for (const size_t bytes : {size_t{1}, size_t{0}, kWordBytesMax, size_t{9}}) {
    const Bytes said(bytes, static_cast<unsigned char>(bytes));
    host_.say_word(said.data(), said.size());
  }
  host_.say_goodbye(nullptr, 0);
  give(&guest_, take(&host_), 5);
  EXPECT_EQ(guest_.state(), MeshLink::State::kLeft);
  for (const size_t bytes : {size_t{1}, size_t{0}, kWordBytesMax, size_t{9}}) {
    ASSERT_TRUE(guest_.hear_word(&word));
    EXPECT_EQ(word, Bytes(bytes, static_cast<unsigned char>(bytes)));
  }
  EXPECT_FALSE(guest_.hear_word(&word));
}

TEST_F(Links, AWordThatWasChangedRepeatedOrLeftOutEndsTheLink) {
  for (const int wrong : {0, 1, 2}) {
    make_guest(identity(3, "secret"));
    host_ = MeshLink(identity(1, "secret"), nonce(2), &host_card_);
    proceed();
    ASSERT_EQ(guest_.state(), MeshLink::State::kJoined);
    host_.say_word(host_card_.data(), 10);
    Bytes first = take(&host_);
    host_.say_word(host_card_.data(), 11);
    const Bytes second = take(&host_);
    if (wrong == 0) first.back() ^= 1;
    if (wrong != 2) give(&guest_, first);
    if (wrong == 1) give(&guest_, first);
    if (wrong == 2) give(&guest_, second);
    EXPECT_EQ(guest_.state(), MeshLink::State::kMalformed) << wrong;
  }
}

TEST_F(Links, APeerThatSaysMoreThanIsHeardEndsTheLink) {
  proceed();
  for (size_t i = 0; i <= kWordCountMax; ++i) {
    ASSERT_EQ(guest_.state(), MeshLink::State::kJoined) << i;
    host_.say_word(host_card_.data(), 3);
    give(&guest_, take(&host_));
  }
  EXPECT_EQ(guest_.state(), MeshLink::State::kMalformed);
}

TEST_F(Links, WhoDoesNotHoldTheSecretIsRefusedAndToldSo) {
  Identity other = identity(3, "secret");
  for (int wrong = 0; wrong < 8; ++wrong) {
    Identity who = other;
    if (wrong == 0) who = identity(3, "Secret");
    if (wrong == 1) who = identity(3, "secret", "another purpose");
    if (wrong == 2) who.comm_id = 8;
    if (wrong == 3) who.rank_count = 5;
    if (wrong == 4) who.rank = 1;  // not above the host's
    if (wrong == 5) who.rank = 0;
    if (wrong == 6) who.rank = 4;  // there is none
    make_guest(who);
    if (wrong == 7) guest_ = MeshLink(other, nonce(1), &guest_card_, 2);  // meant for another rank
    host_ = MeshLink(identity(1, "secret"), nonce(2), &host_card_);
    proceed();
    EXPECT_EQ(host_.state(), MeshLink::State::kRefused) << wrong;
    EXPECT_EQ(guest_.state(), MeshLink::State::kRefused) << wrong;
    EXPECT_TRUE(host_.card().empty());
    EXPECT_TRUE(guest_.card().empty());
  }
}

TEST_F(Links, AHostWithoutTheSecretLearnsNothing) {
  // It lets everybody in, and shows the guest's own proof as its own.
  give(&host_, take(&guest_));
  give(&guest_, take(&host_));
  guest_.prove();
  const Bytes proof = take(&guest_);
  Bytes reflected;
  put_welcome(&reflected, get_mac(proof.data() + kHeaderBytes + 16));
  give(&guest_, reflected);
  EXPECT_EQ(guest_.state(), MeshLink::State::kRefused);
  EXPECT_EQ(guest_.out_bytes(), 0u);
}

TEST_F(Links, AReplayedProofIsRefused) {
  give(&host_, take(&guest_));
  give(&guest_, take(&host_));
  guest_.prove();
  const Bytes proof = take(&guest_);
  MeshLink later(identity(1, "secret"), nonce(77), &host_card_);
  Bytes hello;
  put_nonce(&hello, Kind::kHello, nonce(1));
  give(&later, hello);
  take(&later);
  give(&later, proof);
  EXPECT_EQ(later.state(), MeshLink::State::kRefused);
}

TEST_F(Links, ACardThatWasChangedOnItsWayIsNotTaken) {
  give(&host_, take(&guest_));
  give(&guest_, take(&host_));
  guest_.prove();
  give(&host_, take(&guest_));
  Bytes welcome_and_card = take(&host_);
  welcome_and_card.back() ^= 1;
  give(&guest_, welcome_and_card);
  EXPECT_EQ(guest_.state(), MeshLink::State::kMalformed);
  EXPECT_TRUE(guest_.card().empty());
}

TEST_F(Links, OversizedAndUnexpectedFramesEndTheLinkBeforeTheirPayload) {
  const auto header = [](Kind kind, uint32_t bytes) {
    Bytes made;
    put_nonce(&made, kind, nonce(1));
    made.resize(kHeaderBytes);
    for (size_t i = 0; i < 4; ++i) made[8 + i] = static_cast<unsigned char>(bytes >> (8 * i));
    return made;
  };
  for (const auto& [kind, bytes] :
       std::vector<std::pair<Kind, uint32_t>>{{Kind::kHello, 33},
                                              {Kind::kHello, 0xffffffffu},
                                              {Kind::kProof, 64},     // before the hello
                                              {Kind::kCard, 100},     // before the proof
                                              {Kind::kGoodbye, 100},  // before the proof
                                              {Kind::kNotice, 100},   // before the proof
                                              {Kind::kWord, 100},     // before the proof
                                              {static_cast<Kind>(99), 32}}) {
    MeshLink host(identity(1, "secret"), nonce(2), &host_card_);
    give(&host, header(kind, bytes));
    EXPECT_EQ(host.state(), MeshLink::State::kMalformed) << static_cast<int>(kind);
    EXPECT_EQ(host.wanted(), 0u);
    EXPECT_EQ(host.out_bytes(), 0u) << "who speaks something else is told nothing";
  }
  proceed();
  give(&host_, header(Kind::kGoodbye, kMacBytes + kFarewellBytesMax + 1));
  EXPECT_EQ(host_.state(), MeshLink::State::kMalformed);
  for (const uint32_t bytes : {0u, 3u, static_cast<uint32_t>(4 + kNoticeBytesMax + 1), ~0u}) {
    make_guest(identity(3, "secret"));
    host_ = MeshLink(identity(1, "secret"), nonce(2), &host_card_);
    proceed();
    ASSERT_EQ(host_.state(), MeshLink::State::kJoined);
    give(&host_, header(Kind::kNotice, bytes));
    EXPECT_EQ(host_.state(), MeshLink::State::kMalformed) << bytes;
  }
  for (const uint32_t bytes :
       {0u, 35u, static_cast<uint32_t>(kMacBytes + 4 + kWordBytesMax + 1), ~0u}) {
    make_guest(identity(3, "secret"));
    host_ = MeshLink(identity(1, "secret"), nonce(2), &host_card_);
    proceed();
    ASSERT_EQ(host_.state(), MeshLink::State::kJoined);
    give(&host_, header(Kind::kWord, bytes));
    EXPECT_EQ(host_.state(), MeshLink::State::kMalformed) << bytes;
  }
}

TEST_F(Links, RandomFramesNeverProveAnything) {
  std::mt19937 random(3);
  for (int round = 0; round < 2000; ++round) {
    MeshLink host(identity(1, "secret"), nonce(2), &host_card_);
    for (int i = 0; i < 200 && host.wanted() > 0; ++i) {
      unsigned char bytes[64];
      for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
      if (round % 2 == 0 && i == 0) std::copy_n("WEIM\3\0\1\0", 8, bytes);
      host.feed(bytes, std::min<size_t>(1 + random() % 64, host.wanted()));
    }
    EXPECT_FALSE(host.proven());
    EXPECT_EQ(host.wanted(), 0u);
  }
}

TEST_F(Links, AnotherVersionIsNamed) {
  Bytes hello = take(&guest_);
  hello[4] = 9;
  give(&host_, hello);
  EXPECT_EQ(host_.state(), MeshLink::State::kOtherVersion);
  EXPECT_EQ(host_.other_version(), 9u);
  give(&guest_, take(&host_));
  EXPECT_EQ(guest_.state(), MeshLink::State::kOtherVersion);
  EXPECT_EQ(guest_.other_version(), kProtocolVersion);
}

TEST(MeshAddress, RoundTripsAndRefusesWhatIsNone) {
  Address address;
  address.rank = 5;
  address.host.bytes[3] = 1;
  Offer offer;
  offer.address.family = 4;
  offer.address.bytes = {10, 0, 0, 1};
  offer.port = 4000;
  offer.prefix_bits = 24;
  address.offers = {offer, offer};
  unsigned char bytes[kAddressBytesMax];
  const size_t count = encode(address, bytes);
  Address again;
  ASSERT_TRUE(decode(bytes, count, &again));
  EXPECT_EQ(again.rank, 5u);
  EXPECT_EQ(again.host, address.host);
  ASSERT_EQ(again.offers.size(), 2u);
  EXPECT_EQ(again.offers[1].address, offer.address);
  EXPECT_EQ(again.offers[1].port, 4000);
  EXPECT_FALSE(decode(bytes, count - 1, &again));
  EXPECT_FALSE(decode(bytes, 10, &again));
  EXPECT_FALSE(decode(nullptr, 0, &again));
  for (const size_t at : {size_t{0}, size_t{4}, size_t{6}, size_t{36}}) {
    unsigned char changed[kAddressBytesMax];
    std::copy(bytes, bytes + count, changed);
    changed[at] ^= 0xff;
    EXPECT_FALSE(decode(changed, count, &again)) << at;
  }
}

}  // namespace
}  // namespace weir::net::mesh
