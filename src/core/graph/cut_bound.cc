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

int64_t ranks_in(const LinkGraph& graph, const std::vector<bool>& side) {
  int64_t count = 0;
  for (Rank rank = 0; rank < graph.rank_count(); ++rank) count += side[rank] ? 1 : 0;
  return count;
}

}  // namespace

CutBound cut_bound(const LinkGraph& graph) {
  const uint32_t n = graph.rank_count();
  WEIR_CHECK(n >= 2, "one rank has no cut");
  const int64_t unlimited = unlimited_of(graph);
  const auto vertex_count = static_cast<uint32_t>(graph.vertices().size());
  CutBound bound;
  bound.side.assign(vertex_count, true);
  bound.side[n - 1] = false;
  bound.ranks = n - 1;
  bound.bandwidth = bandwidth_out_of(graph, bound.side, unlimited);
  // A source gives each rank what a block's share of the bound is; where a rank does not get all of
  // it, the cut in between is a tighter bound. All is scaled by `ranks`, to stay with integers.
  MaxFlow flow(vertex_count + 1);
  for (const Link& link : graph.links()) flow.add_arc(link.from, link.to, 0);
  const auto first_source_arc = static_cast<uint32_t>(graph.links().size());
  for (Rank rank = 0; rank < n; ++rank) flow.add_arc(vertex_count, rank, 0);
  for (Rank sink = 0, unbroken = 0; unbroken < n; sink = (sink + 1) % n) {
    const int64_t common = std::gcd(bound.ranks, bound.bandwidth);
    const int64_t scale = bound.ranks / common;
    const int64_t share = bound.bandwidth / common;
    for (uint32_t i = 0; i < first_source_arc; ++i) {
      flow.set_capacity(i, capacity_of(graph.links()[i], unlimited) * scale);
    }
    for (Rank rank = 0; rank < n; ++rank) flow.set_capacity(first_source_arc + rank, share);
    const int64_t wanted = share * n;
    if (flow.run(vertex_count, sink, wanted) >= wanted) {
      ++unbroken;
      continue;
    }
    unbroken = 0;
    std::vector<bool> side = flow.source_side();
    side.resize(vertex_count);
    bound.ranks = ranks_in(graph, side);
    bound.bandwidth = bandwidth_out_of(graph, side, unlimited);
    bound.side = std::move(side);
  }
  if (bound.bandwidth >= unlimited) return {.ranks = 1, .bandwidth = kUnlimited, .side = {}};
  return bound;
}

CutBound broadcast_bound(const LinkGraph& graph, Rank root) {
  WEIR_CHECK(root < graph.rank_count() && graph.rank_count() >= 2, "no such broadcast");
  const int64_t unlimited = unlimited_of(graph);
  MaxFlow flow(static_cast<uint32_t>(graph.vertices().size()));
  for (const Link& link : graph.links()) {
    flow.add_arc(link.from, link.to, capacity_of(link, unlimited));
  }
  CutBound bound{.ranks = 1, .bandwidth = unlimited, .side = {}};
  for (Rank sink = 0; sink < graph.rank_count(); ++sink) {
    if (sink == root) continue;
    const int64_t found = flow.run(root, sink, bound.bandwidth);
    if (found >= bound.bandwidth) continue;
    bound.bandwidth = found;
    bound.side = flow.source_side();
  }
  if (bound.bandwidth >= unlimited) bound.bandwidth = kUnlimited;
  return bound;
}

double least_ns(const LinkGraph& graph, Collective collective, Rank root, uint64_t bytes) {
  const uint32_t n = graph.rank_count();
  if (n < 2) return 0;
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
