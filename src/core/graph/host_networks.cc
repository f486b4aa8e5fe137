// SPDX-License-Identifier: Apache-2.0
#include "core/graph/host_networks.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>

#include "core/base/check.h"

namespace weir::graph {
namespace {

bool is_network(const LinkGraph& graph, VertexId vertex) {
  return graph.vertices()[vertex].kind == VertexKind::kNetwork;
}

struct Sums {
  std::vector<KilobytesPerSecond> out, in;  // of each host; kUnlimited: as in the header, or none
};

Sums sums_of(const LinkGraph& graph) {
  constexpr KilobytesPerSecond kNoLimit = -1;
  Sums sums{std::vector<KilobytesPerSecond>(graph.host_count(), 0),
            std::vector<KilobytesPerSecond>(graph.host_count(), 0)};
  for (const Link& link : graph.links()) {
    const bool out = is_network(graph, link.to);
    if (out == is_network(graph, link.from)) continue;
    const uint32_t host = graph.vertices()[out ? link.from : link.to].host;
    KilobytesPerSecond& sum = (out ? sums.out : sums.in)[host];
    if (link.bandwidth == kUnlimited) sum = kNoLimit;
    if (sum != kNoLimit) sum += link.bandwidth;
  }
  for (auto* all : {&sums.out, &sums.in}) {
    std::replace(all->begin(), all->end(), kNoLimit, kUnlimited);
  }
  return sums;
}

KilobytesPerSecond scaled(KilobytesPerSecond link, KilobytesPerSecond sum,
                          KilobytesPerSecond wanted) {
  if (wanted == kUnlimited || link == kUnlimited || sum == kUnlimited) return link;
  const double share =
      static_cast<double>(link) * static_cast<double>(wanted) / static_cast<double>(sum);
  return std::clamp<KilobytesPerSecond>(std::llround(share), 1, kBandwidthMax);
}

}  // namespace

std::vector<KilobytesPerSecond> network_of_hosts(const LinkGraph& graph) {
  return sums_of(graph).out;
}

LinkGraph with_network_of_hosts(const LinkGraph& graph,
                                std::span<const KilobytesPerSecond> bandwidth) {
  WEIR_CHECK(bandwidth.size() == graph.host_count(), "every host has a figure");
  const Sums sums = sums_of(graph);
  LinkGraph scaled_graph(graph.rank_count());
  for (VertexId id = 0; id < graph.vertices().size(); ++id) {
    const Vertex& vertex = graph.vertices()[id];
    if (graph.is_rank(id)) {
      scaled_graph.set_rank(id, vertex.host, vertex.name);
    } else {
      scaled_graph.add_vertex(vertex.kind, vertex.host, vertex.name);
    }
  }
  for (Link link : graph.links()) {
    const bool out = is_network(graph, link.to);
    if (out != is_network(graph, link.from)) {
      const uint32_t host = graph.vertices()[out ? link.from : link.to].host;
      link.bandwidth = scaled(link.bandwidth, (out ? sums.out : sums.in)[host], bandwidth[host]);
    }
    scaled_graph.add_link(link);
  }
  WEIR_CHECK(scaled_graph.finish().ok(), "the same vertices are linked");
  return scaled_graph;
}

KilobytesPerSecond on_grid(double ns_per_byte) {
  // Four steps a doubling, in integers: the C libraries of two hosts may round differently.
  constexpr int64_t kSteps[] = {16384, 19484, 23170, 27554, 32768};
  constexpr int kStepBits = 14;
  const auto exact = std::clamp<KilobytesPerSecond>(std::llround(1e6 / std::max(ns_per_byte, 1e-6)),
                                                    1, kBandwidthMax);
  const int power = std::bit_width(static_cast<uint64_t>(exact)) - 1;
  KilobytesPerSecond best = 1;
  for (const int64_t step : kSteps) {
    const KilobytesPerSecond at = std::max<int64_t>(1, (step << power) >> kStepBits);
    if (std::abs(at - exact) < std::abs(best - exact)) best = at;
  }
  return std::min(best, kBandwidthMax);
}

}  // namespace weir::graph
