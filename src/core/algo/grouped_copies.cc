// SPDX-License-Identifier: Apache-2.0
// all_gather and broadcast by groups of ranks (grouped.h), over mapped Staging: each byte enters a
// group once, through the rank that carries its rail there, and the ranks of the group copy it from
// that one's Staging.
//
// In place: Input is staged before any Output is written; a rank's own block is copied onto itself.
#include "core/algo/catalog.h"
#include "core/algo/grouped.h"
#include "core/algo/support.h"

namespace weir::algo {
namespace {

using sched::Builder;
using sched::kAllRanks;
using sched::Shape;

enum Signal : uint8_t { kStaged, kShared };

template <Grouping by>
Shape all_gather_shape(const Problem& problem) {
  return {
      .chunk_count = problem.rank_count, .staging_slots = problem.rank_count, .signal_count = 2};
}

template <Grouping by>
void all_gather_step(const Problem& problem, Rank rank, uint32_t /*step*/, Builder& b) {
  const Nodes nodes(problem.*by, problem.rank_count);
  const GroupPlace at(nodes, rank);
  const std::vector<Rank> mates = at.mates();
  b.copy(b.staging(rank), b.input(rank));
  b.signal(kAllRanks, kStaged);
  b.copy(b.output(rank), b.input(rank));
  const std::vector<Rank> carried = nodes.carried_ranks(at.group(), at.local());
  for (const Rank source : carried) {
    if (nodes.node_of(source) != at.group()) b.wait(source, kStaged, 1);
  }
  for (const Rank source : carried) {
    if (nodes.node_of(source) == at.group()) continue;
    b.copy(b.output(source), Builder::staging_at(source, source));
    if (!mates.empty()) b.copy(b.staging(source), b.output(source));
  }
  if (mates.empty()) return;
  meet(mates, kShared, b);
  for (const Rank mate : mates) {
    for (const Rank source : nodes.carried_ranks(at.group(), nodes.local_of(mate))) {
      b.copy(b.output(source), Builder::staging_at(mate, source));
    }
  }
}

template <Grouping by>
Shape broadcast_shape(const Problem& problem) {
  const Nodes nodes(problem.*by, problem.rank_count);
  return {.chunk_count = nodes.width(), .staging_slots = nodes.width(), .signal_count = 2};
}

template <Grouping by>
void broadcast_step(const Problem& problem, Rank rank, uint32_t /*step*/, Builder& b) {
  const Nodes nodes(problem.*by, problem.rank_count);
  const GroupPlace at(nodes, rank);
  const Rank root = problem.root;
  if (rank == root) {
    b.copy(b.staging(0), b.input(0), nodes.width());
    b.signal(kAllRanks, kStaged);
    b.copy(b.output(0), b.input(0), nodes.width());
    return;
  }
  b.wait(root, kStaged, 1);
  if (at.group() == nodes.node_of(root)) {
    b.copy(b.output(0), Builder::staging_at(root, 0), nodes.width());
    return;
  }
  const std::vector<Rank> mates = at.mates();
  const uint32_t first = at.first(at.local());
  const uint32_t count = at.count(at.local());
  b.copy(b.output(first), Builder::staging_at(root, first), count);
  if (mates.empty()) return;
  b.copy(b.staging(first), b.output(first), count);
  meet(mates, kShared, b);
  for (const Rank mate : mates) {
    const uint32_t local = nodes.local_of(mate);
    b.copy(b.output(at.first(local)), Builder::staging_at(mate, at.first(local)), at.count(local));
  }
}

template <Grouping by>
constexpr Algorithm all_gather(const char* name, const char* summary) {
  return {.name = name,
          .summary = summary,
          .collective = Collective::kAllGather,
          .needs_mapped = true,
          .needs_user_windows = false,
          .rank_order = false,
          .lengths = BlockLengths::kKnownToAll,
          .groups = by,
          .supports = mapped_groups<by>,
          .shape = all_gather_shape<by>,
          .step_count = one_step,
          .step = all_gather_step<by>};
}

template <Grouping by>
constexpr Algorithm broadcast(const char* name, const char* summary) {
  return {.name = name,
          .summary = summary,
          .collective = Collective::kBroadcast,
          .needs_mapped = true,
          .needs_user_windows = false,
          .rank_order = false,
          .groups = by,
          .supports = mapped_groups<by>,
          .shape = broadcast_shape<by>,
          .step_count = one_step,
          .step = broadcast_step<by>};
}

}  // namespace

constinit const Algorithm kByCacheAllGather = all_gather<kByCache>(
    "by_cache",
    "each block is copied into a cache once, and from there to the ranks that share it");
constinit const Algorithm kByNumaAllGather = all_gather<kByNuma>(
    "by_numa", "each block is copied to a NUMA node once, and from there to the node's ranks");
constinit const Algorithm kByCacheBroadcast = broadcast<kByCache>(
    "by_cache", "the ranks of a cache copy a share each from the root, then from each other");
constinit const Algorithm kByNumaBroadcast = broadcast<kByNuma>(
    "by_numa", "the ranks of a NUMA node copy a share each from the root, then from each other");

}  // namespace weir::algo
