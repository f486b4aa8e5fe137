// SPDX-License-Identifier: Apache-2.0
#include "core/engine/leaf_fold.h"

#include <algorithm>

#include "core/base/check.h"

namespace weir::engine {

namespace {

// More streams of memory than this are slower to read at once than in two passes.
constexpr size_t kOperandsAtOnce = 16;

bool is_right_child(const LeafNode& node) { return (node.first >> node.level & 1) != 0; }

// The nodes to which the leaves so far are folded, each as the operands of a tree that is still to
// be folded into the array of its position.
class Stack {
 public:
  explicit Stack(LeafFold& fold)
      : fold_(fold), node_bytes_(fold.count * element_bytes(partial_type(fold.type))) {
    const uint32_t end = fold.share.first + fold.folded_count;
    uint32_t index = 0;
    for (const LeafNode& node : leaf_nodes(fold.leaf_count, fold.share.first, end)) {
      Entry& entry = entries_.emplace_back();
      entry.node = node;
      if ((fold.present >> index & 1) != 0) entry.operands.push_back({array(index), 0, false});
      ++index;
    }
  }

  void push(const LeafNode& node, const void* leaf, bool narrow) {
    Entry& entry = entries_.emplace_back();
    entry.node = node;
    if (leaf != nullptr) entry.operands.push_back({leaf, 0, narrow});
    while (entries_.size() >= 2 && is_right_child(entries_.back().node) &&
           entries_[entries_.size() - 2].node.level == entries_.back().node.level) {
      fold_top_two();
    }
    if (entries_.back().operands.size() >= kOperandsAtOnce) fold_all();
  }

  // The leaves after the last one are absent: its node is passed on to the level of its sibling.
  void close() {
    while (entries_.size() >= 2) {
      const LeafNode& left = entries_[entries_.size() - 2].node;
      if (is_right_child(left)) return;
      entries_.back().node.level = left.level;
      fold_top_two();
    }
  }

  // Folds every entry into its array. In this order no array is written that a later one reads.
  void fold_all() {
    const TreeKernels kernels = tree_kernels(fold_.type, fold_.fold);
    fold_.present = 0;
    for (uint32_t index = 0; index < entries_.size(); ++index) {
      std::vector<TreeOperand>& operands = entries_[index].operands;
      if (operands.empty()) continue;
      fold_.present |= uint64_t{1} << index;
      if (operands.size() == 1 && operands[0].data == array(index)) continue;
      kernels.partial(
          {array(index), operands.data(), static_cast<uint32_t>(operands.size()), fold_.count});
      operands.assign(1, {array(index), 0, false});
    }
  }

  void fill_absent_nodes() {
    for (uint32_t index = 0; index < entries_.size(); ++index) {
      if (!entries_[index].operands.empty()) continue;
      fill_absent(fold_.type, fold_.fold, array(index), fold_.count);
    }
  }

 private:
  struct Entry {
    LeafNode node;
    std::vector<TreeOperand> operands;  // empty: absent
  };

  unsigned char* array(uint32_t index) const {
    return static_cast<unsigned char*>(fold_.nodes) + index * node_bytes_;
  }

  void fold_top_two() {
    Entry right = std::move(entries_.back());
    entries_.pop_back();
    Entry& left = entries_.back();
    ++left.node.level;
    if (left.operands.empty()) {
      left.operands = std::move(right.operands);
    } else if (!right.operands.empty()) {
      ++right.operands.back().folds;
      left.operands.insert(left.operands.end(), right.operands.begin(), right.operands.end());
    }
  }

  LeafFold& fold_;
  const size_t node_bytes_;
  std::vector<Entry> entries_;
};

}  // namespace

uint32_t leaf_node_capacity(uint32_t leaf_count, Rank rank_count, Rank rank) {
  const LeafShare share = leaf_share(leaf_count, rank_count, rank);
  std::vector<LeafNode> nodes;
  size_t most = 0;
  for (uint32_t i = share.first; i < share.first + share.count; ++i) {
    nodes.push_back({i, 0});
    while (nodes.size() >= 2 && is_right_child(nodes.back()) &&
           nodes[nodes.size() - 2].level == nodes.back().level) {
      nodes.pop_back();
      ++nodes.back().level;
    }
    most = std::max(most, nodes.size());
  }
  return static_cast<uint32_t>(most);
}

void LeafFold::add(std::span<const void* const> leaves, bool narrow) {
  WEIR_CHECK(leaves.size() <= share.count - folded_count, "a rank folds the leaves of its share");
  if (leaves.empty()) return;
  Stack stack(*this);
  for (const void* leaf : leaves) {
    stack.push({share.first + folded_count, 0}, leaf, narrow);
    ++folded_count;
  }
  const bool is_last = folded_count == share.count;
  if (is_last && share.first + share.count == leaf_count) stack.close();
  stack.fold_all();
  if (is_last) stack.fill_absent_nodes();
}

}  // namespace weir::engine
