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

// ns per byte of the brief pairs of four hosts, which were four names for one machine of two cores
// that ran about 15 busy processes: 25 starts in a row.
constexpr double kNoisy[][8] = {{0.323, 0.0, 0.407, 0.364, 0.0, 0.371, 0.888, 0.338},
                                {11.345, 11.239, 3.321, 2.921, 0.0, 0.368, 0.0, 0.351},
                                {0.0, 3.567, 0.385, 0.0, 0.479, 0.0, 0.407, 0.0},
                                {4.439, 5.302, 0.799, 0.661, 2.598, 3.303, 0.0, 0.374},
                                {0.0, 1.017, 0.0, 0.94, 0.325, 0.387, 0.0, 0.375},
                                {0.0, 0.0, 0.364, 0.988, 0.389, 0.466, 0.0, 0.013},
                                {7.409, 11.548, 9.24, 5.763, 0.442, 0.403, 0.368, 0.38},
                                {0.31, 4.415, 0.379, 0.39, 0.361, 3.324, 0.743, 1.273},
                                {4.084, 10.7, 8.483, 0.0, 0.415, 1.13, 0.471, 0.505},
                                {2.879, 0.001, 0.337, 0.872, 0.41, 7.943, 2.641, 0.778},
                                {4.207, 9.615, 0.394, 0.432, 0.304, 0.468, 0.0, 0.398},
                                {4.372, 0.371, 0.85, 92.402, 6.246, 0.399, 1.493, 5.093},
                                {0.378, 0.384, 0.368, 4.569, 0.154, 3.76, 0.781, 2.047},
                                {1.617, 0.765, 0.802, 0.0, 0.763, 1.412, 0.549, 0.261},
                                {0.0, 7.365, 0.374, 0.377, 0.404, 0.411, 0.408, 0.846},
                                {0.145, 0.429, 0.807, 0.51, 0.414, 0.474, 0.0, 0.41},
                                {0.892, 0.398, 0.0, 1.858, 2.852, 1.781, 2.658, 0.759},
                                {1.527, 0.811, 0.0, 0.0, 2.549, 0.0, 2.616, 0.0},
                                {5.446, 0.629, 0.857, 13.473, 1.156, 8.09, 0.78, 0.691},
                                {1.6, 2.848, 0.0, 1.372, 0.29, 3.291, 1.429, 0.466},
                                {8.845, 0.68, 0.74, 9.42, 0.465, 0.0, 2.253, 0.0},
                                {0.565, 4.979, 0.0, 0.309, 2.716, 6.093, 3.945, 0.585},
                                {0.0, 8.092, 0.683, 6.439, 0.0, 0.713, 0.461, 3.128},
                                {1.276, 5.701, 0.722, 5.781, 3.961, 186.9, 0.0, 1.175},
                                {8.67, 2.0, 0.522, 3.826, 4.196, 0.994, 1.2, 0.878}};
constexpr size_t kStarts = std::size(kNoisy);

struct Found {
  std::vector<double> of_host;
  uint32_t rounds = 0;
};

// The rounds of a start are the rows from `first` on; `added`: to the figures of host 2.
Found found_in(size_t first, uint32_t rounds_max, double added) {
  const std::vector<uint32_t> hosts = {0, 1, 2, 3};
  const auto brief = brief_of(pairs_to_measure(hosts, 4));
  HostWires wires(hosts, brief);
  Found found;
  for (bool again = true; again && found.rounds < rounds_max; ++found.rounds) {
    const double* row = kNoisy[(first + found.rounds) % kStarts];
    std::vector<double> round(row, row + 8);
    for (size_t i = 0; i < 8; ++i) {
      if (brief[i].first == 2 || brief[i].second == 2) round[i] += added;
    }
    again = wires.add(round);
  }
  found.of_host = wires.of_host();
  return found;
}

TEST(HostWires, NoiseOfABusyMachineDoesNotRepeatAndASlowHostDoes) {
  size_t once = 0, repeated = 0;
  for (size_t start = 0; start < kStarts; ++start) {
    once += found_in(start, 1, 0).of_host.empty() ? 0 : 1;
    repeated += found_in(start, 10, 0).of_host.empty() ? 0 : 1;
    const Found slow = found_in(start, 10, 160);
    ASSERT_EQ(slow.of_host.size(), 4u) << start;
    EXPECT_GE(slow.of_host[2], 160);
    for (const size_t other : {0u, 1u, 3u}) EXPECT_LT(slow.of_host[other], 20) << start;
    EXPECT_LE(slow.rounds, HostWires::kRoundsMax);
  }
  EXPECT_GE(once, kStarts / 2) << "one round is not enough";
  EXPECT_LE(repeated, kStarts / 6);
}

TEST(HostWires, HostsThatAreAlikeAreMeasuredOnce) {
  const std::vector<uint32_t> hosts = {0, 1, 2};
  HostWires wires(hosts, brief_of(pairs_to_measure(hosts, 3)));
  EXPECT_FALSE(wires.add(std::vector<double>{1, 1.2, 0.9, 1, 0, 1.1})) << "0: as fast as any";
  EXPECT_TRUE(wires.of_host().empty());
  HostWires slow(hosts, brief_of(pairs_to_measure(hosts, 3)));
  const std::vector<double> round = {1, 1, 9, 9, 9, 9};
  EXPECT_TRUE(slow.add(round));
  EXPECT_FALSE(slow.add(round)) << "it repeats";
  EXPECT_EQ(slow.of_host(), (std::vector<double>{1, 1, 9}));
}

TEST(HostWires, WhatABusyMachineMeasuresIsNoDifference) {
  EXPECT_TRUE(measured({50, 35, 60, 41}, {60, 60, 60, 60}).empty());
}

}  // namespace
}  // namespace weir::comm
