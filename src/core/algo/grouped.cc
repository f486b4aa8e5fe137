// SPDX-License-Identifier: Apache-2.0
#include "core/algo/grouped.h"

#include <algorithm>

namespace weir::algo {

std::vector<Rank> GroupPlace::mates() const {
  std::vector<Rank> ranks;
  for (uint32_t distance = 1; distance < size(); ++distance) {
    ranks.push_back(mate((local_ + distance) % size()));
  }
  return ranks;
}

std::vector<Rank> GroupPlace::counterparts() const {
  std::vector<Rank> ranks;
  for (uint32_t distance = 1; distance < nodes_.count(); ++distance) {
    const uint32_t other = (group_ + distance) % nodes_.count();
    for (uint32_t rail = first(local_); rail < first(local_ + 1); ++rail) {
      const Rank rank = owner(other, rail);
      if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) ranks.push_back(rank);
    }
  }
  return ranks;
}

void wait_for(std::span<const Rank> ranks, uint8_t signal, sched::Builder& builder) {
  for (const Rank rank : ranks) builder.wait(rank, signal, 1);
}

void meet(std::span<const Rank> mates, uint8_t signal, sched::Builder& builder) {
  if (mates.empty()) return;
  builder.signal(sched::kAllRanks, signal);
  wait_for(mates, signal, builder);
}

void stage_outside(uint32_t end, uint32_t first, uint32_t count, sched::Builder& builder) {
  if (first > 0) builder.copy(builder.staging(0), builder.input(0), first);
  const uint32_t after = first + count;
  if (after < end) builder.copy(builder.staging(after), builder.input(after), end - after);
}

}  // namespace weir::algo
