// SPDX-License-Identifier: Apache-2.0
#include "perf/adam_perf/streaming_loop.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "perf/adam_perf/streaming_loop.cc"
#include "hwy/foreach_target.h"  // before the others, since it includes this file again
// clang-format off
#include "hwy/highway.h"
#include "hwy/cache_control.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace weir::perf {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::CappedTag<uint32_t, 16>;
constexpr size_t kVectorBytes = hn::MaxLanes(D()) * 4;
constexpr size_t kGroup = 64;  // elements: whole lines of a byte plane
constexpr size_t kAheadBytes = 2048;

template <bool kPrefetch>
HWY_INLINE void prefetch(const unsigned char* at, size_t offset) {
  if (kPrefetch && offset % 64 == 0) __builtin_prefetch(at + kAheadBytes, 0, 3);
}

template <bool kPrefetch, size_t kBytes>
HWY_INLINE hn::VFromD<D> read_group(const unsigned char* from) {
  const D d;
  auto all = hn::Zero(d);
  for (size_t i = 0; i < kGroup * kBytes; i += kVectorBytes) {
    prefetch<kPrefetch>(from + i, i);
    all = hn::Or(all, hn::LoadU(d, reinterpret_cast<const uint32_t*>(from + i)));
  }
  return all;
}

template <bool kPrefetch, size_t kBytes>
HWY_INLINE void change_group(unsigned char* at, hn::VFromD<D> value) {
  const D d;
  for (size_t i = 0; i < kGroup * kBytes; i += kVectorBytes) {
    prefetch<kPrefetch>(at + i, i);
    auto* lanes = reinterpret_cast<uint32_t*>(at + i);
    hn::StoreU(hn::Add(hn::LoadU(d, lanes), value), d, lanes);
  }
}

HWY_INLINE void write_group(unsigned char* to, hn::VFromD<D> value) {
  const D d;
  for (size_t i = 0; i < kGroup * 2; i += kVectorBytes) {
    hn::Stream(value, d, reinterpret_cast<uint32_t*>(to + i));
  }
}

// The template parameters: bytes per element of the planes in place (0: none) and of the read data,
// and whether a copy is written.
template <bool kPrefetch, size_t k0, size_t k1, size_t k2, size_t k3, size_t kRead, bool kWritten>
void loop(const Stream& s, uint64_t begin, uint64_t end) {
  const auto mask = hn::Set(D(), s.mask);
  for (uint64_t at = begin; at < end; at += kGroup) {
    const auto value = hn::And(read_group<kPrefetch, kRead>(s.read.data + at * kRead), mask);
    change_group<kPrefetch, k0>(s.in_place[0].data + at * k0, value);
    if constexpr (k1 != 0) change_group<kPrefetch, k1>(s.in_place[1].data + at * k1, value);
    if constexpr (k2 != 0) change_group<kPrefetch, k2>(s.in_place[2].data + at * k2, value);
    if constexpr (k3 != 0) change_group<kPrefetch, k3>(s.in_place[3].data + at * k3, value);
    if constexpr (kWritten) write_group(s.written.data + at * 2, value);
  }
  if constexpr (kWritten) hwy::FlushStream();
}

template <size_t k0, size_t k1, size_t k2, size_t k3>
bool run_if(const Stream& s, uint64_t begin, uint64_t end) {
  const size_t bytes[kStreamPlanesMax] = {k0, k1, k2, k3};
  for (size_t i = 0; i < kStreamPlanesMax; ++i) {
    if (bytes[i] != (i < s.in_place_count ? s.in_place[i].element_bytes : 0)) return false;
  }
  const bool written = s.written.data != nullptr;
  const auto with = [&](auto read, auto copy) {
    constexpr size_t kRead = decltype(read)::value;
    constexpr bool kCopy = decltype(copy)::value;
    if (s.prefetch) {
      loop<true, k0, k1, k2, k3, kRead, kCopy>(s, begin, end);
    } else {
      loop<false, k0, k1, k2, k3, kRead, kCopy>(s, begin, end);
    }
  };
  using Four = std::integral_constant<size_t, 4>;
  using Two = std::integral_constant<size_t, 2>;
  if (s.read.element_bytes == 4) {
    written ? with(Four(), std::true_type()) : with(Four(), std::false_type());
  } else {
    written ? with(Two(), std::true_type()) : with(Two(), std::false_type());
  }
  return true;
}

}  // namespace

bool run_stream(const Stream& s, uint64_t begin, uint64_t end) {
  return run_if<4, 4, 4, 0>(s, begin, end) || run_if<4, 4, 0, 0>(s, begin, end) ||
         run_if<2, 2, 2, 2>(s, begin, end) || run_if<2, 2, 2, 0>(s, begin, end) ||
         run_if<2, 2, 1, 1>(s, begin, end) || run_if<2, 2, 1, 0>(s, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace weir::perf
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "core/base/check.h"

namespace weir::perf {

HWY_EXPORT(run_stream);

void stream(const Stream& stream, uint64_t begin, uint64_t end) {
  WEIR_CHECK(HWY_DYNAMIC_DISPATCH(run_stream)(stream, begin, end), "a loop for these planes");
}

}  // namespace weir::perf
#endif
