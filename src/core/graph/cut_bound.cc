// SPDX-License-Identifier: Apache-2.0
#include "core/graph/cut_bound.h"

#include <algorithm>
#include <numeric>

#include "core/base/check.h"
#include "core/graph/max_flow.h"

namespace weir::graph {
namespace {

// More than all limited links together, so that none of these is in a smallest cut unless no other
// cut exists.
int64_t unlimited_of(const LinkGraph& graph) {
  int64_t sum = 1;
  for (const Link& link : graph.links()) sum += link.bandwidth;
  return sum;
}

int64_t capacity_of(const Link& link, int64_t unlimited) {
  return link.bandwidth == kUnlimited ? unlimited : link.bandwidth;
}

int64_t bandwidth_out_of(const LinkGraph& graph, const std::vector<bool>& side, int64_t unlimited) {
  int64_t sum = 0;
  for (const Link& link : graph.links()) {
    if (side[link.from] && !side[link.to]) sum += capacity_of(link, unlimited);
  }
  return sum;
}

}  // namespace

CutBound roots_bound(const LinkGraph& graph, std::span<const Rank> roots) {
  const uint32_t n = graph.rank_count();
  WEIR_CHECK(n >= 2 && !roots.empty(), "a cut has ranks on both sides");
  const int64_t unlimited = unlimited_of(graph);
  const auto vertex_count = static_cast<uint32_t>(graph.vertices().size());
  const auto count = static_cast<int64_t>(roots.size());
  CutBound bound;
  // What leaves all vertices but one rank that is not the only root.
  bound.side.assign(vertex_count, true);
  bound.side[roots[0] == n - 1 ? 0 : n - 1] = false;
  const auto roots_in = [&](const std::vector<bool>& side) {
    return std::count_if(roots.begin(), roots.end(), [&](Rank root) { return side[root]; });
  };
  bound.ranks = roots_in(bound.side);
  bound.bandwidth = bandwidth_out_of(graph, bound.side, unlimited);
  // A source gives each root what a block's share of the bound is; where a rank does not get all of
  // it, the cut in between is a tighter bound. All is scaled by `ranks`, to stay with integers.
  MaxFlow flow(vertex_count + 1);
  for (const Link& link : graph.links()) flow.add_arc(link.from, link.to, 0);
  const auto link_count = static_cast<uint32_t>(graph.links().size());
  for (const Rank root : roots) flow.add_arc(vertex_count, root, 0);
  for (Rank sink = 0, unbroken = 0; unbroken < n; sink = (sink + 1) % n) {
    const int64_t common = std::gcd(bound.ranks, bound.bandwidth);
    const int64_t scale = bound.ranks / common;
    const int64_t share = bound.bandwidth / common;
    for (uint32_t i = 0; i < link_count; ++i) {
      flow.set_capacity(i, capacity_of(graph.links()[i], unlimited) * scale);
    }
    for (uint32_t i = 0; i < count; ++i) flow.set_capacity(link_count + i, share);
    const int64_t wanted = share * count;
    if (flow.run(vertex_count, sink, wanted) >= wanted) {
      ++unbroken;
      continue;
    }
    unbroken = 0;
    std::vector<bool> side = flow.source_side();
    side.resize(vertex_count);
    bound.ranks = roots_in(side);
    bound.bandwidth = bandwidth_out_of(graph, side, unlimited);
    bound.side = std::move(side);
  }
  if (bound.bandwidth >= unlimited) return {.ranks = 1, .bandwidth = kUnlimited, .side = {}};
  return bound;
}

CutBound cut_bound(const LinkGraph& graph) {
  std::vector<Rank> all(graph.rank_count());
  std::iota(all.begin(), all.end(), 0u);
  return roots_bound(graph, all);
}

CutBound broadcast_bound(const LinkGraph& graph, Rank root) {
  WEIR_CHECK(root < graph.rank_count(), "no such root");
  return roots_bound(graph, std::span(&root, 1));
}

namespace {

// Of each rank alone and each host alone: what its ranks have for the others leaves it, and as much
// comes in.
double least_ns_of_all_to_all(const LinkGraph& graph, uint64_t bytes) {
  const uint32_t n = graph.rank_count();
  const int64_t unlimited = unlimited_of(graph);
  const double block = static_cast<double>(bytes) / n;
  double least = 0;
  const auto cut = [&](std::vector<bool> side) {
    const auto within = static_cast<uint64_t>(std::count(side.begin(), side.begin() + n, true));
    const auto crossing = static_cast<double>(within * (n - within)) * block;
    for (int direction = 0; direction < 2; ++direction) {
      const int64_t bandwidth = bandwidth_out_of(graph, side, unlimited);
      if (bandwidth < unlimited && bandwidth > 0) {
        least = std::max(least, crossing / (static_cast<double>(bandwidth) / 1e6));
      }
      side.flip();
    }
  };
  const std::span<const Vertex> vertices = graph.vertices();
  for (Rank rank = 0; rank < n; ++rank) {
    std::vector<bool> side(vertices.size());
    side[rank] = true;
    cut(std::move(side));
  }
  for (uint32_t host = 0; graph.host_count() > 1 && host < graph.host_count(); ++host) {
    std::vector<bool> side(vertices.size());
    for (size_t i = 0; i < vertices.size(); ++i) side[i] = vertices[i].host == host;
    cut(std::move(side));
  }
  return least;
}

}  // namespace

double least_ns(const LinkGraph& graph, Collective collective, Rank root, uint64_t bytes) {
  const uint32_t n = graph.rank_count();
  if (n < 2) return 0;
  if (collective == Collective::kAllToAll) return least_ns_of_all_to_all(graph, bytes);
  const bool rooted = collective == Collective::kBroadcast || collective == Collective::kReduce;
  const CutBound bound = rooted ? broadcast_bound(graph, root) : cut_bound(graph);
  if (bound.bandwidth == kUnlimited) return 0;
  const double whole = static_cast<double>(bytes) / bound.block_gbs();
  switch (collective) {
    case Collective::kBroadcast:
    case Collective::kReduce:
      return whole;
    case Collective::kAllGather:
    case Collective::kReduceScatter:
      return whole / n;
    case Collective::kAllReduce:
      return 2 * whole / n;
    default:
      WEIR_CHECK(false, "no bound for this collective");
      return 0;
  }
}

}  // namespace weir::graph
