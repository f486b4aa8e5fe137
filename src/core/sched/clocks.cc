// SPDX-License-Identifier: Apache-2.0
#include "core/sched/clocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/sched/clocks.cc"
#include "hwy/foreach_target.h"  // before the others, since it includes this file again
// clang-format off
#include "hwy/highway.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace weir::sched {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

void join(uint32_t* HWY_RESTRICT to, const uint32_t* HWY_RESTRICT from, uint32_t count) {
  const hn::CappedTag<uint32_t, kClockGranule> tag;
  for (uint32_t i = 0; i < count; i += static_cast<uint32_t>(hn::Lanes(tag))) {
    hn::StoreU(hn::Max(hn::LoadU(tag, to + i), hn::LoadU(tag, from + i)), tag, to + i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weir::sched
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weir::sched {

HWY_EXPORT(join);

void join_clocks(uint32_t* to, const uint32_t* from, uint32_t count) {
  HWY_DYNAMIC_DISPATCH(join)(to, from, count);
}

}  // namespace weir::sched
#endif
