// SPDX-License-Identifier: Apache-2.0
#include "core/engine/reduce_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/engine/reduce_integer.cc"
#include "hwy/foreach_target.h"  // before the others, since it includes this file again
// clang-format off
#include "hwy/highway.h"
#include "core/engine/reduce_loop-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace weir {
namespace HWY_NAMESPACE {

ReduceKernel find_integer(DataType type, Fold fold) {
  switch (type) {
    case DataType::kInt32:
      return kernel_of<Same<int32_t>>(fold);
    case DataType::kUint32:
      return kernel_of<Same<uint32_t>>(fold);
    case DataType::kInt64:
      return kernel_of<Same<int64_t>>(fold);
    case DataType::kUint64:
      return kernel_of<Same<uint64_t>>(fold);
    default:
      return nullptr;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weir
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weir {

HWY_EXPORT(find_integer);

ReduceKernel integer_kernel(DataType type, Fold fold) {
  return HWY_DYNAMIC_DISPATCH(find_integer)(type, fold);
}

}  // namespace weir
#endif
