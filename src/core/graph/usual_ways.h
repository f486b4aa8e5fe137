// SPDX-License-Identifier: Apache-2.0
// How well the algorithms that know nothing of links use them: what an all_gather and an all_reduce
// take by the bandwidth of the links when they go along the ring of ranks, straight from each rank
// to all others, or host by host. Trees are worth their price only where they are faster. Pure
// functions; thread-safe.
#pragma once

#include <string>

#include "core/graph/link_graph.h"
#include "core/graph/routes.h"

namespace weir::graph {

struct UsualWays {
  double ns_per_byte =
      0;  // of all blocks together, as spread_ns_per_byte; infinite: none can be used
  const char* name = "";  // of the best: "ring", "straight", "host by host"
};

// Of an all_gather, on a graph with two ranks or more; `routes` are its own.
UsualWays best_usual_ways(const LinkGraph& graph, Routes* routes);

// Of an all_gather in which each rank sends to all others at once; infinite: it cannot.
double straight_ns_per_byte(const LinkGraph& graph, Routes* routes);

// Of an all_reduce: `ns_per_byte` of the vector of a rank, as both_ns_per_byte. Straight, and host
// by host, a rank sends to one other after the other, and goes on when it has received: each slice
// uses one of its links at a time, and only the few slices in flight use several. Counted is the
// middle between steps that follow each other and steps that all overlap. Simulated with 4 slices
// in flight, 8 linked GPUs take 2.0 times as long as if all overlapped (counted: 4), 2 x 8 GPUs
// with NVSwitch and 8 cards 1.4 times (1.3), with one card 1.01 times (1.1).
UsualWays best_usual_all_reduce(const LinkGraph& graph, Routes* routes);

}  // namespace weir::graph
