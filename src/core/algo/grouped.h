// SPDX-License-Identifier: Apache-2.0
// What the algorithms over mapped memory share that go by groups of ranks of one host: `by_cache`
// (ranks that share a last-level cache) and `by_numa` (a NUMA node). Each is one generator for both
// groupings. Pure functions; thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "core/algo/algorithm.h"
#include "core/algo/nodes.h"

namespace weir::algo {

using Grouping = std::span<const uint32_t> Problem::*;
inline constexpr Grouping kByCache = &Problem::cache_of_rank;
inline constexpr Grouping kByNuma = &Problem::numa_of_rank;

// supports(): several groups, at least one of several ranks.
template <Grouping by>
bool mapped_groups(const Problem& problem) {
  const std::span<const uint32_t> groups = problem.*by;
  if (!problem.mapped || groups.empty()) return false;
  if (!are_numbered(groups, problem.rank_count)) return false;
  const uint32_t count = *std::max_element(groups.begin(), groups.end()) + 1;
  return count > 1 && count < problem.rank_count;
}

// A rank among those of its group. Its own *rails* are those that it carries for its group.
class GroupPlace {
 public:
  GroupPlace(const Nodes& nodes, Rank rank)
      : nodes_(nodes), group_(nodes.node_of(rank)), local_(nodes.local_of(rank)) {}

  uint32_t group() const { return group_; }
  uint32_t local() const { return local_; }
  uint32_t size() const { return nodes_.size(group_); }
  Rank mate(uint32_t local) const { return nodes_.member(group_, local); }
  // The other ranks of the group, from the next one on, so that ranks begin with different ones.
  std::vector<Rank> mates() const;
  // Rails in blocks (nodes.h).
  uint32_t first(uint32_t local) const { return nodes_.block_first(group_, local); }
  uint32_t count(uint32_t local) const { return first(local + 1) - first(local); }
  // The rank of another group that carries a rail.
  Rank owner(uint32_t group, uint32_t rail) const {
    return nodes_.member(group, nodes_.block_owner(group, rail));
  }
  // The ranks of other groups that carry rails of this one, each once.
  std::vector<Rank> counterparts() const;

 private:
  const Nodes& nodes_;
  uint32_t group_;
  uint32_t local_;
};

void wait_for(std::span<const Rank> ranks, uint8_t signal, sched::Builder& builder);

// Signals to `mates` and waits for them; nothing, if there are none. The signal goes to all ranks:
// in mapped memory it is one word, and who needs it waits for it.
void meet(std::span<const Rank> mates, uint8_t signal, sched::Builder& builder);

// Copies the chunks [0, end) of Input except [first, first + count) to the Staging slots with their
// numbers.
void stage_outside(uint32_t end, uint32_t first, uint32_t count, sched::Builder& builder);

}  // namespace weir::algo
