// SPDX-License-Identifier: Apache-2.0
// Who is to blame when lanes are blocked: follows whom each rank waits for to a dead rank, to a
// rank that has finished, or round in a circle. Pure function; thread-safe.
#pragma once

#include <vector>

#include "core/sim/simulator.h"

namespace weir::sim {

// A rank that can reach a dead one is put down to it (to the nearest); else to a rank that
// finished; else to the cycle that it runs into. Most victims first.
std::vector<Culprit> find_culprits(const std::vector<Blocked>& blocked,
                                   const std::vector<Rank>& dead, Rank rank_count);

}  // namespace weir::sim
