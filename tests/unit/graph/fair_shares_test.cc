// SPDX-License-Identifier: Apache-2.0
#include "core/graph/fair_shares.h"

#include "unit/graph/graph_support.h"

namespace weir::graph {
namespace {

TEST(FairShares, WhatOneCannotUseTheOthersGet) {
  // Link 1 has 10 for flows 0 and 1; link 2 lets flow 0 have 2 only.
  const auto shares = fair_shares({{1, 2}, {1}, {3}}, {{1, 10}, {2, 2}});
  EXPECT_EQ(shares, (std::vector<KilobytesPerSecond>{2, 8, kBandwidthMax}));
}

TEST(FairShares, EqualFlowsGetEqualShares) {
  EXPECT_EQ(fair_shares({{7}, {7}, {7}}, {{7, 9}}), (std::vector<KilobytesPerSecond>{3, 3, 3}));
}

}  // namespace
}  // namespace weir::graph
