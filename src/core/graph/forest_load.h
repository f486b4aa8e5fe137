// SPDX-License-Identifier: Apache-2.0
// What links carry when a collective goes along a forest and each message takes its way
// (routes.h). Pure functions; thread-safe.
#pragma once

#include <vector>

#include "core/graph/forest.h"
#include "core/graph/link_graph.h"
#include "core/graph/routes.h"

namespace weir::graph {

// Of each link: how often all parts of all roots together pass it, spread along the trees or folded
// backwards.
struct ForestLoad {
  std::vector<double> spread, fold;
};
ForestLoad load_of(const LinkGraph& graph, const Forest& forest, Routes* routes);

// Nanoseconds for each byte of all roots' parts together, by the link that takes longest; 0:
// nothing limits it. `both`: parts are folded while others are spread.
double spread_ns_per_byte(const LinkGraph& graph, const ForestLoad& load);
double both_ns_per_byte(const LinkGraph& graph, const ForestLoad& load);

}  // namespace weir::graph
