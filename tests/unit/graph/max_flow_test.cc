// SPDX-License-Identifier: Apache-2.0
#include "core/graph/max_flow.h"

#include <algorithm>
#include <random>

#include "unit/graph/graph_support.h"

namespace weir::graph {
namespace {

TEST(MaxFlow, FindsTheFlowAndACut) {
  // 0 -> 1 -> 3 with 3 and 2, 0 -> 2 -> 3 with 2 and 4, 1 -> 2 with 1.
  MaxFlow flow(4);
  flow.add_arc(0, 1, 3);
  flow.add_arc(1, 3, 2);
  flow.add_arc(0, 2, 2);
  flow.add_arc(2, 3, 4);
  const uint32_t across = flow.add_arc(1, 2, 1);
  EXPECT_EQ(flow.run(0, 3, 100), 5);
  EXPECT_EQ(flow.run(0, 3, 3), 3) << "stops at what is enough";
  flow.set_capacity(across, 0);
  EXPECT_EQ(flow.run(0, 3, 100), 4);
  EXPECT_EQ(flow.source_side(), (std::vector<bool>{true, true, false, false}));
}

// The smallest of all 2^n cuts.
int64_t smallest_cut(const std::vector<std::vector<int64_t>>& capacity, size_t sink) {
  int64_t least = INT64_MAX;
  for (uint32_t set = 1; set < 1u << capacity.size(); ++set) {
    if ((set & 1) == 0 || (set >> sink & 1) != 0) continue;
    int64_t cut = 0;
    for (size_t from = 0; from < capacity.size(); ++from) {
      for (size_t to = 0; to < capacity.size(); ++to) {
        if ((set >> from & 1) != 0 && (set >> to & 1) == 0) cut += capacity[from][to];
      }
    }
    least = std::min(least, cut);
  }
  return least;
}

TEST(MaxFlow, EqualsTheSmallestCutOfRandomNetworks) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    const uint32_t n = 2 + random() % 6;
    std::vector<std::vector<int64_t>> capacity(n, std::vector<int64_t>(n, 0));
    MaxFlow flow(n);
    for (uint32_t from = 0; from < n; ++from) {
      for (uint32_t to = 0; to < n; ++to) {
        if (from == to || random() % 3 == 0) continue;
        capacity[from][to] = random() % 10;
        flow.add_arc(from, to, capacity[from][to]);
      }
    }
    EXPECT_EQ(flow.run(0, n - 1, 1000), smallest_cut(capacity, n - 1)) << "round " << round;
  }
}

}  // namespace
}  // namespace weir::graph
