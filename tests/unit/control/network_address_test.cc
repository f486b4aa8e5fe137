// SPDX-License-Identifier: Apache-2.0
#include "core/control/network_address.h"

#include <gtest/gtest.h>

#include <random>

namespace weir::control {
namespace {

NetworkAddress longest() {
  NetworkAddress address;
  address.rank = 300;
  address.tls = net::TlsMode::kControl;
  address.host.bytes[7] = 9;
  address.nonce[31] = 5;
  for (uint8_t i = 0; i < kOffersMax; ++i) {
    Offer offer;
    offer.address.family = i % 2 == 0 ? 4 : 6;
    offer.address.bytes[0] = 10;
    offer.address.bytes[3] = i;
    offer.port = static_cast<uint16_t>(4000 + i);
    offer.speed_mbits = 100'000;
    offer.prefix_bits = 24;
    offer.is_loopback = i == 4;
    offer.is_asked_for = i == 2;
    address.offers.push_back(offer);
  }
  return address;
}

TEST(NetworkAddress, TheLongestPassesThroughItsBytesAndNoPartOfItDoes) {
  const NetworkAddress address = longest();
  const std::string bytes = address.pack();
  ASSERT_EQ(bytes.size(), kAddressBytesMax);
  NetworkAddress read;
  ASSERT_TRUE(NetworkAddress::unpack(bytes, &read));
  EXPECT_EQ(read.rank, 300u);
  EXPECT_EQ(read.tls, net::TlsMode::kControl);
  EXPECT_EQ(read.host, address.host);
  EXPECT_EQ(read.nonce, address.nonce);
  ASSERT_EQ(read.offers.size(), kOffersMax);
  for (size_t i = 0; i < kOffersMax; ++i) {
    EXPECT_EQ(read.offers[i].address, address.offers[i].address);
    EXPECT_EQ(read.offers[i].port, address.offers[i].port);
    EXPECT_EQ(read.offers[i].speed_mbits, 100'000u);
    EXPECT_EQ(read.offers[i].prefix_bits, 24u);
    EXPECT_EQ(read.offers[i].is_loopback, i == 4);
    EXPECT_EQ(read.offers[i].is_asked_for, i == 2);
  }
  EXPECT_EQ(read.pack(), bytes);
  for (size_t cut = 0; cut < bytes.size(); ++cut) {
    EXPECT_FALSE(NetworkAddress::unpack(bytes.substr(0, cut), &read)) << cut;
  }
  EXPECT_FALSE(NetworkAddress::unpack(bytes + "x", &read));
}

TEST(NetworkAddress, WhatIsNoneOfThisVersionOrOfNoListenerIsRefused) {
  const std::string good = longest().pack();
  NetworkAddress read;
  // Magic, version, number of offers, mode of TLS, family of the first offer.
  for (const size_t at : {0u, 3u, 4u, 5u, 6u, 7u, 68u}) {
    std::string bytes = good;
    bytes[at] = static_cast<char>(bytes[at] ^ 0x40);
    EXPECT_FALSE(NetworkAddress::unpack(bytes, &read)) << at;
  }
  const auto refuses = [&](const Offer& offer) {
    NetworkAddress address = longest();
    address.offers = {offer};
    return !NetworkAddress::unpack(address.pack(), &read);
  };
  const Offer offer = longest().offers[0];
  EXPECT_FALSE(refuses(offer));
  Offer bad = offer;
  bad.port = 0;
  EXPECT_TRUE(refuses(bad));
  bad = offer;
  bad.prefix_bits = 33;
  EXPECT_TRUE(refuses(bad));
  bad = offer;
  bad.address.bytes[0] = 224;
  EXPECT_TRUE(refuses(bad)) << "multicast";
  bad = offer;
  bad.address.bytes = {};
  EXPECT_TRUE(refuses(bad)) << "wildcard";
}

TEST(NetworkAddress, RandomBytesAreNeverReadBeyondTheirEnd) {
  std::mt19937 random(7);
  const std::string good = longest().pack();
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes = good.substr(0, random() % (good.size() + 1));
    for (int k = 0; k < 4 && !bytes.empty(); ++k) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    NetworkAddress read;
    if (!NetworkAddress::unpack(bytes, &read)) continue;
    EXPECT_LE(read.offers.size(), kOffersMax);
  }
}

}  // namespace
}  // namespace weir::control
