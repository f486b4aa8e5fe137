// SPDX-License-Identifier: Apache-2.0
#include "sched/problems.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace weir::algo {
namespace {

using Nodes = std::pair<const char*, std::vector<uint32_t>>;

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

std::vector<Nodes> node_layouts(Rank n) {
  std::vector<Nodes> layouts;
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

}  // namespace

bool is_rooted(Collective collective) {
  return collective == Collective::kBroadcast || collective == Collective::kReduce ||
         collective == Collective::kGather || collective == Collective::kScatter;
}

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
  std::vector<Nodes> layouts{{"one", {}}};
  if (algorithm.uses_nodes) layouts = node_layouts(rank_count);
  const std::vector<Rank> used_roots =
      is_rooted(algorithm.collective) ? roots : std::vector<Rank>{0};
  for (const auto& [layout_name, nodes] : layouts) {
    for (Rank root : used_roots) {
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
        test.text = fmt::format("{}/{} n={} root={}{} nodes={}",
                                name_of(algorithm.collective, algorithm.lengths), algorithm.name,
                                rank_count, root, in_place ? " in place" : "", layout_name);
        if (algorithm.supports(test.get())) visit(test);
      }
    }
  }
}

}  // namespace weir::algo
