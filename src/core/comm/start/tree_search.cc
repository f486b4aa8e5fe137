// SPDX-License-Identifier: Apache-2.0
#include "core/comm/start/tree_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "core/base/log.h"
#include "core/base/per_process.h"
#include "core/graph/cluster_forest.h"
#include "core/graph/cut_bound.h"
#include "core/graph/forest_load.h"
#include "core/graph/forests.h"
#include "core/graph/host_networks.h"
#include "core/graph/kept_searches.h"
#include "core/graph/usual_ways.h"

namespace weir::comm {

namespace {

using graph::Forest;
using graph::LinkGraph;
using graph::Searches;

// Of this process: its communicators are often made of one another.
constinit InheritedState<Searches> of_process;
constexpr size_t kRememberedMax = 256;

using Graphs = std::map<uint64_t, LinkGraph>;

// What is known of these graphs without a search.
Searches known_of(const Graphs& graphs, const std::string& directory) {
  Searches known;
  for (const auto& [hash, graph] : graphs) {
    bool remembered = false;
    for (const auto& [key, forest] : of_process.use()->all()) {
      if (key.first != hash) continue;
      known.add(hash, forest);
      remembered = true;
    }
    if (const auto* rings = of_process.use()->find_rings(hash); rings != nullptr) {
      known.add(hash, *rings);
      remembered = true;
    }
    if (remembered || directory.empty()) continue;
    auto kept = graph::load_search(directory, hash);
    if (!kept) continue;
    for (Forest& forest : kept->forests) known.add(hash, std::move(forest));
    if (kept->rings) known.add(hash, std::move(*kept->rings));
  }
  return known;
}

void keep(const Graphs& graphs, const Searches& before, const Searches& now,
          const std::string& directory) {
  for (const auto& [hash, graph] : graphs) {
    graph::SearchRecord record{.graph = graph, .forests = {}, .rings = {}};
    bool changed = false;
    const auto process = of_process.use();
    for (const auto& [key, forest] : now.all()) {
      if (key.first != hash) continue;
      record.forests.push_back(forest);
      changed = changed || !before.all().contains(key);
      if (process->all().size() < kRememberedMax) process->add(hash, forest);
    }
    if (const graph::Rings* rings = now.find_rings(hash); rings != nullptr) {
      record.rings = *rings;
      changed = changed || before.find_rings(hash) == nullptr;
      if (process->all_rings().size() < kRememberedMax) process->add(hash, *rings);
    }
    if (!changed || directory.empty()) continue;
    const Status stored = graph::store_search(directory, record);
    if (!stored.ok()) log_info(fmt::format("searched trees are not kept: {}", stored.text()));
  }
}

// How often the fastest network of a host has the bandwidth of the slowest.
double ratio_of_networks(const LinkGraph& graph) {
  graph::KilobytesPerSecond least = 0, most = 0;
  for (const auto network : graph::network_of_hosts(graph)) {
    if (network == graph::kUnlimited) continue;
    least = least == 0 ? network : std::min(least, network);
    most = std::max(most, network);
  }
  return least == 0 ? 1 : static_cast<double>(most) / static_cast<double>(least);
}

// How much longer a usual way takes than the trees, by the links.
struct Comparison {
  double factor = 1;
  const char* usual = "";
  const char* what = "an all_gather";
};

// Whether some ranks are on devices: those on processors are joined to memory and networks only,
// and within a host their messages take the time of processors, not of links.
bool joins_devices(const LinkGraph& graph) {
  return std::any_of(graph.links().begin(), graph.links().end(), [&](const graph::Link& link) {
    const graph::VertexKind to = graph.vertices()[link.to].kind;
    return graph.vertices()[link.from].kind == graph::VertexKind::kRank &&
           to != graph::VertexKind::kMemory && to != graph::VertexKind::kNetwork;
  });
}

Comparison all_reduce_along_trees(graph::Forests* forests) {
  const LinkGraph& graph = forests->graph();
  const graph::UsualWays usual = graph::best_usual_all_reduce(graph, &forests->routes());
  Comparison found{.factor = 1, .usual = usual.name, .what = "an all_reduce"};
  // Trees need not be searched where none can be faster.
  if (usual.ns_per_byte <= kTreesFaster * graph::all_reduce_ns_per_byte(graph)) return found;
  const Forest* forest = forests->of(Collective::kAllReduce, 0);
  if (forest == nullptr) return found;
  const double trees = both_ns_per_byte(graph, load_of(graph, *forest, &forests->routes()));
  if (trees > 0) found.factor = usual.ns_per_byte / trees;
  return found;
}

// Of an all_gather or, if trees are not worth it for that, of an all_reduce. No value: there are no
// trees.
std::optional<Comparison> compare(graph::Forests* forests) {
  const Forest* forest = forests->of(Collective::kAllGather, 0);
  if (forest == nullptr) return std::nullopt;
  const LinkGraph& graph = forests->graph();
  const graph::UsualWays usual = graph::best_usual_ways(graph, &forests->routes());
  const double trees = spread_ns_per_byte(graph, load_of(graph, *forest, &forests->routes()));
  const Comparison found{.factor = trees > 0 ? usual.ns_per_byte / trees : 1, .usual = usual.name};
  if (found.factor > kTreesFaster || !joins_devices(graph)) return found;
  const Comparison folded = all_reduce_along_trees(forests);
  return folded.factor > kTreesFaster ? folded : found;
}

std::string text_of(const Comparison& found) {
  return fmt::format(
      "by the links alone {} along trees takes {:.2f} of the time of the best usual way ({})",
      found.what, 1 / found.factor, found.usual);
}

TreeSearch not_offered(std::string reason) {
  return {.offered = false, .reason = std::move(reason), .searches = {}};
}

// By the links between all ranks.
TreeSearch search_at_once(const LinkGraph& graph, double ratio, Searches known) {
  graph::Forests forests(graph, std::move(known));
  const auto found = compare(&forests);
  if (!found) return not_offered("no trees were found for these links");
  if (ratio <= kNetworksDiffer && found->factor <= kTreesFaster)
    return not_offered(text_of(*found));
  (void)forests.of(Collective::kAllReduce, 0);
  return {.offered = true, .reason = text_of(*found), .searches = forests.searches()};
}

// Beyond, the ways between all ranks take too long.
constexpr uint32_t kComparedRanksMax = 1024;

bool has_uneven_hosts(const LinkGraph& graph) {
  std::vector<uint32_t> ranks(graph.host_count(), 0);
  for (Rank rank = 0; rank < graph.rank_count(); ++rank) ++ranks[graph.host_of(rank)];
  return std::any_of(ranks.begin(), ranks.end(), [&](uint32_t it) { return it != ranks[0]; });
}

// Host by host: trees between hosts are the same as those of the usual ways, unless networks
// differ; so the hosts themselves decide.
TreeSearch search_hosts(const Graphs& graphs, uint64_t whole, double ratio, Searches known) {
  double most = 1;
  std::string reason = "between hosts the usual ways use the links as well as trees";
  Searches searches = std::move(known);
  for (const auto& [hash, host] : graphs) {
    if (hash == whole || host.rank_count() < 2) continue;
    graph::Forests forests(host, searches);
    const auto found = compare(&forests);
    if (!found) return not_offered("no trees were found for the links of a host");
    searches = forests.searches();
    if (found->factor <= most) continue;
    most = found->factor;
    reason = "in a host, " + text_of(*found);
  }
  if (ratio <= kNetworksDiffer && most <= kTreesFaster) return not_offered(std::move(reason));
  return {.offered = true, .reason = std::move(reason), .searches = std::move(searches)};
}

}  // namespace

std::map<uint64_t, LinkGraph> searched_graphs(const LinkGraph& graph) {
  Graphs graphs;
  graphs.emplace(graph.hash(), graph);
  if (graph.host_count() < 2) return graphs;
  for (uint32_t host = 0; host < graph.host_count(); ++host) {
    auto alone = graph::host_graph(graph, host);
    if (!alone.ok()) continue;
    const uint64_t hash = alone.value().hash();
    graphs.emplace(hash, alone.take());
  }
  return graphs;
}

TreeSearch search_trees(const LinkGraph& graph, const std::string& directory) {
  const uint64_t whole = graph.hash();
  const Graphs graphs = searched_graphs(graph);
  const double ratio = ratio_of_networks(graph);
  const Searches known = known_of(graphs, directory);
  std::vector<Rank> all(graph.rank_count());
  std::iota(all.begin(), all.end(), 0u);
  Searches searches = known;
  // Between hosts with different numbers of ranks no usual way goes host by host.
  const bool compared =
      graph.rank_count() <= kComparedRanksMax && has_uneven_hosts(graph) &&
      graph::cluster_forest(graph, {.host = {}, .rated = false, .searches = &searches}).ok();
  const bool at_once = graph.rank_count() <= graph::Forests::kSearchedRanksMax ||
                       graph.host_count() < 2 || compared || known.find(whole, all) != nullptr;
  TreeSearch found = at_once ? search_at_once(graph, ratio, std::move(searches))
                             : search_hosts(graphs, whole, ratio, std::move(searches));
  if (found.offered && ratio > kNetworksDiffer) {
    found.reason =
        fmt::format("the networks of hosts differ by a factor of {:.3g}; {}", ratio, found.reason);
  }
  if (found.offered) {
    graph::Forests forests(graph, std::move(found.searches));
    (void)forests.rings();
    found.searches = forests.searches();
  }
  keep(graphs, known, found.searches, directory);
  return found;
}

}  // namespace weir::comm
