// SPDX-License-Identifier: Apache-2.0
#include "net/missing_ranks.h"

namespace weir::net {

bool MissingRanks::add(uint32_t rank) {
  if (++count_ > kNamedMax) return false;
  ranks_ += (count_ > 1 ? ", " : "") + std::to_string(rank);
  return true;
}

std::string MissingRanks::text(uint32_t own_rank, uint32_t rank_count) const {
  const std::string more =
      count_ > kNamedMax ? " and " + std::to_string(count_ - kNamedMax) + " more" : "";
  return std::string("timed out: ") + (count_ == 1 ? "rank " : "ranks ") + ranks_ + more + " of " +
         std::to_string(rank_count) + (count_ == 1 ? " is" : " are") + " not connected to rank " +
         std::to_string(own_rank);
}

}  // namespace weir::net
