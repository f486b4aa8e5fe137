// SPDX-License-Identifier: Apache-2.0
#include "ncclnet/export/handle.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <random>

namespace weir::ncclnet {
namespace {

Handle sample() {
  Handle handle;
  handle.transport = "tcp";
  handle.needs_job_secret = true;
  for (size_t i = 0; i < handle.key.size(); ++i) handle.key[i] = static_cast<unsigned char>(i + 1);
  control::Offer offer;
  offer.address.family = 4;
  offer.address.bytes = {10, 0, 0, 1};
  offer.port = 4000;
  offer.prefix_bits = 24;
  offer.speed_mbits = 100'000;
  handle.address.offers.push_back(offer);
  handle.address.host.bytes[3] = 7;
  handle.address.nonce[31] = 9;
  handle.address.tls = net::TlsMode::kControl;
  return handle;
}

TEST(NcclNetHandle, ComesBackAsItWas) {
  unsigned char bytes[kHandleBytes];
  encode(sample(), bytes);
  Handle back;
  ASSERT_TRUE(decode(bytes, &back));
  EXPECT_EQ(back.transport, "tcp");
  EXPECT_TRUE(back.needs_job_secret);
  EXPECT_EQ(back.key, sample().key);
  ASSERT_EQ(back.address.offers.size(), 1u);
  EXPECT_EQ(back.address.offers[0].port, 4000);
  EXPECT_EQ(back.address.offers[0].address, sample().address.offers[0].address);
  EXPECT_EQ(back.address.offers[0].speed_mbits, 100'000u);
  EXPECT_EQ(back.address.offers[0].prefix_bits, 24u);
  EXPECT_EQ(back.address.host, sample().address.host);
  EXPECT_EQ(back.address.nonce, sample().address.nonce);
  EXPECT_EQ(back.address.tls, net::TlsMode::kControl);
}

TEST(NcclNetHandle, OneOfferIsAllThatItHolds) {
  Handle handle = sample();
  handle.address.offers.resize(3, handle.address.offers[0]);
  unsigned char bytes[kHandleBytes];
  encode(handle, bytes);
  Handle back;
  ASSERT_TRUE(decode(bytes, &back));
  EXPECT_EQ(back.address.offers.size(), 1u);
}

TEST(NcclNetHandle, GarbageIsRefused) {
  const char* seed_text = getenv("WEIR_TEST_SEED");
  const uint64_t seed =
      seed_text != nullptr ? strtoull(seed_text, nullptr, 0) : std::random_device{}();
  printf("WEIR_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  Handle back;
  EXPECT_FALSE(decode(nullptr, &back));
  for (int i = 0; i < 20'000; ++i) {
    unsigned char bytes[kHandleBytes];
    encode(sample(), bytes);
    // All of it, or the fixed fields of a good one.
    if (i % 2 == 0) {
      for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
    } else {
      const size_t at[] = {0, 1, 2, 3, 4, 5, 6, 7, 126, 127};
      const size_t one = at[random() % std::size(at)];
      const auto change = static_cast<unsigned char>(1 + random() % 255);
      // Other flags and modes are good ones, too, and what is an address of IPv6 may be.
      bytes[one] ^= one < 5 || one > 7 ? change : static_cast<unsigned char>(change | 0x80);
    }
    EXPECT_FALSE(decode(bytes, &back)) << "round " << i;
  }
}

TEST(NcclNetHandle, WhereNobodyCanListenIsRefused) {
  const auto refuses = [](const std::function<void(control::Offer*)>& change) {
    Handle handle = sample();
    change(&handle.address.offers[0]);
    unsigned char bytes[kHandleBytes];
    encode(handle, bytes);
    Handle back;
    return !decode(bytes, &back);
  };
  EXPECT_FALSE(refuses([](control::Offer*) {}));
  EXPECT_TRUE(refuses([](control::Offer* offer) { offer->port = 0; }));
  EXPECT_TRUE(refuses([](control::Offer* offer) { offer->prefix_bits = 33; }));
  EXPECT_TRUE(refuses([](control::Offer* offer) { offer->address.bytes[0] = 224; }));
  EXPECT_TRUE(refuses([](control::Offer* offer) { offer->address.bytes = {}; }));
  EXPECT_TRUE(refuses([](control::Offer* offer) { offer->address.family = 5; }));
}

TEST(NcclNetHandle, TheSecretDependsOnTheKeyAndOnTheJobs) {
  const net::Mac key = sample().key;
  net::Mac other_key = key, job{}, other_job{};
  other_key[31] ^= 1;
  other_job[0] = 1;
  const net::Mac secrets[] = {connection_secret(key, nullptr),
                              connection_secret(other_key, nullptr), connection_secret(key, &job),
                              connection_secret(other_key, &job),
                              connection_secret(key, &other_job)};
  for (size_t i = 0; i < std::size(secrets); ++i) {
    EXPECT_NE(secrets[i], key);
    for (size_t j = 0; j < i; ++j) {
      EXPECT_NE(secrets[i], secrets[j]);
      EXPECT_NE(connection_id(secrets[i]), connection_id(secrets[j]));
    }
  }
  EXPECT_EQ(connection_secret(key, &job), secrets[2]);
}

}  // namespace
}  // namespace weir::ncclnet
