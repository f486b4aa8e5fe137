// SPDX-License-Identifier: Apache-2.0
// `hierarchical` gather and scatter: the ranks of a node hand their blocks to its leader (the root,
// or the first rank), and leaders pass the blocks of whole subtrees along a binomial tree of nodes.
// So each node but the root's sends one message over the network, whatever the root and the order
// of the ranks. Nodes are numbered from the root's; the tree is that of binomial.cc.
//
// A leader keeps the blocks of its subtree in Scratch: node by node, in a node by local index. The
// root takes them out of there, or, where they are at most two runs of ranks, straight into Output.
//
// In place: only the root has both buffers, and copies its own block onto itself.
#include <algorithm>

#include "core/algo/catalog.h"
#include "core/algo/nodes.h"
#include "core/algo/support.h"

namespace weir::algo {
namespace {

using sched::Builder;
using sched::Shape;

// A node in the tree of nodes, from the point of view of one rank of it.
class Place {
 public:
  Place(const Problem& problem, Rank rank)
      : nodes_(problem),
        root_(problem.root),
        n_(nodes_.count()),
        node_(nodes_.node_of(rank)),
        number_(sub_mod(node_, nodes_.node_of(root_), n_)),
        lowest_bit_(number_ == 0 ? floor_power_of_two(n_ > 1 ? n_ - 1 : 1) * 2
                                 : number_ & (0u - number_)) {}

  const Nodes& nodes() const { return nodes_; }
  uint32_t node() const { return node_; }
  bool has_root() const { return number_ == 0; }
  Rank leader() const { return leader_of(number_); }
  Rank parent() const { return leader_of(number_ - lowest_bit_); }
  // The number of the highest bit of a child is below it.
  uint32_t lowest_bit() const { return lowest_bit_; }
  bool has_child(uint32_t bit) const { return bit < lowest_bit_ && number_ + bit < n_; }
  Rank child(uint32_t bit) const { return leader_of(number_ + bit); }

  // Blocks of the subtree, and of that of a child; in Scratch a child's begin at `slot`.
  uint32_t blocks() const { return blocks_of(number_, end()); }
  uint32_t child_blocks(uint32_t bit) const { return blocks_of(number_ + bit, end_of(bit)); }
  uint32_t slot(uint32_t bit) const { return blocks_of(number_, number_ + bit); }

  struct Run {
    Rank first = 0;
    uint32_t count = 0;
    uint32_t offset = 0;  // among the blocks of the subtree
  };
  // The blocks of a subtree as runs of ranks that follow each other.
  std::vector<Run> runs_of_child(uint32_t bit) const { return runs(number_ + bit, end_of(bit)); }
  std::vector<Run> runs() const { return runs(number_, end()); }
  // Between a child of the root and the root these are messages of their own.
  static bool is_short(const std::vector<Run>& runs) { return runs.size() <= 2; }
  bool is_child_of_root() const { return number_ != 0 && number_ == lowest_bit_; }

 private:
  uint32_t node_of(uint32_t number) const { return add_mod(nodes_.node_of(root_), number, n_); }
  Rank leader_of(uint32_t number) const {
    return number == 0 ? root_ : nodes_.member(node_of(number), 0);
  }
  uint32_t end() const { return std::min(n_, number_ == 0 ? n_ : number_ + lowest_bit_); }
  uint32_t end_of(uint32_t bit) const { return std::min(n_, number_ + 2 * bit); }
  uint32_t blocks_of(uint32_t begin, uint32_t end) const { return before(end) - before(begin); }
  // The blocks of the nodes with lower numbers.
  uint32_t before(uint32_t number) const {
    const uint32_t node = nodes_.node_of(root_) + number;
    const uint32_t first =
        node <= n_ ? nodes_.first(node) : nodes_.first(n_) + nodes_.first(node - n_);
    return first - nodes_.first(nodes_.node_of(root_));
  }

  std::vector<Run> runs(uint32_t begin, uint32_t end) const {
    std::vector<Run> runs;
    uint32_t offset = 0;
    for (uint32_t number = begin; number < end; ++number) {
      for (uint32_t local = 0; local < nodes_.size(node_of(number)); ++local, ++offset) {
        const Rank rank = nodes_.member(node_of(number), local);
        if (!runs.empty() && runs.back().first + runs.back().count == rank) {
          ++runs.back().count;
        } else {
          runs.push_back({rank, 1, offset});
        }
      }
    }
    return runs;
  }

  Nodes nodes_;
  Rank root_;
  uint32_t n_;
  uint32_t node_;
  uint32_t number_;
  uint32_t lowest_bit_;
};

Shape shape(const Problem& problem) {
  return {.chunk_count = problem.rank_count, .scratch_slots = problem.rank_count};
}

// Calls visit(rank, local) for the other ranks of the leader's node.
template <typename Visit>
void for_each_mate(const Place& at, Visit&& visit) {
  for (uint32_t local = 0; local < at.nodes().size(at.node()); ++local) {
    const Rank rank = at.nodes().member(at.node(), local);
    if (rank != at.leader()) visit(rank, local);
  }
}

void gather_at_root(const Place& at, Rank rank, Builder& b) {
  b.copy(b.output(rank), b.input(rank));
  for_each_mate(at, [&](Rank mate, uint32_t /*local*/) { b.recv(mate, b.output(mate)); });
  for (uint32_t bit = 1; at.has_child(bit); bit *= 2) {
    const auto runs = at.runs_of_child(bit);
    if (Place::is_short(runs)) {
      for (const auto& run : runs) b.recv(at.child(bit), b.output(run.first), run.count);
      continue;
    }
    b.recv(at.child(bit), b.scratch(at.slot(bit)), at.child_blocks(bit));
    for (const auto& run : runs) {
      b.copy(b.output(run.first), b.scratch(at.slot(bit) + run.offset), run.count);
    }
  }
}

void gather_step(const Problem& problem, Rank rank, uint32_t /*step*/, Builder& b) {
  const Place at(problem, rank);
  if (rank == problem.root) return gather_at_root(at, rank, b);
  if (rank != at.leader()) return b.send(at.leader(), b.input(rank));
  if (at.blocks() == 1) return b.send(at.parent(), b.input(rank));
  b.copy(b.scratch(at.nodes().local_of(rank)), b.input(rank));
  for_each_mate(at, [&](Rank mate, uint32_t local) { b.recv(mate, b.scratch(local)); });
  for (uint32_t bit = 1; at.has_child(bit); bit *= 2) {
    b.recv(at.child(bit), b.scratch(at.slot(bit)), at.child_blocks(bit));
  }
  const auto runs = at.runs();
  if (!at.is_child_of_root() || !Place::is_short(runs)) {
    return b.send(at.parent(), b.scratch(0), at.blocks());
  }
  for (const auto& run : runs) b.send(at.parent(), b.scratch(run.offset), run.count);
}

void scatter_at_root(const Place& at, Rank rank, Builder& b) {
  for (uint32_t bit = at.lowest_bit() / 2; bit > 0; bit /= 2) {
    if (!at.has_child(bit)) continue;
    const auto runs = at.runs_of_child(bit);
    if (Place::is_short(runs)) {
      for (const auto& run : runs) b.send(at.child(bit), b.input(run.first), run.count);
      continue;
    }
    for (const auto& run : runs) {
      b.copy(b.scratch(at.slot(bit) + run.offset), b.input(run.first), run.count);
    }
    b.send(at.child(bit), b.scratch(at.slot(bit)), at.child_blocks(bit));
  }
  for_each_mate(at, [&](Rank mate, uint32_t /*local*/) { b.send(mate, b.input(mate)); });
  b.copy(b.output(rank), b.input(rank));
}

void scatter_step(const Problem& problem, Rank rank, uint32_t /*step*/, Builder& b) {
  const Place at(problem, rank);
  if (rank == problem.root) return scatter_at_root(at, rank, b);
  if (rank != at.leader()) return b.recv(at.leader(), b.output(rank));
  if (at.blocks() == 1) return b.recv(at.parent(), b.output(rank));
  const auto runs = at.runs();
  if (at.is_child_of_root() && Place::is_short(runs)) {
    for (const auto& run : runs) b.recv(at.parent(), b.scratch(run.offset), run.count);
  } else {
    b.recv(at.parent(), b.scratch(0), at.blocks());
  }
  for (uint32_t bit = at.lowest_bit() / 2; bit > 0; bit /= 2) {
    if (at.has_child(bit)) b.send(at.child(bit), b.scratch(at.slot(bit)), at.child_blocks(bit));
  }
  for_each_mate(at, [&](Rank mate, uint32_t local) { b.send(mate, b.scratch(local)); });
  b.copy(b.output(rank), b.scratch(at.nodes().local_of(rank)));
}

}  // namespace

const Algorithm kHierarchicalGather = {
    .name = "hierarchical",
    .summary = "to the leader of each node, then along a binomial tree of nodes",
    .collective = Collective::kGather,
    .needs_mapped = false,
    .needs_user_windows = false,
    .rank_order = false,
    .uses_nodes = true,
    .supports = well_formed_nodes,
    .shape = shape,
    .step_count = one_step,
    .step = gather_step,
};

const Algorithm kHierarchicalScatter = {
    .name = "hierarchical",
    .summary = "along a binomial tree of nodes to their leaders, and from these within nodes",
    .collective = Collective::kScatter,
    .needs_mapped = false,
    .needs_user_windows = false,
    .rank_order = false,
    .uses_nodes = true,
    .supports = well_formed_nodes,
    .shape = shape,
    .step_count = one_step,
    .step = scatter_step,
};

}  // namespace weir::algo
