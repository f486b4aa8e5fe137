// SPDX-License-Identifier: Apache-2.0
#include "core/engine/reduce_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/engine/reduce_float8.cc"
#include "hwy/foreach_target.h"  // before the others, since it includes this file again
// clang-format off
#include "hwy/highway.h"
#include "core/engine/reduce_loop-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace weir {
namespace HWY_NAMESPACE {

ReduceKernel find_float8(DataType type, Fold fold, Arithmetic arithmetic) {
  const bool saturates = arithmetic == Arithmetic::kNccl;
  switch (type) {
    case DataType::kFloat8E4M3:
      return saturates ? kernel_of<void, void, SaturatingFloat8E4M3>(fold)
                       : kernel_of<void, void, Float8E4M3>(fold);
    case DataType::kFloat8E5M2:
      return saturates ? kernel_of<void, void, SaturatingFloat8E5M2>(fold)
                       : kernel_of<void, void, Float8E5M2>(fold);
    default:
      return nullptr;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weir
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weir {

HWY_EXPORT(find_float8);

ReduceKernel float8_kernel(DataType type, Fold fold, Arithmetic arithmetic) {
  return HWY_DYNAMIC_DISPATCH(find_float8)(type, fold, arithmetic);
}

}  // namespace weir
#endif
