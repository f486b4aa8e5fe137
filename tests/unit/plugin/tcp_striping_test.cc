// SPDX-License-Identifier: Apache-2.0
// How a message is shared out among rails, held against what its definition says of the result.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <random>
#include <vector>

#include "plugins/tcp/striping.h"

namespace weir::plugins::tcp {
namespace {

constexpr double kMbit = 1.0 / 8000;  // bytes per ns

std::vector<uint64_t> shares_of(const std::vector<Flow>& flows, uint64_t bytes) {
  std::vector<uint64_t> shares(flows.size(), 1);
  share_out(flows.data(), static_cast<uint32_t>(flows.size()), bytes, shares.data());
  return shares;
}

TEST(TcpStriping, UnequalRailsGetSharesByTheirSpeed) {
  const auto shares = shares_of({{1000 * kMbit, 0, 8192}, {500 * kMbit, 0, 8192}}, 300'000);
  EXPECT_NEAR(static_cast<double>(shares[0]), 200'000, 2);
  EXPECT_NEAR(static_cast<double>(shares[1]), 100'000, 2);
}

TEST(TcpStriping, WhatIsUnderWayCounts) {
  // Each has 100,000 bytes before it at the end.
  const auto shares = shares_of({{1, 60'000, 8192}, {1, 20'000, 8192}}, 120'000);
  EXPECT_NEAR(static_cast<double>(shares[0]), 40'000, 2);
  EXPECT_NEAR(static_cast<double>(shares[1]), 80'000, 2);
}

TEST(TcpStriping, ARailThatIsBusyForLongerGetsNothing) {
  EXPECT_EQ(shares_of({{1, 500'000, 8192}, {1, 0, 8192}}, 120'000),
            (std::vector<uint64_t>{0, 120'000}));
}

TEST(TcpStriping, WhatIsTooSmallToShareGoesWhereItEndsFirst) {
  EXPECT_EQ(shares_of({{0.0625, 0, 8192}, {1.25, 0, 65'536}}, 9000),
            (std::vector<uint64_t>{0, 9000}));
  EXPECT_EQ(shares_of({{0.0625, 0, 8192}, {1.25, 60'000, 65'536}}, 9000),
            (std::vector<uint64_t>{0, 9000}));
  EXPECT_EQ(shares_of({{0.0625, 0, 8192}, {1.25, 6'000'000, 65'536}}, 9000),
            (std::vector<uint64_t>{9000, 0}));
}

TEST(TcpStriping, WhateverTheRailsNobodyEndsLaterThanOneWouldWithAllOfIt) {
  const char* text = getenv("WEIR_TEST_SEED");
  const uint64_t seed = text != nullptr ? strtoull(text, nullptr, 0) : std::random_device{}();
  printf("WEIR_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  const auto between = [&](uint64_t low, uint64_t high) {
    return std::uniform_int_distribution<uint64_t>(low, high)(random);
  };
  for (int round = 0; round < 20'000; ++round) {
    std::vector<Flow> flows(between(1, kRailsMax));
    for (Flow& flow : flows) {
      flow.rate = static_cast<double>(between(1, 100'000)) * kMbit;
      flow.ahead_bytes = between(0, 1) == 0 ? 0 : between(0, 10'000'000);
      flow.least_bytes = between(0, 65'536);
    }
    const uint64_t bytes = between(1, uint64_t{1} << between(1, 40));
    const std::vector<uint64_t> shares = shares_of(flows, bytes);
    ASSERT_EQ(std::accumulate(shares.begin(), shares.end(), uint64_t{0}), bytes);
    const auto sharing = std::count_if(shares.begin(), shares.end(), [](uint64_t s) { return s; });
    double first_end = 0, last_end = 0, alone = 0;
    for (size_t i = 0; i < flows.size(); ++i) {
      const double one = static_cast<double>(flows[i].ahead_bytes + bytes) / flows[i].rate;
      alone = i == 0 ? one : std::min(alone, one);
      if (shares[i] == 0) continue;
      const double end = static_cast<double>(flows[i].ahead_bytes + shares[i]) / flows[i].rate;
      first_end = first_end == 0 ? end : std::min(first_end, end);
      last_end = std::max(last_end, end);
      // But for the rounding to whole bytes, of which the last one takes the rest.
      if (sharing > 1) {
        ASSERT_GE(shares[i] + 1, flows[i].least_bytes);
      }
    }
    const double rounding = 1e-9 * last_end + 8 / (1 * kMbit);
    ASSERT_LE(last_end, alone + rounding);
    ASSERT_LE(last_end - first_end, rounding);
  }
}

TEST(TcpStriping, SharesThatAreGivenAreReadOrRefused) {
  Shares shares;
  ASSERT_TRUE(parse_shares("2:1", &shares));
  EXPECT_EQ(shares.count, 2u);
  EXPECT_EQ(shares.part[0], 2u);
  EXPECT_EQ(shares.part[1], 1u);
  ASSERT_TRUE(parse_shares("1000:1:7:1:1:1:1:3", &shares));
  EXPECT_EQ(shares.count, 8u);
  EXPECT_EQ(shares.part[7], 3u);
  for (const char* none : {static_cast<const char*>(nullptr), ""}) {
    ASSERT_TRUE(parse_shares(none, &shares));
    EXPECT_EQ(shares.count, 0u);
  }
  for (const char* bad : {"2", "2:", ":1", "2:0", "2:1001", "2:-1", "a:b", "2;1", "2:1 ",
                          "99999999999:1", "1:1:1:1:1:1:1:1:1"}) {
    EXPECT_FALSE(parse_shares(bad, &shares)) << bad;
  }
}

}  // namespace
}  // namespace weir::plugins::tcp
