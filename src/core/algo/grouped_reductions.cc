// SPDX-License-Identifier: Apache-2.0
// all_reduce, reduce and reduce_scatter by groups of ranks (grouped.h), over mapped Staging. First
// each group folds its contributions, each rank the share of its rails; then the ranks with the
// same rail in all groups fold the groups' sums. So a byte that is folded crosses between groups
// once for a group, not once for a rank. The idea is that of the hierarchical all-reduces over
// messages; the form is that of direct_two_phase, whose shares are smaller but come from all ranks.
//
// all_reduce: the grid is rail * group_count + part. The rank that carries a rail in group g folds
// part g of it over all groups: the contributions of its own group directly, the sums of the
// others.
//
// In place: a rank stages all of its Input but its own share before the first signal. Of its share,
// it reads a chunk of Input last in the fold that it passes on to Staging, or in the one that
// writes that chunk of Output.
#include <array>

#include "core/algo/catalog.h"
#include "core/algo/grouped.h"
#include "core/algo/support.h"

namespace weir::algo {
namespace {

using sched::Builder;
using sched::kAllRanks;
using sched::Ref;
using sched::Shape;

enum Signal : uint8_t { kStaged, kFolded, kResult, kShared };

// The contributions of the group to `chunk`, of which this rank has its own in Input.
std::vector<Ref> of_group(const GroupPlace& at, uint32_t chunk, Builder& b) {
  std::vector<Ref> operands(at.size());
  for (uint32_t local = 0; local < at.size(); ++local) {
    operands[local] =
        local == at.local() ? b.input(chunk) : Builder::staging_at(at.mate(local), chunk);
  }
  return operands;
}

void emit_partial_fold(Ref dst, std::span<const Ref> operands, uint32_t count, Builder& b) {
  if (operands.size() == 1) {
    b.copy(dst, operands[0], count);
  } else {
    b.reduce_partially(dst, operands, count);
  }
}

// ---- all_reduce

template <Grouping by>
Shape all_reduce_shape(const Problem& problem) {
  const Nodes nodes(problem.*by, problem.rank_count);
  const uint32_t chunks = nodes.width() * nodes.count();
  return {.chunk_count = chunks, .staging_slots = chunks, .signal_count = 4};
}

template <Grouping by>
void all_reduce_step(const Problem& problem, Rank rank, uint32_t /*step*/, Builder& b) {
  const Nodes nodes(problem.*by, problem.rank_count);
  const GroupPlace at(nodes, rank);
  const uint32_t groups = nodes.count();
  const uint32_t first = at.first(at.local());
  const uint32_t end = first + at.count(at.local());
  const std::vector<Rank> mates = at.mates();
  const std::vector<Rank> counterparts = at.counterparts();
  stage_outside(nodes.width() * groups, first * groups, (end - first) * groups, b);
  meet(mates, kStaged, b);
  for (uint32_t rail = first; rail < end; ++rail) {
    for (uint32_t part = 0; part < groups; ++part) {
      const uint32_t chunk = rail * groups + part;
      if (part != at.group()) emit_partial_fold(b.staging(chunk), of_group(at, chunk, b), 1, b);
    }
  }
  b.signal(kAllRanks, kFolded);
  wait_for(counterparts, kFolded, b);
  for (uint32_t rail = first; rail < end; ++rail) {
    const uint32_t chunk = rail * groups + at.group();
    std::vector<Ref> operands = of_group(at, chunk, b);
    for (uint32_t distance = 1; distance < groups; ++distance) {
      const uint32_t other = (at.group() + distance) % groups;
      operands.push_back(Builder::staging_at(at.owner(other, rail), chunk));
    }
    b.reduce(b.output(chunk), operands);
    b.copy(b.staging(chunk), b.output(chunk));
  }
  b.signal(kAllRanks, kResult);
  wait_for(counterparts, kResult, b);
  for (uint32_t rail = first; rail < end; ++rail) {
    for (uint32_t distance = 1; distance < groups; ++distance) {
      const uint32_t other = (at.group() + distance) % groups;
      const uint32_t chunk = rail * groups + other;
      b.copy(b.output(chunk), Builder::staging_at(at.owner(other, rail), chunk));
      if (!mates.empty()) b.copy(b.staging(chunk), b.output(chunk));
    }
  }
  meet(mates, kShared, b);
  for (const Rank mate : mates) {
    const uint32_t local = nodes.local_of(mate);
    const uint32_t chunk = at.first(local) * groups;
    b.copy(b.output(chunk), Builder::staging_at(mate, chunk), at.count(local) * groups);
  }
}

// ---- reduce: the group of the root folds the other groups' sums, and the root takes them there

template <Grouping by>
Shape reduce_shape(const Problem& problem) {
  const Nodes nodes(problem.*by, problem.rank_count);
  return {.chunk_count = nodes.width(), .staging_slots = nodes.width(), .signal_count = 3};
}

template <Grouping by>
void reduce_step(const Problem& problem, Rank rank, uint32_t /*step*/, Builder& b) {
  const Nodes nodes(problem.*by, problem.rank_count);
  const GroupPlace at(nodes, rank);
  const uint32_t first = at.first(at.local());
  const uint32_t count = at.count(at.local());
  const std::vector<Rank> mates = at.mates();
  stage_outside(nodes.width(), first, count, b);
  meet(mates, kStaged, b);
  if (at.group() != nodes.node_of(problem.root)) {
    emit_partial_fold(b.staging(first), of_group(at, first, b), count, b);
    b.signal(kAllRanks, kFolded);
    return;
  }
  wait_for(at.counterparts(), kFolded, b);
  for (uint32_t rail = first; rail < first + count; ++rail) {
    std::vector<Ref> operands = of_group(at, rail, b);
    for (uint32_t distance = 1; distance < nodes.count(); ++distance) {
      const uint32_t other = (at.group() + distance) % nodes.count();
      operands.push_back(Builder::staging_at(at.owner(other, rail), rail));
    }
    b.reduce(rank == problem.root ? b.output(rail) : b.staging(rail), operands);
  }
  if (rank != problem.root) {
    b.signal(kAllRanks, kResult);
    return;
  }
  wait_for(mates, kResult, b);
  for (const Rank mate : mates) {
    const uint32_t local = nodes.local_of(mate);
    b.copy(b.output(at.first(local)), Builder::staging_at(mate, at.first(local)), at.count(local));
  }
}

// ---- reduce_scatter: rails are dealt, so that a rank's own block is on its own rail

template <Grouping by>
Shape reduce_scatter_shape(const Problem& problem) {
  return {
      .chunk_count = problem.rank_count, .staging_slots = problem.rank_count, .signal_count = 2};
}

template <Grouping by>
void reduce_scatter_step(const Problem& problem, Rank rank, uint32_t /*step*/, Builder& b) {
  const Nodes nodes(problem.*by, problem.rank_count);
  const GroupPlace at(nodes, rank);
  const std::vector<Rank> carried = nodes.carried_ranks(at.group(), at.local());
  std::vector<bool> is_carried(problem.rank_count);
  for (const Rank target : carried) is_carried[target] = true;
  for (Rank begin = 0; begin < problem.rank_count;) {
    Rank end = begin + 1;
    while (end < problem.rank_count && is_carried[end] == is_carried[begin]) ++end;
    if (!is_carried[begin]) b.copy(b.staging(begin), b.input(begin), end - begin);
    begin = end;
  }
  meet(at.mates(), kStaged, b);
  bool folds_for_others = false;
  for (const Rank target : carried) {
    if (nodes.node_of(target) == at.group()) continue;
    emit_partial_fold(b.staging(target), of_group(at, target, b), 1, b);
    folds_for_others = true;
  }
  if (folds_for_others) b.signal(kAllRanks, kFolded);
  std::vector<Ref> operands = of_group(at, rank, b);
  for (uint32_t distance = 1; distance < nodes.count(); ++distance) {
    const uint32_t other = (at.group() + distance) % nodes.count();
    const Rank owner = nodes.member(other, nodes.dealt(other, at.local()));
    b.wait(owner, kFolded, 1);
    operands.push_back(Builder::staging_at(owner, rank));
  }
  b.reduce(b.output(rank), operands);
}

template <Grouping by>
constexpr Algorithm all_reduce(const char* name, const char* summary) {
  return {.name = name,
          .summary = summary,
          .collective = Collective::kAllReduce,
          .needs_mapped = true,
          .needs_user_windows = false,
          .rank_order = false,
          .groups = by,
          .supports = mapped_groups<by>,
          .shape = all_reduce_shape<by>,
          .step_count = one_step,
          .step = all_reduce_step<by>};
}

template <Grouping by>
constexpr Algorithm reduce(const char* name, const char* summary) {
  return {.name = name,
          .summary = summary,
          .collective = Collective::kReduce,
          .needs_mapped = true,
          .needs_user_windows = false,
          .rank_order = false,
          .groups = by,
          .supports = mapped_groups<by>,
          .shape = reduce_shape<by>,
          .step_count = one_step,
          .step = reduce_step<by>};
}

template <Grouping by>
constexpr Algorithm reduce_scatter(const char* name, const char* summary) {
  return {.name = name,
          .summary = summary,
          .collective = Collective::kReduceScatter,
          .needs_mapped = true,
          .needs_user_windows = false,
          .rank_order = false,
          .lengths = BlockLengths::kKnownToAll,
          .groups = by,
          .supports = mapped_groups<by>,
          .shape = reduce_scatter_shape<by>,
          .step_count = one_step,
          .step = reduce_scatter_step<by>};
}

}  // namespace

constinit const Algorithm kByCacheAllReduce = all_reduce<kByCache>(
    "by_cache", "each rank folds its share over the ranks of its cache, then over the caches");
constinit const Algorithm kByNumaAllReduce = all_reduce<kByNuma>(
    "by_numa", "each rank folds its share over the ranks of its NUMA node, then over the nodes");
constinit const Algorithm kByCacheReduce = reduce<kByCache>(
    "by_cache", "each cache folds its contributions, then the root's cache those of all");
constinit const Algorithm kByNumaReduce = reduce<kByNuma>(
    "by_numa", "each NUMA node folds its contributions, then the root's node those of all");
constinit const Algorithm kByCacheReduceScatter = reduce_scatter<kByCache>(
    "by_cache", "each cache folds the blocks of all ranks, then each rank the caches' folds");
constinit const Algorithm kByNumaReduceScatter = reduce_scatter<kByNuma>(
    "by_numa", "each NUMA node folds the blocks of all ranks, then each rank the nodes' folds");

}  // namespace weir::algo
