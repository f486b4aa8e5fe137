// SPDX-License-Identifier: Apache-2.0
#include "core/graph/routes.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <queue>
#include <utility>

#include "core/base/check.h"

namespace weir::graph {
namespace {

constexpr KilobytesPerSecond kWidest = INT64_MAX;

KilobytesPerSecond width_of(const Link& link) {
  return link.bandwidth == kUnlimited ? kWidest : link.bandwidth;
}

// Sums of integers are equal in whatever order they are added.
int64_t picoseconds_of(const Link& link) { return std::llround(link.latency_ns * 1e3); }

// The width of the widest way from the rank to each vertex; 0: there is none.
std::vector<KilobytesPerSecond> widths_from(const LinkGraph& graph, Rank from) {
  std::vector<KilobytesPerSecond> width(graph.vertices().size(), 0);
  std::vector<bool> settled(width.size());
  std::priority_queue<std::pair<KilobytesPerSecond, VertexId>> open;
  width[from] = kWidest;
  open.emplace(kWidest, from);
  while (!open.empty()) {
    const VertexId vertex = open.top().second;
    open.pop();
    if (settled[vertex]) continue;
    settled[vertex] = true;
    if (graph.is_rank(vertex) && vertex != from) continue;
    for (const LinkId id : graph.links_from(vertex)) {
      const Link& link = graph.links()[id];
      const KilobytesPerSecond wide = std::min(width[vertex], width_of(link));
      if (wide <= width[link.to]) continue;
      width[link.to] = wide;
      open.emplace(wide, link.to);
    }
  }
  return width;
}

// The shortest ways from a rank to all vertices over links of at least some width: breadth first,
// one distance after the other. `choice` decides between equal ways.
class ShortestWays {
 public:
  ShortestWays(const LinkGraph& graph, Rank from, KilobytesPerSecond width, uint32_t choice)
      : graph_(graph),
        from_(from),
        width_(width),
        choice_(choice),
        distance_(graph.vertices().size(), kNone),
        latency_(graph.vertices().size(), 0),
        before_(graph.vertices().size(), kNone) {
    distance_[from] = 0;
    std::vector<VertexId> layer = {from};
    for (uint32_t distance = 1; !layer.empty(); ++distance) {
      std::vector<VertexId> next;
      for (const VertexId vertex : layer) {
        if (!passes_on(vertex)) continue;
        for (const LinkId id : graph.links_from(vertex)) {
          if (width_of(graph.links()[id]) >= width) reach(id, distance, &next);
        }
      }
      layer = std::move(next);
    }
  }

  // Appends the links of the way to `to` in order.
  void append(VertexId to, std::vector<LinkId>* links) {
    const size_t begin = links->size();
    for (VertexId vertex = to; vertex != from_; vertex = graph_.links()[links->back()].from) {
      if (before_[vertex] == kNone) before_[vertex] = choose_before(vertex);
      links->push_back(before_[vertex]);
    }
    std::reverse(links->begin() + static_cast<std::ptrdiff_t>(begin), links->end());
  }

 private:
  bool passes_on(VertexId vertex) const { return vertex == from_ || !graph_.is_rank(vertex); }

  void reach(LinkId id, uint32_t distance, std::vector<VertexId>* next) {
    const Link& link = graph_.links()[id];
    const int64_t latency = latency_[link.from] + picoseconds_of(link);
    if (distance_[link.to] == kNone) {
      distance_[link.to] = distance;
      latency_[link.to] = latency;
      next->push_back(link.to);
    } else if (distance_[link.to] == distance) {
      latency_[link.to] = std::min(latency_[link.to], latency);
    }
  }

  LinkId choose_before(VertexId vertex) const {
    std::vector<LinkId> alike;
    for (const LinkId id : graph_.links_to(vertex)) {
      if (is_on_a_way(id)) alike.push_back(id);
    }
    WEIR_CHECK(!alike.empty(), "a vertex that was reached has a link before it");
    return alike[choice_ % alike.size()];
  }

  bool is_on_a_way(LinkId id) const {
    const Link& link = graph_.links()[id];
    return distance_[link.from] != kNone && passes_on(link.from) && width_of(link) >= width_ &&
           distance_[link.from] + 1 == distance_[link.to] &&
           latency_[link.from] + picoseconds_of(link) == latency_[link.to];
  }

  const LinkGraph& graph_;
  VertexId from_;
  KilobytesPerSecond width_;
  uint32_t choice_;
  std::vector<uint32_t> distance_;  // links
  std::vector<int64_t> latency_;    // picoseconds
  std::vector<LinkId> before_;      // the link that was chosen; kNone: not yet
};

}  // namespace

Routes::Routes(const LinkGraph& graph)
    : graph_(graph), number_in_host_(graph.rank_count()), sources_(graph.rank_count()) {
  WEIR_CHECK(graph.host_count() > 0, "routes are those of a finished graph");
  std::vector<uint32_t> population(graph.host_count(), 0);
  for (Rank rank = 0; rank < graph.rank_count(); ++rank) {
    number_in_host_[rank] = population[graph.host_of(rank)]++;
  }
}

Way Routes::way(Rank from, Rank to) {
  WEIR_CHECK(from < graph_.rank_count() && to < graph_.rank_count(), "no such rank");
  Way way;
  way.links = links(from, to);
  way.exists = from == to || !way.links.empty();
  KilobytesPerSecond width = kWidest;
  for (const LinkId id : way.links) {
    const Link& link = graph_.links()[id];
    width = std::min(width, width_of(link));
    way.latency_ns += link.latency_ns;
  }
  way.bandwidth = width == kWidest ? kUnlimited : width;
  return way;
}

Routes::Source Routes::find_ways(Rank from) const {
  const std::vector<KilobytesPerSecond> widths = widths_from(graph_, from);
  std::map<KilobytesPerSecond, ShortestWays> ways;  // by width
  Source source;
  source.first.reserve(graph_.rank_count() + 1);
  for (Rank to = 0; to < graph_.rank_count(); ++to) {
    source.first.push_back(static_cast<uint32_t>(source.links.size()));
    if (to == from) continue;
    if (widths[to] == 0) continue;  // only third ranks lead there
    auto found = ways.find(widths[to]);
    if (found == ways.end()) {
      found = ways.try_emplace(widths[to], graph_, from, widths[to], number_in_host_[from]).first;
    }
    found->second.append(to, &source.links);
  }
  source.first.push_back(static_cast<uint32_t>(source.links.size()));
  source.links.shrink_to_fit();
  return source;
}

}  // namespace weir::graph
