// SPDX-License-Identifier: Apache-2.0
// Fair shares of links that several flows go through: the largest flows of which none could have
// more without taking it from one that has no more (max-min fairness, filled step by step as in
// Bertsekas and Gallager, "Data Networks", 6.5.2). Pure function; thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "core/graph/link_graph.h"

namespace weir::graph {

// A flow names what it goes through by any numbers. `capacity`: of each number; a number that is
// missing has no limit. The result has one figure for each flow; kBandwidthMax: nothing limits it.
std::vector<KilobytesPerSecond> fair_shares(const std::vector<std::vector<uint64_t>>& flows,
                                            const std::map<uint64_t, KilobytesPerSecond>& capacity);

}  // namespace weir::graph
