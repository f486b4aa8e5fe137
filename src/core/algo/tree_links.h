// SPDX-License-Identifier: Apache-2.0
// TreeLinks: the links of a forest's trees by the ranks at their ends, in the order in which each
// lane uses them. Made for each step of a rank, of its own links, unless the problem brings those
// of all ranks along (Problem::tree_links). Immutable: thread-safe.
//
// The order. A message belongs to a round: first the stage of its tree at which it can be sent (the
// depth of what spreads, the height of what is folded), then how many messages of that stage have
// gone between the same ranks over the same lane. A rank does its rounds one after the other, and
// in each first sends, then receives. What it sends in a round depends on earlier rounds only, and
// no two messages of a round are between the same ranks; so no rank is held up by one that waits
// for it, also where a sender may be only one message ahead. Both ends count alike, so that
// messages between two ranks have one order.
//
// Within a round a rank begins with the ranks behind it, so that ranks send to different ones.
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

  // The links that begin or end at the rank, of the trees of a lane, in the order of messages from
  // the roots to all ranks, and of those backwards.
  std::span<const Own> spread(Rank rank, uint32_t lane) const { return of(spread_, rank, lane); }
  std::span<const Own> fold(Rank rank, uint32_t lane) const { return of(fold_, rank, lane); }

 private:
  TreeLinks(const graph::Forest& forest, uint32_t lane_count, Rank first_rank, Rank rank_count);
  bool has(Rank rank) const { return rank - first_rank_ < rank_count_; }
  std::span<const Own> of(const std::vector<Own>& links, Rank rank, uint32_t lane) const {
    const size_t at = size_t{lane} * rank_count_ + (rank - first_rank_);
    return std::span(links).subspan(begin_[at], begin_[at + 1] - begin_[at]);
  }

  Rank first_rank_;
  Rank rank_count_;
  std::vector<size_t> begin_;  // [lane * rank_count + rank]
  std::vector<Own> spread_;
  std::vector<Own> fold_;
};

}  // namespace weir::algo
