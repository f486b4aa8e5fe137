// SPDX-License-Identifier: Apache-2.0
// `double_binary_tree`: two binary trees over the same ranks, each for one half of the data, built
// so that an inner rank of one is a leaf of the other: every port is used in both directions, at
// the latency of a tree. Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth
// broadcast, reduction and scan" (2009).
//
// Each tree has its own lane; all-reduce has one more lane per tree for the way down, so that
// slices flow down while later ones flow up. Only the top of a tree joins its two lanes, by
// signalling itself.
//
// In place: Input is read on the way up, before (through the top of the tree) Output is written on
// the way down; a reduce's root reads Input in the operation that writes Output.
#include <array>

#include "core/algo/catalog.h"
#include "core/algo/support.h"

namespace weir::algo {
namespace {

using sched::Builder;
using sched::Ref;
using sched::Shape;

constexpr uint32_t kTreeCount = 2;
constexpr uint32_t kNone = 0;

// A binary tree over the positions 1..size in order: a position's lowest set bit is its height. Odd
// positions are leaves. kNone stands for no position.
class OrderedTree {
 public:
  explicit OrderedTree(uint32_t size) : size_(size) {}

  uint32_t top() const { return floor_power_of_two(size_); }
  uint32_t parent(uint32_t position) const {
    if (position == top()) return kNone;
    const uint32_t bit = position & (0u - position);
    const uint32_t above = (position ^ bit) | (bit << 1);
    return above <= size_ ? above : position ^ bit;
  }
  uint32_t left(uint32_t position) const {
    const uint32_t bit = position & (0u - position);
    return bit == 1 ? kNone : position - bit / 2;
  }
  uint32_t right(uint32_t position) const {
    uint32_t step = (position & (0u - position)) / 2;
    while (step > 0 && position + step > size_) step /= 2;
    return step == 0 ? kNone : position + step;
  }

 private:
  uint32_t size_;
};

// Tree 0 has member i (0..size-1) at position i + 1. Tree 1 is mirrored (even size) or shifted by
// one (odd size), which exchanges odd and even positions.
class Tree {
 public:
  Tree(uint32_t size, uint32_t index) : size_(size), index_(index), tree_(size) {}

  static constexpr uint32_t kNobody = 0xffffffffu;

  uint32_t top() const { return member_at(tree_.top()); }
  uint32_t parent(uint32_t member) const { return member_at(tree_.parent(position_of(member))); }
  uint32_t left(uint32_t member) const { return member_at(tree_.left(position_of(member))); }
  uint32_t right(uint32_t member) const { return member_at(tree_.right(position_of(member))); }

 private:
  uint32_t position_of(uint32_t member) const {
    if (index_ == 0) return member + 1;
    return size_ % 2 == 0 ? size_ - member : (member + 1) % size_ + 1;
  }
  uint32_t member_at(uint32_t position) const {
    if (position == kNone) return kNobody;
    if (index_ == 0) return position - 1;
    return size_ % 2 == 0 ? size_ - position : (position + size_ - 2) % size_;
  }

  uint32_t size_;
  uint32_t index_;
  OrderedTree tree_;
};

// Members of the trees are the ranks from `first` on, modulo n.
struct Members {
  Rank first;
  Rank n;
  Rank rank_of(uint32_t member) const { return add_mod(first, member, n); }
  uint32_t member_of(Rank rank) const { return sub_mod(rank, first, n); }
};

// Receives the folds of the children and adds the rank's own Input, in the order of positions.
// Returns where the fold is: `dst` at the top of all, the Input of a leaf, otherwise a scratch slot
// of the tree.
Ref emit_fold_of_children(const Members& members, const Tree& tree, uint32_t index, uint32_t member,
                          const Ref* dst, Builder& b) {
  std::array<Ref, 3> operands;
  uint32_t count = 0;
  const uint32_t left = tree.left(member);
  const uint32_t right = tree.right(member);
  if (left != Tree::kNobody) {
    operands[count] = b.scratch(2 * index);
    b.recv(members.rank_of(left), operands[count++]);
  }
  operands[count++] = b.input(index);
  if (right != Tree::kNobody) {
    operands[count] = b.scratch(2 * index + 1);
    b.recv(members.rank_of(right), operands[count++]);
  }
  if (dst == nullptr && count == 1) return operands[0];
  const Ref fold = dst != nullptr ? *dst : b.scratch(2 * index);
  b.reduce(fold, std::span<const Ref>(operands.data(), count));
  return fold;
}

void emit_sends_to_children(const Members& members, const Tree& tree, uint32_t member, Ref src,
                            Builder& b) {
  for (const uint32_t child : {tree.left(member), tree.right(member)}) {
    if (child != Tree::kNobody) b.send(members.rank_of(child), src);
  }
}

Shape all_reduce_shape(const Problem& /*problem*/) {
  return {.chunk_count = kTreeCount,
          .scratch_slots = 2 * kTreeCount,
          .lane_count = 2 * kTreeCount,
          .signal_count = kTreeCount};
}

void all_reduce_step(const Problem& problem, Rank rank, uint32_t /*step*/, Builder& b) {
  if (emit_alone(problem, kTreeCount, b)) return;
  const Members members{0, problem.rank_count};
  for (uint8_t index = 0; index < kTreeCount; ++index) {
    const Tree tree(problem.rank_count, index);
    const bool is_top = rank == tree.top();
    const Ref result = b.output(index);
    b.lane(index);
    const Ref fold =
        emit_fold_of_children(members, tree, index, rank, is_top ? &result : nullptr, b);
    if (is_top) {
      b.signal(rank, index);
    } else {
      b.send(tree.parent(rank), fold);
    }
    b.lane(static_cast<uint8_t>(kTreeCount + index));
    if (is_top) {
      b.wait(rank, index, 1);
    } else {
      b.recv(tree.parent(rank), result);
    }
    emit_sends_to_children(members, tree, rank, result, b);
  }
}

// Broadcast and reduce: the trees are over all ranks but the root, which exchanges messages with
// their tops.
Shape broadcast_shape(const Problem& /*problem*/) {
  return {.chunk_count = kTreeCount, .lane_count = kTreeCount};
}

void broadcast_step(const Problem& problem, Rank rank, uint32_t /*step*/, Builder& b) {
  const Rank n = problem.rank_count;
  if (emit_alone(problem, kTreeCount, b)) return;
  const Members members{add_mod(problem.root, 1, n), n};
  for (uint8_t index = 0; index < kTreeCount; ++index) {
    const Tree tree(n - 1, index);
    b.lane(index);
    if (rank == problem.root) {
      b.send(members.rank_of(tree.top()), b.input(index));
      b.copy(b.output(index), b.input(index));
      continue;
    }
    const uint32_t member = members.member_of(rank);
    const uint32_t parent = tree.parent(member);
    b.recv(parent == Tree::kNobody ? problem.root : members.rank_of(parent), b.output(index));
    emit_sends_to_children(members, tree, member, b.output(index), b);
  }
}

Shape reduce_shape(const Problem& /*problem*/) {
  return {.chunk_count = kTreeCount, .scratch_slots = 2 * kTreeCount, .lane_count = kTreeCount};
}

void reduce_step(const Problem& problem, Rank rank, uint32_t /*step*/, Builder& b) {
  const Rank n = problem.rank_count;
  if (emit_alone(problem, kTreeCount, b)) return;
  const Members members{add_mod(problem.root, 1, n), n};
  for (uint8_t index = 0; index < kTreeCount; ++index) {
    const Tree tree(n - 1, index);
    b.lane(index);
    if (rank == problem.root) {
      b.recv(members.rank_of(tree.top()), b.scratch(2 * index));
      b.reduce(b.output(index), std::array{b.input(index), b.scratch(2 * index)});
      continue;
    }
    const uint32_t member = members.member_of(rank);
    const Ref fold = emit_fold_of_children(members, tree, index, member, nullptr, b);
    const uint32_t parent = tree.parent(member);
    b.send(parent == Tree::kNobody ? problem.root : members.rank_of(parent), fold);
  }
}

}  // namespace

const Algorithm kDoubleTreeAllReduce = {
    .name = "double_binary_tree",
    .summary = "up and down two trees, half the data each (Sanders et al. 2009)",
    .collective = Collective::kAllReduce,
    .needs_mapped = false,
    .needs_user_windows = false,
    .rank_order = false,
    .supports = any_problem,
    .shape = all_reduce_shape,
    .step_count = one_step,
    .step = all_reduce_step,
};

const Algorithm kDoubleTreeBroadcast = {
    .name = "double_binary_tree",
    .summary = "down two trees, half the data each (Sanders et al. 2009)",
    .collective = Collective::kBroadcast,
    .needs_mapped = false,
    .needs_user_windows = false,
    .rank_order = false,
    .supports = any_problem,
    .shape = broadcast_shape,
    .step_count = one_step,
    .step = broadcast_step,
};

const Algorithm kDoubleTreeReduce = {
    .name = "double_binary_tree",
    .summary = "up two trees, half the data each (Sanders et al. 2009)",
    .collective = Collective::kReduce,
    .needs_mapped = false,
    .needs_user_windows = false,
    .rank_order = false,
    .supports = any_problem,
    .shape = reduce_shape,
    .step_count = one_step,
    .step = reduce_step,
};

}  // namespace weir::algo
