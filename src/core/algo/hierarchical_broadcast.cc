// SPDX-License-Identifier: Apache-2.0
// `hierarchical` broadcast: the root scatters rails over its node, each rail goes down a binomial
// tree of nodes, and the ranks of each node exchange the data received over their rails. A byte
// enters a node once, and the root's port to other nodes is not the bound. See nodes.h.
//
// In place: the root copies Input onto itself and receives nothing.
#include "core/algo/catalog.h"
#include "core/algo/nodes.h"
#include "core/algo/support.h"

namespace weir::algo {
namespace {

using sched::Builder;
using sched::Ref;
using sched::Shape;

Shape shape(const Problem& problem) { return {.chunk_count = Nodes(problem).width()}; }

// A rank in its node, and which rails it carries.
struct Place {
  Place(const Nodes& nodes, Rank rank)
      : node(nodes.node_of(rank)), local(nodes.local_of(rank)), size(nodes.size(node)) {}
  uint32_t first(const Nodes& nodes, uint32_t other) const {
    return nodes.block_first(node, other);
  }
  uint32_t count(const Nodes& nodes, uint32_t other) const {
    return nodes.block_first(node, other + 1) - nodes.block_first(node, other);
  }
  uint32_t node;
  uint32_t local;
  uint32_t size;
};

void emit_scatter_within(const Nodes& nodes, Rank rank, Rank root, Builder& b) {
  const Place at(nodes, rank);
  if (at.node != nodes.node_of(root)) return;
  if (rank != root) {
    b.recv(root, b.output(at.first(nodes, at.local)), at.count(nodes, at.local));
    return;
  }
  for (uint32_t distance = 1; distance < at.size; ++distance) {
    const uint32_t to = (at.local + distance) % at.size;
    b.send(nodes.member(at.node, to), b.input(at.first(nodes, to)), at.count(nodes, to));
  }
}

void emit_tree(const Nodes& nodes, Rank rank, Rank root, Builder& b) {
  const Place at(nodes, rank);
  const uint32_t n = nodes.count();
  const uint32_t number = sub_mod(at.node, nodes.node_of(root), n);
  const auto carrier = [&](uint32_t other_number, uint32_t rail) {
    const uint32_t node = add_mod(nodes.node_of(root), other_number, n);
    return nodes.member(node, nodes.block_owner(node, rail));
  };
  uint32_t top_bit = number & (0u - number);
  if (number == 0) {
    top_bit = 1;
    while (top_bit < n) top_bit *= 2;
  }
  for (uint32_t rail = at.first(nodes, at.local); rail < at.first(nodes, at.local + 1); ++rail) {
    if (number != 0) b.recv(carrier(number - top_bit, rail), b.output(rail));
    const Ref src = rank == root ? b.input(rail) : b.output(rail);
    for (uint32_t bit = top_bit / 2; bit > 0; bit /= 2) {
      if (number + bit < n) b.send(carrier(number + bit, rail), src);
    }
  }
}

// In the root's node, the root only sends: it has everything.
void emit_exchange_within(const Nodes& nodes, Rank rank, Rank root, Builder& b) {
  const Place at(nodes, rank);
  for (uint32_t distance = 1; distance < at.size; ++distance) {
    const uint32_t to = (at.local + distance) % at.size;
    const uint32_t from = (at.local + at.size - distance) % at.size;
    const Rank to_rank = nodes.member(at.node, to);
    if (to_rank != root) {
      const uint32_t first = at.first(nodes, at.local);
      b.send(to_rank, rank == root ? b.input(first) : b.output(first), at.count(nodes, at.local));
    }
    if (rank != root) {
      b.recv(nodes.member(at.node, from), b.output(at.first(nodes, from)), at.count(nodes, from));
    }
  }
  if (rank == root) b.copy(b.output(0), b.input(0), nodes.width());
}

// One step, since the nodes are built again for each.
void step(const Problem& problem, Rank rank, uint32_t /*step*/, Builder& b) {
  const Nodes nodes(problem);
  emit_scatter_within(nodes, rank, problem.root, b);
  emit_tree(nodes, rank, problem.root, b);
  emit_exchange_within(nodes, rank, problem.root, b);
}

}  // namespace

const Algorithm kHierarchicalBroadcast = {
    .name = "hierarchical",
    .summary = "scatter within the root's node, a tree of nodes per rail, exchange within nodes",
    .collective = Collective::kBroadcast,
    .needs_mapped = false,
    .needs_user_windows = false,
    .rank_order = false,
    .uses_nodes = true,
    .of_single_ranks = &kBinomialBroadcast,
    .supports = well_formed_nodes,
    .shape = shape,
    .step_count = one_step,
    .step = step,
};

}  // namespace weir::algo
