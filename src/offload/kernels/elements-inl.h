// SPDX-License-Identifier: Apache-2.0
// Vector pieces that the offload kernels share: loads and stores at any alignment, conversions of
// bf16 and f16, a fused multiply-add that is one rounding on every instruction set, random bits.
// Included once per instruction set (foreach_target). Same bits on every one of them, under
// FloatEnvironment.

#if defined(WEIR_OFFLOAD_ELEMENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEIR_OFFLOAD_ELEMENTS_INL_H_
#undef WEIR_OFFLOAD_ELEMENTS_INL_H_
#else
#define WEIR_OFFLOAD_ELEMENTS_INL_H_
#endif

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "core/base/types.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "offload/kernels/random.h"

// f16 conversion in hardware: rounds to nearest even and never flushes, whatever the control
// register says.
#undef WEIR_OFFLOAD_F16C
#if (HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3) && !defined(HWY_DISABLE_F16C)
#define WEIR_OFFLOAD_F16C 1
#else
#define WEIR_OFFLOAD_F16C 0
#endif

HWY_BEFORE_NAMESPACE();
namespace weir::offload {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

template <class D>
using VecOf = hn::VFromD<D>;

// Lanes of f32; a line of a 16-bit type is at least two vectors.
using DFloat = hn::CappedTag<float, 16>;
using DUint = hn::RebindToUnsigned<DFloat>;
using DInt = hn::RebindToSigned<DFloat>;
using DHalf = hn::Rebind<uint16_t, DFloat>;
using DByte = hn::Rebind<uint8_t, DFloat>;
using VFloat = VecOf<DFloat>;
using VUint = VecOf<DUint>;
inline constexpr size_t kLanes = hn::MaxLanes(DFloat());

template <class D>
HWY_INLINE VecOf<D> load(D d, const unsigned char* from) {
  using T = hn::TFromD<D>;
#if HWY_TARGET == HWY_SCALAR
  T lane;
  std::memcpy(&lane, from, sizeof(T));
  return hn::Set(d, lane);
#else
  return hn::LoadU(d, reinterpret_cast<const T*>(from));
#endif
}

template <class D>
HWY_INLINE void store(D d, VecOf<D> v, unsigned char* to) {
  using T = hn::TFromD<D>;
#if HWY_TARGET == HWY_SCALAR
  (void)d;
  const T lane = hn::GetLane(v);
  std::memcpy(to, &lane, sizeof(T));
#else
  hn::StoreU(v, d, reinterpret_cast<T*>(to));
#endif
}

// Stores past the caches; `to` is vector-aligned. Highway rounds partial vectors up to 16 bytes, so
// those are stored as usual.
template <class D>
HWY_INLINE void store_streaming(D d, VecOf<D> v, unsigned char* to) {
  using T = hn::TFromD<D>;
  if constexpr (hn::MaxLanes(D()) * sizeof(T) >= 16) {
    hn::Stream(v, d, reinterpret_cast<T*>(to));
  } else {
    store(d, v, to);
  }
}

// Highway's emulation does not round to infinity but saturates.
template <class DF, class V>
HWY_INLINE VecOf<DF> round_to_float(DF df, V wide) {
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
  constexpr size_t kCount = hn::MaxLanes(DF());
  HWY_ALIGN double from[2 * kCount];
  HWY_ALIGN float to[4 * kCount];
  hn::StoreU(wide, hn::Rebind<double, DF>(), from);
  for (size_t i = 0; i < kCount; ++i) to[i] = static_cast<float>(from[i]);
  return hn::LoadU(df, to);
#else
  return hn::DemoteTo(df, wide);
#endif
}

// ---- a * b + c, rounded once ------------------------------------------------------------------

#if !HWY_NATIVE_FMA
// In double the product is exact; the sum is rounded to odd, after which the rounding to float is
// that of the exact sum (Boldo, Melquiond 2008).
template <class DD>
HWY_INLINE VecOf<DD> fused_wide(DD dd, VecOf<DD> a, VecOf<DD> b, VecOf<DD> c) {
  const hn::RebindToSigned<DD> di;
  const auto product = hn::Mul(a, b);
  const auto sum = hn::Add(product, c);
  const auto part = hn::Sub(sum, product);
  const auto error = hn::Add(hn::Sub(product, hn::Sub(sum, part)), hn::Sub(c, part));
  const auto zero = hn::Zero(dd);
  const auto inexact = hn::Or(hn::Lt(error, zero), hn::Gt(error, zero));  // not of NaN
  const auto bits = hn::BitCast(di, sum);
  const auto one = hn::Set(di, 1);
  const auto even = hn::Eq(hn::And(bits, one), hn::Zero(di));
  const auto sign = hn::Xor(bits, hn::BitCast(di, error));
  const auto inward = hn::RebindMask(dd, hn::Lt(sign, hn::Zero(di)));
  const auto moved = hn::IfThenElse(inward, hn::BitCast(dd, hn::Sub(bits, one)),
                                    hn::BitCast(dd, hn::Add(bits, one)));
  return hn::IfThenElse(hn::And(inexact, hn::RebindMask(dd, even)), moved, sum);
}
#endif

// f(0), f(1), … with constants: arrays of vectors stay in registers.
template <class Function, size_t... kIndex>
HWY_INLINE void unroll(Function& f, std::index_sequence<kIndex...>) {
  (f(std::integral_constant<size_t, kIndex>()), ...);
}
template <size_t kCount, class Function>
HWY_INLINE void unrolled(Function f) {
  unroll(f, std::make_index_sequence<kCount>());
}

HWY_INLINE VFloat fused(VFloat a, VFloat b, VFloat c) {
#if HWY_NATIVE_FMA
  return hn::MulAdd(a, b, c);
#elif HWY_TARGET == HWY_SCALAR
  return hn::Set(DFloat(), std::fma(hn::GetLane(a), hn::GetLane(b), hn::GetLane(c)));
#else
  const DFloat df;
  const hn::Half<DFloat> dh;
  const hn::Rebind<double, hn::Half<DFloat> > dd;
  const auto low =
      fused_wide(dd, hn::PromoteTo(dd, hn::LowerHalf(dh, a)),
                 hn::PromoteTo(dd, hn::LowerHalf(dh, b)), hn::PromoteTo(dd, hn::LowerHalf(dh, c)));
  const auto high =
      fused_wide(dd, hn::PromoteTo(dd, hn::UpperHalf(dh, a)),
                 hn::PromoteTo(dd, hn::UpperHalf(dh, b)), hn::PromoteTo(dd, hn::UpperHalf(dh, c)));
  return hn::Combine(df, round_to_float(dh, high), round_to_float(dh, low));
#endif
}

// c - a b, rounded once.
HWY_INLINE VFloat fused_minus(VFloat a, VFloat b, VFloat c) {
#if HWY_NATIVE_FMA
  return hn::NegMulAdd(a, b, c);
#else
  return fused(hn::Neg(a), b, c);
#endif
}

// Doubles, half as many as DFloat has lanes.
#if HWY_TARGET == HWY_SCALAR
using DWide = hn::CappedTag<double, 1>;
#else
using DWide = hn::Rebind<double, hn::Half<DFloat> >;
#endif

// Which payload and sign survive depends on operand order, which the compiler may swap.
HWY_INLINE VFloat canonical(VFloat v) {
  return hn::IfThenElse(hn::IsNaN(v), hn::Set(DFloat(), std::numeric_limits<float>::quiet_NaN()),
                        v);
}

// Rounds towards zero where an int32 can hold the value; other lanes get any value (Highway
// saturates those, at some cost).
HWY_INLINE VecOf<DInt> truncated(VFloat v) {
#if HWY_TARGET == HWY_AVX3
  // Not the unmasked intrinsic: GCC 12 warns of its undefined operand.
  return VecOf<DInt>{_mm512_maskz_cvttps_epi32(0xffff, v.raw)};
#elif HWY_TARGET == HWY_AVX2
  return VecOf<DInt>{_mm256_cvttps_epi32(v.raw)};
#else
  return hn::ConvertTo(DInt(), v);
#endif
}

// ---- bf16 and f16 -----------------------------------------------------------------------------

HWY_INLINE VFloat from_bf16(VecOf<DHalf> v) {
  return hn::BitCast(DFloat(), hn::ShiftLeft<16>(hn::PromoteTo(DUint(), v)));
}

HWY_INLINE VecOf<DHalf> low_half(VUint v) {
  return hn::DemoteTo(DHalf(), hn::BitCast(DInt(), v));  // v < 2^16: nothing saturates
}

// The upper halves are v as bf16, nearest even. NaN must be canonical; the carry from the largest
// number makes infinity.
HWY_INLINE VUint bf16_above(VFloat v) {
  const auto bits = hn::BitCast(DUint(), v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(DUint(), 1));
  return hn::Add(bits, hn::Add(odd, hn::Set(DUint(), uint32_t{0x7fff})));
}

// Likewise, but rounded up with a probability equal to the fraction cut off. `random` is below
// 2^16. Infinity and NaN are kept.
HWY_INLINE VUint bf16_above_random(VFloat v, VUint random) {
  return hn::Add(hn::BitCast(DUint(), v), random);
}

// The halves of two vectors, in order, as one store.
template <bool kUpper>
HWY_INLINE void store_halves(VUint a, VUint b, unsigned char* to, bool streaming = false) {
#if HWY_TARGET == HWY_SCALAR
  (void)streaming;
  const auto half = [](VUint v) {
    const uint32_t lane = hn::GetLane(v);
    return hn::Set(DHalf(), static_cast<uint16_t>(kUpper ? lane >> 16 : lane));
  };
  store(DHalf(), half(a), to);
  store(DHalf(), half(b), to + 2);
#else
  const hn::Repartition<uint16_t, DFloat> pair;
  const auto low = hn::BitCast(pair, a), high = hn::BitCast(pair, b);
  VecOf<decltype(pair)> both;
  if constexpr (kUpper) {
    both = hn::ConcatOdd(pair, high, low);
  } else {
    both = hn::ConcatEven(pair, high, low);
  }
  streaming ? store_streaming(pair, both, to) : store(pair, both, to);
#endif
}

HWY_INLINE VFloat from_f16(VecOf<DHalf> v) {
  const DFloat df;
#if WEIR_OFFLOAD_F16C
  return hn::PromoteTo(df, hn::BitCast(hn::Rebind<hwy::float16_t, DFloat>(), v));
#else
  const DUint du;
  const DInt di;
  const auto code = hn::PromoteTo(du, v);
  const auto magnitude = hn::BitCast(di, hn::And(code, hn::Set(du, uint32_t{0x7fff})));
  const auto sign = hn::ShiftLeft<16>(hn::And(code, hn::Set(du, uint32_t{0x8000})));
  const auto normal = hn::Add(hn::ShiftLeft<13>(magnitude), hn::Set(di, 112 << 23));
  // The top exponent stands for infinity and NaN in both formats: 31 maps to 143, must be 255.
  const auto special = hn::Add(normal, hn::Set(di, 112 << 23));
  const auto tiny = hn::Mul(hn::ConvertTo(df, magnitude), hn::Set(df, 0x1p-24f));
  auto value = hn::IfThenElse(hn::Gt(magnitude, hn::Set(di, 0x7bff)), special, normal);
  value = hn::IfThenElse(hn::Lt(magnitude, hn::Set(di, 0x0400)), hn::BitCast(di, tiny), value);
  return hn::BitCast(df, hn::Or(hn::BitCast(du, value), sign));
#endif
}

// The magnitude bits of a float below 2^16 as f16 times 2^13, to be rounded at bit 13.
HWY_INLINE VUint f16_fixed(VUint magnitude) {
  const DFloat df;
  const DUint du;
  const auto tiny = truncated(hn::Mul(hn::BitCast(df, magnitude), hn::Set(df, 0x1p37f)));
  const auto is_tiny = hn::Lt(hn::BitCast(DInt(), magnitude), hn::Set(DInt(), 113 << 23));
  return hn::IfThenElse(hn::RebindMask(du, is_tiny), hn::BitCast(du, tiny),
                        hn::Sub(magnitude, hn::Set(du, uint32_t{112} << 23)));
}

HWY_INLINE VecOf<DHalf> f16_signed(VUint bits, VUint magnitude, VUint rounded) {
  const DUint du;
  const DInt di;
  const auto sign = hn::ShiftLeft<15>(hn::ShiftRight<31>(bits));
  const auto finite = hn::Min(rounded, hn::Set(du, uint32_t{0x7c00}));
  const auto is_nan =
      hn::RebindMask(du, hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, 0x7f800000)));
  const auto code = hn::IfThenElse(is_nan, hn::Set(du, uint32_t{0x7e00}), finite);
  return low_half(hn::Or(code, sign));
}

// Rounds up with a probability equal to the fraction cut off. `random` is below 2^13.
HWY_INLINE VecOf<DHalf> to_f16_random(VFloat v, VUint random) {
  const DUint du;
  const auto bits = hn::BitCast(du, v);
  const auto magnitude = hn::And(bits, hn::Set(du, uint32_t{0x7fffffff}));
  const auto rounded = hn::ShiftRight<13>(hn::Add(f16_fixed(magnitude), random));
  return f16_signed(bits, magnitude, rounded);
}

// Nearest even. NaN must be canonical.
HWY_INLINE VecOf<DHalf> to_f16(VFloat v) {
#if WEIR_OFFLOAD_F16C
  return hn::BitCast(DHalf(), hn::DemoteTo(hn::Rebind<hwy::float16_t, DFloat>(), v));
#else
  const DFloat df;
  const DUint du;
  const auto bits = hn::BitCast(du, v);
  const auto magnitude = hn::And(bits, hn::Set(du, uint32_t{0x7fffffff}));
  const auto fixed = hn::Sub(magnitude, hn::Set(du, uint32_t{112} << 23));
  const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1));
  const auto normal = hn::ShiftRight<13>(hn::Add(fixed, hn::Add(odd, hn::Set(du, 0xfffu))));
  // Adding 1/2 rounds at 2^-24, the unit of the subnormals.
  const auto half = hn::Set(df, 0.5f);
  const auto tiny =
      hn::Sub(hn::BitCast(du, hn::Add(hn::BitCast(df, magnitude), half)), hn::BitCast(du, half));
  const auto is_tiny = hn::Lt(hn::BitCast(DInt(), magnitude), hn::Set(DInt(), 113 << 23));
  const auto rounded = hn::IfThenElse(hn::RebindMask(du, is_tiny), tiny, normal);
  return f16_signed(bits, magnitude, rounded);
#endif
}

// `at` is the address of the first lane. The switch takes the same branch for a whole call, so it
// is well predicted.
HWY_INLINE VFloat load_as_float(DataType type, const unsigned char* base, size_t element) {
  switch (type) {
    case DataType::kBfloat16:
      return from_bf16(load(DHalf(), base + element * 2));
    case DataType::kFloat16:
      return from_f16(load(DHalf(), base + element * 2));
    default:
      return load(DFloat(), base + element * 4);
  }
}

// ---- Random bits ------------------------------------------------------------------------------

// random_bits() of kLanes elements from `index` on.
HWY_INLINE VUint random_lanes(RandomKey key, uint64_t index) {
  const DUint du;
  const uint32_t low = static_cast<uint32_t>(index);
  const uint32_t high = static_cast<uint32_t>(index >> 32);
  const auto lanes = hn::Add(hn::Iota(du, 0), hn::Set(du, low));
  auto between = hn::Set(du, key.between + high * kRandomHigh);
  if (HWY_UNLIKELY(low > UINT32_MAX - (kLanes - 1))) {
    between = hn::IfThenElse(hn::Lt(lanes, hn::Set(du, low)),
                             hn::Set(du, key.between + (high + 1) * kRandomHigh), between);
  }
  auto x = hn::Xor(lanes, hn::Set(du, key.before));
  x = hn::Mul(hn::Xor(x, hn::ShiftRight<17>(x)), hn::Set(du, kRandomMix0));
  x = hn::Add(x, between);
  x = hn::Mul(hn::Xor(x, hn::ShiftRight<11>(x)), hn::Set(du, kRandomMix1));
  x = hn::Mul(hn::Xor(x, hn::ShiftRight<15>(x)), hn::Set(du, kRandomMix2));
  return hn::Xor(x, hn::ShiftRight<14>(x));
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace weir::offload
HWY_AFTER_NAMESPACE();

#endif  // WEIR_OFFLOAD_ELEMENTS_INL_H_
