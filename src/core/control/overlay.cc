// SPDX-License-Identifier: Apache-2.0
#include "core/control/overlay.h"

#include <algorithm>
#include <bit>
#include <cstdint>

namespace weir::control {

std::vector<Rank> neighbors(Rank rank, Rank rank_count) {
  std::vector<Rank> all;
  for (uint64_t distance = 1; distance < rank_count; distance *= 2) {
    all.push_back(static_cast<Rank>((rank + distance) % rank_count));
    all.push_back(static_cast<Rank>((rank + rank_count - distance) % rank_count));
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

Rank tree_parent(Rank rank) { return rank - std::bit_floor(rank); }

}  // namespace weir::control
