// SPDX-License-Identifier: Apache-2.0
#include "core/graph/machine_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <utility>

#include "core/base/check.h"
#include "core/graph/fair_shares.h"
#include "core/topo/estimates.h"
#include "core/topo/path.h"

namespace weir::graph {
namespace {

using topo::Edge;
using topo::kNoNode;
using topo::Node;
using topo::NodeId;
using topo::NodeKind;
using topo::Topology;

// What one core copies.
constexpr KilobytesPerSecond kCoreBandwidth = 10'000'000;
constexpr auto kNumaBandwidth = static_cast<KilobytesPerSecond>(topo::kNumaMemoryGbs * 1e6);
constexpr double kMemoryHopNs = 100;
// The memory of an accelerator that several ranks share.
constexpr KilobytesPerSecond kAcceleratorBandwidth = 500'000'000;
// A card of which nothing says how fast it is: InfiniBand's EDR, 10 gigabit Ethernet.
constexpr KilobytesPerSecond kInfinibandBandwidth = 12'500'000;
constexpr KilobytesPerSecond kCardBandwidth = 1'250'000;
constexpr uint32_t kInfinibandClass = 0x020700;
constexpr double kCardHopNs = 1000;

KilobytesPerSecond bandwidth_of(const Edge& edge) {
  if (edge.source == topo::Source::kNoLimit || edge.source == topo::Source::kUnknown ||
      edge.bandwidth_gbs <= 0) {
    return kUnlimited;
  }
  return std::clamp<KilobytesPerSecond>(std::llround(edge.bandwidth_gbs * 1e6), 1, kBandwidthMax);
}

KilobytesPerSecond smaller(KilobytesPerSecond a, KilobytesPerSecond b) {
  if (a == kUnlimited) return b;
  return b == kUnlimited ? a : std::min(a, b);
}

// Adds one host to the graph.
class Host {
 public:
  Host(LinkGraph* graph, const Topology& topology, uint32_t number, VertexId network)
      : graph_(*graph),
        topology_(topology),
        number_(number),
        network_(network),
        vertex_of_(topology.node_count(), kNone) {}

  void place(Rank rank, const RankPlace& place) {
    if (place.device != kNoNode) {
      ranks_of_device_[place.device].push_back(rank);
    } else {
      ranks_of_node_[node_near(place.cpus)].push_back(rank);
    }
  }

  void add() {
    add_accelerators();
    choose_cards();
    if (needs_pcie()) {
      add_tree();
    } else if (network_ != kNone) {
      add_links_to_cards();
    }
  }

 private:
  // The deepest part of the machine whose processors include all of `cpus`, and at most as deep as
  // a NUMA node.
  NodeId node_near(const topo::CpuSet& cpus) const {
    NodeId best = machine();
    if (cpus.empty()) return best;
    for (NodeId id = 0; id < topology_.node_count(); ++id) {
      const Node& node = topology_.node(id);
      const bool fits = node.kind == NodeKind::kPackage || node.kind == NodeKind::kNuma;
      if (fits && !node.cpus.empty() && node.cpus.contains(cpus)) best = id;
    }
    return best;
  }

  NodeId machine() const { return topology_.all(NodeKind::kMachine).front(); }

  void add_accelerators() {
    for (const auto& [device, ranks] : ranks_of_device_) {
      const std::string label = topology_.label(device);
      if (ranks.size() == 1) {
        vertex_of_[device] = ranks[0];
        graph_.set_rank(ranks[0], number_, label);
        continue;
      }
      vertex_of_[device] = graph_.add_vertex(VertexKind::kAccelerator, number_, label);
      for (const Rank rank : ranks) {
        graph_.set_rank(rank, number_, fmt::format("{} rank {}", label, rank));
        graph_.add_links(rank, vertex_of_[device], kAcceleratorBandwidth, kMemoryHopNs);
      }
    }
    add_switches();
    for (const topo::Link& link : topology_.links()) {
      const VertexId a = vertex_of_[link.a];
      const VertexId b = vertex_of_[link.b];
      const bool ends = a != kNone && b != kNone && a != b;
      if (ends) graph_.add_links(a, b, bandwidth_of(link.edge), link.edge.latency_us * 1e3);
    }
  }

  // One vertex for the switches that have the same neighbours among the accelerators of ranks.
  void add_switches() {
    std::map<std::vector<NodeId>, std::vector<NodeId>> groups;
    for (const NodeId id : topology_.all(NodeKind::kNvSwitch)) {
      std::vector<NodeId> neighbours;
      for (const size_t i : topology_.links_of(id)) {
        const topo::Link& link = topology_.links()[i];
        const NodeId other = link.a == id ? link.b : link.a;
        if (vertex_of_[other] != kNone) neighbours.push_back(other);
      }
      if (neighbours.empty()) continue;
      std::sort(neighbours.begin(), neighbours.end());
      groups[neighbours].push_back(id);
    }
    for (const auto& [neighbours, switches] : groups) {
      const VertexId vertex =
          graph_.add_vertex(VertexKind::kSwitch, number_, topology_.label(switches.front()));
      for (const NodeId id : switches) vertex_of_[id] = vertex;
    }
  }

  KilobytesPerSecond card_bandwidth(NodeId id) const {
    const Node& node = topology_.node(id);
    const KilobytesPerSecond known = bandwidth_of(topo::network_edge(*node.nic));
    if (known != kUnlimited) return known;
    return node.pci && node.pci->class_code == kInfinibandClass ? kInfinibandBandwidth
                                                                : kCardBandwidth;
  }

  // Slow ones beside fast ones are for management.
  void choose_cards() {
    if (network_ == kNone) return;
    std::vector<NodeId> all = topology_.all(NodeKind::kNic);
    const auto has_port = [&](NodeId id) { return !topology_.node(id).nic->ports.empty(); };
    // One that has no port is not in use, unless the file names no ports at all.
    if (std::any_of(all.begin(), all.end(), has_port)) {
      all.erase(std::remove_if(all.begin(), all.end(), std::not_fn(has_port)), all.end());
    }
    KilobytesPerSecond most = 0;
    for (const NodeId id : all) most = std::max(most, card_bandwidth(id));
    for (const NodeId id : all) {
      if (card_bandwidth(id) < most / 2) continue;
      cards_.push_back({.node = id,
                        .bandwidth = card_bandwidth(id),
                        .latency_ns = topo::network_edge(*topology_.node(id).nic).latency_us * 1e3,
                        .name = topology_.label(id)});
    }
    // A container may hide them.
    if (cards_.empty()) {
      cards_.push_back({.node = machine(),
                        .bandwidth = kCardBandwidth,
                        .latency_ns = kCardHopNs,
                        .name = "unknown card"});
    }
  }

  // Whether two ranks of the host meet over PCIe or in the memory of processors.
  bool needs_pcie() const {
    if (!ranks_of_node_.empty()) return true;
    for (const auto& [a, ranks_a] : ranks_of_device_) {
      for (const auto& [b, ranks_b] : ranks_of_device_) {
        if (a < b && topo::find_path(topology_, a, b).path_class > topo::PathClass::kNvSwitch) {
          return true;
        }
      }
    }
    return false;
  }

  // ---- PCIe both ways

  // The parts of the tree on the way from a rank or a card to the root.
  std::vector<bool> used_nodes() const {
    std::vector<bool> used(topology_.node_count());
    const auto use = [&](NodeId id) {
      for (; id != kNoNode && !used[id]; id = topology_.node(id).parent) used[id] = true;
    };
    for (const auto& [device, ranks] : ranks_of_device_) use(device);
    for (const auto& [node, ranks] : ranks_of_node_) use(node);
    for (const Card& card : cards_) use(card.node);
    return used;
  }

  void add_tree() {
    const std::vector<bool> used = used_nodes();
    std::vector<uint32_t> below(topology_.node_count());
    for (NodeId id = 0; id < used.size(); ++id) {
      const NodeId parent = topology_.node(id).parent;
      if (used[id] && parent != kNoNode) ++below[parent];
    }
    for (NodeId id = 0; id < used.size(); ++id) {
      if (!used[id] || topology_.node(id).kind == NodeKind::kNetwork) continue;
      add_tree_node(id, below[id]);
    }
    for (const Card& card : cards_) {
      VertexId vertex = vertex_of_[card.node];
      if (!card_has_vertex(card)) {
        const VertexId root = vertex;
        vertex = graph_.add_vertex(VertexKind::kCard, number_, card.name);
        graph_.add_links(root, vertex, kUnlimited, 0);
      }
      graph_.add_links(vertex, network_, card.bandwidth, card.latency_ns);
    }
    for (const auto& [node, ranks] : ranks_of_node_) {
      const auto share = static_cast<KilobytesPerSecond>(kNumaBandwidth / ranks.size());
      for (const Rank rank : ranks) {
        graph_.set_rank(rank, number_, fmt::format("rank {}", rank));
        graph_.add_links(rank, vertex_of_[node], std::min(kCoreBandwidth, std::max(share, 1L)),
                         kMemoryHopNs);
      }
    }
  }

  // A part that only passes on between its parent and one child is no vertex: its child's link ends
  // at the parent, with the smaller bandwidth of both.
  void add_tree_node(NodeId id, uint32_t below) {
    const Node& node = topology_.node(id);
    const bool is_end = node.kind == NodeKind::kGpu || node.kind == NodeKind::kNic;
    Up up{.vertex = kNone};
    if (node.parent != kNoNode && topology_.node(node.parent).kind != NodeKind::kNetwork) {
      up = ups_[node.parent];
      up.bandwidth = smaller(up.bandwidth, bandwidth_of(node.up));
      up.latency_ns += node.up.latency_us * 1e3;
    }
    const bool passes_on =
        !is_end && below == 1 && up.vertex != kNone && !ranks_of_node_.contains(id) && !card_at(id);
    // Inside a chip nothing limits: both ends are one vertex.
    const bool merges = !is_end && up.vertex != kNone && up.bandwidth == kUnlimited;
    if (passes_on) {
      ups_[id] = up;
      return;
    }
    if (merges) {
      vertex_of_[id] = up.vertex;
    } else {
      if (vertex_of_[id] == kNone) {
        const VertexKind kind = node.kind == NodeKind::kNic ? VertexKind::kCard
                                : is_memory(node)           ? VertexKind::kMemory
                                                            : VertexKind::kPci;
        vertex_of_[id] = graph_.add_vertex(kind, number_, topology_.label(id));
      }
      if (up.vertex != kNone) {
        graph_.add_links(vertex_of_[id], up.vertex, up.bandwidth, up.latency_ns);
      }
    }
    ups_[id] = {.vertex = vertex_of_[id], .bandwidth = kUnlimited, .latency_ns = 0};
  }

  static bool is_memory(const Node& node) {
    return node.kind == NodeKind::kNuma || node.kind == NodeKind::kPackage ||
           node.kind == NodeKind::kMachine;
  }

  bool card_at(NodeId id) const {
    return std::any_of(cards_.begin(), cards_.end(),
                       [&](const Card& card) { return card.node == id; });
  }

  struct Card {
    NodeId node;
    KilobytesPerSecond bandwidth;
    double latency_ns;
    std::string name;
  };

  bool card_has_vertex(const Card& card) const {
    return topology_.node(card.node).kind == NodeKind::kNic;
  }

  // ---- Accelerators with links to their nearest cards only

  // The number of a direction of a tree edge, the card's port included.
  static uint64_t up_of(NodeId id) { return uint64_t{id} * 2; }
  static uint64_t down_of(NodeId id) { return uint64_t{id} * 2 + 1; }
  uint64_t port_of(size_t card) const { return uint64_t{topology_.node_count()} * 2 + card; }

  struct Flow {
    NodeId device;
    size_t card;
    KilobytesPerSecond bandwidth;  // of its way
    double latency_ns;
  };

  // The links of the way, of which all that have a limit get a place in `capacity`.
  std::vector<uint64_t> pass(const topo::Path& path,
                             std::map<uint64_t, KilobytesPerSecond>* capacity) const {
    std::vector<uint64_t> passed;
    for (size_t i = 0; i + 1 < path.way.size(); ++i) {
      const NodeId from = path.way[i];
      const NodeId to = path.way[i + 1];
      const bool up = topology_.node(from).parent == to;
      const NodeId child = up ? from : to;
      passed.push_back(up ? up_of(child) : down_of(child));
      const KilobytesPerSecond bandwidth = bandwidth_of(topology_.node(child).up);
      if (bandwidth != kUnlimited) (*capacity)[passed.back()] = bandwidth;
    }
    return passed;
  }

  void add_links_to_cards() {
    std::vector<Flow> flows;
    std::vector<std::vector<uint64_t>> passed;
    std::map<uint64_t, KilobytesPerSecond> capacity;
    for (size_t card = 0; card < cards_.size(); ++card) {
      capacity[port_of(card)] = cards_[card].bandwidth;
    }
    // Accelerators with the same nearest cards share them out, since a message takes one.
    std::map<std::vector<size_t>, std::vector<NodeId>> devices_of;
    for (const auto& [device, ranks] : ranks_of_device_) {
      devices_of[nearest_cards(device)].push_back(device);
    }
    for (const auto& [near, devices] : devices_of) {
      for (size_t i = 0; i < devices.size(); ++i) {
        const size_t first = i * near.size() / devices.size();
        const size_t last = std::max(first + 1, (i + 1) * near.size() / devices.size());
        for (size_t k = first; k < last; ++k) {
          const topo::Path path = to_card(devices[i], near[k]);
          const Edge whole{path.bandwidth_gbs, 0, topo::Source::kStated};
          flows.push_back({devices[i], near[k], bandwidth_of(whole), path.latency_us * 1e3});
          passed.push_back(pass(path, &capacity));
          passed.back().push_back(port_of(near[k]));
        }
      }
    }
    add_flows(flows, fair_shares(passed, capacity));
  }

  topo::Path to_card(NodeId device, size_t card) const {
    return topo::find_path(topology_, device, cards_[card].node, {.accelerator_links = false});
  }

  std::vector<size_t> nearest_cards(NodeId device) const {
    std::vector<size_t> near;
    topo::Path best;
    for (size_t card = 0; card < cards_.size(); ++card) {
      topo::Path path = to_card(device, card);
      if (!near.empty() && is_nearer(best, path)) continue;
      if (near.empty() || is_nearer(path, best)) {
        near.clear();
        best = std::move(path);
      }
      near.push_back(card);
    }
    return near;
  }

  static bool is_nearer(const topo::Path& a, const topo::Path& b) {
    if (a.path_class != b.path_class) return a.path_class < b.path_class;
    return a.bandwidth_gbs > b.bandwidth_gbs;
  }

  // What is sent and what is received are vertices of their own, so that no way leads from one
  // accelerator over the card to another.
  void add_flows(const std::vector<Flow>& flows, const std::vector<KilobytesPerSecond>& shares) {
    std::vector<KilobytesPerSecond> total(cards_.size(), 0);
    std::vector<VertexId> out(cards_.size(), kNone), in(cards_.size(), kNone);
    for (size_t i = 0; i < flows.size(); ++i) {
      const size_t card = flows[i].card;
      if (out[card] == kNone) {
        out[card] = graph_.add_vertex(VertexKind::kCard, number_, cards_[card].name + " out");
        in[card] = graph_.add_vertex(VertexKind::kCard, number_, cards_[card].name + " in");
      }
      const VertexId device = vertex_of_[flows[i].device];
      graph_.add_link({device, out[card], flows[i].bandwidth, flows[i].latency_ns});
      graph_.add_link({in[card], device, flows[i].bandwidth, flows[i].latency_ns});
      total[card] += std::max<KilobytesPerSecond>(1, shares[i]);
    }
    for (size_t card = 0; card < cards_.size(); ++card) {
      if (out[card] == kNone) continue;
      graph_.add_link({out[card], network_, total[card], cards_[card].latency_ns});
      graph_.add_link({network_, in[card], total[card], cards_[card].latency_ns});
    }
  }

  // How a part of the tree reaches its next vertex.
  struct Up {
    VertexId vertex = kNone;
    KilobytesPerSecond bandwidth = kUnlimited;
    double latency_ns = 0;
  };

  LinkGraph& graph_;
  const Topology& topology_;
  uint32_t number_;
  VertexId network_;  // kNone: one host
  std::vector<VertexId> vertex_of_;
  std::map<NodeId, std::vector<Rank>> ranks_of_device_;
  std::map<NodeId, std::vector<Rank>> ranks_of_node_;
  std::vector<Card> cards_;
  std::map<NodeId, Up> ups_;
};

Status check(const Cluster& cluster) {
  if (cluster.ranks.empty()) return invalid_argument("link graph: no ranks");
  for (size_t kind = 0; kind < cluster.kinds.size(); ++kind) {
    if (cluster.kinds[kind].count(NodeKind::kMachine) != 1) {
      return invalid_argument(
          fmt::format("link graph: topology {} has {} machines; each host needs one of its own",
                      kind, cluster.kinds[kind].count(NodeKind::kMachine)));
    }
  }
  for (size_t host = 0; host < cluster.kind_of_host.size(); ++host) {
    if (cluster.kind_of_host[host] >= cluster.kinds.size()) {
      return invalid_argument(fmt::format("link graph: host {} is of kind {} of {}", host,
                                          cluster.kind_of_host[host], cluster.kinds.size()));
    }
  }
  for (size_t rank = 0; rank < cluster.ranks.size(); ++rank) {
    const RankPlace& place = cluster.ranks[rank];
    if (place.host >= cluster.kind_of_host.size()) {
      return invalid_argument(fmt::format("link graph: rank {} is on host {} of {}", rank,
                                          place.host, cluster.kind_of_host.size()));
    }
    if (place.device == kNoNode) continue;
    const Topology& topology = cluster.kinds[cluster.kind_of_host[place.host]];
    if (place.device >= topology.node_count() ||
        topology.node(place.device).kind != NodeKind::kGpu) {
      return invalid_argument(
          fmt::format("link graph: the device of rank {} is no GPU of its host", rank));
    }
  }
  return {};
}

}  // namespace

Result<LinkGraph> machine_graph(const Cluster& cluster) {
  WEIR_RETURN_IF_ERROR(check(cluster));
  LinkGraph graph(static_cast<uint32_t>(cluster.ranks.size()));
  const bool alone = std::all_of(cluster.ranks.begin(), cluster.ranks.end(), [&](const auto& it) {
    return it.host == cluster.ranks.front().host;
  });
  const VertexId network = alone ? kNone : graph.add_vertex(VertexKind::kNetwork, kNone, "network");
  std::vector<std::vector<Rank>> ranks_of_host(cluster.kind_of_host.size());
  for (Rank rank = 0; rank < cluster.ranks.size(); ++rank) {
    ranks_of_host[cluster.ranks[rank].host].push_back(rank);
  }
  for (uint32_t number = 0; number < ranks_of_host.size(); ++number) {
    if (ranks_of_host[number].empty()) continue;
    Host host(&graph, cluster.kinds[cluster.kind_of_host[number]], number, network);
    for (const Rank rank : ranks_of_host[number]) host.place(rank, cluster.ranks[rank]);
    host.add();
  }
  WEIR_RETURN_IF_ERROR(graph.finish());
  return graph;
}

}  // namespace weir::graph
