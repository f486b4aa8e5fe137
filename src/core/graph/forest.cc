// SPDX-License-Identifier: Apache-2.0
#include "core/graph/forest.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "core/base/check.h"
#include "core/graph/forest_load.h"
#include "core/graph/max_flow.h"
#include "core/graph/routes.h"
#include "core/graph/switch_removal.h"

namespace weir::graph {
namespace {

// A bandwidth of `numerator / denominator` trees a kilobyte a second.
struct TreesPerBandwidth {
  int64_t numerator = 0;
  int64_t denominator = 1;

  int64_t of(KilobytesPerSecond bandwidth, int64_t most) const {
    if (bandwidth == kUnlimited) return most;
    __extension__ using Wide = __int128;
    return static_cast<int64_t>(
        std::min<Wide>(most, static_cast<Wide>(bandwidth) * numerator / denominator));
  }
  double value() const { return static_cast<double>(numerator) / static_cast<double>(denominator); }
};

int64_t sum_of(const Supply& supply) {
  return std::accumulate(supply.begin(), supply.end(), int64_t{0});
}

TreeCapacity capacity_of(const LinkGraph& graph, const Supply& supply,
                         const TreesPerBandwidth& scale) {
  // A switch may have to send on the same data to each of its neighbours.
  const int64_t most = sum_of(supply) * graph.rank_count();
  TreeCapacity capacity(static_cast<uint32_t>(graph.vertices().size()), graph.rank_count());
  for (const Link& link : graph.links()) {
    capacity.at(link.from, link.to) = scale.of(link.bandwidth, most);
  }
  balance_switches(&capacity);
  return capacity;
}

// The smallest scale at least `least`, and at most twice that, at which links carry the trees of
// `supply`; none: there is none, or no steps are left.
std::optional<TreesPerBandwidth> find_scale(const LinkGraph& graph, const Supply& supply,
                                            double least, Steps* steps) {
  // It changes something only where a link gets a whole tree more.
  std::vector<KilobytesPerSecond> bandwidths;
  for (const Link& link : graph.links()) {
    if (link.bandwidth != kUnlimited) bandwidths.push_back(link.bandwidth);
  }
  std::sort(bandwidths.begin(), bandwidths.end());
  bandwidths.erase(std::unique(bandwidths.begin(), bandwidths.end()), bandwidths.end());
  std::vector<TreesPerBandwidth> scales;
  for (const KilobytesPerSecond bandwidth : bandwidths) {
    const auto from = static_cast<int64_t>(least * static_cast<double>(bandwidth) * (1 - 1e-12));
    const auto to = static_cast<int64_t>(2 * least * static_cast<double>(bandwidth)) + 1;
    constexpr int64_t kTriedMax = 4096;
    for (int64_t trees = std::max<int64_t>(1, from); trees <= std::min(to, from + kTriedMax);
         ++trees) {
      const TreesPerBandwidth scale{trees, bandwidth};
      if (scale.value() >= least * (1 - 1e-9) && scale.value() <= 2 * least) {
        scales.push_back(scale);
      }
    }
  }
  std::sort(scales.begin(), scales.end(),
            [](const auto& a, const auto& b) { return a.value() < b.value(); });
  size_t low = 0, high = scales.size();
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    const int64_t missing =
        missing_trees(capacity_of(graph, supply, scales[middle]), supply, steps);
    if (missing < 0) return std::nullopt;
    if (missing == 0) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  if (low == scales.size()) return std::nullopt;
  return scales[low];
}

// Trees while they grow.
struct Growing {
  Rank root = 0;
  int64_t count = 0;
  std::vector<TreeLink> links;
  std::vector<uint32_t> depth;  // kNone: not reached
};

class Packing {
 public:
  Packing(const TreeCapacity& capacity, const Supply& supply, Routes* routes, Steps* steps)
      : capacity_(capacity), n_(capacity.rank_count()), routes_(*routes), steps_(steps) {
    for (Rank root = 0; root < n_; ++root) {
      if (supply[root] == 0) continue;
      Growing tree{.root = root, .count = supply[root], .links = {}, .depth = {}};
      tree.depth.assign(n_, kNone);
      tree.depth[root] = 0;
      open_.push_back(std::move(tree));
    }
  }

  // False: no steps are left, or (which the cuts exclude) a tree cannot grow.
  bool run() {
    while (!open_.empty()) {
      Growing tree = std::move(open_.back());
      open_.pop_back();
      while (tree.links.size() + 1 < n_) {
        if (!grow(&tree)) return false;
      }
      done_.push_back(std::move(tree));
    }
    return true;
  }

  std::vector<Growing> take() { return std::move(done_); }

 private:
  struct Candidate {
    KilobytesPerSecond width;
    uint32_t depth;
    int64_t trees;
    Rank from, to;
  };

  bool grow(Growing* tree) {
    std::vector<Candidate> candidates;
    for (Rank from = 0; from < n_; ++from) {
      if (tree->depth[from] == kNone) continue;
      for (Rank to = 0; to < n_; ++to) {
        const int64_t trees = capacity_.at(from, to);
        if (tree->depth[to] == kNone && trees > 0) {
          const KilobytesPerSecond width = routes_.way(from, to).bandwidth;
          candidates.push_back({width == kUnlimited ? kBandwidthMax : width, tree->depth[from],
                                std::min(trees, tree->count), from, to});
        }
      }
    }
    // A wide link rather than one more message over a narrow one; then low trees; then those that
    // need not be divided.
    std::sort(candidates.begin(), candidates.end(), [&](const Candidate& a, const Candidate& b) {
      if (a.width != b.width) return a.width > b.width;
      if (a.depth != b.depth) return a.depth < b.depth;
      if (a.trees != b.trees) return a.trees > b.trees;
      const Rank a_distance = (a.to + n_ - tree->root) % n_;
      const Rank b_distance = (b.to + n_ - tree->root) % n_;
      return a_distance != b_distance ? a_distance < b_distance : a.from < b.from;
    });
    for (const Candidate& it : candidates) {
      const std::optional<int64_t> spare = spare_of(it);
      if (!spare) return false;
      if (*spare == 0) continue;
      const int64_t count = std::min(it.trees, *spare);
      if (count < tree->count) {
        Growing rest = *tree;
        rest.count -= count;
        tree->count = count;
        open_.push_back(std::move(rest));
      }
      tree->depth[it.to] = it.depth + 1;
      tree->links.push_back({it.from, it.to, it.depth + 1});
      capacity_.at(it.from, it.to) -= count;
      return true;
    }
    return false;
  }

  // How many trees may take the link, so that the rest can still be grown: what flows from its
  // start to its end beyond what the other trees need.
  std::optional<int64_t> spare_of(const Candidate& it) {
    if (!steps_->take()) return std::nullopt;
    MaxFlow flow(n_ + static_cast<uint32_t>(open_.size()));
    int64_t others = 0;
    for (Rank from = 0; from < n_; ++from) {
      for (Rank to = 0; to < n_; ++to) {
        if (capacity_.at(from, to) > 0) flow.add_arc(from, to, capacity_.at(from, to));
      }
    }
    for (size_t i = 0; i < open_.size(); ++i) {
      const Growing& tree = open_[i];
      others += tree.count;
      const uint32_t whole = n_ + static_cast<uint32_t>(i);
      flow.add_arc(it.from, whole, tree.count);
      for (Rank rank = 0; rank < n_; ++rank) {
        if (tree.depth[rank] != kNone) flow.add_arc(whole, rank, tree.count);
      }
    }
    const int64_t found = flow.run(it.from, it.to, others + it.trees);
    return std::max<int64_t>(0, found - others);
  }

  TreeCapacity capacity_;
  uint32_t n_;
  Routes& routes_;
  Steps* steps_;
  std::vector<Growing> open_, done_;
};

std::optional<Forest> pack(const LinkGraph& graph, const Supply& supply,
                           const TreesPerBandwidth& scale, Routes* routes, Steps* steps) {
  TreeCapacity capacity = capacity_of(graph, supply, scale);
  if (!remove_switches(&capacity, supply, steps)) return std::nullopt;
  Packing packing(capacity, supply, routes, steps);
  if (!packing.run()) return std::nullopt;
  std::vector<Growing> grown = packing.take();
  std::stable_sort(grown.begin(), grown.end(),
                   [](const Growing& a, const Growing& b) { return a.root < b.root; });
  Forest forest;
  forest.rank_count = graph.rank_count();
  forest.trees_per_root = static_cast<uint32_t>(*std::max_element(supply.begin(), supply.end()));
  std::vector<uint32_t> taken(graph.rank_count(), 0);
  for (Growing& tree : grown) {
    const auto count = static_cast<uint32_t>(tree.count);
    forest.trees.push_back({tree.root, taken[tree.root], count, std::move(tree.links)});
    taken[tree.root] += count;
  }
  return forest;
}

// `one`: the trees wanted of each root, for one tree a root.
Result<Forest> find(const LinkGraph& graph, const Supply& one, const CutBound& bound,
                    const ForestOptions& options) {
  if (bound.bandwidth == kUnlimited) {
    return Status(Code::kUnsupported, "forest: no link of the graph has a limit");
  }
  const double bound_gbs = bound.block_gbs();
  const auto root_count = static_cast<double>(sum_of(one));
  Steps steps{options.steps_max};
  Routes routes(graph);
  Forest best;
  for (uint32_t trees = 1; trees <= options.trees_max; ++trees) {
    Supply supply = one;
    for (int64_t& it : supply) it *= trees;
    const auto scale = find_scale(graph, supply, trees / (bound_gbs * 1e6), &steps);
    if (!scale) continue;
    if (trees / scale->value() / 1e6 <= best.block_gbs) continue;
    auto forest = pack(graph, supply, *scale, &routes, &steps);
    if (!forest) continue;
    const double ns_per_byte = spread_ns_per_byte(graph, load_of(graph, *forest, &routes));
    forest->block_gbs = 1 / (ns_per_byte * root_count);
    forest->bound_gbs = bound_gbs;
    if (forest->block_gbs > best.block_gbs) best = std::move(*forest);
    if (best.block_gbs >= options.good_enough * bound_gbs) break;
  }
  if (best.trees.empty()) {
    return Status(Code::kUnsupported,
                  fmt::format("forest: none of up to {} trees a root for {} ranks within {} steps",
                              options.trees_max, graph.rank_count(), options.steps_max));
  }
  best.steps = options.steps_max - steps.left;
  return best;
}

}  // namespace

Result<Forest> find_trees(const LinkGraph& graph, std::span<const Rank> roots,
                          const ForestOptions& options) {
  if (graph.rank_count() < 2) return invalid_argument("forest: needs two ranks");
  if (roots.empty()) return invalid_argument("forest: needs a root");
  Supply one(graph.rank_count(), 0);
  for (const Rank root : roots) {
    WEIR_CHECK(root < graph.rank_count() && one[root] == 0, "roots are different ranks");
    one[root] = 1;
  }
  return find(graph, one, roots_bound(graph, roots), options);
}

Result<Forest> find_forest(const LinkGraph& graph, const ForestOptions& options) {
  std::vector<Rank> all(graph.rank_count());
  std::iota(all.begin(), all.end(), 0u);
  return find_trees(graph, all, options);
}

std::string flaw_of(const Forest& forest) {
  const uint32_t n = forest.rank_count;
  if (n < 2 || forest.trees_per_root == 0) return "a forest has two ranks and one tree at least";
  std::vector<uint32_t> parts(n, 0);
  for (size_t i = 0; i < forest.trees.size(); ++i) {
    const Tree& tree = forest.trees[i];
    if (tree.root >= n) return fmt::format("tree {}: root {} of {} ranks", i, tree.root, n);
    if (tree.first != parts[tree.root] || tree.count == 0 ||
        tree.count > forest.trees_per_root - tree.first) {
      return fmt::format("tree {}: parts {} to {} of rank {}, where {} is next and {} is the end",
                         i, tree.first, uint64_t{tree.first} + tree.count, tree.root,
                         parts[tree.root], forest.trees_per_root);
    }
    parts[tree.root] += tree.count;
    std::vector<uint32_t> depth(n, kNone);
    depth[tree.root] = 0;
    for (const TreeLink& link : tree.links) {
      if (link.from >= n || link.to >= n || depth[link.from] == kNone || depth[link.to] != kNone ||
          link.depth != depth[link.from] + 1) {
        return fmt::format("tree {}: link {} to {} does not continue the tree", i, link.from,
                           link.to);
      }
      depth[link.to] = link.depth;
    }
    if (tree.links.size() + 1 != n) return fmt::format("tree {}: does not reach all ranks", i);
  }
  if (forest.trees.empty()) return "a forest without trees";
  for (Rank root = 0; root < n; ++root) {
    if (parts[root] != 0 && parts[root] != forest.trees_per_root) {
      return fmt::format("rank {} has trees for {} of {} parts", root, parts[root],
                         forest.trees_per_root);
    }
  }
  return "";
}

}  // namespace weir::graph
