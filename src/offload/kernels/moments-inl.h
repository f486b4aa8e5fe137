// SPDX-License-Identifier: Apache-2.0
// Moments in each state format (state_format.h): how a vector of them is read and written. Included
// once per instruction set (foreach_target).

#if defined(WEIR_OFFLOAD_MOMENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEIR_OFFLOAD_MOMENTS_INL_H_
#undef WEIR_OFFLOAD_MOMENTS_INL_H_
#else
#define WEIR_OFFLOAD_MOMENTS_INL_H_
#endif

#include "offload/kernels/elements-inl.h"
#include "offload/kernels/moment_code.h"
#include "offload/kernels/state_format.h"

HWY_BEFORE_NAMESPACE();
namespace weir::offload {
namespace HWY_NAMESPACE {
namespace {

// 16 random bits for the first moment, 16 others for the second.
struct FirstMoment : FirstMomentCode {
  static constexpr bool kSigned = true;
  static HWY_INLINE VUint random(VUint bits) { return hn::ShiftRight<16>(bits); }
};
struct SecondMoment : SecondMomentCode {
  static constexpr bool kSigned = false;
  static HWY_INLINE VUint random(VUint bits) {
    return hn::And(bits, hn::Set(DUint(), uint32_t{0xffff}));
  }
};

template <class Moment>
HWY_INLINE VFloat decode_moments(VecOf<DByte> codes, float scale) {
  const DFloat df;
  const DUint du;
  const DInt di;
  const auto code = hn::PromoteTo(du, codes);
  const auto magnitude = Moment::kSigned ? hn::And(code, hn::Set(du, uint32_t{0x7f})) : code;
  const auto normal =
      hn::Add(hn::ShiftLeft<Moment::kShift>(magnitude), hn::Set(du, Moment::kRebias));
  const auto tiny =
      hn::Mul(hn::ConvertTo(df, hn::BitCast(di, magnitude)), hn::Set(df, Moment::kUnit));
  const auto is_tiny = hn::Lt(hn::BitCast(di, magnitude), hn::Set(di, 8));
  auto value = hn::IfThenElse(hn::RebindMask(df, is_tiny), tiny, hn::BitCast(df, normal));
  value = hn::Mul(value, hn::Set(df, scale));
  if constexpr (Moment::kSigned) {
    const auto sign = hn::ShiftLeft<24>(hn::And(code, hn::Set(du, uint32_t{0x80})));
    value = hn::Or(value, hn::BitCast(df, sign));
  }
  return value;
}

// `random` is below 2^16.
template <class Moment>
HWY_INLINE VecOf<DByte> encode_moments(VFloat value, float inverse_scale, VUint random) {
  const DFloat df;
  const DUint du;
  const DInt di;
  const auto bits = hn::BitCast(du, hn::Mul(value, hn::Set(df, inverse_scale)));
  const auto magnitude =
      hn::Min(hn::And(bits, hn::Set(du, uint32_t{0x7fffffff})), hn::Set(du, uint32_t{0x7f000000}));
  const auto tiny =
      truncated(hn::Mul(hn::BitCast(df, magnitude), hn::Set(df, Moment::kFixedPoint)));
  const auto is_tiny = hn::Lt(hn::BitCast(di, magnitude),
                              hn::Set(di, static_cast<int32_t>(Moment::kSmallestNormal)));
  const auto fixed = hn::IfThenElse(hn::RebindMask(du, is_tiny), hn::BitCast(du, tiny),
                                    hn::Sub(magnitude, hn::Set(du, Moment::kRebias)));
  // 20 bits are cut off: 16 random ones, and the middle of what they leave open.
  const auto round = hn::Add(hn::ShiftLeft<4>(random), hn::Set(du, uint32_t{8}));
  auto code = hn::ShiftRight<Moment::kShift>(hn::Add(fixed, round));
  code = hn::Min(code, hn::Set(du, Moment::kLargest));
  if constexpr (Moment::kSigned) {
    code = hn::Or(code, hn::ShiftLeft<7>(hn::ShiftRight<31>(bits)));
  } else {
    const auto some = hn::Ne(value, hn::Zero(df));
    code = hn::IfThenElse(hn::RebindMask(du, some), hn::Max(code, hn::Set(du, 1)), code);
  }
  return hn::U8FromU32(code);
}

HWY_INLINE VFloat load_moment_float(StateFormat format, const unsigned char* base, size_t at) {
  return format == StateFormat::kFloat32 ? load(DFloat(), base + at * 4)
                                         : from_bf16(load(DHalf(), base + at * 2));
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace weir::offload
HWY_AFTER_NAMESPACE();

#endif  // WEIR_OFFLOAD_MOMENTS_INL_H_
