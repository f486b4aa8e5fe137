// SPDX-License-Identifier: Apache-2.0
#include "core/algo/tree_links.h"

#include <algorithm>

namespace weir::algo {

TreeLinks::TreeLinks(const graph::Forest& forest, uint32_t lane_count, Rank first_rank,
                     Rank rank_count)
    : first_rank_(first_rank), rank_count_(rank_count) {
  begin_.assign(size_t{lane_count} * rank_count + 1, 0);
  const auto place = [&](uint32_t lane, Rank rank) -> size_t& {
    return begin_[size_t{lane} * rank_count_ + (rank - first_rank_)];
  };
  for (size_t i = 0; i < forest.trees.size(); ++i) {
    const auto lane = static_cast<uint32_t>(i % lane_count);
    for (const graph::TreeLink& link : forest.trees[i].links) {
      for (const Rank rank : {link.from, link.to}) {
        if (has(rank)) ++place(lane, rank);
      }
    }
  }
  size_t count = 0;
  for (size_t& begin : begin_) {
    const size_t of_rank = begin;
    begin = count;
    count += of_rank;
  }
  links_.resize(count);
  std::vector<size_t> next(begin_.begin(), begin_.end() - 1);
  for (uint32_t i = 0; i < forest.trees.size(); ++i) {
    for (const graph::TreeLink& link : forest.trees[i].links) {
      for (const Rank rank : {link.from, link.to}) {
        if (!has(rank)) continue;
        links_[next[size_t{i % lane_count} * rank_count_ + (rank - first_rank_)]++] = {&link, i};
      }
    }
  }
  for (size_t at = 0; at + 1 < begin_.size(); ++at) {
    std::stable_sort(links_.begin() + static_cast<ptrdiff_t>(begin_[at]),
                     links_.begin() + static_cast<ptrdiff_t>(begin_[at + 1]),
                     [](const Own& a, const Own& b) { return a.link->depth < b.link->depth; });
  }
}

}  // namespace weir::algo
