// SPDX-License-Identifier: Apache-2.0
#include "core/engine/reduce.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/engine/reduce_copy.cc"
#include "hwy/foreach_target.h"  // before the others, since it includes this file again
// clang-format off
#include "hwy/highway.h"
#include "hwy/targets.h"
// clang-format on

#include <cstring>

#include "hwy/cache_control.h"
#include "net/copy.h"

HWY_BEFORE_NAMESPACE();
namespace weir {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Copies a multiple of 256 bytes; `dst` is aligned to a line.
void copy_streaming(uint8_t* dst, const uint8_t* src, size_t bytes) {
#if HWY_TARGET == HWY_SCALAR
  std::memcpy(dst, src, bytes);
#else
  constexpr size_t kUnroll = 4;
  const hn::ScalableTag<uint8_t> d;
  const size_t lanes = hn::Lanes(d);
  for (size_t at = 0; at < bytes; at += kUnroll * lanes) {
    const auto v0 = hn::LoadU(d, src + at);
    const auto v1 = hn::LoadU(d, src + at + lanes);
    const auto v2 = hn::LoadU(d, src + at + 2 * lanes);
    const auto v3 = hn::LoadU(d, src + at + 3 * lanes);
    hn::Stream(v0, d, dst + at);
    hn::Stream(v1, d, dst + at + lanes);
    hn::Stream(v2, d, dst + at + 2 * lanes);
    hn::Stream(v3, d, dst + at + 3 * lanes);
  }
#endif
}

const char* target_name() { return hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace weir
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weir {

HWY_EXPORT(copy_streaming);
HWY_EXPORT(target_name);

const char* reduce_kernel_target() { return HWY_DYNAMIC_DISPATCH(target_name)(); }

void copy_bytes(void* dst, const void* src, size_t bytes, bool streaming) {
  constexpr size_t kLineBytes = 64;
  constexpr size_t kStepBytes = 256;  // four of the widest vectors
  if (bytes == 0 || dst == src) return;
  if (!streaming || bytes < kStepBytes + kLineBytes) {
    net::copy(dst, src, bytes);
    return;
  }
  auto* to = static_cast<uint8_t*>(dst);
  const auto* from = static_cast<const uint8_t*>(src);
  const size_t head = (kLineBytes - reinterpret_cast<uintptr_t>(to) % kLineBytes) % kLineBytes;
  const size_t body = (bytes - head) / kStepBytes * kStepBytes;
  std::memcpy(to, from, head);
  HWY_DYNAMIC_DISPATCH(copy_streaming)(to + head, from + head, body);
  std::memcpy(to + head + body, from + head + body, bytes - head - body);
  hwy::FlushStream();
}

}  // namespace weir
#endif
