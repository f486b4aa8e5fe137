// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "plugins/remote/key.h"
#include "plugins/remote/regions.h"

namespace weir::plugins::remote {
namespace {

constexpr unsigned char kSecret[32] = {7, 1, 9};
const net::Mac kProof = proof_key(kSecret, sizeof kSecret, "ucx", 5);

std::vector<unsigned char> packed(const Key& key) {
  std::vector<unsigned char> bytes(WEIR_TRANSPORT_KEY_BYTES_MAX);
  bytes.resize(encode(key, kProof, bytes.data()));
  return bytes;
}

Key sample(size_t own_bytes) {
  Key key;
  key.rank = 3;
  key.region = 2;
  key.registration = 0x1122334455667788;
  key.address = 0x7f0000001000;
  key.bytes = 4096;
  for (size_t i = 0; i < own_bytes; ++i) key.own.push_back(static_cast<unsigned char>(i));
  return key;
}

TEST(RemoteKey, ComesBackAsItWas) {
  for (const size_t own_bytes : {size_t{0}, size_t{9}, kOwnBytesMax}) {
    const auto bytes = packed(sample(own_bytes));
    ASSERT_LE(bytes.size(), WEIR_TRANSPORT_KEY_BYTES_MAX);
    Key key;
    ASSERT_EQ(decode(bytes.data(), bytes.size(), kProof, 3, &key), "");
    EXPECT_EQ(key.region, 2u);
    EXPECT_EQ(key.registration, 0x1122334455667788u);
    EXPECT_EQ(key.address, 0x7f0000001000u);
    EXPECT_EQ(key.bytes, 4096u);
    EXPECT_EQ(key.own, sample(own_bytes).own);
  }
}

TEST(RemoteKey, EveryCutAndEveryFlippedBitIsRefused) {
  const auto good = packed(sample(9));
  Key key;
  for (size_t bytes = 0; bytes < good.size(); ++bytes) {
    EXPECT_NE(decode(good.data(), bytes, kProof, 3, &key), "") << bytes;
  }
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    auto changed = good;
    changed[bit / 8] = static_cast<unsigned char>(changed[bit / 8] ^ 1u << bit % 8);
    EXPECT_NE(decode(changed.data(), changed.size(), kProof, 3, &key), "") << bit;
  }
  EXPECT_EQ(key.bytes, 0u) << "something was written";
}

TEST(RemoteKey, AnotherSecretTransportCommunicatorOrRankIsRefused) {
  const auto good = packed(sample(9));
  unsigned char other_secret[sizeof kSecret] = {7, 1, 8};
  Key key;
  for (const net::Mac& proof : {proof_key(other_secret, sizeof other_secret, "ucx", 5),
                                proof_key(kSecret, sizeof kSecret, "ofi", 5),
                                proof_key(kSecret, sizeof kSecret, "ucx", 6)}) {
    EXPECT_NE(decode(good.data(), good.size(), proof, 3, &key), "");
  }
  EXPECT_NE(decode(good.data(), good.size(), kProof, 2, &key), "");
}

TEST(RemoteKey, MemoryThatWrapsAroundIsRefused) {
  Key key = sample(0);
  key.bytes = ~uint64_t{0} - 5;
  const auto bytes = packed(key);
  EXPECT_NE(decode(bytes.data(), bytes.size(), kProof, 3, &key), "");
}

struct Stage {
  std::vector<uint64_t> words = std::vector<uint64_t>(64);
  Regions regions;
  Region* region = regions.add(words.data() + 8, 48 * 8);
  Signal signal;
  std::vector<unsigned char> payload = std::vector<unsigned char>(1024, 0xab);

  Stage() {
    signal.region = signal.word_region = region->index;
    signal.registration = signal.word_registration = region->registration;
    signal.value = 1;
  }
  bool untouched() const {
    return std::all_of(words.begin(), words.end(), [](uint64_t word) { return word == 0; });
  }
};

TEST(Signals, SurviveTheirBytes) {
  Signal signal;
  signal.token = 1;
  signal.sender = 2;
  signal.bytes = 3;
  signal.region = 4;
  signal.word_region = 5;
  signal.registration = 6;
  signal.offset_bytes = 7;
  signal.word_registration = 8;
  signal.word_offset_bytes = 9;
  signal.value = ~uint64_t{0};
  unsigned char bytes[kSignalBytes];
  encode(signal, bytes);
  const Signal back = decode_signal(bytes);
  EXPECT_EQ(back.token, 1u);
  EXPECT_EQ(back.sender, 2u);
  EXPECT_EQ(back.bytes, 3u);
  EXPECT_EQ(back.region, 4u);
  EXPECT_EQ(back.word_region, 5u);
  EXPECT_EQ(back.registration, 6u);
  EXPECT_EQ(back.offset_bytes, 7u);
  EXPECT_EQ(back.word_registration, 8u);
  EXPECT_EQ(back.word_offset_bytes, 9u);
  EXPECT_EQ(back.value, ~uint64_t{0});
}

TEST(Regions, ASignalStoresItsBytesAndAddsItsValue) {
  Stage stage;
  stage.signal.bytes = 16;
  stage.signal.offset_bytes = 8;
  stage.signal.value = 5;
  ASSERT_TRUE(stage.regions.apply(stage.signal, stage.payload.data()));
  ASSERT_TRUE(stage.regions.apply(stage.signal, stage.payload.data()));
  EXPECT_EQ(read_word(*stage.region, 0), 10u);
  EXPECT_EQ(stage.words[9], 0xababababababababu);
  EXPECT_EQ(stage.words[10], 0xababababababababu);
  EXPECT_EQ(stage.words[11], 0u);
}

TEST(Regions, WhatIsNotRegisteredAnyMoreIsNotTouched) {
  Stage stage;
  stage.regions.remove(stage.region);
  EXPECT_FALSE(stage.regions.apply(stage.signal, nullptr));
  Region* again = stage.regions.add(stage.words.data(), 64);
  EXPECT_EQ(again->index, stage.signal.word_region) << "the place is used again";
  EXPECT_FALSE(stage.regions.apply(stage.signal, nullptr));
  EXPECT_TRUE(stage.untouched());
}

TEST(Regions, NoMessageReachesBeyondItsRegion) {
  const auto seed = std::random_device{}();
  std::mt19937_64 random(seed);
  Stage stage;
  const auto near = [&](uint64_t limit) {
    switch (random() % 4) {
      case 0:
        return random();
      case 1:
        return limit - 16 + random() % 32;
      case 2:
        return ~uint64_t{0} - random() % 2048;
      default:
        return random() % (2 * limit);
    }
  };
  for (int i = 0; i < 200'000; ++i) {
    Signal signal = stage.signal;
    signal.bytes = static_cast<uint32_t>(random() % stage.payload.size());
    signal.offset_bytes = near(stage.region->bytes);
    signal.word_offset_bytes = near(stage.region->bytes);
    if (random() % 8 == 0) signal.region = static_cast<uint32_t>(random());
    if (random() % 8 == 0) signal.word_registration = random();
    const bool good = signal.region == stage.signal.region &&
                      signal.word_registration == stage.signal.word_registration &&
                      (signal.bytes == 0 ||
                       (signal.offset_bytes <= 384 && signal.bytes <= 384 - signal.offset_bytes)) &&
                      signal.word_offset_bytes <= 376 && signal.word_offset_bytes % 8 == 0;
    const bool applied = stage.regions.apply(signal, stage.payload.data());
    // A region that is not asked for bytes is not looked at.
    if (signal.bytes != 0) {
      ASSERT_EQ(applied, good) << "seed " << seed << ", message " << i;
    }
    for (const size_t outside : {0u, 7u, 56u, 63u}) {
      ASSERT_EQ(stage.words[outside], 0u) << "seed " << seed << ", message " << i;
    }
  }
}

TEST(Regions, ContainingFindsOnlyWhatIsWhollyInside) {
  Stage stage;
  const unsigned char* base = stage.region->base;
  EXPECT_EQ(stage.regions.containing(base, 384), stage.region);
  EXPECT_EQ(stage.regions.containing(base + 383, 1), stage.region);
  EXPECT_EQ(stage.regions.containing(base + 383, 2), nullptr);
  EXPECT_EQ(stage.regions.containing(base - 1, 2), nullptr);
  EXPECT_EQ(stage.regions.containing(base + 8, ~uint64_t{0}), nullptr);
}

}  // namespace
}  // namespace weir::plugins::remote
