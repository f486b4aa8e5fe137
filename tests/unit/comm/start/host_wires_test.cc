// SPDX-License-Identifier: Apache-2.0
#include "core/comm/start/host_wires.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

namespace weir::comm {
namespace {

std::vector<Pair> brief_of(const std::vector<Pair>& pairs) {
  std::vector<Pair> brief;
  for (const Pair& pair : pairs) {
    if (pair.brief) brief.push_back(pair);
  }
  return brief;
}

TEST(HostWires, OneAndTwoHostsAreMeasuredOnce) {
  EXPECT_TRUE(pairs_to_measure({}, 1).empty());
  const auto one = pairs_to_measure({}, 4);
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0].second, 1u);
  const std::vector<uint32_t> two = {0, 1, 0, 1};
  const auto pairs = pairs_to_measure(two, 4);
  ASSERT_EQ(pairs.size(), 2u);
  EXPECT_EQ(pairs[0].link, cost::Link::kTcp);
  EXPECT_EQ(pairs[1].link, cost::Link::kShmSharedCache);
  EXPECT_TRUE(brief_of(pairs).empty());
}

TEST(HostWires, EachHostIsMeasuredWithTwoNeighboursBothWays) {
  for (const uint32_t count : {3u, 4u, 7u}) {
    std::vector<uint32_t> hosts;
    for (uint32_t host = 0; host < count; ++host) hosts.insert(hosts.end(), 2, host);
    std::map<Rank, std::set<Rank>> sent;
    for (const Pair& pair : brief_of(pairs_to_measure(hosts, 2 * count))) {
      EXPECT_TRUE(sent[pair.first].insert(pair.second).second);
    }
    ASSERT_EQ(sent.size(), count);
    for (const auto& [rank, targets] : sent) {
      EXPECT_EQ(targets.size(), 2u);
      for (const Rank target : targets) EXPECT_TRUE(sent[target].contains(rank));
    }
  }
}

// `bandwidth_out`, `bandwidth_in` of each host; one rank each.
std::vector<double> measured(const std::vector<double>& out, const std::vector<double>& in) {
  std::vector<uint32_t> hosts;
  for (uint32_t host = 0; host < out.size(); ++host) hosts.push_back(host);
  const auto brief = brief_of(pairs_to_measure(hosts, static_cast<Rank>(hosts.size())));
  std::vector<double> wires;
  for (const Pair& pair : brief) {
    wires.push_back(1 / std::min(out[pair.first], in[pair.second]));
  }
  return wire_of_host(hosts, brief, wires);
}

TEST(HostWires, ASlowHostIsFoundAndItsNeighboursAreNotBlamed) {
  const std::vector<double> fast = {50, 50, 50, 50};
  EXPECT_TRUE(measured(fast, fast).empty());
  for (size_t slow = 0; slow < 4; ++slow) {
    std::vector<double> uneven = fast;
    uneven[slow] = 6.25;
    std::vector<double> expected(4, 1 / 50.0);
    expected[slow] = 1 / 6.25;
    EXPECT_EQ(measured(uneven, uneven), expected) << "both ways, host " << slow;
    EXPECT_EQ(measured(uneven, fast), expected) << "what it sends, host " << slow;
    EXPECT_EQ(measured(fast, uneven), expected) << "what it receives, host " << slow;
  }
}

TEST(HostWires, WhatABusyMachineMeasuresIsNoDifference) {
  EXPECT_TRUE(measured({50, 35, 60, 41}, {60, 60, 60, 60}).empty());
}

}  // namespace
}  // namespace weir::comm
