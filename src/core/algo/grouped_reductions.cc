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
#include "core/algo/catalog.h"
#include "core/algo/grouped.h"

namespace weir::algo {
namespace {

using sched::Builder;
using sched::kAllRanks;
using sched::Ref;

enum Signal : uint8_t { kStaged, kFolded, kResult, kShared };

// Copies the chunks [0, end) of Input except [first, first + count) to the Staging slots with their
// numbers.
void stage_outside(uint32_t end, uint32_t first, uint32_t count, Builder& b) {
  if (first > 0) b.copy(b.staging(0), b.input(0), first);
  const uint32_t after = first + count;
  if (after < end) b.copy(b.staging(after), b.input(after), end - after);
}

// Folds the contributions of the group to `count` chunks from `first` on, for other groups.
void stage_sum_of_group(const GroupPlace& at, uint32_t first, uint32_t count, Builder& b) {
  const std::vector<Ref> operands = at.contributions(first, b);
  if (operands.size() == 1) {
    b.copy(b.staging(first), operands[0], count);
  } else {
    b.reduce_partially(b.staging(first), operands, count);
  }
}

// Folds the contributions of the group to a chunk of a rail, and the sums of the other groups.
void fold(const GroupPlace& at, uint32_t rail, uint32_t chunk, Ref result, Builder& b) {
  std::vector<Ref> operands = at.contributions(chunk, b);
  for (const uint32_t other : at.other_groups()) {
    operands.push_back(at.staged_by(other, rail, chunk));
  }
  b.reduce(result, operands);
}

// ---- all_reduce

uint32_t chunk_per_rail_and_group(const Problem& /*problem*/, const Nodes& nodes) {
  return nodes.width() * nodes.count();
}

void all_reduce(const Problem& /*problem*/, const GroupPlace& at, Builder& b) {
  const uint32_t groups = at.nodes().count();
  const uint32_t first = at.first();
  const uint32_t end = first + at.count();
  const std::vector<Rank> mates = at.mates();
  const std::vector<Rank> counterparts = at.counterparts();
  stage_outside(at.nodes().width() * groups, first * groups, at.count() * groups, b);
  meet(mates, kStaged, b);
  for (uint32_t rail = first; rail < end; ++rail) {
    for (uint32_t part = 0; part < groups; ++part) {
      if (part != at.group()) stage_sum_of_group(at, rail * groups + part, 1, b);
    }
  }
  b.signal(kAllRanks, kFolded);
  wait_for(counterparts, kFolded, b);
  for (uint32_t rail = first; rail < end; ++rail) {
    const uint32_t chunk = rail * groups + at.group();
    fold(at, rail, chunk, b.output(chunk), b);
    b.copy(b.staging(chunk), b.output(chunk));
  }
  b.signal(kAllRanks, kResult);
  wait_for(counterparts, kResult, b);
  for (uint32_t rail = first; rail < end; ++rail) {
    for (const uint32_t other : at.other_groups()) {
      const uint32_t chunk = rail * groups + other;
      b.copy(b.output(chunk), at.staged_by(other, rail, chunk));
      if (!mates.empty()) b.copy(b.staging(chunk), b.output(chunk));
    }
  }
  meet(mates, kShared, b);
  at.copy_from_mates(groups, b);
}

// ---- reduce: the group of the root folds the other groups' sums, and the root takes them there

void reduce(const Problem& problem, const GroupPlace& at, Builder& b) {
  const uint32_t first = at.first();
  const uint32_t count = at.count();
  const std::vector<Rank> mates = at.mates();
  stage_outside(at.nodes().width(), first, count, b);
  meet(mates, kStaged, b);
  if (at.group() != at.nodes().node_of(problem.root)) {
    stage_sum_of_group(at, first, count, b);
    b.signal(kAllRanks, kFolded);
    return;
  }
  wait_for(at.counterparts(), kFolded, b);
  const bool is_root = b.self() == problem.root;
  for (uint32_t rail = first; rail < first + count; ++rail) {
    fold(at, rail, rail, is_root ? b.output(rail) : b.staging(rail), b);
  }
  if (!is_root) {
    b.signal(kAllRanks, kResult);
    return;
  }
  wait_for(mates, kResult, b);
  at.copy_from_mates(1, b);
}

// ---- reduce_scatter: rails are dealt, so that a rank's own block is on its own rail

void reduce_scatter(const Problem& problem, const GroupPlace& at, Builder& b) {
  const Rank rank = b.self();
  const std::vector<Rank> carried = at.carried();
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
    if (at.nodes().node_of(target) == at.group()) continue;
    stage_sum_of_group(at, target, 1, b);
    folds_for_others = true;
  }
  if (folds_for_others) b.signal(kAllRanks, kFolded);
  std::vector<Ref> operands = at.contributions(rank, b);
  for (const uint32_t other : at.other_groups()) {
    const Rank carrier = at.carrier(other);
    b.wait(carrier, kFolded, 1);
    operands.push_back(Builder::staging_at(carrier, rank));
  }
  b.reduce(b.output(rank), operands);
}

constexpr Grouped kAllReduce = {.collective = Collective::kAllReduce,
                                .chunk_count = chunk_per_rail_and_group,
                                .signal_count = 4,
                                .program = all_reduce};
constexpr Grouped kReduce = {.collective = Collective::kReduce,
                             .chunk_count = chunk_per_rail,
                             .signal_count = 3,
                             .program = reduce};
constexpr Grouped kReduceScatter = {.collective = Collective::kReduceScatter,
                                    .lengths = BlockLengths::kKnownToAll,
                                    .chunk_count = chunk_per_rank,
                                    .signal_count = 2,
                                    .program = reduce_scatter};

}  // namespace

constinit const Algorithm kByCacheAllReduce = by_cache<kAllReduce>(
    "each rank folds its share over the ranks of its cache, then over the caches");
constinit const Algorithm kByNumaAllReduce = by_numa<kAllReduce>(
    "each rank folds its share over the ranks of its NUMA node, then over the nodes");
constinit const Algorithm kByCacheReduce =
    by_cache<kReduce>("each cache folds its contributions, then the root's cache those of all");
constinit const Algorithm kByNumaReduce =
    by_numa<kReduce>("each NUMA node folds its contributions, then the root's node those of all");
constinit const Algorithm kByCacheReduceScatter = by_cache<kReduceScatter>(
    "each cache folds the blocks of all ranks, then each rank the caches' folds");
constinit const Algorithm kByNumaReduceScatter = by_numa<kReduceScatter>(
    "each NUMA node folds the blocks of all ranks, then each rank the nodes' folds");

}  // namespace weir::algo
