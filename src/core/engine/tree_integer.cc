// SPDX-License-Identifier: Apache-2.0
#include "core/engine/tree_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/engine/tree_integer.cc"
#include "hwy/foreach_target.h"  // before the others, since it includes this file again
// clang-format off
#include "hwy/highway.h"
#include "core/engine/tree_loop-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace weir {
namespace HWY_NAMESPACE {

template <typename T>
TreeKernels tree_of_integer(Fold fold) {
  return tree_kernels_of<Same<T>, Same<T>>(fold);
}

TreeKernels find_tree_integer(DataType type, Fold fold) {
  switch (type) {
    case DataType::kInt8:
      return tree_kernels_of<Same<int8_t>, Bytes<int8_t, int16_t>>(fold);
    case DataType::kUint8:
      return tree_kernels_of<Same<uint8_t>, Bytes<uint8_t, uint16_t>>(fold);
    case DataType::kInt32:
      return tree_of_integer<int32_t>(fold);
    case DataType::kUint32:
      return tree_of_integer<uint32_t>(fold);
    case DataType::kInt64:
      return tree_of_integer<int64_t>(fold);
    case DataType::kUint64:
      return tree_of_integer<uint64_t>(fold);
    default:
      return {};
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weir
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weir {

HWY_EXPORT(find_tree_integer);

TreeKernels integer_tree_kernels(DataType type, Fold fold) {
  return HWY_DYNAMIC_DISPATCH(find_tree_integer)(type, fold);
}

}  // namespace weir
#endif
