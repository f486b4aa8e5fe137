// SPDX-License-Identifier: Apache-2.0
#include "core/graph/forest_load.h"

#include <algorithm>

namespace weir::graph {
namespace {

template <typename LoadOf>
double slowest(const LinkGraph& graph, LoadOf&& load_of_link) {
  double most = 0;
  for (size_t i = 0; i < graph.links().size(); ++i) {
    const KilobytesPerSecond bandwidth = graph.links()[i].bandwidth;
    if (bandwidth == kUnlimited) continue;
    most = std::max(most, load_of_link(i) * 1e6 / static_cast<double>(bandwidth));
  }
  return most;
}

}  // namespace

ForestLoad load_of(const LinkGraph& graph, const Forest& forest, Routes* routes) {
  ForestLoad load{std::vector<double>(graph.links().size()),
                  std::vector<double>(graph.links().size())};
  double parts = 0;
  for (const Tree& tree : forest.trees) parts += tree.count;
  for (const Tree& tree : forest.trees) {
    const double share = tree.count / parts;
    for (const TreeLink& link : tree.links) {
      for (const LinkId id : routes->way(link.from, link.to).links) load.spread[id] += share;
      for (const LinkId id : routes->way(link.to, link.from).links) load.fold[id] += share;
    }
  }
  return load;
}

double spread_ns_per_byte(const LinkGraph& graph, const ForestLoad& load) {
  return slowest(graph, [&](size_t i) { return load.spread[i]; });
}

double both_ns_per_byte(const LinkGraph& graph, const ForestLoad& load) {
  return slowest(graph, [&](size_t i) { return load.spread[i] + load.fold[i]; });
}

}  // namespace weir::graph
