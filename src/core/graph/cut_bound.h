// SPDX-License-Identifier: Apache-2.0
// The cut bound: what no algorithm can be faster than, because of the links alone. Whatever set of
// vertices does not hold all ranks, all data that its ranks have for the others leaves it over the
// links of its cut. For n ranks that each give all others an equal block,
//
//   time of all_gather >= block bytes * most of (ranks in S / bandwidth out of S)
//
// over all sets S (Zhao, Pal, Gangidi, Krishnamurthy, "ForestColl: throughput-optimal collective
// communications on heterogeneous network fabrics", 2024). reduce_scatter is the same backwards.
// all_reduce as both, one after the other, of equal blocks, takes the sum. Exact: found with
// integers, by raising the bound as long as a cut breaks it. Pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/types.h"
#include "core/graph/link_graph.h"

namespace weir::graph {

struct CutBound {
  // The cut that sets the bound: `ranks` ranks on its side, which send `bandwidth` out of it.
  // Bandwidth kUnlimited: no link has a limit.
  int64_t ranks = 1;
  KilobytesPerSecond bandwidth = kUnlimited;
  std::vector<bool> side;  // of the vertices; empty: unlimited

  // What each rank can give all others, in 10^9 bytes a second; 0: unlimited.
  double block_gbs() const {
    return static_cast<double>(bandwidth) / static_cast<double>(ranks) / 1e6;
  }
};

// Of all_gather; at least two ranks.
CutBound cut_bound(const LinkGraph& graph);
// Of a broadcast: the smallest cut between the root and any other rank; `ranks` is 1.
CutBound broadcast_bound(const LinkGraph& graph, Rank root);
// Where only `roots` give a block to all others: `ranks` counts roots. One root or more.
CutBound roots_bound(const LinkGraph& graph, std::span<const Rank> roots);

// The least time of the collective, by the links' bandwidth alone: `bytes` as bandwidth tools print
// them (cost/chunk_bytes.h). 0: nothing limits it. Collectives: all_gather, reduce_scatter,
// broadcast, reduce, and all_reduce as above: where links are unequal, other ways may be faster. Of
// all_to_all only the cuts of each rank and each host are looked at.
double least_ns(const LinkGraph& graph, Collective collective, Rank root, uint64_t bytes);

}  // namespace weir::graph
