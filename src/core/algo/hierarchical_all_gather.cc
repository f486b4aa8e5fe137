// SPDX-License-Identifier: Apache-2.0
// `hierarchical` all-gather: each rail's blocks go around the ring of nodes, then the ranks of a
// node exchange the blocks received over their rails. A block enters a node once. See nodes.h.
//
// In place: a rank's own block is copied onto itself; the rest of Output is only received into.
#include <algorithm>

#include "core/algo/catalog.h"
#include "core/algo/nodes.h"
#include "core/algo/support.h"

namespace weir::algo {
namespace {

using sched::Builder;
using sched::Shape;

// The copy, the steps of the ring of each of the rank's rails, and an exchange with each other
// local rank.
uint32_t ring_step_count(const Nodes& nodes, Rank rank) {
  return nodes.dealt_count(nodes.node_of(rank), nodes.local_of(rank)) * (nodes.count() - 1);
}

uint32_t step_count(const Problem& problem, Rank rank) {
  const Nodes nodes(problem);
  return ring_step_count(nodes, rank) + nodes.size(nodes.node_of(rank));
}

Shape shape(const Problem& problem) { return {.chunk_count = problem.rank_count}; }

void emit_ring_step(const Nodes& nodes, Rank rank, uint32_t number, Builder& b) {
  const uint32_t n = nodes.count();
  const uint32_t node = nodes.node_of(rank);
  const uint32_t next = (node + 1) % n;
  const uint32_t previous = (node + n - 1) % n;
  const uint32_t rail = nodes.local_of(rank) + number / (n - 1) * nodes.size(node);
  const uint32_t step = number % (n - 1);
  const uint32_t sent = sub_mod(node, step, n);
  const uint32_t received = sub_mod(node, step + 1, n);
  if (rail < nodes.size(sent)) {
    b.send(nodes.member(next, nodes.dealt(next, rail)), b.output(nodes.member(sent, rail)));
  }
  if (rail < nodes.size(received)) {
    b.recv(nodes.member(previous, nodes.dealt(previous, rail)),
           b.output(nodes.member(received, rail)));
  }
}

void emit_exchange(const Nodes& nodes, Rank rank, uint32_t distance, Builder& b) {
  const uint32_t node = nodes.node_of(rank);
  const uint32_t local = nodes.local_of(rank);
  const uint32_t size = nodes.size(node);
  const uint32_t to = (local + distance) % size;
  const uint32_t from = (local + size - distance) % size;
  const std::vector<Rank> mine = nodes.carried_ranks(node, local);
  const std::vector<Rank> theirs = nodes.carried_ranks(node, from);
  // Sends and receives alternate, so that no rank waits for credit while others wait for it.
  for (size_t i = 0; i < std::max(mine.size(), theirs.size()); ++i) {
    if (i < mine.size()) b.send(nodes.member(node, to), b.output(mine[i]));
    if (i < theirs.size()) b.recv(nodes.member(node, from), b.output(theirs[i]));
  }
}

void step(const Problem& problem, Rank rank, uint32_t step, Builder& b) {
  const Nodes nodes(problem);
  const uint32_t ring_steps = ring_step_count(nodes, rank);
  if (step == 0) {
    b.copy(b.output(rank), b.input(rank));
  } else if (step <= ring_steps) {
    emit_ring_step(nodes, rank, step - 1, b);
  } else {
    emit_exchange(nodes, rank, step - ring_steps, b);
  }
}

}  // namespace

const Algorithm kHierarchicalAllGather = {
    .name = "hierarchical",
    .summary = "a ring between nodes per rail, then an exchange within nodes",
    .collective = Collective::kAllGather,
    .needs_mapped = false,
    .needs_user_windows = false,
    .rank_order = false,
    .uses_nodes = true,
    .of_single_ranks = &kRingAllGather,
    .symmetry = Symmetry::kShift,
    .supports = well_formed_nodes,
    .shape = shape,
    .step_count = step_count,
    .step = step,
};

}  // namespace weir::algo
