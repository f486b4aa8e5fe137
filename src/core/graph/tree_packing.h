// SPDX-License-Identifier: Apache-2.0
// Trees for all_reduce: each part of the sum is folded along a tree and spread along the same one,
// so that a link between two ranks carries the part once in each direction, whichever rank is the
// root. So trees need not be those of an all_gather, in which every rank receives a block from each
// other one: a rank with little bandwidth is a leaf of all of them. Where links are the same in
// both directions, the most that such trees carry together is what partitions of the ranks allow
// (Nash-Williams 1961, Tutte 1961; cut_bound.h: all_reduce_ns_per_byte).
//
// Found greedily: link by link, the tree that is grown takes the way that adds least to the sum of
// the cubes of what links carry over what they can carry. Pure functions; thread-safe.
#pragma once

#include "core/base/status.h"
#include "core/graph/forest.h"
#include "core/graph/link_graph.h"
#include "core/graph/routes.h"

namespace weir::graph {

// One tree each for some ranks, as many as carry most together; at most one for each rank. Rates
// are not set. Errors: fewer than two ranks, or ranks that others reach over third ones or one
// way only.
// `routes` are those of the graph.
Result<Forest> pack_trees(const LinkGraph& graph, Routes* routes);

}  // namespace weir::graph
