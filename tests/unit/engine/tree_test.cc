// SPDX-License-Identifier: Apache-2.0
// The kernels of folds over leaves, and the local fold, against a reference that is computed node
// by node, on every instruction set.
#include "core/engine/tree.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <memory>
#include <random>
#include <set>
#include <string>

#include "core/engine/leaf_fold.h"
#include "hwy/targets.h"
#include "support/leaf_reference.h"
#include "unit/engine/guarded_buffer.h"

namespace weir {
namespace {

using engine::LeafFold;
using test::Bytes;
using test::GuardedBuffer;
using test::Node;

constexpr Fold kFolds[] = {Fold::kSum, Fold::kProd, Fold::kMax, Fold::kMin};

uint64_t test_seed() {
  static const uint64_t seed = [] {
    const char* text = std::getenv("WEIR_TEST_SEED");
    const uint64_t chosen = text != nullptr ? std::strtoull(text, nullptr, 10) : 20261127;
    std::printf("WEIR_TEST_SEED=%llu\n", static_cast<unsigned long long>(chosen));
    return chosen;
  }();
  return seed;
}

std::vector<int64_t> targets() {
  std::vector<int64_t> found;
  std::set<std::string> names;
  for (int bit = 0; bit < 63; ++bit) {
    const int64_t target = int64_t{1} << bit;
    const bool fallback = target == HWY_SCALAR || target == HWY_EMU128;
    if ((hwy::SupportedTargets() & target) == 0 && !fallback) continue;
    hwy::GetChosenTarget().Update(target);
    if (names.insert(reduce_kernel_target()).second) found.push_back(target);
  }
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  return found;
}

class Target {
 public:
  explicit Target(int64_t target) { hwy::GetChosenTarget().Update(target); }
  ~Target() { hwy::GetChosenTarget().Update(hwy::SupportedTargets()); }
};

// Values whose sums round, and the special ones.
Bytes random_leaf(DataType type, size_t count, std::mt19937_64& random) {
  Bytes data(count * element_bytes(type));
  for (uint8_t& byte : data) byte = static_cast<uint8_t>(random());
  if (type < DataType::kFloat16) return data;
  for (size_t i = 0; i < count; ++i) {
    constexpr double kSpecial[] = {0.0, -0.0, 1.0, -1.0, INFINITY, -INFINITY, NAN, 1e-40, 3e38};
    const double middle = std::ldexp(static_cast<double>(random() % 2000001) / 1e6 - 1.0,
                                     static_cast<int>(random() % 8));
    const double value = random() % 24 == 0 ? kSpecial[random() % std::size(kSpecial)] : middle;
    const auto put = [&](auto lane) { std::memcpy(&data[i * sizeof(lane)], &lane, sizeof(lane)); };
    if (type == DataType::kFloat64) {
      put(value);
    } else if (type == DataType::kFloat32) {
      put(static_cast<float>(value));
    } else {
      const uint32_t code = test::encode_small_float(type, static_cast<float>(value));
      std::memcpy(&data[i * element_bytes(type)], &code, element_bytes(type));
    }
  }
  return data;
}

template <typename Visit>
void for_each_kind(Visit&& visit) {
  for (uint32_t type = 0; type < kDataTypeCount; ++type) {
    for (const Fold fold : kFolds) visit(static_cast<DataType>(type), fold);
  }
}

// Operands between guards, at any alignment; wide ones and narrow ones in turn.
void check_kernels(DataType type, Fold fold, uint32_t leaf_count, size_t count, size_t offset,
                   std::mt19937_64& random) {
  std::vector<Node> wide(leaf_count);
  std::vector<std::unique_ptr<GuardedBuffer>> memory;
  std::vector<TreeOperand> operands(leaf_count);
  for (uint32_t i = 0; i < leaf_count; ++i) {
    const Bytes leaf = random_leaf(type, count, random);
    wide[i] = test::widened(type, leaf);
    operands[i].narrow = random() % 2 == 0;
    const Bytes& stored = operands[i].narrow ? leaf : *wide[i];
    memory.push_back(std::make_unique<GuardedBuffer>(stored.size() + 64));
    uint8_t* at = i % 2 == 0 ? memory[i]->from_begin(offset) : memory[i]->to_end(0, stored.size());
    std::memcpy(at, stored.data(), stored.size());
    operands[i].data = at;
    operands[i].folds = folds_after({i, 0}, leaf_count);
  }
  const Node node = test::reference_node(type, fold, wide, count, {0, leaf_root_level(leaf_count)});
  const TreeKernels kernels = tree_kernels(type, fold);
  const size_t partial_bytes = count * element_bytes(partial_type(type));
  const size_t result_bytes = count * element_bytes(type);
  GuardedBuffer dst(partial_bytes + 64);
  for (const uint32_t divisor : {1u, leaf_count}) {
    uint8_t* to = dst.to_end(offset, result_bytes);
    kernels.result({to, operands.data(), leaf_count, count, divisor, random() % 2 == 0});
    ASSERT_EQ(Bytes(to, to + result_bytes), test::reference_result(type, *node, count, divisor))
        << name_of(type) << " " << name_of(fold) << ", " << leaf_count << " leaves of " << count
        << ", divisor " << divisor << ", " << reduce_kernel_target();
    ASSERT_TRUE(offset == 0 || to[-1] == GuardedBuffer::kCanary);
  }
  uint8_t* to = dst.from_begin(offset);
  kernels.partial({to, operands.data(), leaf_count, count});
  const Bytes expected = leaf_count > 1 || type < DataType::kFloat16
                             ? *node
                             : test::reference_result(partial_type(type), *node, count, 1);
  ASSERT_EQ(Bytes(to, to + partial_bytes), expected)
      << name_of(type) << " " << name_of(fold) << ", " << leaf_count << " leaves of " << count
      << ", " << reduce_kernel_target();
}

TEST(TreeKernels, FoldEveryTypeAsTheTreeOnEveryInstructionSet) {
  std::mt19937_64 random(test_seed());
  for (const int64_t target : targets()) {
    const Target chosen(target);
    for_each_kind([&](DataType type, Fold fold) {
      if (testing::Test::HasFailure()) return;
      for (const uint32_t leaf_count : {1u, 2u, 3u, 5u, 8u, 13u}) {
        const size_t count = random() % 3 == 0 ? random() % 900 : random() % 70;
        check_kernels(type, fold, leaf_count, count, random() % 9, random);
      }
    });
  }
}

TEST(TreeKernels, AnAbsentNodeChangesNoOther) {
  std::mt19937_64 random(test_seed());
  for_each_kind([&](DataType type, Fold fold) {
    constexpr size_t kCount = 200;
    const Bytes value = test::widened(type, random_leaf(type, kCount, random));
    Bytes absent(value.size());
    fill_absent(type, fold, absent.data(), kCount);
    for (const bool is_first : {false, true}) {
      Bytes got(value.size());
      TreeOperand operands[] = {{(is_first ? absent : value).data(), 0},
                                {(is_first ? value : absent).data(), 1}};
      tree_kernels(type, fold).partial({got.data(), operands, 2, kCount});
      ASSERT_EQ(got, type < DataType::kFloat16
                         ? value
                         : test::reference_result(partial_type(type), value, kCount, 1))
          << name_of(type) << " " << name_of(fold);
    }
  });
}

enum class Pace { kAtOnce, kOneByOne, kRandom };

void check_leaf_fold(DataType type, Fold fold, uint32_t leaf_count, Rank n, uint32_t present_of_8,
                     Pace pace, std::mt19937_64& random) {
  constexpr size_t kCount = 37;
  const DataType partial = partial_type(type);
  const bool is_narrow = random() % 2 == 0;
  std::vector<Bytes> leaves(leaf_count);
  std::vector<Node> wide(leaf_count);
  std::vector<const void*> given(leaf_count);
  for (uint32_t i = 0; i < leaf_count; ++i) {
    if (random() % 8 >= present_of_8) continue;
    leaves[i] = random_leaf(type, kCount, random);
    // Without NaN of other kinds, so that a copy and a fold of one have the same bits.
    wide[i] = test::widened(type, leaves[i]);
    if (type >= DataType::kFloat16) wide[i] = test::reference_result(partial, *wide[i], kCount, 1);
    given[i] = is_narrow && partial != type ? leaves[i].data() : wide[i]->data();
  }
  for (Rank rank = 0; rank < n; ++rank) {
    LeafFold work;
    work.leaf_count = leaf_count;
    work.share = leaf_share(leaf_count, n, rank);
    work.type = type;
    work.fold = fold;
    work.count = kCount;
    const size_t node_bytes = kCount * element_bytes(partial);
    const uint32_t capacity = engine::leaf_node_capacity(leaf_count, n, rank);
    GuardedBuffer nodes(capacity * node_bytes + 1);
    work.nodes = nodes.to_end(0, capacity * node_bytes);
    while (work.folded_count < work.share.count) {
      const uint32_t left = work.share.count - work.folded_count;
      const uint32_t next = pace == Pace::kAtOnce     ? left
                            : pace == Pace::kOneByOne ? 1
                                                      : static_cast<uint32_t>(random() % left + 1);
      work.add({given.data() + work.share.first + work.folded_count, next},
               is_narrow && partial != type);
    }
    const std::vector<LeafNode> expected = leaf_nodes_of(leaf_count, n, rank);
    ASSERT_GE(capacity, expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      const Node node = test::reference_node(type, fold, wide, kCount, expected[i]);
      Bytes bytes(node_bytes);
      fill_absent(type, fold, bytes.data(), kCount);
      const auto* got = static_cast<const uint8_t*>(work.nodes) + i * node_bytes;
      ASSERT_EQ(Bytes(got, got + node_bytes), node ? *node : bytes)
          << name_of(type) << " " << name_of(fold) << ", " << leaf_count << " leaves, rank " << rank
          << " of " << n << ", node " << i << (node ? "" : ", absent");
    }
  }
}

TEST(LeafFold, GivesTheNodesOfTheTreeHoweverLeavesCome) {
  std::mt19937_64 random(test_seed());
  for (const uint32_t leaf_count : {1u, 2u, 3u, 7u, 8u, 16u, 24u, 40u, 64u}) {
    for (const Rank n : {1u, 2u, 3u, 4u, 5u, 8u}) {
      for (const Pace pace : {Pace::kAtOnce, Pace::kOneByOne, Pace::kRandom}) {
        for (const uint32_t present_of_8 : {8u, 5u, 1u, 0u}) {
          const auto type = static_cast<DataType>(random() % kDataTypeCount);
          check_leaf_fold(type, kFolds[random() % 4], leaf_count, n, present_of_8, pace, random);
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST(LeafFold, HoldsOneNodeALevelAndOneMoreForAnAlignedShare) {
  EXPECT_EQ(engine::leaf_node_capacity(1, 1, 0), 1u);
  EXPECT_EQ(engine::leaf_node_capacity(8, 1, 0), 3u);
  EXPECT_EQ(engine::leaf_node_capacity(64, 2, 1), 5u);
  EXPECT_EQ(engine::leaf_node_capacity(1024, 1, 0), 10u);
  EXPECT_LE(engine::leaf_node_capacity(1000, 7, 3), 2 * 8u);
}

}  // namespace
}  // namespace weir
