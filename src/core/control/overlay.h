// SPDX-License-Identifier: Apache-2.0
// Overlay: which ranks of a communicator keep a connection to each other. Each rank is linked with
// those whose distance around the ring of ranks is a power of two, as in a dissemination barrier
// (Hensgen, Finkel, Manber 1988): about 2 log2(n) links per rank, paths of at most log2(n) links,
// and no rank whose end separates the others. Pure functions; thread-safe.
#pragma once

#include <vector>

#include "core/base/types.h"

namespace weir::control {

// Ascending, without `rank` itself.
std::vector<Rank> neighbors(Rank rank, Rank rank_count);

// A binomial tree over the ranks, rooted at 0, whose edges are links of the overlay: the parent of
// a rank other than 0.
Rank tree_parent(Rank rank);

}  // namespace weir::control
