// SPDX-License-Identifier: Apache-2.0
#include "core/base/leaves.h"

#include <algorithm>
#include <bit>

namespace weir {

LeafShare leaf_share(uint32_t leaf_count, Rank rank_count, Rank rank) {
  const uint32_t least = leaf_count / rank_count;
  const uint32_t longer = leaf_count % rank_count;
  return {rank * least + std::min(rank, longer), least + (rank < longer ? 1 : 0)};
}

uint32_t leaf_root_level(uint32_t leaf_count) {
  return static_cast<uint32_t>(std::bit_width(leaf_count - 1));
}

std::vector<LeafNode> leaf_nodes(uint32_t leaf_count, uint32_t first, uint32_t end) {
  std::vector<LeafNode> nodes;
  const uint32_t root = leaf_root_level(leaf_count);
  const uint32_t last = end;
  if (end == leaf_count) end = 1u << root;
  for (uint32_t at = first; at < last;) {
    const uint32_t aligned = at == 0 ? root : static_cast<uint32_t>(std::countr_zero(at));
    const uint32_t fits = static_cast<uint32_t>(std::bit_width(end - at)) - 1;
    nodes.push_back({at, std::min(aligned, fits)});
    at = nodes.back().end();
  }
  return nodes;
}

std::vector<LeafNode> leaf_nodes_of(uint32_t leaf_count, Rank rank_count, Rank rank) {
  const LeafShare share = leaf_share(leaf_count, rank_count, rank);
  return leaf_nodes(leaf_count, share.first, share.first + share.count);
}

uint32_t folds_after(const LeafNode& node, uint32_t leaf_count) {
  if (node.end() >= leaf_count) return static_cast<uint32_t>(std::popcount(node.first));
  return static_cast<uint32_t>(std::countr_one(node.first >> node.level));
}

DataType partial_type(DataType type) {
  switch (type) {
    case DataType::kFloat16:
    case DataType::kBfloat16:
    case DataType::kFloat8E4M3:
    case DataType::kFloat8E5M2:
      return DataType::kFloat32;
    default:
      return type;
  }
}

}  // namespace weir
