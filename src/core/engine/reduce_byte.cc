// SPDX-License-Identifier: Apache-2.0
#include "core/engine/reduce_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/engine/reduce_byte.cc"
#include "hwy/foreach_target.h"  // before the others, since it includes this file again
// clang-format off
#include "hwy/highway.h"
#include "core/engine/reduce_loop-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace weir {
namespace HWY_NAMESPACE {

ReduceKernel find_byte(DataType type, Fold fold) {
  switch (type) {
    case DataType::kInt8:
      return kernel_of<Same<int8_t>, void, Bytes<int8_t, int16_t>>(fold);
    case DataType::kUint8:
      return kernel_of<Same<uint8_t>, void, Bytes<uint8_t, uint16_t>>(fold);
    default:
      return nullptr;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weir
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weir {

HWY_EXPORT(find_byte);

ReduceKernel byte_kernel(DataType type, Fold fold) {
  return HWY_DYNAMIC_DISPATCH(find_byte)(type, fold);
}

}  // namespace weir
#endif
