// SPDX-License-Identifier: Apache-2.0
#include "core/engine/reduce_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/engine/reduce_float.cc"
#include "hwy/foreach_target.h"  // before the others, since it includes this file again
// clang-format off
#include "hwy/highway.h"
#include "core/engine/reduce_loop-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace weir {
namespace HWY_NAMESPACE {

ReduceKernel find_float(DataType type, Fold fold, Arithmetic arithmetic) {
  const bool ignores_nan = arithmetic == Arithmetic::kNccl && chooses(fold);
  switch (type) {
    case DataType::kFloat32:
      return ignores_nan ? choice_of<IgnoresNan<Same<float>>>(fold) : kernel_of<Same<float>>(fold);
    case DataType::kFloat64:
      return ignores_nan ? choice_of<IgnoresNan<Same<double>>>(fold)
                         : kernel_of<Same<double>>(fold);
    default:
      return nullptr;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weir
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weir {

HWY_EXPORT(find_float);

ReduceKernel float_kernel(DataType type, Fold fold, Arithmetic arithmetic) {
  return HWY_DYNAMIC_DISPATCH(find_float)(type, fold, arithmetic);
}

}  // namespace weir
#endif
