// SPDX-License-Identifier: Apache-2.0
// The cut bound: what no algorithm can be faster than, because of the links alone. Whatever set of
// vertices does not hold all ranks, all data that its ranks have for the others leaves it over the
// links of its cut. For n ranks that each give all others an equal block,
//
//   time of all_gather >= block bytes * most of (ranks in S / bandwidth out of S)
//
// over all sets S (Zhao, Pal, Gangidi, Krishnamurthy, "ForestColl: throughput-optimal collective
// communications on heterogeneous network fabrics", 2024). reduce_scatter is the same backwards.
// Exact: found with integers, by raising the bound as long as a cut breaks it. all_reduce has a
// bound of its own, since where links are unequal its ranks need not own equal blocks. Pure
// functions; thread-safe.
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

// A lower bound of the time of an all_reduce of one byte a rank, in ns, by the bandwidth of the
// links alone; 0: nothing limits it. The larger of
//
//   - 1 / the smallest cut with ranks on both sides, in either direction: each side must hear a
//     result that depends on all elements of the other;
//   - 2 (k - 1) / the bandwidth out of (or into) k parts of the ranks together, since to have each
//     of k parts know what depends on all takes 2 (k - 1) messages of each element (Harary and
//     Schwenk 1974: gossip by one-way calls): every rank by itself, every host, and what comes of
//     joining parts as long as that raises the bound.
//
// Exact where links and hosts are alike. Elsewhere it may be too low, never too high.
double all_reduce_ns_per_byte(const LinkGraph& graph);

// The least time of the collective, by the links' bandwidth alone: `bytes` as bandwidth tools print
// them (cost/chunk_bytes.h). 0: nothing limits it. Collectives: all_gather, reduce_scatter,
// broadcast and reduce (by the bounds above, which trees can reach), all_reduce (see
// all_reduce_ns_per_byte) and all_to_all, of which only the cuts of each rank and each host are
// looked at.
double least_ns(const LinkGraph& graph, Collective collective, Rank root, uint64_t bytes);

}  // namespace weir::graph
