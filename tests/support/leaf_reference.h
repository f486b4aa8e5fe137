// SPDX-License-Identifier: Apache-2.0
// A fold over leaves as weir.h defines it, computed node by node and element by element by the
// reference of the reduction kernels. Thread-safe.
#pragma once

#include <cstring>
#include <optional>
#include <vector>

#include "core/base/leaves.h"
#include "unit/engine/reduce_reference.h"

namespace weir::test {

using Bytes = std::vector<uint8_t>;
// Of partial results; nullopt: absent.
using Node = std::optional<Bytes>;

inline bool is_small_float(DataType type) { return partial_type(type) != type; }

// Elements of `type` as partial results.
inline Bytes widened(DataType type, const Bytes& data) {
  if (!is_small_float(type)) return data;
  const size_t element = element_bytes(type);
  Bytes wide(data.size() / element * sizeof(float));
  for (size_t i = 0; i < data.size() / element; ++i) {
    uint32_t code = 0;
    std::memcpy(&code, data.data() + i * element, element);
    const float value = decode_small_float(type, code);
    std::memcpy(wide.data() + i * sizeof(float), &value, sizeof(float));
  }
  return wide;
}

inline Bytes folded(DataType type, Fold fold, const std::vector<const void*>& sources, size_t count,
                    uint32_t divisor) {
  ReduceArgs args;
  args.sources = sources.data();
  args.source_count = static_cast<uint32_t>(sources.size());
  args.element_count = count;
  args.divisor = divisor;
  return reference_reduce(type, fold, args);
}

// `leaves`: partial results of `count` elements.
inline Node reference_node(DataType type, Fold fold, const std::vector<Node>& leaves, size_t count,
                           const LeafNode& node) {
  if (node.first >= leaves.size()) return std::nullopt;
  if (node.level == 0) return leaves[node.first];
  const LeafNode left_child{node.first, node.level - 1};
  Node left = reference_node(type, fold, leaves, count, left_child);
  Node right = reference_node(type, fold, leaves, count, {left_child.end(), node.level - 1});
  if (!left) return right;
  if (!right) return left;
  return folded(partial_type(type), fold, {left->data(), right->data()}, count, 1);
}

// A partial result as a result of `type`, bit by bit as weir.h says.
inline Bytes reference_result(DataType type, const Bytes& partial, size_t count, uint32_t divisor) {
  // One source and no divisor would be a copy, with the NaN as it is: the sum with -0 is none.
  const DataType wide = partial_type(type);
  Bytes total = partial;
  const bool is_float = type >= DataType::kFloat16;
  if (divisor != 1) {
    total = folded(wide, Fold::kSum, {partial.data()}, count, divisor);
  } else if (is_float) {
    total = folded(wide, Fold::kMax, {partial.data(), partial.data()}, count, 1);
  }
  if (!is_small_float(type)) return total;
  const size_t element = element_bytes(type);
  Bytes result(count * element);
  for (size_t i = 0; i < count; ++i) {
    float value;
    std::memcpy(&value, total.data() + i * sizeof(float), sizeof(float));
    const uint32_t code = encode_small_float(type, value);
    std::memcpy(result.data() + i * element, &code, element);
  }
  return result;
}

}  // namespace weir::test
