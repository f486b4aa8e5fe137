// SPDX-License-Identifier: Apache-2.0
// Leaves: a fold over a fixed number of operands as a balanced binary tree, so that its bits do not
// depend on how many ranks hold the operands. Pure functions; thread-safe.
//
// Node (l, k) of the tree over L leaves covers the leaves [k 2^l, (k + 1) 2^l). Node (0, k) is leaf
// k; node (l, k) is node (l - 1, 2k) folded with node (l - 1, 2k + 1), or the one of them that is
// present. Leaves from L on are absent. The result is node (ceil(log2 L), 0).
//
// The leaves of a rank are the fewest nodes that cover them, in order: a power of two of leaves
// that begins at a multiple of itself is one node, other shares are up to two per level.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/types.h"

namespace weir {

// The most leaves; engine::pack_what has 16 bits for their number.
inline constexpr uint32_t kLeafCountMax = 32768;
// Levels of nodes: 0 to this.
inline constexpr uint32_t kLeafLevelMax = 15;

struct LeafShare {
  uint32_t first = 0;
  uint32_t count = 0;
};

// The first leaf_count % rank_count ranks have one leaf more than the others.
LeafShare leaf_share(uint32_t leaf_count, Rank rank_count, Rank rank);

struct LeafNode {
  uint32_t first = 0;  // leaf; a multiple of 2^level
  uint32_t level = 0;

  uint32_t end() const { return first + (1u << level); }
  bool operator==(const LeafNode&) const = default;
};

// The level of the tree's root: ceil(log2(leaf_count)).
uint32_t leaf_root_level(uint32_t leaf_count);

// The fewest nodes that cover the leaves [first, end) of leaf_count, in order. The last one of a
// share that ends with the last leaf may also cover absent leaves after it.
std::vector<LeafNode> leaf_nodes(uint32_t leaf_count, uint32_t first, uint32_t end);
// Those of a rank's share.
std::vector<LeafNode> leaf_nodes_of(uint32_t leaf_count, Rank rank_count, Rank rank);

// How many folds a node completes when nodes that cover all leaves are visited in order: it is
// folded with its sibling on the left if it is a right child, the result likewise, and so on; the
// last one with all that are left.
uint32_t folds_after(const LeafNode& node, uint32_t leaf_count);

// Partial results of f16, bf16 and fp8 are f32; those of other types have the type.
DataType partial_type(DataType type);

}  // namespace weir
