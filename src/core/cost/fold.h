// SPDX-License-Identifier: Apache-2.0
// Fold: what needs to be followed of a program in which ranks are alike. If a renaming of the ranks
// maps the programs onto each other and the hosts onto each other, then all ranks that it connects
// do the same things at the same times, and one of them stands for all. A value; thread-safe.
#pragma once

#include "core/cost/predict.h"

namespace weir::cost {

class Fold {
 public:
  // Follows every rank.
  explicit Fold(Rank rank_count) : rank_count_(rank_count), followed_(rank_count) {}
  // As few ranks as the algorithm, the hosts and the cards allow.
  Fold(const algo::Algorithm& algorithm, const Workload& work);

  // The ranks below it are followed.
  Rank followed() const { return followed_; }
  // The rank below followed() that does what `rank` does.
  Rank standing_for(Rank rank) const { return rank < followed_ ? rank : rank % followed_; }
  // As `source` is to `target`, so is the returned rank to standing_for(target).
  Rank as_seen(Rank source, Rank target) const {
    if (target < followed_) return source;
    const Rank distance = target - target % followed_;
    if (symmetry_ == algo::Symmetry::kXor) return source ^ distance;
    return source >= distance ? source - distance : source + rank_count_ - distance;
  }

 private:
  Rank rank_count_;
  Rank followed_;
  algo::Symmetry symmetry_ = algo::Symmetry::kNone;
};

}  // namespace weir::cost
