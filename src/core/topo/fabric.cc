// SPDX-License-Identifier: Apache-2.0
#include "core/topo/fabric.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>

namespace weir::topo {
namespace {

struct Arc {
  uint32_t from;
  uint32_t to;
  double residual_gbs;
  size_t link;
};

constexpr double kTinyGbs = 1e-6;

// The part of the topology that a flow between two nodes may use: both ends and all NVSwitches, as
// a residual graph in which arc i and arc i ^ 1 are the two directions of one link.
class Graph {
 public:
  Graph(const Topology& topology, NodeId a, NodeId b) : topology_(topology) {
    vertex_of(a);
    vertex_of(b);
    // Vertices are visited in the order in which they are found; each link is added from the end
    // seen first.
    std::set<size_t> added;
    for (uint32_t u = 0; u < nodes_.size(); ++u) {
      for (const size_t i : topology.links_of(nodes_[u])) {
        const Link& link = topology.links()[i];
        if (link.edge.bandwidth_gbs <= 0 || !usable(link.a, a, b) || !usable(link.b, a, b))
          continue;
        if (!added.insert(i).second) continue;
        const uint32_t v = vertex_of(link.a == nodes_[u] ? link.b : link.a);
        out_[u].push_back(arcs_.size());
        arcs_.push_back({u, v, link.edge.bandwidth_gbs, i});
        out_[v].push_back(arcs_.size());
        arcs_.push_back({v, u, link.edge.bandwidth_gbs, i});
      }
    }
  }

  // The arcs of a shortest path from vertex 0 to vertex 1 with capacity left; empty: none.
  std::vector<size_t> shortest() const {
    constexpr size_t kNone = SIZE_MAX;
    std::vector<size_t> arrived_by(out_.size(), kNone);
    std::deque<uint32_t> queue{0};
    while (!queue.empty() && arrived_by[1] == kNone) {
      const uint32_t at = queue.front();
      queue.pop_front();
      for (const size_t i : out_[at]) {
        const Arc& arc = arcs_[i];
        if (arc.residual_gbs <= kTinyGbs || arc.to == 0 || arrived_by[arc.to] != kNone) continue;
        arrived_by[arc.to] = i;
        queue.push_back(arc.to);
      }
    }
    std::vector<size_t> path;
    if (arrived_by[1] == kNone) return path;
    for (uint32_t at = 1; at != 0; at = arcs_[path.back()].from) path.push_back(arrived_by[at]);
    std::reverse(path.begin(), path.end());
    return path;
  }

  double push(const std::vector<size_t>& path) {
    double amount = arcs_[path[0]].residual_gbs;
    for (const size_t i : path) amount = std::min(amount, arcs_[i].residual_gbs);
    for (const size_t i : path) {
      arcs_[i].residual_gbs -= amount;
      arcs_[i ^ 1].residual_gbs += amount;
    }
    return amount;
  }

  const Arc& arc(size_t i) const { return arcs_[i]; }
  NodeId node(uint32_t vertex) const { return nodes_[vertex]; }
  const Link& link(size_t i) const { return topology_.links()[arcs_[i].link]; }

 private:
  bool usable(NodeId id, NodeId a, NodeId b) const {
    return id == a || id == b || topology_.node(id).kind == NodeKind::kNvSwitch;
  }
  uint32_t vertex_of(NodeId id) {
    const auto [place, is_new] = vertices_.try_emplace(id, static_cast<uint32_t>(nodes_.size()));
    if (is_new) {
      nodes_.push_back(id);
      out_.emplace_back();
    }
    return place->second;
  }

  const Topology& topology_;
  std::map<NodeId, uint32_t> vertices_;
  std::vector<NodeId> nodes_;
  std::vector<std::vector<size_t>> out_;
  std::vector<Arc> arcs_;
};

}  // namespace

FabricRoute route_through_switches(const Topology& topology, NodeId a, NodeId b) {
  FabricRoute route;
  Graph graph(topology, a, b);
  std::set<size_t> used;
  for (std::vector<size_t> path = graph.shortest(); !path.empty(); path = graph.shortest()) {
    if (route.way.empty()) {
      route.way.push_back(a);
      for (const size_t i : path) {
        route.way.push_back(graph.node(graph.arc(i).to));
        route.latency_us += graph.link(i).edge.latency_us;
      }
    }
    for (const size_t i : path) {
      route.estimated = route.estimated || graph.link(i).edge.source != Source::kStated;
    }
    const size_t first = graph.arc(path[0]).link;
    if (used.insert(first).second) route.link_count += topology.links()[first].count;
    route.bandwidth_gbs += graph.push(path);
  }
  return route;
}

void join_switch_groups(Topology* topology) {
  const std::vector<NodeId> switches = topology->all(NodeKind::kNvSwitch);
  std::map<NodeId, NodeId> leader;  // union-find over GPUs and switches
  const auto find = [&](NodeId id) {
    while (leader.try_emplace(id, id).first->second != id) id = leader[id] = leader[leader[id]];
    return id;
  };
  struct Offer {
    uint32_t count = 0;
    double bandwidth_gbs = 0;
    double latency_us = 0;
  };
  std::map<NodeId, Offer> offers;  // of each switch to its GPUs
  for (const Link& link : topology->links()) {
    for (const auto& [end, other] : {std::pair(link.a, link.b), std::pair(link.b, link.a)}) {
      if (topology->node(end).kind != NodeKind::kNvSwitch) continue;
      leader[find(end)] = find(other);
      if (topology->node(other).kind == NodeKind::kNvSwitch) continue;
      Offer& offer = offers[end];
      offer.count += link.count;
      offer.bandwidth_gbs += link.edge.bandwidth_gbs;
      offer.latency_us = link.edge.latency_us;
    }
  }
  for (const NodeId machine : topology->all(NodeKind::kMachine)) {
    std::vector<std::vector<NodeId>> groups;  // in the order of their first switches
    std::map<NodeId, size_t> group_of;
    for (const NodeId id : switches) {
      if (topology->machine_of(id) != machine || !offers.contains(id)) continue;
      const auto [place, is_new] = group_of.try_emplace(find(id), groups.size());
      if (is_new) groups.emplace_back();
      groups[place->second].push_back(id);
    }
    for (size_t g = 1; g < groups.size(); ++g) {
      for (size_t i = 0; i < groups[g].size(); ++i) {
        const NodeId near = groups[g - 1][i % groups[g - 1].size()];
        const Offer& offer = offers[groups[g][i]];
        topology->add_link({near,
                            groups[g][i],
                            LinkKind::kNvlink,
                            offer.count,
                            {offer.bandwidth_gbs, offer.latency_us, Source::kEstimated}});
      }
      topology->add_note(
          topology->label(groups[g][0]),
          fmt::format("nothing says how {} and {} are joined; as many links as to the "
                      "GPUs are assumed",
                      topology->label(groups[g - 1][0]), topology->label(groups[g][0])));
    }
  }
}

}  // namespace weir::topo
