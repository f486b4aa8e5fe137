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
#include "core/algo/support.h"

namespace weir::algo {

// A rank among those of its group. Its own *rails* are those that it carries for its group, in
// blocks (nodes.h).
class GroupPlace {
 public:
  GroupPlace(std::span<const uint32_t> group_of_rank, const Problem& problem, Rank rank)
      : nodes_(group_of_rank, problem.rank_count),
        group_(nodes_.node_of(rank)),
        local_(nodes_.local_of(rank)) {}

  const Nodes& nodes() const { return nodes_; }
  uint32_t group() const { return group_; }
  uint32_t size() const { return nodes_.size(group_); }
  // This rank's rails.
  uint32_t first() const { return first(local_); }
  uint32_t count() const { return count(local_); }
  // The ranks, of all groups, whose blocks this rank carries; rails are dealt (nodes.h).
  std::vector<Rank> carried() const { return nodes_.carried_ranks(group_, local_); }
  // The rank of another group that carries this rank's block.
  Rank carrier(uint32_t group) const { return nodes_.member(group, nodes_.dealt(group, local_)); }

  // The other ranks of the group, and the other groups, from the next one on, so that ranks begin
  // with different ones.
  std::vector<Rank> mates() const;
  std::vector<uint32_t> other_groups() const;
  // The ranks of other groups that carry rails of this one, each once.
  std::vector<Rank> counterparts() const;

  // The contributions of the group to `chunk`, of which this rank has its own in Input.
  std::vector<sched::Ref> contributions(uint32_t chunk, const sched::Builder& builder) const;
  // Where the rank of another group that carries a rail has staged a chunk of it.
  sched::Ref staged_by(uint32_t group, uint32_t rail, uint32_t chunk) const {
    return sched::Builder::staging_at(nodes_.member(group, nodes_.block_owner(group, rail)), chunk);
  }
  // Copies the rails of the mates out of their Staging to Output.
  void copy_from_mates(uint32_t chunks_per_rail, sched::Builder& builder) const;

 private:
  uint32_t first(uint32_t local) const { return nodes_.block_first(group_, local); }
  uint32_t count(uint32_t local) const { return first(local + 1) - first(local); }

  Nodes nodes_;
  uint32_t group_;
  uint32_t local_;
};

void wait_for(std::span<const Rank> ranks, uint8_t signal, sched::Builder& builder);

// Signals to `mates` and waits for them; nothing, if there are none. The signal goes to all ranks:
// in mapped memory it is one word, and who needs it waits for it.
void meet(std::span<const Rank> mates, uint8_t signal, sched::Builder& builder);

// ---- an algorithm for either grouping

struct Grouped {
  Collective collective;
  BlockLengths lengths = BlockLengths::kEqual;
  // The chunks of the grid, and as many slots of Staging.
  uint32_t (*chunk_count)(const Problem& problem, const Nodes& nodes);
  uint32_t signal_count;
  // All operations of one rank.
  void (*program)(const Problem& problem, const GroupPlace& at, sched::Builder& builder);
};

// chunk_count
inline uint32_t chunk_per_rank(const Problem& problem, const Nodes& /*nodes*/) {
  return problem.rank_count;
}
inline uint32_t chunk_per_rail(const Problem& /*problem*/, const Nodes& nodes) {
  return nodes.width();
}

using Grouping = std::span<const uint32_t> Problem::*;

template <const Grouped& algorithm, Grouping by>
constexpr Algorithm grouped(const char* name, const char* summary) {
  return {.name = name,
          .summary = summary,
          .collective = algorithm.collective,
          .needs_mapped = true,
          .needs_user_windows = false,
          .rank_order = false,
          .lengths = algorithm.lengths,
          .groups = by,
          // Several groups, at least one of several ranks.
          .supports =
              [](const Problem& problem) {
                const std::span<const uint32_t> groups = problem.*by;
                if (!problem.mapped || groups.empty()) return false;
                if (!are_numbered(groups, problem.rank_count)) return false;
                const uint32_t count = *std::max_element(groups.begin(), groups.end()) + 1;
                return count > 1 && count < problem.rank_count;
              },
          .shape =
              [](const Problem& problem) {
                const uint32_t chunks =
                    algorithm.chunk_count(problem, Nodes(problem.*by, problem.rank_count));
                return sched::Shape{.chunk_count = chunks,
                                    .staging_slots = chunks,
                                    .signal_count = algorithm.signal_count};
              },
          .step_count = one_step,
          .step =
              [](const Problem& problem, Rank rank, uint32_t /*step*/, sched::Builder& builder) {
                algorithm.program(problem, GroupPlace(problem.*by, problem, rank), builder);
              }};
}

template <const Grouped& algorithm>
constexpr Algorithm by_cache(const char* summary) {
  return grouped<algorithm, &Problem::cache_of_rank>("by_cache", summary);
}
template <const Grouped& algorithm>
constexpr Algorithm by_numa(const char* summary) {
  return grouped<algorithm, &Problem::numa_of_rank>("by_numa", summary);
}

}  // namespace weir::algo
