// SPDX-License-Identifier: Apache-2.0
#include "core/graph/tree_packing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "core/graph/cut_bound.h"

namespace weir::graph {
namespace {

constexpr uint32_t kTreesMax = 16;
constexpr uint32_t kRoundsMax = 8;
// In times of the bound. Slices of more trees wait for each other; a slice is under way for all
// hops of its tree; and all wait for the rank that has more messages than others.
constexpr double kCostOfATree = 0.03;
constexpr double kCostOfDepth = 0.005;  // of each tree
constexpr double kCostOfUnevenRanks = 0.2;
// While trees grow, in full links: at this multiple of an even share the messages of a rank count
// like one; and each rank's depth in each tree, over the number of trees.
constexpr double kUnevenRanks = 1.15;
constexpr double kHopCosts[] = {0.03, 0.1, 0.3};
constexpr double kNoWay = std::numeric_limits<double>::infinity();

double eighth_power(double x) {
  const double square = x * x;
  const double fourth = square * square;
  return fourth * fourth;
}

// `count` trees for equal parts. Loads are kept as whole numbers of parts and messages.
class Packing {
 public:
  // `bound`: all_reduce_ns_per_byte.
  Packing(const LinkGraph& graph, Routes* routes, uint32_t count, double bound, double hop)
      : n_(graph.rank_count()),
        count_(count),
        routes_(*routes),
        parts_(graph.links().size(), 0),
        messages_(n_, 0),
        is_root_(n_) {
    for (const Link& link : graph.links()) {
      const bool limited = link.bandwidth != kUnlimited;
      time_of_part_.push_back(limited ? 1e6 / (static_cast<double>(link.bandwidth) * count * bound)
                                      : 0);
    }
    message_ = n_ / (2.0 * count * (n_ - 1) * kUnevenRanks);
    hop_ = hop / count;
  }

  // False: some rank is not reached.
  bool search() {
    for (uint32_t i = 0; i < count_; ++i) {
      Tree tree = best_tree();
      if (tree.links.empty()) return false;
      put(tree, 1);
      trees_.push_back(std::move(tree));
    }
    bool better = true;
    for (uint32_t round = 0; better && round < kRoundsMax; ++round) {
      better = false;
      for (Tree& tree : trees_) {
        put(tree, -1);
        Tree other = best_tree();
        if (cost_with(other) < cost_with(tree) * (1 - 1e-9)) {
          tree = std::move(other);
          better = true;
        }
        put(tree, 1);
      }
    }
    return true;
  }

  // What the link that takes longest needs, over the bound.
  double time() const {
    double most = 0;
    for (LinkId id = 0; id < parts_.size(); ++id) {
      most = std::max(most, parts_[id] * time_of_part_[id]);
    }
    return most;
  }
  // The most messages of a rank over an even share of them.
  double unevenness() const {
    return *std::max_element(messages_.begin(), messages_.end()) * message_ * kUnevenRanks;
  }
  uint32_t depths() const {
    uint32_t sum = 0;
    for (const Tree& tree : trees_) {
      uint32_t most = 0;
      for (const TreeLink& link : tree.links) most = std::max(most, link.depth);
      sum += most;
    }
    return sum;
  }
  std::vector<Tree> take() { return std::move(trees_); }

 private:
  void put_link(Rank a, Rank b, int32_t change) {
    for (const LinkId id : routes_.links(a, b)) parts_[id] += change;
    for (const LinkId id : routes_.links(b, a)) parts_[id] += change;
    messages_[a] += change;
    messages_[b] += change;
  }
  void put(const Tree& tree, int32_t change) {
    for (const TreeLink& link : tree.links) put_link(link.from, link.to, change);
    is_root_[tree.root] = change > 0;
  }

  // What one link of a tree more adds.
  double cost_of(Rank from, Rank to) {
    const std::span<const LinkId> there = routes_.links(from, to);
    const std::span<const LinkId> back = routes_.links(to, from);
    if (there.empty() || back.empty()) return kNoWay;
    double sum = added(messages_[from], message_) + added(messages_[to], message_);
    for (const LinkId id : there) sum += added(parts_[id], time_of_part_[id]);
    for (const LinkId id : back) sum += added(parts_[id], time_of_part_[id]);
    return sum;
  }
  static double added(int32_t before, double each) {
    return eighth_power((before + 1) * each) - eighth_power(before * each);
  }

  // Of all trees that are put, and this one.
  double cost_with(const Tree& tree) {
    put(tree, 1);
    double sum = 0;
    for (LinkId id = 0; id < parts_.size(); ++id)
      sum += eighth_power(parts_[id] * time_of_part_[id]);
    for (const int32_t messages : messages_) sum += eighth_power(messages * message_);
    put(tree, -1);
    for (const TreeLink& link : tree.links) sum += hop_ * link.depth;
    return sum;
  }

  // The best of those that are grown from each rank that is no root yet. Without links: none.
  Tree best_tree() {
    Tree best;
    double least = kNoWay;
    for (Rank root = 0; root < n_; ++root) {
      if (is_root_[root]) continue;
      Tree tree = grow(root);
      if (tree.links.size() + 1 != n_) return {};
      const double cost = cost_with(tree);
      if (cost >= least) continue;
      least = cost;
      best = std::move(tree);
    }
    return best;
  }

  Tree grow(Rank root) {
    Tree tree{.root = root, .first = 0, .count = 1, .links = {}};
    std::vector<uint32_t> depth(n_, kNone);
    std::vector<Rank> nearest(n_, root);
    std::vector<double> cost(n_, kNoWay);  // of the link from `nearest`, when it was looked at
    depth[root] = 0;
    const auto look = [&](Rank from, Rank to) {
      const double found = cost_of(from, to) + hop_ * (depth[from] + 1);
      if (found >= cost[to]) return;
      cost[to] = found;
      nearest[to] = from;
    };
    const auto look_from = [&](Rank from) {
      for (Rank to = 0; to < n_; ++to) {
        if (depth[to] == kNone) look(from, to);
      }
    };
    look_from(root);
    while (tree.links.size() + 1 < n_) {
      Rank to = kNone;
      for (Rank rank = 0; rank < n_; ++rank) {
        if (depth[rank] == kNone && (to == kNone || cost[rank] < cost[to])) to = rank;
      }
      if (cost[to] == kNoWay) break;
      // Links that were added meanwhile may have made it dearer.
      const double before = cost[to];
      cost[to] = kNoWay;
      look(nearest[to], to);
      if (cost[to] > before) {
        for (Rank from = 0; from < n_; ++from) {
          if (depth[from] != kNone) look(from, to);
        }
        const bool still_least = std::all_of(cost.begin(), cost.end(), [&](const double& other) {
          return depth[static_cast<size_t>(&other - cost.data())] != kNone || other >= cost[to];
        });
        if (!still_least) continue;
      }
      const Rank from = nearest[to];
      depth[to] = depth[from] + 1;
      tree.links.push_back({from, to, depth[to]});
      put_link(from, to, 1);
      look_from(to);
    }
    for (const TreeLink& link : tree.links) put_link(link.from, link.to, -1);
    return tree;
  }

  Rank n_;
  uint32_t count_;
  Routes& routes_;
  std::vector<double> time_of_part_;  // of each link, over the bound
  double message_ = 0;
  double hop_ = 0;
  std::vector<int32_t> parts_;     // that each link carries
  std::vector<int32_t> messages_;  // of each rank, in one direction
  std::vector<bool> is_root_;
  std::vector<Tree> trees_;
};

// What `count` trees of equal parts need at least, over the bound: links carry whole parts, and
// each link of a tree takes a link of the graph in each direction.
double least_time(const LinkGraph& graph, uint32_t count, double bound) {
  const double wanted = 2.0 * count * (graph.rank_count() - 1);
  for (double time = 1;;) {
    double parts = 0;
    double next = kNoWay;
    for (const Link& link : graph.links()) {
      if (link.bandwidth == kUnlimited) return 1;
      const double each = 1e6 / (static_cast<double>(link.bandwidth) * count * bound);
      const double most = std::floor(time / each * (1 + 1e-9));
      parts += most;
      next = std::min(next, (most + 1) * each);
    }
    if (parts >= wanted) return time;
    time = next;
  }
}

}  // namespace

Result<Forest> pack_trees(const LinkGraph& graph, Routes* routes) {
  const Rank n = graph.rank_count();
  if (n < 2) return invalid_argument("trees: need two ranks");
  const double bound = all_reduce_ns_per_byte(graph);
  if (bound == 0) return Status(Code::kUnsupported, "trees: no link has a limit");
  std::vector<Tree> best;
  double least = 0, least_by_links = 0;
  for (uint32_t count = 1; count <= std::min(n, kTreesMax); ++count) {
    const double of_count = kCostOfATree * count;
    if (!best.empty() && least_time(graph, count, bound) + of_count >= least_by_links) continue;
    for (const double hop : kHopCosts) {
      Packing packing(graph, routes, count, bound, hop);
      if (!packing.search()) {
        return Status(Code::kUnsupported, "trees: not all ranks can be joined both ways");
      }
      const double by_links = packing.time() + of_count;
      const double cost =
          by_links + kCostOfDepth * packing.depths() + kCostOfUnevenRanks * packing.unevenness();
      if (!best.empty() && cost >= least) continue;
      least = cost;
      least_by_links = by_links;
      best = packing.take();
    }
  }
  Forest forest{.rank_count = n, .trees_per_root = 1, .trees = std::move(best)};
  std::sort(forest.trees.begin(), forest.trees.end(),
            [](const Tree& a, const Tree& b) { return a.root < b.root; });
  return forest;
}

}  // namespace weir::graph
