// SPDX-License-Identifier: Apache-2.0
// Expression: the symbolic value of a chunk-sized place during execution, in 32 bytes whatever the
// number of ranks. Contributors are a multiset of ranks, kept as the sum modulo 2^128 of a random
// key per rank: a missing, duplicate or extra rank changes the sum. Two different multisets have
// the same sum with probability 2^-128. The order of folds is a 64-bit hash of the expression tree;
// two different trees have the same hash with probability 2^-64 per pair compared. Keys are fixed,
// so results are reproducible.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/base/leaves.h"
#include "core/base/types.h"

namespace weir::sched {

__extension__ typedef unsigned __int128 RankSetHash;

constexpr uint64_t mix64(uint64_t x) {
  // Stafford's variant 13 of the MurmurHash3 finalizer.
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

constexpr RankSetHash key_of(Rank rank) {
  const uint64_t low = mix64(0x9e3779b97f4a7c15u * (rank + uint64_t{1}));
  const uint64_t high = mix64(low ^ 0xd1b54a32d192ed03u);
  return (RankSetHash{high} << 64) | low;
}

struct Expression {
  static constexpr uint32_t kNothing = 0xffffffffu;

  RankSetHash contributors = 0;
  uint64_t order = 0;
  uint32_t chunk = kNothing;  // of the grid; kNothing: the place was never written
  uint32_t count = 0;         // contributors, with multiplicity

  bool holds_nothing() const { return chunk == kNothing; }
};

// The input of `rank`: one contributor.
constexpr Expression leaf(Rank rank, uint32_t chunk) {
  return {key_of(rank), mix64(rank ^ 0x6a09e667f3bcc908u), chunk, 1};
}

// Builds the expression of one reduce, operand by operand. A fold of k operands is one node,
// different from the same operands folded by several reduces, because narrow types are rounded once
// per reduce.
class FoldBuilder {
 public:
  void add(const Expression& operand) {
    if (operand_count_ == 0) {
      result_ = operand;
    } else {
      if (operand_count_ == 1) result_.order = mix64(result_.order ^ 0xbb67ae8584caa73bu);
      result_.order = mix64(result_.order * 0x9e3779b97f4a7c15u + operand.order);
      result_.contributors += operand.contributors;
      result_.count += operand.count;
    }
    ++operand_count_;
  }
  const Expression& result() const { return result_; }

 private:
  Expression result_;
  uint32_t operand_count_ = 0;
};

// Folds by a stack, as Op::tree says.
class TreeBuilder {
 public:
  // False where the stack has too few values for the folds.
  bool add(const Expression& operand, uint32_t folds) {
    stack_.push_back(operand);
    if (folds >= stack_.size()) return false;
    for (; folds > 0; --folds) {
      FoldBuilder fold;
      fold.add(stack_[stack_.size() - 2]);
      fold.add(stack_.back());
      stack_.pop_back();
      stack_.back() = fold.result();
    }
    return true;
  }
  const Expression& result() const { return stack_.front(); }

 private:
  std::vector<Expression> stack_;
};

// The value of chunk `chunk` of a node of the tree over `leaf_count` leaves, all of them present.
// The contributors are leaves instead of ranks.
inline Expression node_expression(uint32_t leaf_count, const LeafNode& node, uint32_t chunk) {
  TreeBuilder tree;
  const uint32_t end = std::min(leaf_count, node.end());
  for (uint32_t i = node.first; i < end; ++i) {
    tree.add(leaf(i, chunk), folds_after({i - node.first, 0}, end - node.first));
  }
  return tree.result();
}

// What is written to Output with leaves: divided and rounded.
inline Expression rounded(Expression value) {
  value.order = mix64(value.order ^ 0x3c6ef372fe94f82bu);
  return value;
}

}  // namespace weir::sched
