// SPDX-License-Identifier: Apache-2.0
// Trees for all_reduce: each part of the sum is folded along a tree and spread along the same one,
// so that a link between two ranks carries the part once in each direction, whichever rank is the
// root. So trees need not be those of an all_gather, in which every rank receives a block from each
// other one: a rank with little bandwidth is a leaf of all of them. Where links are the same in
// both directions, the most that such trees carry together is what partitions of the ranks allow
// (Nash-Williams 1961, Tutte 1961; cut_bound.h: all_reduce_ns_per_byte).
//
// Found by local search: trees are taken out and grown again in turn, link by link (Prim 1957), as
// long as that makes them lower or the sum of the eighth powers of two loads smaller: of each link,
// what it carries over what it can carry; of each rank, its messages over an even share of them,
// since a rank that has many neighbours in every tree holds all of them up. Few trees rather than
// many, whose slices wait for each other. Bounded by rounds and not by time. Pure functions;
// thread-safe.
#pragma once

#include "core/base/status.h"
#include "core/graph/forest.h"
#include "core/graph/link_graph.h"
#include "core/graph/routes.h"

namespace weir::graph {

// Trees of equal parts, each of another rank. Rates are not set. Errors: fewer than two ranks,
// links without any limit, or ranks that others reach over third ones or one way only.
// `routes` are those of the graph.
Result<Forest> pack_trees(const LinkGraph& graph, Routes* routes);

}  // namespace weir::graph
