// SPDX-License-Identifier: Apache-2.0
#include "core/graph/usual_ways.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <vector>

#include "core/graph/forest_load.h"

namespace weir::graph {
namespace {

class Load {
 public:
  Load(const LinkGraph& graph, Routes* routes) : graph_(graph), routes_(*routes) {
    load_.spread.resize(graph.links().size());
    load_.fold.resize(graph.links().size());
  }
  // `blocks`: of single ranks.
  void send(Rank from, Rank to, double blocks) {
    const Way way = routes_.way(from, to);
    possible_ = possible_ && way.exists;
    for (const LinkId id : way.links) load_.spread[id] += blocks / graph_.rank_count();
  }
  // Infinite where a message would have no way.
  double ns_per_byte() const {
    return possible_ ? spread_ns_per_byte(graph_, load_) : std::numeric_limits<double>::infinity();
  }

 private:
  const LinkGraph& graph_;
  Routes& routes_;
  ForestLoad load_;
  bool possible_ = true;
};

// Ranks by host; empty: hosts have different numbers of ranks, or there is only one.
std::vector<std::vector<Rank>> even_hosts(const LinkGraph& graph) {
  std::map<uint32_t, std::vector<Rank>> by_host;
  for (Rank rank = 0; rank < graph.rank_count(); ++rank) {
    by_host[graph.host_of(rank)].push_back(rank);
  }
  std::vector<std::vector<Rank>> hosts;
  for (auto& [host, ranks] : by_host) hosts.push_back(std::move(ranks));
  const bool even = std::all_of(hosts.begin(), hosts.end(), [&](const auto& ranks) {
    return ranks.size() == hosts.front().size();
  });
  if (!even || hosts.size() < 2 || hosts.front().size() < 2) hosts.clear();
  return hosts;
}

}  // namespace

double straight_ns_per_byte(const LinkGraph& graph, Routes* routes) {
  const Rank n = graph.rank_count();
  Load straight(graph, routes);
  for (Rank rank = 0; rank < n; ++rank) {
    for (Rank other = 0; other < n; ++other) {
      if (other != rank) straight.send(rank, other, 1);
    }
  }
  return straight.ns_per_byte();
}

UsualWays best_usual_ways(const LinkGraph& graph, Routes* routes) {
  const Rank n = graph.rank_count();
  Load ring(graph, routes);
  for (Rank rank = 0; rank < n; ++rank) ring.send(rank, (rank + 1) % n, n - 1);
  UsualWays best{ring.ns_per_byte(), "ring"};
  const auto offer = [&](double ns_per_byte, const char* name) {
    if (ns_per_byte < best.ns_per_byte) best = {ns_per_byte, name};
  };
  offer(straight_ns_per_byte(graph, routes), "straight");
  const std::vector<std::vector<Rank>> hosts = even_hosts(graph);
  if (!hosts.empty()) {
    // Between ranks of the same place, and each then passes on within its host, straight or along a
    // ring, what it has.
    Load mesh(graph, routes), rings(graph, routes);
    const size_t each = hosts.front().size();
    for (size_t h = 0; h < hosts.size(); ++h) {
      for (size_t i = 0; i < each; ++i) {
        const Rank rank = hosts[h][i];
        for (Load* load : {&mesh, &rings}) {
          load->send(rank, hosts[(h + 1) % hosts.size()][i], static_cast<double>(hosts.size() - 1));
        }
        rings.send(rank, hosts[h][(i + 1) % each], static_cast<double>(hosts.size() * (each - 1)));
        for (const Rank other : hosts[h]) {
          if (other != rank) mesh.send(rank, other, static_cast<double>(hosts.size()));
        }
      }
    }
    offer(mesh.ns_per_byte(), "host by host");
    offer(rings.ns_per_byte(), "host by host");
  }
  return best;
}

UsualWays best_usual_all_reduce(const LinkGraph& graph, Routes* routes) {
  const Rank n = graph.rank_count();
  Load ring(graph, routes);
  for (Rank rank = 0; rank < n; ++rank) ring.send(rank, (rank + 1) % n, 2 * (n - 1));
  const UsualWays along_ring{ring.ns_per_byte(), "ring"};
  std::vector<std::vector<Rank>> hosts = even_hosts(graph);
  if (hosts.empty() && graph.host_count() == 1) {
    hosts.emplace_back(n);
    std::iota(hosts[0].begin(), hosts[0].end(), 0u);
  }
  if (hosts.empty()) return along_ring;
  Load all(graph, routes);
  double steps_ns = 0;
  // `times`: once where data is folded, once where it is spread.
  const auto add = [&](auto&& to, double blocks, double times) {
    Load step(graph, routes);
    for (size_t host = 0; host < hosts.size(); ++host) {
      for (size_t i = 0; i < hosts[host].size(); ++i) {
        step.send(hosts[host][i], to(host, i), blocks);
        all.send(hosts[host][i], to(host, i), times * blocks);
      }
    }
    steps_ns += times * step.ns_per_byte();
  };
  const size_t each = hosts[0].size();
  for (size_t distance = 1; distance < each; ++distance) {
    add([&](size_t host, size_t i) { return hosts[host][(i + distance) % each]; },
        static_cast<double>(hosts.size()), 2);
  }
  if (hosts.size() > 1) {
    add([&](size_t host, size_t i) { return hosts[(host + 1) % hosts.size()][i]; }, 1,
        2 * static_cast<double>(hosts.size() - 1));
  }
  const UsualWays by_host{(all.ns_per_byte() + steps_ns) / 2,
                          hosts.size() == 1 ? "straight" : "host by host"};
  return by_host.ns_per_byte < along_ring.ns_per_byte ? by_host : along_ring;
}

}  // namespace weir::graph
