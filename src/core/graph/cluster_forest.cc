// SPDX-License-Identifier: Apache-2.0
#include "core/graph/cluster_forest.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "core/base/check.h"
#include "core/graph/forest_load.h"
#include "core/graph/routes.h"

namespace weir::graph {
namespace {

constexpr uint32_t kPartsMax = 32;

std::vector<std::vector<Rank>> ranks_by_host(const LinkGraph& graph) {
  std::vector<std::vector<Rank>> ranks(graph.host_count());
  for (Rank rank = 0; rank < graph.rank_count(); ++rank) {
    ranks[graph.host_of(rank)].push_back(rank);
  }
  ranks.erase(std::remove_if(ranks.begin(), ranks.end(), [](const auto& it) { return it.empty(); }),
              ranks.end());
  return ranks;
}

// The trees of a host by root and part, with `parts` parts a root.
using TreesOfHost = std::vector<std::vector<const Tree*>>;

TreesOfHost trees_by_part(const Forest& forest, uint32_t parts) {
  TreesOfHost trees(forest.rank_count, std::vector<const Tree*>(parts));
  const uint32_t times = parts / forest.trees_per_root;
  for (const Tree& tree : forest.trees) {
    for (uint32_t part = tree.first * times; part < (tree.first + tree.count) * times; ++part) {
      trees[tree.root][part] = &tree;
    }
  }
  return trees;
}

std::vector<Rank> all_ranks(const LinkGraph& graph) {
  std::vector<Rank> all(graph.rank_count());
  std::iota(all.begin(), all.end(), 0u);
  return all;
}

class Composer {
 public:
  Composer(std::vector<std::vector<Rank>> ranks, std::vector<TreesOfHost> trees, uint32_t parts)
      : ranks_(std::move(ranks)), trees_(std::move(trees)), parts_(parts) {}

  void add_trees_of(uint32_t host, uint32_t place, Forest* forest) const {
    for (uint32_t part = 0; part < parts_; ++part) {
      Tree tree = compose(host, place, part);
      if (part > 0 && forest->trees.back().links == tree.links) {
        ++forest->trees.back().count;
      } else {
        forest->trees.push_back(std::move(tree));
      }
    }
  }

 private:
  Tree compose(uint32_t root_host, uint32_t place, uint32_t part) const {
    const auto host_count = static_cast<uint32_t>(ranks_.size());
    Tree tree{.root = ranks_[root_host][place], .first = part, .count = 1, .links = {}};
    std::vector<uint32_t> depth(host_count, 0);
    const auto host_at = [&](uint32_t i) { return (root_host + i) % host_count; };
    for (uint32_t i = 1; i < host_count; ++i) {
      const uint32_t parent = (i - 1) / 2;
      depth[i] = depth[parent] + 1;
      tree.links.push_back({ranks_[host_at(parent)][place], ranks_[host_at(i)][place], depth[i]});
    }
    for (uint32_t i = 0; i < host_count; ++i) {
      const std::vector<Rank>& ranks = ranks_[host_at(i)];
      for (const TreeLink& link : trees_[host_at(i)][place][part]->links) {
        tree.links.push_back({ranks[link.from], ranks[link.to], depth[i] + link.depth});
      }
    }
    return tree;
  }

  std::vector<std::vector<Rank>> ranks_;
  std::vector<TreesOfHost> trees_;
  uint32_t parts_;
};

}  // namespace

Result<LinkGraph> host_graph(const LinkGraph& graph, uint32_t host) {
  std::vector<VertexId> new_id(graph.vertices().size(), kNone);
  uint32_t count = 0;
  for (Rank rank = 0; rank < graph.rank_count(); ++rank) {
    if (graph.host_of(rank) == host) new_id[rank] = count++;
  }
  if (count == 0) return invalid_argument(fmt::format("link graph: no rank on host {}", host));
  LinkGraph part(count);
  for (VertexId id = 0; id < new_id.size(); ++id) {
    const Vertex& vertex = graph.vertices()[id];
    if (vertex.host != host) continue;
    if (graph.is_rank(id)) {
      part.set_rank(new_id[id], 0, vertex.name);
    } else {
      new_id[id] = part.add_vertex(vertex.kind, 0, vertex.name);
    }
  }
  for (Link link : graph.links()) {
    link.from = new_id[link.from];
    link.to = new_id[link.to];
    if (link.from != kNone && link.to != kNone) part.add_link(link);
  }
  WEIR_RETURN_IF_ERROR(part.finish());
  return part;
}

Result<Forest> cluster_forest(const LinkGraph& graph, const ClusterForestOptions& options) {
  const std::vector<std::vector<Rank>> ranks = ranks_by_host(graph);
  const size_t each = ranks.front().size();
  if (ranks.size() < 2) return invalid_argument("cluster forest: one host");
  for (const auto& it : ranks) {
    if (it.size() != each) {
      return Status(Code::kUnsupported,
                    fmt::format("cluster forest: hosts with {} and {} ranks", each, it.size()));
    }
  }
  Searches own;
  Searches& searches = options.searches != nullptr ? *options.searches : own;
  uint64_t steps = 0;
  uint32_t parts = 1;
  std::map<uint64_t, Forest> kinds;  // by hash of the host
  std::vector<const Forest*> forests;
  for (const auto& it : ranks) {
    const uint32_t host = graph.host_of(it.front());
    if (each == 1) continue;
    auto alone = host_graph(graph, host);
    if (!alone.ok()) return alone.status();
    const uint64_t hash = alone.value().hash();
    if (!kinds.contains(hash)) {
      auto found = searches.trees(alone.value(), all_ranks(alone.value()), options.host);
      if (!found.ok()) return found.status();
      steps += found.value().steps;
      parts = std::lcm(parts, found.value().trees_per_root);
      kinds.emplace(hash, found.take());
    }
    forests.push_back(&kinds.at(hash));
  }
  const uint64_t links = uint64_t{graph.rank_count()} * graph.rank_count() * parts;
  if (parts > kPartsMax || links > options.links_max) {
    return Status(Code::kUnsupported, fmt::format("cluster forest: {} ranks with {} trees each "
                                                  "have more than {} links",
                                                  graph.rank_count(), parts, options.links_max));
  }
  std::vector<TreesOfHost> trees;
  const Tree alone;  // of a host with one rank
  for (size_t i = 0; i < ranks.size(); ++i) {
    trees.push_back(each == 1 ? TreesOfHost(1, std::vector<const Tree*>(parts, &alone))
                              : trees_by_part(*forests[i], parts));
  }
  Forest forest;
  forest.rank_count = graph.rank_count();
  forest.trees_per_root = parts;
  forest.steps = steps;
  const Composer composer(ranks, std::move(trees), parts);
  for (Rank root = 0; root < graph.rank_count(); ++root) {
    for (uint32_t host = 0; host < ranks.size(); ++host) {
      const auto it = std::find(ranks[host].begin(), ranks[host].end(), root);
      if (it != ranks[host].end()) {
        composer.add_trees_of(host, static_cast<uint32_t>(it - ranks[host].begin()), &forest);
      }
    }
  }
  if (!options.rated) return forest;
  forest.bound_gbs = cut_bound(graph).block_gbs();
  Routes routes(graph);
  const double ns_per_byte = spread_ns_per_byte(graph, load_of(graph, forest, &routes));
  if (ns_per_byte == 0) return Status(Code::kUnsupported, "cluster forest: no link has a limit");
  forest.block_gbs = 1 / (ns_per_byte * graph.rank_count());
  return forest;
}

Result<Forest> best_forest(const LinkGraph& graph, uint32_t searched_ranks_max,
                           Searches* searches) {
  Searches own;
  const bool rated = searches == nullptr;
  if (searches == nullptr) searches = &own;
  const std::vector<Rank> all = all_ranks(graph);
  const bool searched = graph.rank_count() <= searched_ranks_max;
  if (graph.host_count() < 2) return searches->trees(graph, all);
  if (!searched) {
    if (const Forest* known = searches->find(graph.hash(), all); known != nullptr) return *known;
    return cluster_forest(graph, {.host = {}, .rated = rated, .searches = searches});
  }
  auto cluster = cluster_forest(graph, {.host = {}, .searches = searches});
  auto found = searches->trees(graph, all);
  if (!found.ok() || !cluster.ok()) return found.ok() ? std::move(found) : std::move(cluster);
  // Of two that spread as fast, that which leaves more of the links to what is folded meanwhile.
  Routes routes(graph);
  const auto ns = [&](const Forest& forest) {
    const ForestLoad load = load_of(graph, forest, &routes);
    return std::pair(spread_ns_per_byte(graph, load), both_ns_per_byte(graph, load));
  };
  const auto [spread, both] = ns(found.value());
  const auto [cluster_spread, cluster_both] = ns(cluster.value());
  const bool faster = spread < 0.98 * cluster_spread;
  const bool as_fast = spread < 1.02 * cluster_spread;
  return faster || (as_fast && both < 0.98 * cluster_both) ? std::move(found) : std::move(cluster);
}

}  // namespace weir::graph
