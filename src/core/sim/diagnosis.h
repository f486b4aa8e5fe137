// SPDX-License-Identifier: Apache-2.0
// Finds the cause when lanes are blocked: follows the waits of the ranks to a dead rank, to a rank
// that has finished, or around a cycle. Pure function; thread-safe.
#pragma once

#include <vector>

#include "core/sim/simulator.h"

namespace weir::sim {

// A rank whose waits lead to a dead rank is attributed to it (to the nearest); otherwise to a rank
// that finished; otherwise to the cycle that it reaches. Most victims first.
std::vector<Culprit> find_culprits(const std::vector<Blocked>& blocked,
                                   const std::vector<Rank>& dead, Rank rank_count);

}  // namespace weir::sim
