// SPDX-License-Identifier: Apache-2.0
// Forest: spanning trees along which a collective moves its data at the cut bound, or nearly: each
// rank gives its block to all others along trees that it is the root of, `trees_per_root` of them,
// all of the same bandwidth, and no link carries more trees than it can. reduce_scatter goes along
// the same trees backwards; all_reduce both ways; a broadcast has trees of its root only.
//
// Found as in ForestColl (cut_bound.h), with integers only:
//
//   1. The bandwidth of a tree: the largest for which links that carry a whole number of trees
//      still let every rank reach the others; for one tree a root and more, until what messages on
//      their ways reach is nearly the cut bound.
//   2. switch_removal.h replaces switches by links between ranks that no cut notices (Mader's and
//      Jackson's edge splitting).
//   3. Trees are grown link by link; a link is taken as long as the rest has its trees (Edmonds
//      1973; Berczi and Frank 2010).
//
// The effort is bounded by steps (runs of max_flow.h) and not by time, so that all machines give
// the same answer. Pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/status.h"
#include "core/base/types.h"
#include "core/graph/cut_bound.h"
#include "core/graph/link_graph.h"

namespace weir::graph {

struct TreeLink {
  Rank from = 0;
  Rank to = 0;
  uint32_t depth = 0;  // of `to`; the root's is 0
  friend bool operator==(const TreeLink&, const TreeLink&) = default;
};

// `count` trees that are alike, for the parts `first` to first + count - 1 of the root's block.
struct Tree {
  Rank root = 0;
  uint32_t first = 0;
  uint32_t count = 1;
  std::vector<TreeLink> links;  // a rank's link comes before those of its children
  friend bool operator==(const Tree&, const Tree&) = default;
};

struct Forest {
  uint32_t rank_count = 0;
  uint32_t trees_per_root = 0;  // parts of a block
  std::vector<Tree> trees;      // by root and part
  // What each root gives all others when each message takes its way (routes.h), in 10^9 bytes a
  // second. Between ranks that several ways join, such as xGMI and PCIe, the trees count on all of
  // them and messages take one.
  double block_gbs = 0;
  double bound_gbs = 0;  // the same by the cut bound
  uint64_t steps = 0;
  bool for_all_reduce = false;  // found for it alone, and perhaps of some ranks only
};

struct ForestOptions {
  uint32_t trees_max = 8;  // a root
  // Of the cut bound: not more trees for more, since many trees share few lanes.
  double good_enough = 0.85;
  uint64_t steps_max = 200'000;  // see above
};

// Trees of every root. Errors: fewer than two ranks, links without any limit, a graph of which
// whole trees use less than half, and more steps than steps_max.
Result<Forest> find_forest(const LinkGraph& graph, const ForestOptions& options = {});
// Trees of some roots: of one for broadcast and, backwards, reduce; all_reduce may have any.
Result<Forest> find_trees(const LinkGraph& graph, std::span<const Rank> roots,
                          const ForestOptions& options = {});

// What is wrong with a forest that came from elsewhere (a file, another rank); "" nothing is. The
// trees of a root span all ranks and make up its block.
std::string flaw_of(const Forest& forest);

}  // namespace weir::graph
