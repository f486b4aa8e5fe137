// SPDX-License-Identifier: Apache-2.0
// How well the algorithms that know nothing of links use them: what an all_gather takes by the
// bandwidth of the links alone when it goes along the ring of ranks, straight from each rank to all
// others, or host by host. Trees are worth their price only where they are faster. Pure functions;
// thread-safe.
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

// Of a graph with two ranks or more; `routes` are its own.
UsualWays best_usual_ways(const LinkGraph& graph, Routes* routes);

}  // namespace weir::graph
