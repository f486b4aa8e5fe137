// SPDX-License-Identifier: Apache-2.0
#include "core/graph/tree_packing.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace weir::graph {
namespace {

// A tree without a root.
using Edges = std::vector<std::pair<Rank, Rank>>;

class Packing {
 public:
  Packing(const LinkGraph& graph, Routes* routes)
      : graph_(graph), routes_(*routes), load_(graph.links().size(), 0) {
    for (const Link& link : graph.links()) widest_ = std::max(widest_, link.bandwidth);
  }

  // Empty: some rank is not reached.
  Edges add_tree() {
    const Rank n = graph_.rank_count();
    Edges edges;
    std::vector<bool> in(n);
    in[0] = true;
    while (edges.size() + 1 < n) {
      std::pair<Rank, Rank> best;
      double least = -1;
      for (Rank a = 0; a < n; ++a) {
        for (Rank b = 0; in[a] && b < n; ++b) {
          if (in[b] || !routes_.way(a, b).exists || !routes_.way(b, a).exists) continue;
          const double cost = cost_of(a, b) + cost_of(b, a);
          if (least >= 0 && cost >= least) continue;
          least = cost;
          best = {a, b};
        }
      }
      if (least < 0) return {};
      for (const LinkId id : routes_.links(best.first, best.second)) ++load_[id];
      for (const LinkId id : routes_.links(best.second, best.first)) ++load_[id];
      in[best.second] = true;
      edges.push_back(best);
    }
    return edges;
  }

  // What the link that takes longest needs.
  double time() const {
    double most = 0;
    for (LinkId id = 0; id < load_.size(); ++id) {
      most = std::max(most, static_cast<double>(load_[id]) * weight_of(id));
    }
    return most;
  }

 private:
  double weight_of(LinkId id) const {
    const KilobytesPerSecond bandwidth = graph_.links()[id].bandwidth;
    if (bandwidth == kUnlimited) return 0;
    return static_cast<double>(widest_) / static_cast<double>(bandwidth);
  }
  double cost_of(Rank from, Rank to) {
    double sum = 0;
    for (const LinkId id : routes_.links(from, to)) {
      const double before = static_cast<double>(load_[id]) * weight_of(id);
      const double after = before + weight_of(id);
      sum += after * after * after - before * before * before;
    }
    return sum;
  }

  const LinkGraph& graph_;
  Routes& routes_;
  std::vector<uint32_t> load_;
  KilobytesPerSecond widest_ = 1;
};

Tree rooted(const Edges& edges, Rank root, Rank n) {
  std::vector<std::vector<Rank>> neighbours(n);
  for (const auto& [a, b] : edges) {
    neighbours[a].push_back(b);
    neighbours[b].push_back(a);
  }
  Tree tree{.root = root, .first = 0, .count = 1, .links = {}};
  std::vector<uint32_t> depth(n, kNone);
  depth[root] = 0;
  std::vector<Rank> order = {root};
  for (size_t i = 0; i < order.size(); ++i) {
    const Rank from = order[i];
    for (const Rank to : neighbours[from]) {
      if (depth[to] != kNone) continue;
      depth[to] = depth[from] + 1;
      tree.links.push_back({from, to, depth[to]});
      order.push_back(to);
    }
  }
  return tree;
}

// Of ranks that are no root yet, the one from which the tree is least deep.
Tree with_best_root(const Edges& edges, std::vector<bool>* used, Rank n) {
  Tree best;
  for (Rank root = 0; root < n; ++root) {
    if ((*used)[root]) continue;
    Tree tree = rooted(edges, root, n);
    if (best.links.empty() || tree.links.back().depth < best.links.back().depth) {
      best = std::move(tree);
    }
  }
  (*used)[best.root] = true;
  return best;
}

}  // namespace

Result<Forest> pack_trees(const LinkGraph& graph, Routes* routes) {
  const Rank n = graph.rank_count();
  if (n < 2) return invalid_argument("trees: need two ranks");
  Packing packing(graph, routes);
  std::vector<Edges> trees;
  size_t best_count = 0;
  double best_time = 0;  // of so many trees, for each
  for (Rank i = 0; i < n; ++i) {
    trees.push_back(packing.add_tree());
    if (trees.back().empty()) {
      return Status(Code::kUnsupported, "trees: not all ranks can be joined both ways");
    }
    const double time = packing.time() / static_cast<double>(trees.size());
    // More trees are worth it only if they carry more.
    if (best_count != 0 && time >= 0.98 * best_time) continue;
    best_count = trees.size();
    best_time = time;
  }
  Forest forest;
  forest.rank_count = n;
  forest.trees_per_root = 1;
  std::vector<bool> used(n);
  for (size_t i = 0; i < best_count; ++i) {
    forest.trees.push_back(with_best_root(trees[i], &used, n));
  }
  std::sort(forest.trees.begin(), forest.trees.end(),
            [](const Tree& a, const Tree& b) { return a.root < b.root; });
  return forest;
}

}  // namespace weir::graph
