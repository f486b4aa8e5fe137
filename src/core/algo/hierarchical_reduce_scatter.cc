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

enum Phase : uint32_t { kReduceWithin, kRing, kPhaseCount };

uint32_t step_count(const Problem& /*problem*/, Rank /*rank*/) { return kPhaseCount; }

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

void emit_reduce_within(const Nodes& nodes, Rank rank, Builder& b) {
  const uint32_t node = nodes.node_of(rank);
  const uint32_t local = nodes.local_of(rank);
  const uint32_t size = nodes.size(node);
  const std::vector<Rank> mine = nodes.carried_ranks(node, local);
  const auto slot_of = [&](size_t index, uint32_t distance) {
    return b.scratch(static_cast<uint32_t>(1 + mine.size() * distance + index));
  };
  for (uint32_t distance = 1; distance < size; ++distance) {
    const uint32_t to = (local + distance) % size;
    const uint32_t from = (local + size - distance) % size;
    const std::vector<Rank> theirs = nodes.carried_ranks(node, to);
    // Sends and receives alternate, so that no rank waits for credit while others wait for it.
    for (size_t i = 0; i < std::max(mine.size(), theirs.size()); ++i) {
      if (i < theirs.size()) b.send(nodes.member(node, to), b.input(theirs[i]));
      if (i < mine.size()) b.recv(nodes.member(node, from), slot_of(i, distance));
    }
  }
  std::vector<Ref> operands(size);
  for (size_t i = 0; i < mine.size(); ++i) {
    for (uint32_t source = 0; source < size; ++source) {
      const uint32_t distance = (local + size - source) % size;
      operands[source] = distance == 0 ? b.input(mine[i]) : slot_of(i, distance);
    }
    const bool is_result = nodes.count() == 1 && mine[i] == rank;
    emit_fold_or_copy(is_result ? b.output(rank) : slot_of(i, 0), operands, 1, b);
  }
}

void emit_ring(const Nodes& nodes, Rank rank, Builder& b) {
  const uint32_t n = nodes.count();
  const uint32_t node = nodes.node_of(rank);
  const uint32_t local = nodes.local_of(rank);
  const uint32_t next = (node + 1) % n;
  const uint32_t previous = (node + n - 1) % n;
  uint32_t rail_slot = 1;
  std::vector<uint32_t> slot_of_node(n);
  for (uint32_t rail = local; rail < nodes.width(); rail += nodes.size(node)) {
    for (uint32_t other = 0; other < n; ++other) {
      if (rail < nodes.size(other)) slot_of_node[other] = rail_slot++;
    }
    const Rank to = nodes.member(next, nodes.dealt(next, rail));
    const Rank from = nodes.member(previous, nodes.dealt(previous, rail));
    for (uint32_t step = 0; step + 1 < n; ++step) {
      const uint32_t sent = sub_mod(node, step + 1, n);
      const uint32_t folded = sub_mod(node, step + 2, n);
      if (rail < nodes.size(sent)) b.send(to, b.scratch(slot_of_node[sent]));
      if (rail >= nodes.size(folded)) continue;
      const Ref fold = b.scratch(slot_of_node[folded]);
      b.recv(from, b.scratch(0));
      b.reduce(folded == node ? b.output(rank) : fold, std::array{b.scratch(0), fold});
    }
  }
}

void step(const Problem& problem, Rank rank, uint32_t phase, Builder& b) {
  const Nodes nodes(problem);
  if (phase == kReduceWithin) {
    emit_reduce_within(nodes, rank, b);
  } else if (nodes.count() > 1) {
    emit_ring(nodes, rank, b);
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
