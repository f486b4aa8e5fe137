// SPDX-License-Identifier: Apache-2.0
#include "sched/problems.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <random>
#include <string_view>
#include <utility>

#include "core/base/check.h"
#include "core/graph/cluster_forest.h"
#include "core/graph/forests.h"
#include "core/graph/link_graph.h"

namespace weir::algo {
namespace {

using NodeLayout = std::pair<const char*, std::vector<uint32_t>>;

// Numbers nodes from 0 in order of first appearance, as Problem wants them.
std::vector<uint32_t> renumber(const std::vector<uint32_t>& nodes) {
  std::vector<uint32_t> number(nodes.size() + 1, 0xffffffffu);
  std::vector<uint32_t> result;
  uint32_t next = 0;
  for (uint32_t node : nodes) {
    if (number[node] == 0xffffffffu) number[node] = next++;
    result.push_back(number[node]);
  }
  return result;
}

std::vector<NodeLayout> node_layouts(Rank n) {
  std::vector<NodeLayout> layouts;
  std::vector<uint32_t> even;
  std::vector<uint32_t> interleaved;
  std::vector<uint32_t> growing;
  std::vector<uint32_t> mixed;
  const Rank per_node = n >= 32 ? 8 : n % 3 == 0 ? 3 : 2;
  const Rank node_count = (n + per_node - 1) / per_node;
  for (Rank rank = 0, node = 0, left = 1; rank < n; ++rank) {
    even.push_back(rank / per_node);
    interleaved.push_back(rank % node_count);
    growing.push_back(node);
    if (--left == 0) left = ++node + 1;
    mixed.push_back((rank * rank + rank / 3) % node_count);
  }
  layouts.emplace_back("even", even);
  layouts.emplace_back("interleaved", interleaved);
  layouts.emplace_back("growing", growing);
  layouts.emplace_back("mixed", renumber(mixed));
  return layouts;
}

using Forest = std::shared_ptr<const graph::Forest>;

// Each rank's tree is a heap: the rank at distance i from the root hangs from that at (i - 1) / 2.
// Every other tree is two that are alike.
Forest heaps(Rank n, const std::vector<Rank>& roots) {
  auto forest = std::make_shared<graph::Forest>();
  forest->rank_count = n;
  forest->trees_per_root = 2;
  for (const Rank root : roots) {
    graph::Tree tree{.root = root, .first = 0, .count = root % 2 == 0 ? 2u : 1u, .links = {}};
    std::vector<uint32_t> depth(n, 0);
    for (Rank i = 1; i < n; ++i) {
      depth[i] = depth[(i - 1) / 2] + 1;
      tree.links.push_back({(root + (i - 1) / 2) % n, (root + i) % n, depth[i]});
    }
    forest->trees.push_back(tree);
    tree.first = 1;
    if (tree.count == 1) forest->trees.push_back(tree);
  }
  return forest;
}

// A connected network of links of random bandwidth, with two switches.
graph::LinkGraph random_graph(Rank n) {
  std::mt19937 random(n);
  graph::LinkGraph links(n);
  const graph::VertexId left = links.add_vertex(graph::VertexKind::kSwitch, 0, "left");
  const graph::VertexId right = links.add_vertex(graph::VertexKind::kSwitch, 0, "right");
  const auto bandwidth = [&] { return static_cast<int64_t>(1'000'000 * (1 + random() % 4)); };
  for (Rank rank = 0; rank < n; ++rank) {
    links.set_rank(rank, 0, fmt::format("rank{}", rank));
    links.add_links(rank, random() % 2 == 0 ? left : right, bandwidth(), 500);
    if (rank > 0 && random() % 3 != 0) links.add_links(rank, random() % rank, bandwidth(), 500);
  }
  links.add_links(left, right, 8'000'000, 500);
  WEIR_CHECK(links.finish().ok(), "a connected graph");
  return links;
}

// The search takes too long for every test of many ranks.
constexpr Rank kFoundMax = 12;

Forest found(Rank n, bool rooted, Rank root) {
  static std::map<std::pair<Rank, Rank>, Forest> kept;
  Forest& forest = kept[{n, rooted ? root : n}];
  if (forest != nullptr) return forest;
  const graph::LinkGraph links = random_graph(n);
  auto result = rooted ? graph::find_trees(links, std::span(&root, 1)) : graph::find_forest(links);
  WEIR_CHECK(result.ok(), "a forest of a connected graph");
  forest = std::make_shared<const graph::Forest>(result.take());
  return forest;
}

// Host by host, with one rank on the first host and one more on each that follows; the second has a
// slow network.
constexpr Rank kHostsMin = 3;
constexpr Rank kHostsMax = 22;

Forest by_hosts(Rank n, bool rooted, Rank root) {
  static std::map<std::pair<Rank, Rank>, Forest> kept;
  Forest& forest = kept[{n, rooted ? root : n}];
  if (forest != nullptr) return forest;
  std::vector<uint32_t> host_of_rank;
  std::vector<graph::KilobytesPerSecond> networks;
  for (uint32_t host = 0; host_of_rank.size() < n; ++host) {
    host_of_rank.resize(std::min<size_t>(n, host_of_rank.size() + host + 1), host);
    networks.push_back(host == 1 ? 1'000'000 : 5'000'000);
  }
  const graph::LinkGraph links = graph::host_star(host_of_rank, networks, 20'000'000);
  auto result = rooted ? graph::cluster_trees(links, root) : graph::cluster_forest(links);
  WEIR_CHECK(result.ok(), "a forest of several hosts");
  forest = std::make_shared<const graph::Forest>(result.take());
  return forest;
}

std::vector<std::pair<const char*, Forest>> forests(const Algorithm& algorithm, Rank n, Rank root) {
  if (!algorithm.uses_forest || n < 2) return {{"", nullptr}};
  const bool rooted = is_rooted(algorithm.collective);
  std::vector<std::pair<const char*, Forest>> list = {
      {" heaps", heaps(n, rooted ? std::vector<Rank>{root} : all_roots(n))}};
  if (n <= kFoundMax) list.emplace_back(" found", found(n, rooted, root));
  if (n >= kHostsMin && n <= kHostsMax) {
    list.emplace_back(" by hosts", by_hosts(n, rooted, root));
  }
  return list;
}

// One ring backwards, and more of them than there are lanes.
std::vector<std::pair<const char*, std::shared_ptr<const graph::Rings>>> rings(
    const Algorithm& algorithm, Rank n) {
  if (!algorithm.uses_rings || n < 2) return {{"", nullptr}};
  std::vector<std::vector<Rank>> orders(1);
  for (Rank i = 0; i < n; ++i) orders[0].push_back(n - 1 - i);
  const auto kept = [](std::vector<std::vector<Rank>> of) {
    WEIR_CHECK(graph::flaw_of(of, static_cast<uint32_t>(of[0].size())).empty(), "rings");
    return std::make_shared<const graph::Rings>(graph::rings_of(std::move(of)));
  };
  auto backwards = kept(orders);
  std::mt19937 random(n);
  while (orders.size() < 5) {
    orders.push_back(orders[0]);
    std::shuffle(orders.back().begin(), orders.back().end(), random);
  }
  return {{" backwards", std::move(backwards)}, {" five rings", kept(std::move(orders))}};
}

}  // namespace

std::vector<Rank> all_roots(Rank rank_count) {
  std::vector<Rank> roots;
  for (Rank root = 0; root < rank_count; ++root) roots.push_back(root);
  return roots;
}

std::vector<Rank> some_roots(Rank rank_count) {
  if (rank_count <= 3) return all_roots(rank_count);
  return {0, rank_count / 2, rank_count - 1};
}

void for_each_problem(const Algorithm& algorithm, Rank rank_count, const std::vector<Rank>& roots,
                      const std::function<void(const TestProblem&)>& visit) {
  std::vector<NodeLayout> layouts{{"one", {}}};
  if (algorithm.uses_nodes || algorithm.groups != nullptr) layouts = node_layouts(rank_count);
  const std::vector<Rank> used_roots =
      is_rooted(algorithm.collective) ? roots : std::vector<Rank>{0};
  for (const auto& [layout_name, nodes] : layouts) {
    for (Rank root : used_roots) {
      for (const auto& [forest_name, forest] : forests(algorithm, rank_count, root)) {
        for (const auto& [rings_name, used_rings] : rings(algorithm, rank_count)) {
          for (bool in_place : {false, true}) {
            if (in_place && algorithm.collective == Collective::kBarrier) continue;
            TestProblem test;
            test.problem.collective = algorithm.collective;
            test.problem.rank_count = rank_count;
            test.problem.root = root;
            test.problem.mapped = algorithm.needs_mapped || algorithm.needs_user_windows;
            test.problem.inputs_mapped = algorithm.needs_user_windows;
            test.problem.outputs_mapped = algorithm.needs_user_windows;
            test.problem.in_place = in_place;
            test.problem.lengths = algorithm.lengths;
            test.nodes = nodes;
            test.by_groups = algorithm.groups != nullptr;
            test.forest = forest;
            test.rings = used_rings;
            test.text = fmt::format("{}/{} n={} root={}{} nodes={}{}{}",
                                    name_of(algorithm.collective, algorithm.lengths),
                                    algorithm.name, rank_count, root, in_place ? " in place" : "",
                                    layout_name, forest_name, rings_name);
            if (algorithm.supports(test.get())) {
              visit(test);
              continue;
            }
            // In place, some take blocks of equal length only.
            test.problem.lengths = BlockLengths::kEqual;
            if (algorithm.lengths != BlockLengths::kEqual && algorithm.supports(test.get())) {
              visit(test);
            }
          }
        }
      }
    }
  }
}

}  // namespace weir::algo
