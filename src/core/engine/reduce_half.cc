// SPDX-License-Identifier: Apache-2.0
#include "core/engine/reduce_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/engine/reduce_half.cc"
#include "hwy/foreach_target.h"  // before the others, since it includes this file again
// clang-format off
#include "hwy/highway.h"
#include "core/engine/reduce_loop-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace weir {
namespace HWY_NAMESPACE {

ReduceKernel find_half(DataType type, Fold fold, Arithmetic arithmetic) {
  const bool ignores_nan = arithmetic == Arithmetic::kNccl && chooses(fold);
  switch (type) {
    case DataType::kFloat16:
      return ignores_nan ? choice_of<IgnoresNan<Float16>>(fold) : kernel_of<Float16>(fold);
    case DataType::kBfloat16:
      return ignores_nan ? choice_of<IgnoresNan<Bfloat16>>(fold) : kernel_of<Bfloat16>(fold);
    default:
      return nullptr;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weir
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weir {

HWY_EXPORT(find_half);

ReduceKernel half_kernel(DataType type, Fold fold, Arithmetic arithmetic) {
  return HWY_DYNAMIC_DISPATCH(find_half)(type, fold, arithmetic);
}

}  // namespace weir
#endif
