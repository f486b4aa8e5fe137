// SPDX-License-Identifier: Apache-2.0
// `hierarchical` all-reduce: reduce-scatter within each node, ring all-reduce between nodes on
// every rail at once, all-gather within each node. A byte crosses between nodes as rarely as with
// one rank per node, and all ranks of a node share that traffic. The idea is that of Horovod's and
// NCCL's hierarchical all-reduce (Jia et al. 2018), here with any node sizes and any layout.
//
// The grid is rail * node_count + part: rail j's data is cut into one part per node for the ring.
//
// In place: a rank writes Output of its own rails in the operation that reads them from Input last,
// and that of other rails after all its Input was sent.
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

// One step within the node, the steps of the ring of each of the rank's rails, and one step within
// the node.
uint32_t ring_step_count(const Nodes& nodes) { return 2 * (nodes.count() - 1); }

uint32_t step_count(const Problem& problem, Rank rank) {
  const Nodes nodes(problem);
  const uint32_t node = nodes.node_of(rank);
  const uint32_t local = nodes.local_of(rank);
  const uint32_t rails = nodes.block_first(node, local + 1) - nodes.block_first(node, local);
  return 2 + rails * ring_step_count(nodes);
}

// The contributions of the other local ranks to this rank's rails, and one chunk for the ring.
Shape shape(const Problem& problem) {
  const Nodes nodes(problem);
  uint32_t slots = 0;
  for (uint32_t node = 0; node < nodes.count(); ++node) {
    const uint32_t size = nodes.size(node);
    // The first local rank has as many rails as any.
    const uint32_t rails = nodes.block_first(node, 1);
    slots = std::max(slots, (size - 1) * rails * nodes.count());
  }
  return {.chunk_count = nodes.width() * nodes.count(), .scratch_slots = slots + 1};
}

// The chunks of the rails of one local rank.
struct Range {
  uint32_t first;
  uint32_t count;
};

Range range_of(const Nodes& nodes, uint32_t node, uint32_t local) {
  const uint32_t first = nodes.block_first(node, local) * nodes.count();
  return {first, nodes.block_first(node, local + 1) * nodes.count() - first};
}

void emit_reduce_within(const Nodes& nodes, uint32_t node, uint32_t local, Builder& b) {
  const uint32_t size = nodes.size(node);
  const Range mine = range_of(nodes, node, local);
  std::vector<Ref> operands(size);
  operands[local] = b.input(mine.first);
  for (uint32_t distance = 1; distance < size; ++distance) {
    const uint32_t to = (local + distance) % size;
    const uint32_t from = (local + size - distance) % size;
    const Range theirs = range_of(nodes, node, to);
    b.send(nodes.member(node, to), b.input(theirs.first), theirs.count);
    operands[from] = b.scratch(1 + (distance - 1) * mine.count);
    b.recv(nodes.member(node, from), operands[from], mine.count);
  }
  emit_fold_or_copy(b.output(mine.first), operands, mine.count, b);
}

// Half of the steps reduce and scatter, the others gather.
void emit_ring_step(const Nodes& nodes, uint32_t node, uint32_t rail, uint32_t step, Builder& b) {
  const uint32_t n = nodes.count();
  const uint32_t next = (node + 1) % n;
  const uint32_t previous = (node + n - 1) % n;
  const Rank to = nodes.member(next, nodes.block_owner(next, rail));
  const Rank from = nodes.member(previous, nodes.block_owner(previous, rail));
  const uint32_t base = rail * n;
  if (step + 1 < n) {
    const Ref folded = b.output(base + sub_mod(node, step + 1, n));
    b.send(to, b.output(base + sub_mod(node, step, n)));
    b.recv(from, b.scratch(0));
    b.reduce(folded, std::array{b.scratch(0), folded});
  } else {
    const uint32_t gathered = step - (n - 1);
    b.send(to, b.output(base + sub_mod(node + 1, gathered, n)));
    b.recv(from, b.output(base + sub_mod(node, gathered, n)));
  }
}

void emit_gather_within(const Nodes& nodes, uint32_t node, uint32_t local, Builder& b) {
  const uint32_t size = nodes.size(node);
  const Range mine = range_of(nodes, node, local);
  for (uint32_t distance = 1; distance < size; ++distance) {
    const uint32_t to = (local + distance) % size;
    const uint32_t from = (local + size - distance) % size;
    const Range theirs = range_of(nodes, node, from);
    b.send(nodes.member(node, to), b.output(mine.first), mine.count);
    b.recv(nodes.member(node, from), b.output(theirs.first), theirs.count);
  }
}

void step(const Problem& problem, Rank rank, uint32_t step, Builder& b) {
  const Nodes nodes(problem);
  const uint32_t node = nodes.node_of(rank);
  const uint32_t local = nodes.local_of(rank);
  if (step == 0) {
    emit_reduce_within(nodes, node, local, b);
    return;
  }
  const uint32_t of_rail = ring_step_count(nodes);
  const uint32_t rail = nodes.block_first(node, local) + (of_rail == 0 ? 0 : (step - 1) / of_rail);
  if (of_rail == 0 || rail == nodes.block_first(node, local + 1)) {
    emit_gather_within(nodes, node, local, b);
  } else {
    emit_ring_step(nodes, node, rail, (step - 1) % of_rail, b);
  }
}

}  // namespace

const Algorithm kHierarchicalAllReduce = {
    .name = "hierarchical",
    .summary =
        "reduce-scatter within nodes, a ring between nodes per rail, all-gather within nodes",
    .collective = Collective::kAllReduce,
    .needs_mapped = false,
    .needs_user_windows = false,
    .rank_order = false,
    .uses_nodes = true,
    .of_single_ranks = &kRingAllReduce,
    .symmetry = Symmetry::kShift,
    .supports = well_formed_nodes,
    .shape = shape,
    .step_count = step_count,
    .step = step,
};

}  // namespace weir::algo
