// SPDX-License-Identifier: Apache-2.0
#include "core/base/leaves.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace weir {
namespace {

// The fewest nodes that cover [first, end), found by halving.
void cover(const LeafNode& node, uint32_t first, uint32_t end, std::vector<LeafNode>* found) {
  if (node.first >= end || node.end() <= first) return;
  if (node.first >= first && node.end() <= end) {
    found->push_back(node);
    return;
  }
  cover({node.first, node.level - 1}, first, end, found);
  cover({node.first + (1u << (node.level - 1)), node.level - 1}, first, end, found);
}

TEST(Leaves, SharesFollowEachOtherAndDifferByOneAtMost) {
  for (const uint32_t leaf_count : {1u, 2u, 3u, 7u, 8u, 16u, 24u, 64u, 1000u, kLeafCountMax}) {
    for (Rank n = 1; n <= 20; ++n) {
      uint32_t next = 0;
      for (Rank rank = 0; rank < n; ++rank) {
        const LeafShare share = leaf_share(leaf_count, n, rank);
        ASSERT_EQ(share.first, next);
        ASSERT_TRUE(share.count == leaf_count / n || share.count == leaf_count / n + 1);
        next += share.count;
      }
      ASSERT_EQ(next, leaf_count);
    }
  }
}

TEST(Leaves, NodesAreTheFewestThatCoverAShare) {
  for (uint32_t leaf_count = 1; leaf_count <= 40; ++leaf_count) {
    const uint32_t root = leaf_root_level(leaf_count);
    ASSERT_GE(1u << root, leaf_count);
    ASSERT_TRUE(leaf_count == 1 || 1u << (root - 1) < leaf_count);
    for (Rank n = 1; n <= 12; ++n) {
      for (Rank rank = 0; rank < n; ++rank) {
        const LeafShare share = leaf_share(leaf_count, n, rank);
        const uint32_t end = share.first + share.count;
        std::vector<LeafNode> expected;
        if (share.count > 0) {
          cover({0, root}, share.first, end == leaf_count ? 1u << root : end, &expected);
          // What has no leaf at all is left out.
          while (expected.back().first >= leaf_count) expected.pop_back();
        }
        ASSERT_EQ(leaf_nodes_of(leaf_count, n, rank), expected)
            << leaf_count << " leaves, rank " << rank << " of " << n;
      }
    }
  }
}

// Node by node in order: the folds that each completes leave the root of the tree.
TEST(Leaves, FoldsAfterEachNodeMakeTheTree) {
  for (const uint32_t leaf_count : {1u, 2u, 3u, 5u, 8u, 24u, 33u, 100u, 4096u}) {
    for (const Rank n : {1u, 2u, 3u, 4u, 7u, 8u, 13u, 200u}) {
      std::vector<LeafNode> stack;
      for (Rank rank = 0; rank < n; ++rank) {
        for (const LeafNode& node : leaf_nodes_of(leaf_count, n, rank)) {
          stack.push_back(node);
          for (uint32_t i = folds_after(node, leaf_count); i > 0; --i) {
            ASSERT_GE(stack.size(), 2u);
            LeafNode right = stack.back();
            stack.pop_back();
            // Behind the last leaf all are absent.
            if (node.end() >= leaf_count) right.level = stack.back().level;
            ASSERT_EQ(stack.back().level, right.level);
            ASSERT_EQ(stack.back().end(), right.first);
            ASSERT_EQ(stack.back().first % (2u << right.level), 0u);
            ++stack.back().level;
          }
        }
      }
      ASSERT_EQ(stack.size(), 1u);
      ASSERT_EQ(stack[0], (LeafNode{0, leaf_root_level(leaf_count)}));
    }
  }
}

TEST(Leaves, SmallFloatsHavePartialResultsOf32Bits) {
  EXPECT_EQ(partial_type(DataType::kBfloat16), DataType::kFloat32);
  EXPECT_EQ(partial_type(DataType::kFloat16), DataType::kFloat32);
  EXPECT_EQ(partial_type(DataType::kFloat8E4M3), DataType::kFloat32);
  EXPECT_EQ(partial_type(DataType::kFloat8E5M2), DataType::kFloat32);
  EXPECT_EQ(partial_type(DataType::kFloat64), DataType::kFloat64);
  EXPECT_EQ(partial_type(DataType::kInt8), DataType::kInt8);
}

}  // namespace
}  // namespace weir
