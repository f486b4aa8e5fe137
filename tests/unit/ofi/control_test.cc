// SPDX-License-Identifier: Apache-2.0
// The bytes of addresses, words and tags, and what a peer may say when.
#include "plugins/ofi/control.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "plugins/ofi/wire.h"
#include "weir/plugin.h"

namespace weir::plugins::ofi {
namespace {

RankAddress longest_address() {
  RankAddress address;
  address.rank = 300;
  address.providers = {"verbs;ofi_rxm", "tcp;ofi_rxm", "shm",           "sockets",
                       "udp;ofi_rxd",   "net;ofi_rxm", "some_other_one"};
  address.place.rank = 300;
  address.place.host.bytes[7] = 9;
  for (uint8_t i = 0; i < net::mesh::kOffersMax; ++i) {
    net::mesh::Offer offer;
    offer.address.family = i % 2 == 0 ? 4 : 6;
    offer.address.bytes[0] = 10;
    offer.address.bytes[3] = i;
    offer.port = static_cast<uint16_t>(4000 + i);
    offer.speed_mbits = 100'000;
    offer.prefix_bits = 24;
    offer.is_loopback = i == 4;
    offer.is_asked_for = i == 2;
    address.place.offers.push_back(offer);
  }
  return address;
}

TEST(OfiAddress, TheLongestPassesThroughItsBytesAndNoPartOfItDoes) {
  const RankAddress address = longest_address();
  unsigned char bytes[WEIR_TRANSPORT_ADDRESS_BYTES_MAX];
  const size_t size = encode(address, bytes);
  ASSERT_LE(size, sizeof bytes);
  RankAddress read;
  ASSERT_TRUE(decode(bytes, size, &read));
  EXPECT_EQ(read.rank, 300u);
  EXPECT_EQ(read.providers, address.providers);
  EXPECT_EQ(read.place.host, address.place.host);
  ASSERT_EQ(read.place.offers.size(), net::mesh::kOffersMax);
  for (size_t i = 0; i < net::mesh::kOffersMax; ++i) {
    EXPECT_EQ(read.place.offers[i].address, address.place.offers[i].address);
    EXPECT_EQ(read.place.offers[i].port, address.place.offers[i].port);
    EXPECT_EQ(read.place.offers[i].is_loopback, i == 4);
    EXPECT_EQ(read.place.offers[i].is_asked_for, i == 2);
  }
  for (size_t cut = 0; cut < size; ++cut) EXPECT_FALSE(decode(bytes, cut, &read)) << cut;
  bytes[8] ^= 1;
  EXPECT_FALSE(decode(bytes, size, &read)) << "of one rank, with the place of another";
}

TEST(OfiAddress, RandomBytesAreNeverReadBeyondTheirEnd) {
  std::mt19937 random(7);
  unsigned char good[WEIR_TRANSPORT_ADDRESS_BYTES_MAX];
  const size_t size = encode(longest_address(), good);
  for (int round = 0; round < 20'000; ++round) {
    std::vector<unsigned char> bytes(good, good + random() % (size + 1));
    for (int k = 0; k < 4 && !bytes.empty(); ++k) {
      bytes[random() % bytes.size()] = static_cast<unsigned char>(random());
    }
    RankAddress read;
    if (!decode(bytes.data(), bytes.size(), &read)) continue;
    EXPECT_FALSE(read.providers.empty());
    EXPECT_GE(read.place.offers.size(), 1u);
  }
}

TEST(OfiTag, NoTwoMessagesThatMayBeUnderWayHaveTheSame) {
  std::set<uint64_t> tags;
  for (const uint32_t lane : {0u, 1u, 4u}) {
    for (const uint32_t sender : {0u, 1u, 511u}) {
      for (const uint64_t number : {0, 1, 65535}) {
        tags.insert(make_tag(0xffffffff, 0x12345678, lane, sender, number));
      }
    }
  }
  EXPECT_EQ(tags.size(), 27u);
  for (const uint64_t tag : tags) EXPECT_EQ(tag >> 32, 0x12345678u);
  EXPECT_EQ(make_tag(0xffff, 0x12345678, 0, 0, 0) >> 32, 0x5678u) << "a tag of 48 bits";
  EXPECT_EQ(make_tag(0, 0x12345678, 0, 0, 65536 + 3), 3u);
}

using Word = std::vector<unsigned char>;

Word word(Kind kind) {
  Word made(kWordBytesMax);
  made.resize(encode_word(kind, made.data()));
  return made;
}

Word card(uint32_t token = 7) {
  Word made(kWordBytesMax);
  made.resize(encode_card({token, {1, 2, 3}}, made.data()));
  return made;
}

bool takes(Control* control, std::initializer_list<Word> words) {
  bool all = true;
  for (const Word& one : words) all = all && control->take_word(one.data(), one.size());
  return all;
}

TEST(OfiControl, WhatAPeerSaysIsKnownAfterwards) {
  Goodbye goodbye;
  goodbye.sent = {1, 2, 3, 4, uint64_t{1} << 40};
  goodbye.received = {5, 6, 7, 8, 9};
  Word goodbye_word(kWordBytesMax);
  goodbye_word.resize(encode_goodbye(goodbye, goodbye_word.data()));
  Control control;
  EXPECT_TRUE(takes(&control, {card(), word(Kind::kReady), goodbye_word, word(Kind::kTaken)}));
  EXPECT_TRUE(control.has_card());
  EXPECT_EQ(control.card().token, 7u);
  EXPECT_EQ(control.card().name.size(), kNameBytesMax) << "with zeros behind it";
  EXPECT_EQ(control.card().name[2], 3);
  EXPECT_TRUE(control.ready());
  EXPECT_TRUE(control.left());
  EXPECT_EQ(control.goodbye().sent, goodbye.sent);
  EXPECT_EQ(control.goodbye().received, goodbye.received);
  EXPECT_TRUE(control.taken());
  EXPECT_FALSE(control.lost());
}

TEST(OfiControl, WhatMayNotBeSaidOrNotNowIsNotTaken) {
  const auto takes_all = [](std::initializer_list<Word> words) {
    Control control;
    return takes(&control, words);
  };
  EXPECT_TRUE(takes_all({card(), word(Kind::kReady)}));
  EXPECT_FALSE(takes_all({word(Kind::kReady)})) << "before the card";
  EXPECT_FALSE(takes_all({card(), card()})) << "a second card";
  EXPECT_FALSE(takes_all({card(), word(Kind::kReady), word(Kind::kReady)}));
  EXPECT_FALSE(takes_all({card(), word(Kind::kTaken), word(Kind::kTaken)}));
  EXPECT_FALSE(takes_all({{}})) << "nothing";
  EXPECT_FALSE(takes_all({{99}})) << "no kind";
  EXPECT_FALSE(takes_all({{0}})) << "no kind";
  for (const Kind kind : {Kind::kCard, Kind::kReady, Kind::kGoodbye, Kind::kTaken}) {
    Word longer = kind == Kind::kCard ? card() : word(kind);
    longer.push_back(0);
    EXPECT_FALSE(takes_all({longer})) << static_cast<int>(kind);
    longer.resize(longer.size() - 2);
    EXPECT_FALSE(takes_all({longer})) << static_cast<int>(kind);
  }
  for (const uint32_t name_bytes : {0u, static_cast<uint32_t>(kNameBytesMax + 1), ~0u}) {
    Word bad = card();
    for (size_t i = 0; i < 4; ++i) bad[5 + i] = static_cast<unsigned char>(name_bytes >> (8 * i));
    EXPECT_FALSE(takes_all({bad})) << "a name of " << name_bytes << " bytes";
  }
}

}  // namespace
}  // namespace weir::plugins::ofi
