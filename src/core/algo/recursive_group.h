// SPDX-License-Identifier: Apache-2.0
// How recursive algorithms handle rank counts that are not a power of two: of the first 2 * extra
// ranks, each even one hands its work to the odd one after it, so that a power of two of *members*
// is left, numbered in rank order. Rabenseifner and Träff, "More efficient reduction algorithms for
// non-power-of-two number of processors" (2004). Values; thread-safe.
#pragma once

#include "core/algo/support.h"

namespace weir::algo {

class RecursiveGroup {
 public:
  static constexpr uint32_t kNotMember = 0xffffffffu;

  RecursiveGroup(Rank rank_count, Rank rank)
      : member_count_(floor_power_of_two(rank_count)),
        extra_(rank_count - member_count_),
        rank_(rank) {}

  uint32_t member_count() const { return member_count_; }
  uint32_t round_count() const { return ceil_log2(member_count_); }

  // Whether the rank is one of a pair: the even one hands over its work, the odd one works for
  // both.
  bool in_pair() const { return rank_ < 2 * extra_; }
  bool hands_over() const { return in_pair() && rank_ % 2 == 0; }
  Rank partner() const { return rank_ ^ 1u; }

  uint32_t member() const {
    if (hands_over()) return kNotMember;
    return in_pair() ? rank_ / 2 : rank_ - extra_;
  }
  Rank rank_of_member(uint32_t member) const {
    return member < extra_ ? 2 * member + 1 : member + extra_;
  }
  // The first rank for which the members from `member` on work; members [a, b) work for the ranks
  // [first_rank(a), first_rank(b)).
  Rank first_rank(uint32_t member) const { return member < extra_ ? 2 * member : member + extra_; }

 private:
  uint32_t member_count_;
  uint32_t extra_;
  Rank rank_;
};

}  // namespace weir::algo
