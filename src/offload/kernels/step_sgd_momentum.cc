// SPDX-License-Identifier: Apache-2.0
#include "offload/kernels/step_functions.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "offload/kernels/step_sgd_momentum.cc"
#include "hwy/foreach_target.h"  // before the others, since it includes this file again
// clang-format off
#include "hwy/highway.h"
#include "offload/kernels/step_loop-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace weir::offload {
namespace HWY_NAMESPACE {

StepFunction find_sgd_momentum(StateFormat format) { return step_of<SgdMomentumRule>(format); }

}  // namespace HWY_NAMESPACE
}  // namespace weir::offload
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weir::offload {

HWY_EXPORT(find_sgd_momentum);

StepFunction sgd_momentum_step(StateFormat format) {
  return HWY_DYNAMIC_DISPATCH(find_sgd_momentum)(format);
}

}  // namespace weir::offload
#endif
