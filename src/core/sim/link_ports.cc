// SPDX-License-Identifier: Apache-2.0
#include "core/sim/link_ports.h"

#include <algorithm>
#include <cmath>

#include "core/sim/costs.h"

namespace weir::sim {

LinkPorts::LinkPorts(const graph::LinkGraph& graph, std::span<const SlowRank> slow)
    : graph_(graph), routes_(graph) {
  std::vector<uint64_t> factor_milli(graph.vertices().size(), 1000);
  for (const SlowRank& it : slow) {
    factor_milli[it.rank] = static_cast<uint64_t>(std::llround(it.factor * 1000));
  }
  links_.reserve(graph.links().size());
  for (const graph::Link& it : graph.links()) {
    Link link;
    link.bandwidth = it.bandwidth;
    link.latency = ps_of_ns(it.latency_ns);
    // The link of two ranks is as slow as the slower one.
    const uint64_t from = factor_milli[it.from];
    const uint64_t to = factor_milli[it.to];
    link.factor_milli = from == 1000 ? to : to == 1000 ? from : std::max(from, to);
    links_.push_back(link);
  }
}

std::span<const graph::LinkId> LinkPorts::way_of_read(Rank from, Rank to) {
  const std::span<const graph::LinkId> whole = way(from, to);
  if (whole.empty()) return whole;
  const graph::VertexId next = graph_.links()[whole.front()].to;
  return graph_.vertices()[next].kind == graph::VertexKind::kMemory ? whole.subspan(1) : whole;
}

std::span<const graph::LinkId> LinkPorts::way_of_write(Rank from, Rank to) {
  const std::span<const graph::LinkId> whole = way(from, to);
  if (whole.empty()) return whole;
  const graph::VertexId last = graph_.links()[whole.back()].from;
  return graph_.vertices()[last].kind == graph::VertexKind::kMemory
             ? whole.first(whole.size() - 1)
             : whole;
}

Picoseconds LinkPorts::latency(Rank from, Rank to) {
  Picoseconds sum = 0;
  for (const graph::LinkId id : way(from, to)) sum += links_[id].latency;
  return sum;
}

Picoseconds LinkPorts::slowest(Rank from, Rank to, uint64_t bytes) {
  Picoseconds most = 0;
  for (const graph::LinkId id : way(from, to)) most = std::max(most, links_[id].time_of(bytes));
  return most;
}

std::vector<LinkUse> LinkPorts::use() const {
  std::vector<LinkUse> use;
  use.reserve(links_.size());
  for (const Link& link : links_) use.push_back({link.port.busy, link.messages, link.bytes});
  return use;
}

}  // namespace weir::sim
