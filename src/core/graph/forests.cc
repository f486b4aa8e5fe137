// SPDX-License-Identifier: Apache-2.0
#include "core/graph/forests.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "core/graph/cluster_forest.h"
#include "core/graph/cut_bound.h"
#include "core/graph/forest_load.h"
#include "core/graph/tree_packing.h"

namespace weir::graph {
namespace {

constexpr size_t kRootSetsMax = 4;
// Beyond, the ways between all ranks take too much memory.
constexpr uint32_t kRingRanksMax = 1024;
// Of the time of the ring in the order of ranks.
constexpr double kRingsWorthwhile = 0.95;
constexpr double kHostHopNs = 1000;

}  // namespace

Forests::Forests(LinkGraph graph, Searches searches)
    : graph_(std::move(graph)), routes_(graph_), searches_(std::move(searches)) {}

const Forest* Forests::of(Collective collective, Rank root) {
  Key key{Use::kAll, 0};
  switch (collective) {
    case Collective::kAllGather:
    case Collective::kReduceScatter:
      break;
    case Collective::kAllReduce:
      key.first = Use::kAllReduce;
      break;
    case Collective::kBroadcast:
    case Collective::kReduce:
      key = {Use::kRoot, root};
      break;
    default:
      return nullptr;
  }
  if (graph_.rank_count() < 2) return nullptr;
  auto it = kept_.find(key);
  if (it == kept_.end()) it = kept_.emplace(key, find(key)).first;
  return it->second ? &*it->second : nullptr;
}

std::optional<Forest> Forests::find(const Key& key) {
  if (key.first == Use::kAllReduce) return find_for_all_reduce();
  auto found = key.first == Use::kRoot
                   ? best_trees(graph_, key.second, kSearchedRanksMax, &searches_)
                   : best_forest(graph_, kSearchedRanksMax, &searches_);
  return found.ok() ? std::optional(found.take()) : std::nullopt;
}

std::optional<Forest> Forests::find_for_all_reduce() {
  const uint32_t n = graph_.rank_count();
  std::optional<Forest> best;
  double best_ns = 0;
  const auto offer = [&](Result<Forest> found) {
    if (!found.ok()) return;
    const double ns = both_ns_per_byte(graph_, load_of(graph_, found.value(), &routes_));
    // A few per cent are not worth fewer roots.
    if (best && ns > 0.95 * best_ns) return;
    best = found.take();
    best_ns = ns;
  };
  if (const Forest* known = searches_.find_for_all_reduce(graph_.hash()); known != nullptr) {
    return *known;
  }
  if (n > kSearchedRanksMax) {
    auto found = best_forest(graph_, kSearchedRanksMax, &searches_);
    return found.ok() ? std::optional(found.take()) : std::nullopt;
  }
  offer(best_forest(graph_, kSearchedRanksMax, &searches_));
  offer(pack_trees(graph_, &routes_));
  // By the widest way of each rank.
  std::vector<KilobytesPerSecond> reach(n, 0);
  for (Rank rank = 0; rank < n; ++rank) {
    for (Rank other = 0; other < n; ++other) {
      if (other == rank) continue;
      const Way way = routes_.way(rank, other);
      if (!way.exists) continue;
      const bool limited = way.bandwidth != kUnlimited;
      reach[rank] = std::max(reach[rank], limited ? way.bandwidth : kBandwidthMax);
    }
  }
  std::vector<KilobytesPerSecond> levels = reach;
  std::sort(levels.begin(), levels.end(), std::greater<>());
  levels.erase(std::unique(levels.begin(), levels.end()), levels.end());
  for (size_t i = 0; i + 1 < levels.size() && i < kRootSetsMax; ++i) {
    std::vector<Rank> roots;
    for (Rank rank = 0; rank < n; ++rank) {
      if (reach[rank] >= levels[i]) roots.push_back(rank);
    }
    offer(searches_.trees(graph_, roots));
  }
  if (best) {
    best->for_all_reduce = true;
    searches_.add(graph_.hash(), *best);
  }
  return best;
}

const Rings* Forests::rings() {
  const uint32_t n = graph_.rank_count();
  if (n < 2 || n > kRingRanksMax) return nullptr;
  const Rings* known = searches_.find_rings(graph_.hash());
  if (known == nullptr) {
    Rings rings{.rank_count = n, .orders = {}, .positions = {}};
    std::vector<Rank> in_order(n);
    std::iota(in_order.begin(), in_order.end(), 0);
    auto found = find_rings(graph_, &routes_);
    if (found.ok() && ring_ns_per_byte(graph_, found.value(), &routes_) <
                          kRingsWorthwhile *
                              ring_ns_per_byte(graph_, rings_of({std::move(in_order)}), &routes_)) {
      rings = found.take();
    }
    searches_.add(graph_.hash(), std::move(rings));
    known = searches_.find_rings(graph_.hash());
  }
  return known->orders.empty() ? nullptr : known;
}

LinkGraph host_star(std::span<const uint32_t> host_of_rank,
                    std::span<const KilobytesPerSecond> host_bandwidth,
                    KilobytesPerSecond rank_bandwidth) {
  LinkGraph graph(static_cast<uint32_t>(host_of_rank.size()));
  const VertexId network = graph.add_vertex(VertexKind::kNetwork, kNone, "network");
  std::vector<VertexId> hosts;
  for (uint32_t host = 0; host < host_bandwidth.size(); ++host) {
    hosts.push_back(graph.add_vertex(VertexKind::kMemory, host, fmt::format("host {}", host)));
    graph.add_links(hosts.back(), network, host_bandwidth[host], kHostHopNs);
  }
  for (Rank rank = 0; rank < host_of_rank.size(); ++rank) {
    WEIR_CHECK(host_of_rank[rank] < hosts.size(), "every host has a bandwidth");
    graph.set_rank(rank, host_of_rank[rank], fmt::format("rank {}", rank));
    graph.add_links(rank, hosts[host_of_rank[rank]], rank_bandwidth, 0);
  }
  WEIR_CHECK(graph.finish().ok(), "a star is connected");
  return graph;
}

}  // namespace weir::graph
