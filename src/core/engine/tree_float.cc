// SPDX-License-Identifier: Apache-2.0
#include "core/engine/tree_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/engine/tree_float.cc"
#include "hwy/foreach_target.h"  // before the others, since it includes this file again
// clang-format off
#include "hwy/highway.h"
#include "core/engine/tree_loop-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace weir {
namespace HWY_NAMESPACE {

TreeKernels find_tree_float(DataType type, Fold fold) {
  switch (type) {
    case DataType::kFloat32:
      return tree_kernels_of<Same<float>, Same<float>>(fold);
    case DataType::kFloat64:
      return tree_kernels_of<Same<double>, Same<double>>(fold);
    case DataType::kFloat16:
      return tree_kernels_of<Float16, Float16>(fold);
    case DataType::kBfloat16:
      return tree_kernels_of<Bfloat16, Bfloat16>(fold);
    case DataType::kFloat8E4M3:
      return tree_kernels_of<Float8E4M3, Float8E4M3>(fold);
    case DataType::kFloat8E5M2:
      return tree_kernels_of<Float8E5M2, Float8E5M2>(fold);
    default:
      return {};
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weir
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weir {

HWY_EXPORT(find_tree_float);

TreeKernels float_tree_kernels(DataType type, Fold fold) {
  return HWY_DYNAMIC_DISPATCH(find_tree_float)(type, fold);
}

}  // namespace weir
#endif
