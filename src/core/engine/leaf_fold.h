// SPDX-License-Identifier: Apache-2.0
// LeafFold: the local part of a fold over leaves (base/leaves.h). It folds the leaves of one rank,
// which come in order, one or several at a time, to the nodes that the rank brings to a collective.
// A node is folded as soon as its leaves are there, so that few nodes are held, like the digits of
// a binary counter. A value over the caller's memory; used by one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/leaves.h"
#include "core/engine/tree.h"

namespace weir::engine {

// The most arrays that LeafFold needs for the leaves of a rank.
uint32_t leaf_node_capacity(uint32_t leaf_count, Rank rank_count, Rank rank);

struct LeafFold {
  uint32_t leaf_count = 0;  // of all ranks
  LeafShare share;          // of this rank
  DataType type = DataType::kFloat32;
  Fold fold = Fold::kSum;
  size_t count = 0;       // elements of a leaf
  void* nodes = nullptr;  // leaf_node_capacity arrays of `count` partial results
  // The state: the leaves so far, and of the nodes that they are folded to, in the first arrays,
  // which ones are present (bit by array).
  uint32_t folded_count = 0;
  uint64_t present = 0;

  // Folds the next leaves of the share: arrays of `count` elements, of the type (`narrow`) or
  // partial results; nullptr: absent. At most share.count - folded_count. After the last one, the
  // first arrays are the nodes of leaf_nodes_of; absent ones hold what fill_absent writes.
  void add(std::span<const void* const> leaves, bool narrow);
};

}  // namespace weir::engine
