// SPDX-License-Identifier: Apache-2.0
#include "core/graph/cluster_forest.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "core/graph/forest_load.h"
#include "core/graph/host_networks.h"
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

// The hosts of a graph with their trees.
struct Hosts {
  std::vector<std::vector<Rank>> ranks;
  std::vector<Forest> kinds;       // of all ranks of a host; hosts with one rank have none
  std::vector<uint32_t> kind;      // of each host; kNone: it has one rank
  std::vector<TreesOfHost> trees;  // each with `parts` parts
  std::vector<bool> slow;          // its network is
  uint32_t parts = 1;
  size_t least = 0, most = 0;  // ranks of a host
};

// Of hosts with a network that is slower than this share of the fastest one: they receive last, so
// that they pass nothing on.
constexpr double kSlowNetwork = 0.5;

std::vector<bool> slow_ones(const std::vector<KilobytesPerSecond>& networks) {
  KilobytesPerSecond most = 0;
  for (const auto network : networks) {
    most = std::max(most, network == kUnlimited ? kBandwidthMax : network);
  }
  std::vector<bool> slow;
  for (const auto network : networks) {
    slow.push_back(network != kUnlimited &&
                   static_cast<double>(network) < kSlowNetwork * static_cast<double>(most));
  }
  return slow;
}

Result<Hosts> hosts_of(const LinkGraph& graph, Searches* searches,
                       const ClusterForestOptions& options, uint64_t* steps) {
  Hosts hosts;
  hosts.ranks = ranks_by_host(graph);
  if (hosts.ranks.size() < 2) return invalid_argument("cluster forest: one host");
  const std::vector<KilobytesPerSecond> networks = network_of_hosts(graph);
  std::vector<KilobytesPerSecond> of_hosts;
  std::map<uint64_t, uint32_t> kinds;  // by hash of the host
  hosts.least = hosts.ranks.front().size();
  for (const std::vector<Rank>& ranks : hosts.ranks) {
    const uint32_t host = graph.host_of(ranks.front());
    of_hosts.push_back(networks[host]);
    hosts.least = std::min(hosts.least, ranks.size());
    hosts.most = std::max(hosts.most, ranks.size());
    hosts.kind.push_back(kNone);
    if (ranks.size() == 1) continue;
    auto alone = host_graph(graph, host);
    if (!alone.ok()) return alone.status();
    const auto [kind, is_new] =
        kinds.emplace(alone.value().hash(), static_cast<uint32_t>(hosts.kinds.size()));
    hosts.kind.back() = kind->second;
    if (!is_new) continue;
    auto found = searches->trees(alone.value(), all_ranks(alone.value()), options.host);
    if (!found.ok()) return found.status();
    *steps += found.value().steps;
    hosts.parts = std::lcm(hosts.parts, found.value().trees_per_root);
    hosts.kinds.push_back(found.take());
  }
  hosts.slow = slow_ones(of_hosts);
  // So that the blocks of a host with few ranks enter larger ones at all of their ranks.
  const auto times = static_cast<uint32_t>((hosts.most + hosts.least * hosts.parts - 1) /
                                           (hosts.least * hosts.parts));
  const uint64_t links = uint64_t{graph.rank_count()} * graph.rank_count() * hosts.parts * times;
  if (hosts.parts * times <= kPartsMax && links <= options.links_max) hosts.parts *= times;
  if (hosts.parts > kPartsMax) {
    return Status(Code::kUnsupported,
                  fmt::format("cluster forest: {} trees for each rank of a host", hosts.parts));
  }
  return hosts;
}

// Once nothing is added to `kinds`.
void find_trees_by_part(Hosts* hosts) {
  for (const uint32_t kind : hosts->kind) {
    hosts->trees.push_back(kind == kNone ? TreesOfHost()
                                         : trees_by_part(hosts->kinds[kind], hosts->parts));
  }
}

class Composer {
 public:
  explicit Composer(const Hosts& hosts) : hosts_(hosts) {}

  void add_trees_of(uint32_t host, uint32_t place, Forest* forest) const {
    const std::vector<Rank>& ranks = hosts_.ranks[host];
    for (uint32_t part = 0; part < hosts_.parts; ++part) {
      Tree tree{.root = ranks[place], .first = part, .count = 1, .links = {}};
      const uint64_t rail = uint64_t{place} * hosts_.parts + part;
      const uint64_t rails = uint64_t{ranks.size()} * hosts_.parts;
      cross(order_from(host, 0), 2, rail, rails, ranks[place], 0, part, &tree);
      add_links(host, place, part, 0, &tree);
      add(std::move(tree), forest);
    }
  }

  // `own`: trees of that rank in its host; nullptr: it is alone there. The parts are
  // `trees_per_root`, and those that follow each other share a rail, of `rails`.
  void add_trees_of_root(uint32_t host, Rank root, const Forest* own, uint32_t rails,
                         Forest* forest) const {
    const uint32_t parts = forest->trees_per_root;
    const uint32_t of_rail = std::max(1u, parts / rails);
    const auto half = static_cast<uint32_t>(hosts_.ranks.size() / 2);
    const std::vector<Rank>& ranks = hosts_.ranks[host];
    for (uint32_t part = 0; part < parts; ++part) {
      Tree tree{.root = root, .first = part, .count = 1, .links = {}};
      const Rank leaves = ranks[uint64_t{part} * ranks.size() / parts];
      uint32_t depth = 0;
      if (own != nullptr) {
        const uint32_t own_part = part * own->trees_per_root / parts;
        const auto it = std::find_if(own->trees.begin(), own->trees.end(), [&](const Tree& its) {
          return own_part >= its.first && own_part < its.first + its.count;
        });
        for (const TreeLink& link : it->links) {
          tree.links.push_back({ranks[link.from], ranks[link.to], link.depth});
          if (ranks[link.to] == leaves) depth = link.depth;
        }
      }
      cross(order_from(host, part / of_rail + part % of_rail * half), 1, part, parts, leaves, depth,
            part % hosts_.parts, &tree);
      add(std::move(tree), forest);
    }
  }

 private:
  // The order in which hosts receive: `first`; the others in turns; those with slow networks.
  std::vector<uint32_t> order_from(uint32_t first, uint32_t turn) const {
    const auto others = static_cast<uint32_t>(hosts_.ranks.size()) - 1;
    std::vector<uint32_t> order = {first};
    for (const bool slow : {false, true}) {
      for (uint32_t i = 0; i < others; ++i) {
        const uint32_t host = (first + 1 + (i + turn) % others) % (others + 1);
        if (hosts_.slow[host] == slow) order.push_back(host);
      }
    }
    return order;
  }

  // From `from` in the first host of the order to the other hosts, and within these. The first
  // sends to one or two of them, the others to two each.
  void cross(const std::vector<uint32_t>& order, uint32_t of_first, uint64_t rail, uint64_t rails,
             Rank from, uint32_t from_depth, uint32_t part, Tree* tree) const {
    std::vector<uint32_t> depth(order.size(), from_depth), place(order.size(), 0);
    std::vector<Rank> entry(order.size(), from);
    for (uint32_t i = 1; i < order.size(); ++i) {
      const std::vector<Rank>& ranks = hosts_.ranks[order[i]];
      place[i] = static_cast<uint32_t>(rail * ranks.size() / rails);
      entry[i] = ranks[place[i]];
      const uint32_t parent = i <= of_first ? 0 : (i + 1 - of_first) / 2;
      depth[i] = depth[parent] + 1;
      tree->links.push_back({entry[parent], entry[i], depth[i]});
    }
    for (uint32_t i = 1; i < order.size(); ++i) {
      add_links(order[i], place[i], part, depth[i], tree);
    }
  }

  void add_links(uint32_t host, uint32_t place, uint32_t part, uint32_t depth, Tree* tree) const {
    const std::vector<Rank>& ranks = hosts_.ranks[host];
    if (ranks.size() == 1) return;
    for (const TreeLink& link : hosts_.trees[host][place][part]->links) {
      tree->links.push_back({ranks[link.from], ranks[link.to], depth + link.depth});
    }
  }

  static void add(Tree tree, Forest* forest) {
    if (!forest->trees.empty() && forest->trees.back().root == tree.root &&
        forest->trees.back().links == tree.links) {
      ++forest->trees.back().count;
    } else {
      forest->trees.push_back(std::move(tree));
    }
  }

  const Hosts& hosts_;
};

Status too_many_links(const LinkGraph& graph, uint64_t trees, uint64_t links_max) {
  return Status(Code::kUnsupported,
                fmt::format("cluster forest: {} trees of {} ranks have more than {} links", trees,
                            graph.rank_count(), links_max));
}

Result<Forest> rated(const LinkGraph& graph, Forest forest, const CutBound& bound, size_t roots) {
  forest.bound_gbs = bound.block_gbs();
  Routes routes(graph);
  const double ns_per_byte = spread_ns_per_byte(graph, load_of(graph, forest, &routes));
  if (ns_per_byte == 0) return Status(Code::kUnsupported, "cluster forest: no link has a limit");
  forest.block_gbs = 1 / (ns_per_byte * static_cast<double>(roots));
  return forest;
}

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
  Searches own;
  Forest forest;
  forest.rank_count = graph.rank_count();
  auto hosts = hosts_of(graph, options.searches != nullptr ? options.searches : &own, options,
                        &forest.steps);
  if (!hosts.ok()) return hosts.status();
  const uint64_t trees = uint64_t{graph.rank_count()} * hosts.value().parts;
  if (trees * graph.rank_count() > options.links_max) {
    return too_many_links(graph, trees, options.links_max);
  }
  forest.trees_per_root = hosts.value().parts;
  find_trees_by_part(&hosts.value());
  std::vector<std::pair<uint32_t, uint32_t>> at(graph.rank_count());  // host and place
  for (uint32_t host = 0; host < hosts.value().ranks.size(); ++host) {
    const std::vector<Rank>& ranks = hosts.value().ranks[host];
    for (uint32_t place = 0; place < ranks.size(); ++place) at[ranks[place]] = {host, place};
  }
  const Composer composer(hosts.value());
  for (Rank root = 0; root < graph.rank_count(); ++root) {
    composer.add_trees_of(at[root].first, at[root].second, &forest);
  }
  if (!options.rated) return forest;
  return rated(graph, std::move(forest), cut_bound(graph), graph.rank_count());
}

Result<Forest> cluster_trees(const LinkGraph& graph, Rank root,
                             const ClusterForestOptions& options) {
  WEIR_CHECK(root < graph.rank_count(), "no such root");
  Searches unkept;
  Searches* const searches = options.searches != nullptr ? options.searches : &unkept;
  Forest forest;
  forest.rank_count = graph.rank_count();
  auto found = hosts_of(graph, searches, options, &forest.steps);
  if (!found.ok()) return found.status();
  Hosts hosts = found.take();
  find_trees_by_part(&hosts);
  const auto of_root = std::find_if(hosts.ranks.begin(), hosts.ranks.end(), [&](const auto& it) {
    return graph.host_of(it.front()) == graph.host_of(root);
  });
  const auto host = static_cast<uint32_t>(of_root - hosts.ranks.begin());
  const std::vector<Rank>& ranks = *of_root;
  std::optional<Forest> own;
  if (ranks.size() > 1) {
    auto alone = host_graph(graph, graph.host_of(root));
    if (!alone.ok()) return alone.status();
    const auto place =
        static_cast<Rank>(std::find(ranks.begin(), ranks.end(), root) - ranks.begin());
    auto trees = searches->trees(alone.value(), std::span(&place, 1), options.host);
    if (!trees.ok()) return trees.status();
    forest.steps += trees.value().steps;
    own = trees.take();
  }
  // A part for each rank of the largest host, so that all of its cards work; two where a host
  // passes a part on to two others, so that it is the end of the other one.
  const uint32_t each = own ? own->trees_per_root : 1;
  const uint32_t rails = std::min(static_cast<uint32_t>(hosts.most), kPartsMax);
  const uint32_t wanted = hosts.ranks.size() > 3 && 2 * rails <= kPartsMax ? 2 * rails : rails;
  const uint32_t both = std::lcm(each, wanted);
  const uint32_t parts = both <= kPartsMax ? both : std::max(1u, wanted / each) * each;
  if (uint64_t{parts} * graph.rank_count() > options.links_max) {
    return too_many_links(graph, parts, options.links_max);
  }
  forest.trees_per_root = parts;
  Composer(hosts).add_trees_of_root(host, root, own ? &*own : nullptr, rails, &forest);
  if (!options.rated) return forest;
  return rated(graph, std::move(forest), broadcast_bound(graph, root), 1);
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

Result<Forest> best_trees(const LinkGraph& graph, Rank root, uint32_t searched_ranks_max,
                          Searches* searches) {
  Searches own;
  const bool rated = searches == nullptr;
  if (searches == nullptr) searches = &own;
  const auto roots = std::span(&root, 1);
  if (graph.rank_count() <= searched_ranks_max || graph.host_count() < 2) {
    return searches->trees(graph, roots);
  }
  if (const Forest* known = searches->find(graph.hash(), roots); known != nullptr) return *known;
  return cluster_trees(graph, root, {.host = {}, .rated = rated, .searches = searches});
}

}  // namespace weir::graph
