// SPDX-License-Identifier: Apache-2.0
// `hierarchical` all-to-all: within each node, blocks first go to the local rank that carries their
// target's rail; that rank sends all its node's blocks for the target in one message. So there are
// fewer and longer messages between nodes: each rank receives one per other node. See nodes.h.
//
// In place: all of Input is read in the first phase, Output is written in the last; the block of a
// rank for itself is copied onto itself.
#include <algorithm>

#include "core/algo/catalog.h"
#include "core/algo/nodes.h"
#include "core/algo/support.h"

namespace weir::algo {
namespace {

using sched::Builder;
using sched::Shape;

enum Phase : uint32_t { kCollectWithin, kBetween, kPhaseCount };

uint32_t step_count(const Problem& /*problem*/, Rank /*rank*/) { return kPhaseCount; }

// Scratch: [0, n) the blocks that other nodes send, in node order; then, per carried target, a slot
// for each local source.
Shape shape(const Problem& problem) {
  const Rank n = problem.rank_count;
  const Nodes nodes(problem);
  uint32_t slots = 0;
  for (uint32_t node = 0; node < nodes.count(); ++node) {
    slots = std::max(slots, nodes.carried_count(node, 0) * nodes.size(node));
  }
  return {.chunk_count = n * n, .scratch_slots = n + slots};
}

void emit_collect_within(const Problem& problem, const Nodes& nodes, Rank rank, Builder& b) {
  const Rank n = problem.rank_count;
  const uint32_t node = nodes.node_of(rank);
  const uint32_t local = nodes.local_of(rank);
  const uint32_t size = nodes.size(node);
  const std::vector<Rank> mine = nodes.carried_ranks(node, local);
  const auto slot = [&](size_t index, uint32_t source) {
    return b.scratch(static_cast<uint32_t>(n + index * size + source));
  };
  for (size_t i = 0; i < mine.size(); ++i) {
    if (mine[i] != rank) b.copy(slot(i, local), b.input(rank * n + mine[i]));
  }
  for (uint32_t distance = 1; distance < size; ++distance) {
    const uint32_t to = (local + distance) % size;
    const uint32_t from = (local + size - distance) % size;
    const std::vector<Rank> theirs = nodes.carried_ranks(node, to);
    // Sends and receives alternate, so that no rank waits for credit while others wait for it.
    for (size_t i = 0; i < std::max(mine.size(), theirs.size()); ++i) {
      if (i < theirs.size()) b.send(nodes.member(node, to), b.input(rank * n + theirs[i]));
      if (i < mine.size()) b.recv(nodes.member(node, from), slot(i, from));
    }
  }
}

void emit_between(const Problem& problem, const Nodes& nodes, Rank rank, Builder& b) {
  const Rank n = problem.rank_count;
  const uint32_t node_count = nodes.count();
  const uint32_t node = nodes.node_of(rank);
  const uint32_t local = nodes.local_of(rank);
  const uint32_t size = nodes.size(node);
  const std::vector<Rank> mine = nodes.carried_ranks(node, local);
  std::vector<uint32_t> index_of(n);
  for (size_t i = 0; i < mine.size(); ++i) index_of[mine[i]] = static_cast<uint32_t>(i);
  for (uint32_t distance = 1; distance < node_count; ++distance) {
    const uint32_t to = (node + distance) % node_count;
    const uint32_t from = (node + node_count - distance) % node_count;
    for (uint32_t rail = local; rail < nodes.size(to); rail += size) {
      const Rank target = nodes.member(to, rail);
      b.send(target, b.scratch(n + index_of[target] * size), size);
    }
    b.recv(nodes.member(from, nodes.dealt(from, local)), b.scratch(nodes.first(from)),
           nodes.size(from));
  }
  for (uint32_t other = 0; other < node_count; ++other) {
    const uint32_t base = other == node ? n + index_of[rank] * size : nodes.first(other);
    for (uint32_t source = 0; source < nodes.size(other); ++source) {
      const Rank from = nodes.member(other, source);
      b.copy(b.output(from * n + rank),
             from == rank ? b.input(rank * n + rank) : b.scratch(base + source));
    }
  }
}

void step(const Problem& problem, Rank rank, uint32_t phase, Builder& b) {
  const Nodes nodes(problem);
  if (phase == kCollectWithin) {
    emit_collect_within(problem, nodes, rank, b);
  } else {
    emit_between(problem, nodes, rank, b);
  }
}

}  // namespace

const Algorithm kHierarchicalAllToAll = {
    .name = "hierarchical",
    .summary = "collect within nodes by the target's rail, then one message per node and target",
    .collective = Collective::kAllToAll,
    .needs_mapped = false,
    .needs_user_windows = false,
    .rank_order = false,
    .uses_nodes = true,
    .symmetry = Symmetry::kShift,
    .supports = well_formed_nodes,
    .shape = shape,
    .step_count = step_count,
    .step = step,
};

}  // namespace weir::algo
