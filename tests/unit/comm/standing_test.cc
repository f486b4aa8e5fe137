// SPDX-License-Identifier: Apache-2.0
#include "core/comm/standing.h"

#include <gtest/gtest.h>

#include <vector>

namespace weir::comm {
namespace {

Standing a_standing() {
  Standing standing;
  standing.state = engine::RankState::kFailed;
  standing.code = 9;
  standing.waits = true;
  standing.gone = true;
  standing.beat = 0x01020304;
  standing.fingerprint = 0xdeadbeef;
  standing.sequence = 21;
  standing.what = 0x0102030405060708;
  standing.count = 1000;
  standing.finished = 20;
  standing.waited = {0, 3};
  standing.blamed = {2};
  standing.text = "rank 2 died";
  return standing;
}

std::vector<unsigned char> bytes_of(const Standing& standing) {
  std::vector<unsigned char> bytes(Standing::kBytesMax);
  bytes.resize(encode(standing, bytes.data()));
  return bytes;
}

TEST(Standing, PassesThroughItsBytes) {
  for (const Standing& standing : {Standing{}, a_standing()}) {
    const std::vector<unsigned char> bytes = bytes_of(standing);
    Standing read;
    ASSERT_TRUE(decode(bytes.data(), bytes.size(), 4, &read));
    EXPECT_EQ(read, standing);
  }
}

TEST(Standing, IsCutToItsRoom) {
  Standing standing = a_standing();
  standing.text.assign(5000, 'x');
  standing.waited.assign(500, 1);
  standing.blamed.assign(500, 2);
  const std::vector<unsigned char> bytes = bytes_of(standing);
  EXPECT_EQ(bytes.size(), Standing::kBytesMax);
  Standing read;
  ASSERT_TRUE(decode(bytes.data(), bytes.size(), 4, &read));
  EXPECT_EQ(read.text.size(), Standing::kTextBytesMax);
  EXPECT_EQ(read.waited.size(), Standing::kWaitedRanksMax);
  EXPECT_EQ(read.blamed.size(), Standing::kBlamedMax);
}

TEST(Standing, WhatCannotBeIsRefused) {
  const std::vector<unsigned char> good = bytes_of(a_standing());
  Standing read;
  for (size_t cut = 0; cut < good.size(); ++cut) {
    EXPECT_FALSE(decode(good.data(), cut, 4, &read)) << cut;
  }
  EXPECT_FALSE(decode(good.data(), good.size(), 3, &read)) << "a rank that is not";
  const struct {
    size_t at;
    unsigned char value;
    const char* what;
  } kBad[] = {{0, 'X', "magic"},
              {4, 1, "version"},
              {5, 0, "state"},
              {5, 4, "state"},
              {6, 13, "code"},
              {7, 2, "waits"},
              {48, 33, "waited"},
              {48, 1, "one rank less"},
              {50, 65, "blamed"},
              {52, 12, "text too long"},
              {53, 0xff, "text too long"},
              {54, 2, "gone"},
              {55, 1, "not zero"}};
  for (const auto& bad : kBad) {
    std::vector<unsigned char> bytes = good;
    bytes[bad.at] = bad.value;
    EXPECT_FALSE(decode(bytes.data(), bytes.size(), 4, &read)) << bad.what;
  }
}

TEST(Standing, ControlCharactersOfTheTextBecomeSpaces) {
  Standing standing;
  standing.text = "a\nb\x1b[31m";
  const std::vector<unsigned char> bytes = bytes_of(standing);
  Standing read;
  ASSERT_TRUE(decode(bytes.data(), bytes.size(), 4, &read));
  EXPECT_EQ(read.text, "a b [31m");
}

}  // namespace
}  // namespace weir::comm
