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

// The smallest cut between any two ranks; kUnlimited: none has a limit.
KilobytesPerSecond smallest_cut(const LinkGraph& graph) {
  const int64_t unlimited = unlimited_of(graph);
  MaxFlow flow(static_cast<uint32_t>(graph.vertices().size()));
  for (const Link& link : graph.links()) flow.add_arc(link.from, link.to, 0);
  int64_t least = unlimited;
  // A cut has rank 0 on one of its sides.
  for (Rank other = 1; other < graph.rank_count(); ++other) {
    for (const bool back : {false, true}) {
      for (uint32_t i = 0; i < graph.links().size(); ++i) {
        flow.set_capacity(i, capacity_of(graph.links()[i], unlimited));
      }
      least = std::min(least, flow.run(back ? other : 0, back ? 0 : other, least));
    }
  }
  return least >= unlimited ? kUnlimited : least;
}

// Parts of the ranks, which are joined by pairs as long as that raises (k - 1) / bandwidth of all.
class Parts {
 public:
  // `part_of`: of each vertex; kNone: of no part.
  Parts(const LinkGraph& graph, const std::vector<uint32_t>& part_of, uint32_t count)
      : unlimited_(unlimited_of(graph)),
        between_(count, std::vector<int64_t>(count, 0)),
        count_(count) {
    for (const Link& link : graph.links()) {
      const uint32_t from = part_of[link.from];
      const uint32_t to = part_of[link.to];
      if (from == to) continue;
      const int64_t capacity = capacity_of(link, unlimited_);
      if (from != kNone) out_ += capacity;
      if (to != kNone) in_ += capacity;
      if (from == kNone || to == kNone) continue;
      between_[from][to] += capacity;
      between_[to][from] += capacity;  // joined, both directions are inside
    }
  }

  double best_ns_per_byte() {
    double best = value();
    std::vector<bool> gone(between_.size());
    while (count_ > 2) {
      uint32_t a = 0, b = 0;
      int64_t most = 0;
      for (uint32_t i = 0; i < between_.size(); ++i) {
        if (gone[i]) continue;
        for (uint32_t j = i + 1; j < between_.size(); ++j) {
          if (gone[j] || between_[i][j] <= most) continue;
          most = between_[i][j];
          a = i;
          b = j;
        }
      }
      if (most == 0) break;
      for (uint32_t j = 0; j < between_.size(); ++j) {
        if (gone[j] || j == a || j == b) continue;
        between_[a][j] += between_[b][j];
        between_[j][a] = between_[a][j];
      }
      gone[b] = true;
      out_ -= most;
      in_ -= most;
      --count_;
      best = std::max(best, value());
    }
    return best;
  }

 private:
  double value() const {
    const int64_t least = std::min(out_, in_);
    return least > 0 && least < unlimited_ ? 2e6 * (count_ - 1) / static_cast<double>(least) : 0;
  }

  int64_t unlimited_;
  std::vector<std::vector<int64_t>> between_;  // two parts, both directions together
  uint32_t count_;
  int64_t out_ = 0, in_ = 0;  // of all parts
};

// Beyond, pairs of parts are not joined.
constexpr uint32_t kJoinedPartsMax = 256;

double parts_ns_per_byte(const LinkGraph& graph, const std::vector<uint32_t>& part_of,
                         uint32_t count) {
  if (count < 2 || count > kJoinedPartsMax) return 0;
  return Parts(graph, part_of, count).best_ns_per_byte();
}

}  // namespace

double all_reduce_ns_per_byte(const LinkGraph& graph) {
  const Rank n = graph.rank_count();
  if (n < 2) return 0;
  const KilobytesPerSecond cut = smallest_cut(graph);
  const double by_cut = cut == kUnlimited ? 0 : 1e6 / static_cast<double>(cut);
  std::vector<uint32_t> alone(graph.vertices().size(), kNone), by_host(alone);
  std::iota(alone.begin(), alone.begin() + n, 0u);
  for (VertexId id = 0; id < graph.vertices().size(); ++id) by_host[id] = graph.vertices()[id].host;
  return std::max({by_cut, parts_ns_per_byte(graph, alone, n),
                   parts_ns_per_byte(graph, by_host, graph.host_count())});
}

double least_ns(const LinkGraph& graph, Collective collective, Rank root, uint64_t bytes) {
  const uint32_t n = graph.rank_count();
  if (n < 2) return 0;
  if (collective == Collective::kAllToAll) return least_ns_of_all_to_all(graph, bytes);
  if (collective == Collective::kAllReduce) {
    return all_reduce_ns_per_byte(graph) * static_cast<double>(bytes);
  }
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
    default:
      WEIR_CHECK(false, "no bound for this collective");
      return 0;
  }
}

}  // namespace weir::graph
