// SPDX-License-Identifier: Apache-2.0
#include "core/graph/searches.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/graph/routes.h"

namespace weir::graph {

std::vector<Rank> roots_of(const Forest& forest) {
  std::vector<Rank> roots;
  for (const Tree& tree : forest.trees) roots.push_back(tree.root);
  std::sort(roots.begin(), roots.end());
  roots.erase(std::unique(roots.begin(), roots.end()), roots.end());
  return roots;
}

Result<Forest> Searches::trees(const LinkGraph& graph, std::span<const Rank> roots,
                               const ForestOptions& options) {
  const uint64_t hash = graph.hash();
  if (const Forest* known = find(hash, roots); known != nullptr) return *known;
  auto found = find_trees(graph, roots, options);
  if (found.ok()) add(hash, found.value());
  return found;
}

const Forest* Searches::find(uint64_t graph_hash, std::span<const Rank> roots) const {
  const auto found = forests_.find({graph_hash, {roots.begin(), roots.end()}});
  return found == forests_.end() ? nullptr : &found->second;
}

void Searches::add(uint64_t graph_hash, Forest forest) {
  Key key(graph_hash, forest.for_all_reduce ? std::vector<Rank>() : roots_of(forest));
  forests_.insert_or_assign(std::move(key), std::move(forest));
}

const Rings* Searches::find_rings(uint64_t graph_hash) const {
  const auto found = rings_.find(graph_hash);
  return found == rings_.end() ? nullptr : &found->second;
}

void Searches::add(uint64_t graph_hash, Rings rings) {
  rings_.insert_or_assign(graph_hash, std::move(rings));
}

std::string flaw_of(const Forest& forest, const LinkGraph& graph) {
  if (forest.rank_count != graph.rank_count()) {
    return fmt::format("trees of {} ranks for a graph of {}", forest.rank_count,
                       graph.rank_count());
  }
  if (std::string flaw = flaw_of(forest); !flaw.empty()) return flaw;
  Routes routes(graph);
  for (size_t i = 0; i < forest.trees.size(); ++i) {
    for (const TreeLink& link : forest.trees[i].links) {
      if (!routes.way(link.from, link.to).exists || !routes.way(link.to, link.from).exists) {
        return fmt::format("tree {}: no way leads from rank {} to {} and back", i, link.from,
                           link.to);
      }
    }
  }
  return "";
}

}  // namespace weir::graph
