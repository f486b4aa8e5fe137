// SPDX-License-Identifier: Apache-2.0
// Element types of the reduction kernels: conversions between stored lanes and lanes to compute
// with, and the four folds. Included once per instruction set (foreach_target), so no include guard
// of the usual kind. Every operation here gives the same bits on every instruction set.

#if defined(WEIR_REDUCE_ELEMENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEIR_REDUCE_ELEMENTS_INL_H_
#undef WEIR_REDUCE_ELEMENTS_INL_H_
#else
#define WEIR_REDUCE_ELEMENTS_INL_H_
#endif

#include <cstdint>
#include <limits>
#include <type_traits>

#include "core/base/types.h"
#include "hwy/highway.h"

// f16 conversion in hardware: nearest even, whatever the thread's rounding mode.
#undef WEIR_HAVE_F16C
#if (HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3) && !defined(HWY_DISABLE_F16C)
#define WEIR_HAVE_F16C 1
#else
#define WEIR_HAVE_F16C 0
#endif

HWY_BEFORE_NAMESPACE();
namespace weir {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

template <class D>
using VecOf = hn::VFromD<D>;

template <class D>
concept FloatTag = std::is_floating_point_v<hn::TFromD<D>>;
template <class D>
concept IntegerTag = std::is_integral_v<hn::TFromD<D>>;

// ---- Folds ------------------------------------------------------------------------------------

// Wraps modulo 2^bits. Unsigned, because the one-lane target computes with C++ integers.
template <IntegerTag D>
HWY_INLINE VecOf<D> multiply(D d, VecOf<D> a, VecOf<D> b) {
  const hn::RebindToUnsigned<D> du;
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_AVX3
  return hn::BitCast(d, hn::Mul(hn::BitCast(du, a), hn::BitCast(du, b)));
#else
  if constexpr (sizeof(hn::TFromD<D>) == 8) {
    // (a1 2^32 + a0)(b1 2^32 + b0) = a0 b0 + 2^32 (a1 b0 + a0 b1)  (mod 2^64)
    const hn::Repartition<uint32_t, D> d32;
    const auto a0 = hn::BitCast(d32, a);
    const auto b0 = hn::BitCast(d32, b);
    const auto a1 = hn::BitCast(d32, hn::ShiftRight<32>(hn::BitCast(du, a)));
    const auto b1 = hn::BitCast(d32, hn::ShiftRight<32>(hn::BitCast(du, b)));
    const auto cross = hn::Add(hn::MulEven(a1, b0), hn::MulEven(a0, b1));
    return hn::BitCast(d, hn::Add(hn::MulEven(a0, b0), hn::ShiftLeft<32>(cross)));
  } else {
    return hn::BitCast(d, hn::Mul(hn::BitCast(du, a), hn::BitCast(du, b)));
  }
#endif
}

template <FloatTag D>
HWY_INLINE VecOf<D> multiply(D /*d*/, VecOf<D> a, VecOf<D> b) {
  return hn::Mul(a, b);
}

template <Fold kFold, bool kIgnoresNan, IntegerTag D>
HWY_INLINE VecOf<D> fold(D d, VecOf<D> a, VecOf<D> b) {
  if constexpr (kFold == Fold::kSum) {
    const hn::RebindToUnsigned<D> du;
    return hn::BitCast(d, hn::Add(hn::BitCast(du, a), hn::BitCast(du, b)));
  } else if constexpr (kFold == Fold::kProd) {
    return multiply(d, a, b);
  } else if constexpr (kFold == Fold::kMax) {
    return hn::Max(a, b);
  } else {
    return hn::Min(a, b);
  }
}

// maximum and minimum of IEEE 754-2019: a NaN operand gives NaN, and -0 < +0; with kIgnoresNan,
// maximumNumber and minimumNumber: the other operand. The vector instructions of x86 and Arm agree
// on neither, so both are spelt out.
template <bool kIgnoresNan, class V>
HWY_INLINE V with_nan(V a, V b, V numbers) {
  if constexpr (kIgnoresNan) {
    return hn::IfThenElse(hn::IsNaN(a), b, hn::IfThenElse(hn::IsNaN(b), a, numbers));
  } else {
    return hn::IfThenElse(hn::IsNaN(b), b, numbers);
  }
}

template <Fold kFold, bool kIgnoresNan, FloatTag D>
HWY_INLINE VecOf<D> fold(D /*d*/, VecOf<D> a, VecOf<D> b) {
  if constexpr (kFold == Fold::kSum) {
    return hn::Add(a, b);
  } else if constexpr (kFold == Fold::kProd) {
    return hn::Mul(a, b);
  } else if constexpr (kFold == Fold::kMax) {
    const auto ordered = hn::IfThenElse(hn::Gt(b, a), b, a);
    const auto numbers = hn::IfThenElse(hn::Eq(a, b), hn::And(a, b), ordered);
    return with_nan<kIgnoresNan>(a, b, numbers);
  } else {
    const auto ordered = hn::IfThenElse(hn::Lt(b, a), b, a);
    const auto numbers = hn::IfThenElse(hn::Eq(a, b), hn::Or(a, b), ordered);
    return with_nan<kIgnoresNan>(a, b, numbers);
  }
}

// Which payload survives depends on operand order, which the compiler may swap: so every NaN result
// is the positive quiet one.
template <FloatTag D>
HWY_INLINE VecOf<D> canonical(D d, VecOf<D> v) {
  using T = hn::TFromD<D>;
  return hn::IfThenElse(hn::IsNaN(v), hn::Set(d, std::numeric_limits<T>::quiet_NaN()), v);
}

template <IntegerTag D>
HWY_INLINE VecOf<D> canonical(D /*d*/, VecOf<D> v) {
  return v;
}

// ---- Small floats in 32-bit lanes -------------------------------------------------------------

// The value of a sign-and-magnitude code with kExponent and kMantissa bits (IEEE 754 rules but for
// the top exponent, which the caller treats), from a 32-bit lane that holds it.
template <int kExponent, int kMantissa, class DF>
HWY_INLINE VecOf<DF> widen_code(DF df, VecOf<hn::RebindToUnsigned<DF>> code) {
  constexpr int kBias = (1 << (kExponent - 1)) - 1;
  constexpr uint32_t kMagnitude = (1u << (kExponent + kMantissa)) - 1;
  const hn::RebindToSigned<DF> di;
  const hn::RebindToUnsigned<DF> du;
  const auto magnitude = hn::And(code, hn::Set(du, kMagnitude));
  const auto sign =
      hn::ShiftLeft<31 - kExponent - kMantissa>(hn::AndNot(hn::Set(du, kMagnitude), code));
  const auto normal =
      hn::Add(hn::ShiftLeft<23 - kMantissa>(magnitude), hn::Set(du, uint32_t{127 - kBias} << 23));
  const float unit = static_cast<float>(1.0 / static_cast<double>(1ull << (kBias - 1 + kMantissa)));
  const auto tiny = hn::Mul(hn::ConvertTo(df, hn::BitCast(di, magnitude)), hn::Set(df, unit));
  const auto is_tiny = hn::Lt(hn::BitCast(di, magnitude), hn::Set(di, 1 << kMantissa));
  const auto value = hn::IfThenElse(hn::RebindMask(df, is_tiny), tiny, hn::BitCast(df, normal));
  return hn::Or(value, hn::BitCast(df, sign));
}

// Rounds to nearest even into such a code; values that are too large become kOverflow, NaN becomes
// kNan.
template <int kExponent, int kMantissa, int32_t kOverflow, int32_t kNan, class DF>
HWY_INLINE VecOf<hn::RebindToSigned<DF>> narrow_code(DF df, VecOf<DF> value) {
  constexpr int kBias = (1 << (kExponent - 1)) - 1;
  constexpr int kShift = 23 - kMantissa;
  constexpr int32_t kRebias = (127 - kBias) << 23;
  constexpr int32_t kSmallestNormal = (128 - kBias) << 23;
  const hn::RebindToSigned<DF> di;
  const auto bits = hn::BitCast(di, value);
  const auto magnitude = hn::And(bits, hn::Set(di, 0x7fffffff));
  const auto sign = hn::AndNot(magnitude, bits);

  // Below the smallest normal: adding this power of two rounds at the unit of the subnormals.
  const float round_at_unit = static_cast<float>(static_cast<double>(1 << (24 - kMantissa)) /
                                                 static_cast<double>(1 << kBias));
  const auto magic = hn::Set(df, round_at_unit);
  const auto tiny =
      hn::Sub(hn::BitCast(di, hn::Add(hn::BitCast(df, magnitude), magic)), hn::BitCast(di, magic));

  const hn::RebindToUnsigned<DF> du;
  const auto odd = hn::And(hn::ShiftRight<kShift>(magnitude), hn::Set(di, 1));
  const auto half = hn::Add(hn::Sub(magnitude, hn::Set(di, kRebias)),
                            hn::Add(odd, hn::Set(di, (1 << (kShift - 1)) - 1)));
  const auto normal = hn::BitCast(di, hn::ShiftRight<kShift>(hn::BitCast(du, half)));

  const auto is_tiny = hn::Lt(magnitude, hn::Set(di, kSmallestNormal));
  const auto rounded = hn::Min(hn::IfThenElse(is_tiny, tiny, normal), hn::Set(di, kOverflow));
  const auto code_sign =
      hn::BitCast(di, hn::ShiftRight<31 - kExponent - kMantissa>(hn::BitCast(du, sign)));
  const auto signed_code = hn::Or(rounded, code_sign);
  // Covers NaN operands and NaN from overflow, so that both get the same sign.
  const auto is_nan =
      hn::Or(hn::Gt(magnitude, hn::Set(di, 0x7f800000)), hn::Eq(rounded, hn::Set(di, kNan)));
  return hn::IfThenElse(is_nan, hn::Set(di, kNan), signed_code);
}

// ---- Element types ----------------------------------------------------------------------------
// Stored: lane in memory. Wide: lane to compute with. widen() and narrow() convert between them.
// kIgnoresNan: of maximum and minimum.

template <typename T>
struct Same {
  static constexpr bool kIgnoresNan = false;
  using Stored = T;
  using Wide = T;
  template <class D>
  static HWY_INLINE VecOf<D> widen(D /*d*/, VecOf<D> v) {
    return v;
  }
  template <class D>
  static HWY_INLINE VecOf<D> narrow(D /*d*/, VecOf<D> v) {
    return v;
  }
  template <class D>
  static HWY_INLINE VecOf<D> scale(D d, VecOf<D> v, VecOf<D> factor) {
    return multiply(d, v, factor);
  }
};

// There is no multiplication of 8-bit lanes: products are made in 16 bits, of which the low 8
// count.
template <typename T, typename W>
struct Bytes {
  static constexpr bool kIgnoresNan = false;
  using Stored = T;
  using Wide = W;
  template <class DW>
  static HWY_INLINE VecOf<DW> widen(DW dw, VecOf<hn::Rebind<T, DW>> v) {
    return hn::PromoteTo(dw, v);
  }
  template <class DW>
  static HWY_INLINE VecOf<hn::Rebind<T, DW>> narrow(DW dw, VecOf<DW> v) {
    const hn::Rebind<int16_t, DW> d16;
    const hn::Rebind<uint8_t, DW> d8;
    const auto low = hn::And(v, hn::Set(dw, W{0xff}));
    return hn::BitCast(hn::Rebind<T, DW>(), hn::DemoteTo(d8, hn::BitCast(d16, low)));
  }
  // Reduces the product to 8 bits, so that a maximum over it is that of 8-bit numbers.
  template <class DW>
  static HWY_INLINE VecOf<DW> scale(DW dw, VecOf<DW> v, VecOf<DW> factor) {
    return hn::PromoteTo(dw, narrow(dw, multiply(dw, v, factor)));
  }
};

struct SmallFloat {
  static constexpr bool kIgnoresNan = false;
  using Wide = float;
  template <class D>
  static HWY_INLINE VecOf<D> scale(D /*d*/, VecOf<D> v, VecOf<D> factor) {
    return hn::Mul(v, factor);
  }
};

struct Float16 : SmallFloat {
  using Stored = uint16_t;
  template <class DF>
  static HWY_INLINE VecOf<DF> widen(DF df, VecOf<hn::Rebind<uint16_t, DF>> v) {
#if WEIR_HAVE_F16C
    return hn::PromoteTo(df, hn::BitCast(hn::Rebind<hwy::float16_t, DF>(), v));
#else
    const hn::RebindToUnsigned<DF> du;
    const hn::RebindToSigned<DF> di;
    const auto code = hn::PromoteTo(du, v);
    const auto value = widen_code<5, 10>(df, code);
    const auto magnitude = hn::BitCast(di, hn::And(code, hn::Set(du, 0x7fff)));
    // The top exponent stands for infinity and NaN in both formats: 31 maps to 143, and must be
    // 255.
    const auto special = hn::Add(hn::BitCast(di, value), hn::Set(di, 112 << 23));
    return hn::IfThenElse(hn::RebindMask(df, hn::Gt(magnitude, hn::Set(di, 0x7bff))),
                          hn::BitCast(df, special), value);
#endif
  }
  template <class DF>
  static HWY_INLINE VecOf<hn::Rebind<uint16_t, DF>> narrow(DF df, VecOf<DF> v) {
    const hn::Rebind<uint16_t, DF> ds;
#if WEIR_HAVE_F16C
    return hn::BitCast(ds, hn::DemoteTo(hn::Rebind<hwy::float16_t, DF>(), v));
#else
    return hn::DemoteTo(ds, narrow_code<5, 10, 0x7c00, 0x7e00>(df, v));
#endif
  }
};

struct Bfloat16 : SmallFloat {
  using Stored = uint16_t;
  template <class DF>
  static HWY_INLINE VecOf<DF> widen(DF df, VecOf<hn::Rebind<uint16_t, DF>> v) {
    const hn::RebindToUnsigned<DF> du;
    return hn::BitCast(df, hn::ShiftLeft<16>(hn::PromoteTo(du, v)));
  }
  // The carry of rounding up runs into the exponent, and from the largest number into infinity; the
  // canonical NaN has no low bits to round.
  template <class DF>
  static HWY_INLINE VecOf<hn::Rebind<uint16_t, DF>> narrow(DF df, VecOf<DF> v) {
    (void)df;
    const hn::RebindToUnsigned<DF> du;
    const hn::RebindToSigned<DF> di;
    const auto bits = hn::BitCast(du, v);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
    const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fff))));
    return hn::DemoteTo(hn::Rebind<uint16_t, DF>(), hn::BitCast(di, rounded));
  }
};

// OCP 8-bit floats (OCP 8-bit Floating Point Specification 1.0), non-saturating conversion: too
// large becomes NaN in E4M3, which has no infinity, and infinity in E5M2. So an overflow stays
// visible.
struct Float8E4M3 : SmallFloat {
  using Stored = uint8_t;
  template <class DF>
  static HWY_INLINE VecOf<DF> widen(DF df, VecOf<hn::Rebind<uint8_t, DF>> v) {
    const hn::RebindToUnsigned<DF> du;
    const auto code = hn::PromoteTo(du, v);
    const auto value = widen_code<4, 3>(df, code);
    // 0x7f would be 480, a value that no other code has.
    const auto is_nan = hn::Eq(hn::And(code, hn::Set(du, 0x7f)), hn::Set(du, 0x7f));
    return hn::IfThenElse(hn::RebindMask(df, is_nan),
                          hn::Set(df, std::numeric_limits<float>::quiet_NaN()), value);
  }
  template <class DF>
  static HWY_INLINE VecOf<hn::Rebind<uint8_t, DF>> narrow(DF df, VecOf<DF> v) {
    return hn::DemoteTo(hn::Rebind<uint8_t, DF>(), narrow_code<4, 3, 0x7f, 0x7f>(df, v));
  }
};

struct Float8E5M2 : SmallFloat {
  using Stored = uint8_t;
  template <class DF>
  static HWY_INLINE VecOf<DF> widen(DF df, VecOf<hn::Rebind<uint8_t, DF>> v) {
    // E5M2 is the upper byte of a float16.
    const hn::Rebind<uint16_t, DF> d16;
    return Float16::widen(df, hn::ShiftLeft<8>(hn::PromoteTo(d16, v)));
  }
  template <class DF>
  static HWY_INLINE VecOf<hn::Rebind<uint8_t, DF>> narrow(DF df, VecOf<DF> v) {
    return hn::DemoteTo(hn::Rebind<uint8_t, DF>(), narrow_code<5, 2, 0x7c, 0x7f>(df, v));
  }
};

// ---- As NCCL's kernels ------------------------------------------------------------------------

template <class Element>
struct IgnoresNan : Element {
  static constexpr bool kIgnoresNan = true;
};

// The saturating conversion of the specification.
struct SaturatingFloat8E4M3 : IgnoresNan<Float8E4M3> {
  template <class DF>
  static HWY_INLINE VecOf<hn::Rebind<uint8_t, DF>> narrow(DF df, VecOf<DF> v) {
    return hn::DemoteTo(hn::Rebind<uint8_t, DF>(), narrow_code<4, 3, 0x7e, 0x7f>(df, v));
  }
};

struct SaturatingFloat8E5M2 : IgnoresNan<Float8E5M2> {
  template <class DF>
  static HWY_INLINE VecOf<hn::Rebind<uint8_t, DF>> narrow(DF df, VecOf<DF> v) {
    return hn::DemoteTo(hn::Rebind<uint8_t, DF>(), narrow_code<5, 2, 0x7b, 0x7f>(df, v));
  }
};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace weir
HWY_AFTER_NAMESPACE();

#endif  // WEIR_REDUCE_ELEMENTS_INL_H_
