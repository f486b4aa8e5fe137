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
using sched::Ref;
using sched::Shape;

// Copies of what this rank carries itself, an exchange with each other local rank, one with each
// other node, and the copies of the results.
uint32_t step_count(const Problem& problem, Rank rank) {
  const Nodes nodes(problem);
  return nodes.size(nodes.node_of(rank)) + nodes.count();
}

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

// The slot of the block from a local source for the `index`-th carried target.
Ref slot_of(Rank n, uint32_t size, uint32_t index, uint32_t source, Builder& b) {
  return b.scratch(n + index * size + source);
}

void emit_own_copies(const Nodes& nodes, Rank n, Rank rank, Builder& b) {
  const uint32_t node = nodes.node_of(rank);
  const uint32_t local = nodes.local_of(rank);
  uint32_t index = 0;
  for (const Rank target : nodes.carried_ranks(node, local)) {
    const Ref slot = slot_of(n, nodes.size(node), index++, local, b);
    if (target != rank) b.copy(slot, b.input(rank * n + target));
  }
}

void emit_exchange_within(const Nodes& nodes, Rank n, Rank rank, uint32_t distance, Builder& b) {
  const uint32_t node = nodes.node_of(rank);
  const uint32_t local = nodes.local_of(rank);
  const uint32_t size = nodes.size(node);
  const uint32_t to = (local + distance) % size;
  const uint32_t from = (local + size - distance) % size;
  const uint32_t mine = nodes.carried_count(node, local);
  const std::vector<Rank> theirs = nodes.carried_ranks(node, to);
  // Sends and receives alternate, so that no rank waits for credit while others wait for it.
  for (uint32_t i = 0; i < std::max<size_t>(mine, theirs.size()); ++i) {
    if (i < theirs.size()) b.send(nodes.member(node, to), b.input(rank * n + theirs[i]));
    if (i < mine) b.recv(nodes.member(node, from), slot_of(n, size, i, from, b));
  }
}

void emit_exchange_between(const Nodes& nodes, Rank n, Rank rank, uint32_t distance, Builder& b) {
  const uint32_t node = nodes.node_of(rank);
  const uint32_t local = nodes.local_of(rank);
  const uint32_t size = nodes.size(node);
  const uint32_t to = (node + distance) % nodes.count();
  const uint32_t from = (node + nodes.count() - distance) % nodes.count();
  for (uint32_t rail = local; rail < nodes.size(to); rail += size) {
    const Rank target = nodes.member(to, rail);
    b.send(target, slot_of(n, size, nodes.carried_index(node, target), 0, b), size);
  }
  b.recv(nodes.member(from, nodes.dealt(from, local)), b.scratch(nodes.first(from)),
         nodes.size(from));
}

void emit_results(const Nodes& nodes, Rank n, Rank rank, Builder& b) {
  const uint32_t node = nodes.node_of(rank);
  const uint32_t own = n + nodes.carried_index(node, rank) * nodes.size(node);
  for (uint32_t other = 0; other < nodes.count(); ++other) {
    const uint32_t base = other == node ? own : nodes.first(other);
    for (uint32_t source = 0; source < nodes.size(other); ++source) {
      const Rank from = nodes.member(other, source);
      b.copy(b.output(from * n + rank),
             from == rank ? b.input(rank * n + rank) : b.scratch(base + source));
    }
  }
}

void step(const Problem& problem, Rank rank, uint32_t step, Builder& b) {
  const Nodes nodes(problem);
  const Rank n = problem.rank_count;
  const uint32_t size = nodes.size(nodes.node_of(rank));
  const uint32_t last = size + nodes.count() - 1;
  if (step == 0) {
    emit_own_copies(nodes, n, rank, b);
  } else if (step < size) {
    emit_exchange_within(nodes, n, rank, step, b);
  } else if (step < last) {
    emit_exchange_between(nodes, n, rank, step - size + 1, b);
  } else {
    emit_results(nodes, n, rank, b);
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
