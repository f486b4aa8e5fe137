// SPDX-License-Identifier: Apache-2.0
// all_gather and broadcast by groups of ranks (grouped.h), over mapped Staging: each byte enters a
// group once, through the rank that carries its rail there, and the ranks of the group copy it from
// that one's Staging.
//
// In place: Input is staged before any Output is written; a rank's own block is copied onto itself.
#include "core/algo/catalog.h"
#include "core/algo/grouped.h"

namespace weir::algo {
namespace {

using sched::Builder;
using sched::kAllRanks;

enum Signal : uint8_t { kStaged, kShared };

void all_gather(const Problem& /*problem*/, const GroupPlace& at, Builder& b) {
  const Nodes& nodes = at.nodes();
  const Rank rank = b.self();
  const std::vector<Rank> mates = at.mates();
  b.copy(b.staging(rank), b.input(rank));
  b.signal(kAllRanks, kStaged);
  b.copy(b.output(rank), b.input(rank));
  const std::vector<Rank> carried = at.carried();
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

void broadcast(const Problem& problem, const GroupPlace& at, Builder& b) {
  const Nodes& nodes = at.nodes();
  const Rank root = problem.root;
  if (b.self() == root) {
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
  const uint32_t first = at.first();
  b.copy(b.output(first), Builder::staging_at(root, first), at.count());
  if (mates.empty()) return;
  b.copy(b.staging(first), b.output(first), at.count());
  meet(mates, kShared, b);
  at.copy_from_mates(1, b);
}

constexpr Grouped kAllGather = {.collective = Collective::kAllGather,
                                .lengths = BlockLengths::kKnownToAll,
                                .chunk_count = chunk_per_rank,
                                .signal_count = 2,
                                .program = all_gather};
constexpr Grouped kBroadcast = {.collective = Collective::kBroadcast,
                                .chunk_count = chunk_per_rail,
                                .signal_count = 2,
                                .program = broadcast};

}  // namespace

constinit const Algorithm kByCacheAllGather = by_cache<kAllGather>(
    "each block is copied into a cache once, and from there to the ranks that share it");
constinit const Algorithm kByNumaAllGather = by_numa<kAllGather>(
    "each block is copied to a NUMA node once, and from there to the node's ranks");
constinit const Algorithm kByCacheBroadcast = by_cache<kBroadcast>(
    "the ranks of a cache copy a share each from the root, then from each other");
constinit const Algorithm kByNumaBroadcast = by_numa<kBroadcast>(
    "the ranks of a NUMA node copy a share each from the root, then from each other");

}  // namespace weir::algo
