// SPDX-License-Identifier: Apache-2.0
#include "core/algo/grouped.h"

namespace weir::algo {

std::vector<Rank> GroupPlace::mates() const {
  std::vector<Rank> ranks;
  for (uint32_t distance = 1; distance < size(); ++distance) {
    ranks.push_back(nodes_.member(group_, (local_ + distance) % size()));
  }
  return ranks;
}

std::vector<uint32_t> GroupPlace::other_groups() const {
  std::vector<uint32_t> groups;
  for (uint32_t distance = 1; distance < nodes_.count(); ++distance) {
    groups.push_back((group_ + distance) % nodes_.count());
  }
  return groups;
}

std::vector<Rank> GroupPlace::counterparts() const {
  std::vector<Rank> ranks;
  for (const uint32_t other : other_groups()) {
    for (uint32_t rail = first(); rail < first() + count(); ++rail) {
      const Rank rank = nodes_.member(other, nodes_.block_owner(other, rail));
      if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) ranks.push_back(rank);
    }
  }
  return ranks;
}

std::vector<sched::Ref> GroupPlace::contributions(uint32_t chunk,
                                                  const sched::Builder& builder) const {
  std::vector<sched::Ref> operands(size());
  for (uint32_t local = 0; local < size(); ++local) {
    operands[local] = local == local_
                          ? builder.input(chunk)
                          : sched::Builder::staging_at(nodes_.member(group_, local), chunk);
  }
  return operands;
}

void GroupPlace::copy_from_mates(uint32_t chunks_per_rail, sched::Builder& builder) const {
  for (const Rank mate : mates()) {
    const uint32_t local = nodes_.local_of(mate);
    const uint32_t chunk = first(local) * chunks_per_rail;
    builder.copy(builder.output(chunk), sched::Builder::staging_at(mate, chunk),
                 count(local) * chunks_per_rail);
  }
}

void wait_for(std::span<const Rank> ranks, uint8_t signal, sched::Builder& builder) {
  for (const Rank rank : ranks) builder.wait(rank, signal, 1);
}

void meet(std::span<const Rank> mates, uint8_t signal, sched::Builder& builder) {
  if (mates.empty()) return;
  builder.signal(sched::kAllRanks, signal);
  wait_for(mates, signal, builder);
}

}  // namespace weir::algo
