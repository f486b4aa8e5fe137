// SPDX-License-Identifier: Apache-2.0
#include "offload/kernels/gradient_accumulate.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "offload/kernels/gradient_accumulate.cc"
#include "hwy/foreach_target.h"  // before the others, since it includes this file again
// clang-format off
#include "hwy/highway.h"
#include "offload/kernels/elements-inl.h"
// clang-format on

#include "offload/kernels/float_environment.h"

HWY_BEFORE_NAMESPACE();
namespace weir::offload {
namespace HWY_NAMESPACE {
namespace {

HWY_INLINE void add_vector(unsigned char* total, const unsigned char* gradient, DataType type,
                           size_t at) {
  const DFloat df;
  const auto sum = hn::Add(load(df, total + at * 4), load_as_float(type, gradient, at));
  store(df, canonical(sum), total + at * 4);
}

}  // namespace

void accumulate(unsigned char* total, const unsigned char* gradient, DataType type, size_t count) {
  const size_t bytes = element_bytes(type);
  size_t at = 0;
  for (; at + 32 <= count; at += 32) {
    __builtin_prefetch(total + at * 4 + 2048, 0, 3);
    __builtin_prefetch(total + at * 4 + 2048 + 64, 0, 3);
    __builtin_prefetch(gradient + at * bytes + 2048, 0, 3);
    for (size_t i = 0; i < 32; i += kLanes) add_vector(total, gradient, type, at + i);
  }
  for (; at < count; at += kLanes) {
    const size_t rest = count - at < kLanes ? count - at : kLanes;
    HWY_ALIGN unsigned char total_lanes[64] = {};
    HWY_ALIGN unsigned char gradient_lanes[64] = {};
    std::memcpy(total_lanes, total + at * 4, rest * 4);
    std::memcpy(gradient_lanes, gradient + at * bytes, rest * bytes);
    add_vector(total_lanes, gradient_lanes, type, 0);
    std::memcpy(total + at * 4, total_lanes, rest * 4);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weir::offload
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weir::offload {

HWY_EXPORT(accumulate);

void gradient_accumulate(float* total, const void* gradient, DataType type, uint64_t count) {
  const FloatEnvironment environment;
  HWY_DYNAMIC_DISPATCH(accumulate)
  (reinterpret_cast<unsigned char*>(total), static_cast<const unsigned char*>(gradient), type,
   count);
}

}  // namespace weir::offload
#endif
