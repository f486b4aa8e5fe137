// SPDX-License-Identifier: Apache-2.0
// TreeLinks: the links of a forest's trees by the ranks at their ends, in the order in which each
// lane uses them. Made for each step of a rank, of its own links, unless the problem brings those
// of all ranks along (Problem::tree_links). Immutable: thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/types.h"
#include "core/graph/forest.h"

namespace weir::algo {

class TreeLinks {
 public:
  struct Own {
    const graph::TreeLink* link;
    uint32_t tree;
  };

  // Of all ranks, or of `only`. Tree i goes over lane i mod lane_count. The forest must outlive it.
  TreeLinks(const graph::Forest& forest, uint32_t lane_count)
      : TreeLinks(forest, lane_count, 0, forest.rank_count) {}
  TreeLinks(const graph::Forest& forest, uint32_t lane_count, Rank only)
      : TreeLinks(forest, lane_count, only, 1) {}

  // The links that begin or end at the rank, of the trees of a lane: by depth, then by tree.
  std::span<const Own> of(Rank rank, uint32_t lane) const {
    const size_t at = size_t{lane} * rank_count_ + (rank - first_rank_);
    return std::span(links_).subspan(begin_[at], begin_[at + 1] - begin_[at]);
  }

 private:
  TreeLinks(const graph::Forest& forest, uint32_t lane_count, Rank first_rank, Rank rank_count);
  bool has(Rank rank) const { return rank - first_rank_ < rank_count_; }

  Rank first_rank_;
  Rank rank_count_;
  std::vector<size_t> begin_;  // [lane * rank_count + rank]
  std::vector<Own> links_;
};

}  // namespace weir::algo
