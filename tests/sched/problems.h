// SPDX-License-Identifier: Apache-2.0
// The problems on which the tests of this folder run every algorithm.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/algo/algorithm.h"

namespace weir::algo {

// A problem with its own copy of the node layout.
struct TestProblem {
  Problem problem;
  std::vector<uint32_t> nodes;
  bool by_groups = false;  // they are groups of ranks of one host
  std::shared_ptr<const graph::Forest> forest;
  std::shared_ptr<const graph::Rings> rings;
  std::string text;  // "all_reduce/ring n=5 root=0 in place nodes=even"

  Problem get() const {
    Problem copy = problem;
    (by_groups ? copy.cache_of_rank : copy.node_of_rank) = nodes;
    if (by_groups) copy.numa_of_rank = nodes;
    copy.forest = forest.get();
    copy.rings = rings.get();
    return copy;
  }
};

// Calls visit for `algorithm` on `rank_count` ranks: in place and not, for the given roots (where
// there are roots), and for several node layouts, forests and
// rings (where they matter).
void for_each_problem(const Algorithm& algorithm, Rank rank_count, const std::vector<Rank>& roots,
                      const std::function<void(const TestProblem&)>& visit);

// All ranks, or only the ends and the middle.
std::vector<Rank> all_roots(Rank rank_count);
std::vector<Rank> some_roots(Rank rank_count);

}  // namespace weir::algo
