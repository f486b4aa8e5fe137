// SPDX-License-Identifier: Apache-2.0
// `hierarchical` reduce-scatter: within each node every rank folds the chunks whose rails it
// carries; then each rail's chunks go around the ring of nodes and end at their owner. See nodes.h.
//
// In place: all of Input is sent or folded before the rank's chunk of Output is written.
#include <algorithm>
#include <array>

#include "core/algo/catalog.h"
#include "core/algo/nodes.h"
#include "core/algo/support.h"

namespace weir::algo {
namespace {

using sched::Builder;
using sched::Ref;
using sched::Shape;

// An exchange with each other local rank, the folds, and the steps of the ring of each of the
// rank's rails.
uint32_t step_count(const Problem& problem, Rank rank) {
  const Nodes nodes(problem);
  const uint32_t node = nodes.node_of(rank);
  const uint32_t rails = nodes.dealt_count(node, nodes.local_of(rank));
  return nodes.size(node) + rails * (nodes.count() - 1);
}

// Scratch: slot 0 for the ring, then a slot per carried chunk for its fold, then a slot per carried
// chunk and other local rank for that rank's contribution.
Shape shape(const Problem& problem) {
  const Nodes nodes(problem);
  uint32_t slots = 0;
  for (uint32_t node = 0; node < nodes.count(); ++node) {
    // Local rank 0 carries as many as any: rails are dealt from 0 on and the low rails have most
    // ranks.
    slots = std::max(slots, nodes.carried_count(node, 0) * nodes.size(node));
  }
  return {.chunk_count = problem.rank_count, .scratch_slots = 1 + slots};
}

// The slot of the `index`-th of `carried` chunks, from the local rank at the distance.
Ref slot_of(size_t carried, size_t index, uint32_t distance, Builder& b) {
  return b.scratch(static_cast<uint32_t>(1 + carried * distance + index));
}

void emit_exchange(const Nodes& nodes, Rank rank, uint32_t distance, Builder& b) {
  const uint32_t node = nodes.node_of(rank);
  const uint32_t local = nodes.local_of(rank);
  const uint32_t size = nodes.size(node);
  const uint32_t to = (local + distance) % size;
  const uint32_t from = (local + size - distance) % size;
  const size_t mine = nodes.carried_count(node, local);
  const std::vector<Rank> theirs = nodes.carried_ranks(node, to);
  // Sends and receives alternate, so that no rank waits for credit while others wait for it.
  for (size_t i = 0; i < std::max(mine, theirs.size()); ++i) {
    if (i < theirs.size()) b.send(nodes.member(node, to), b.input(theirs[i]));
    if (i < mine) b.recv(nodes.member(node, from), slot_of(mine, i, distance, b));
  }
}

void emit_folds(const Nodes& nodes, Rank rank, Builder& b) {
  const uint32_t node = nodes.node_of(rank);
  const uint32_t local = nodes.local_of(rank);
  const uint32_t size = nodes.size(node);
  const std::vector<Rank> mine = nodes.carried_ranks(node, local);
  std::vector<Ref> operands(size);
  for (size_t i = 0; i < mine.size(); ++i) {
    for (uint32_t source = 0; source < size; ++source) {
      const uint32_t distance = (local + size - source) % size;
      operands[source] = distance == 0 ? b.input(mine[i]) : slot_of(mine.size(), i, distance, b);
    }
    const bool is_result = nodes.count() == 1 && mine[i] == rank;
    emit_fold_or_copy(is_result ? b.output(rank) : slot_of(mine.size(), i, 0, b), operands, 1, b);
  }
}

void emit_ring_step(const Nodes& nodes, Rank rank, uint32_t rail, uint32_t step, Builder& b) {
  const uint32_t n = nodes.count();
  const uint32_t node = nodes.node_of(rank);
  const uint32_t next = (node + 1) % n;
  const uint32_t previous = (node + n - 1) % n;
  const auto fold_of = [&](uint32_t other) {
    return b.scratch(1 + nodes.carried_index(node, nodes.member(other, rail)));
  };
  const uint32_t sent = sub_mod(node, step + 1, n);
  const uint32_t folded = sub_mod(node, step + 2, n);
  if (rail < nodes.size(sent)) {
    b.send(nodes.member(next, nodes.dealt(next, rail)), fold_of(sent));
  }
  if (rail >= nodes.size(folded)) return;
  b.recv(nodes.member(previous, nodes.dealt(previous, rail)), b.scratch(0));
  const Ref fold = fold_of(folded);
  b.reduce(folded == node ? b.output(rank) : fold, std::array{b.scratch(0), fold});
}

void step(const Problem& problem, Rank rank, uint32_t step, Builder& b) {
  const Nodes nodes(problem);
  const uint32_t size = nodes.size(nodes.node_of(rank));
  if (step + 1 < size) {
    emit_exchange(nodes, rank, step + 1, b);
  } else if (step + 1 == size) {
    emit_folds(nodes, rank, b);
  } else {
    const uint32_t of_rail = nodes.count() - 1;
    const uint32_t rail = nodes.local_of(rank) + (step - size) / of_rail * size;
    emit_ring_step(nodes, rank, rail, (step - size) % of_rail, b);
  }
}

}  // namespace

const Algorithm kHierarchicalReduceScatter = {
    .name = "hierarchical",
    .summary = "fold within nodes, then a ring between nodes per rail",
    .collective = Collective::kReduceScatter,
    .needs_mapped = false,
    .needs_user_windows = false,
    .rank_order = false,
    .uses_nodes = true,
    .of_single_ranks = &kRingReduceScatter,
    .symmetry = Symmetry::kShift,
    .supports = well_formed_nodes,
    .shape = shape,
    .step_count = step_count,
    .step = step,
};

}  // namespace weir::algo
