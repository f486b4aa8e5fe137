// SPDX-License-Identifier: Apache-2.0
// Element types of the reductions on devices: conversions between stored elements and elements to
// compute with, and the folds. The same bits as core/engine/reduce.h gives with Arithmetic::kNccl:
// small floats are folded in f32 and rounded to nearest even once, fp8 saturates, every NaN result
// is the positive quiet one, max and min ignore NaN, -0 is less than +0, integers wrap.
//
// Compiled by nvcc (without contraction of products and sums) and by the host's compiler. Pure
// functions.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cuda/kernels/qualifiers.h"
#include "cuda/kernels/reduce_arguments.h"

namespace weir::kernels {

template <class To, class From>
WEIR_KERNEL To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

// ---- Folds --------------------------------------------------------------------------------------

template <class T>
WEIR_KERNEL bool is_nan(T value) {
  return value != value;  // NOLINT(misc-redundant-expression): isnan is not on both sides
}

template <class T>
struct BitsOf;
template <>
struct BitsOf<float> {
  using Type = uint32_t;
  static constexpr Type kNan = 0x7fc00000u;
};
template <>
struct BitsOf<double> {
  using Type = uint64_t;
  static constexpr Type kNan = 0x7ff8000000000000ull;
};

// Computes with T as it is.
template <class T>
struct FloatMath {
  static constexpr bool kInPairs = false;  // as reduce_pairs.h
  using Wide = T;
  using Bits = typename BitsOf<T>::Type;

  template <ReduceFold kFold>
  static WEIR_KERNEL T fold(T a, T b) {
    if constexpr (kFold == ReduceFold::kSum) return a + b;
    if constexpr (kFold == ReduceFold::kProd) return a * b;
    if (is_nan(a)) return b;
    if (is_nan(b)) return a;
    if (a == b) {  // zeros of either sign
      const Bits of_a = bits_as<Bits>(a);
      const Bits of_b = bits_as<Bits>(b);
      return bits_as<T>(kFold == ReduceFold::kMax ? of_a & of_b : of_a | of_b);
    }
    const bool other = kFold == ReduceFold::kMax ? b > a : b < a;
    return other ? b : a;
  }
  static WEIR_KERNEL T multiply(T a, T b) { return a * b; }
  static WEIR_KERNEL_APART T divide(T total, uint32_t divisor) {
    // The reciprocal of a power of two rounds the same real number.
    if ((divisor & (divisor - 1)) == 0) return total * (T(1) / static_cast<T>(divisor));
    return total / static_cast<T>(divisor);
  }
  static WEIR_KERNEL T canonical(T value) {
    return is_nan(value) ? bits_as<T>(BitsOf<T>::kNan) : value;
  }
};

// T as it is stored; U, its unsigned form, wraps.
template <class T, class U>
struct IntegerMath {
  static constexpr bool kInPairs = false;
  using Stored = T;
  using Wide = T;

  template <ReduceFold kFold>
  static WEIR_KERNEL T fold(T a, T b) {
    if constexpr (kFold == ReduceFold::kSum) return static_cast<T>(static_cast<U>(U(a) + U(b)));
    if constexpr (kFold == ReduceFold::kProd) return multiply(a, b);
    if constexpr (kFold == ReduceFold::kMax) return b > a ? b : a;
    return b < a ? b : a;
  }
  static WEIR_KERNEL T multiply(T a, T b) {
    // In 64 bits, since narrow ones would be promoted to signed int.
    return static_cast<T>(static_cast<U>(uint64_t(U(a)) * uint64_t(U(b))));
  }
  static WEIR_KERNEL_APART T divide(T total, uint32_t divisor) {
    if constexpr (std::is_signed_v<T>) {
      return static_cast<T>(int64_t{total} / int64_t{divisor});
    } else {
      return static_cast<T>(uint64_t{total} / uint64_t{divisor});
    }
  }
  static WEIR_KERNEL T widen(T stored) { return stored; }
  static WEIR_KERNEL T narrow(T wide) { return wide; }
};

template <class T>
struct Float : FloatMath<T> {
  using Stored = T;
  static WEIR_KERNEL T widen(T stored) { return stored; }
  static WEIR_KERNEL T narrow(T wide) { return FloatMath<T>::canonical(wide); }
};

// ---- Small floats -------------------------------------------------------------------------------

// The value of a sign-and-magnitude code with kExponent and kMantissa bits, except its top
// exponent, which the caller handles.
template <int kExponent, int kMantissa>
WEIR_KERNEL float widen_code(uint32_t code) {
  constexpr int kBias = (1 << (kExponent - 1)) - 1;
  constexpr uint32_t kMagnitude = (1u << (kExponent + kMantissa)) - 1;
  const uint32_t magnitude = code & kMagnitude;
  const uint32_t sign = (code & ~kMagnitude) << (31 - kExponent - kMantissa);
  uint32_t value = (magnitude << (23 - kMantissa)) + (uint32_t(127 - kBias) << 23);
  if (magnitude < (1u << kMantissa)) {
    constexpr float kUnit = 1.0f / static_cast<float>(1ull << (kBias - 1 + kMantissa));
    value = bits_as<uint32_t>(static_cast<float>(magnitude) * kUnit);
  }
  return bits_as<float>(value | sign);
}

// Rounds to nearest even into such a code; values that are too large become kOverflow, NaN becomes
// kNan.
template <int kExponent, int kMantissa, uint32_t kOverflow, uint32_t kNan>
WEIR_KERNEL uint32_t narrow_code(float value) {
  constexpr int kBias = (1 << (kExponent - 1)) - 1;
  constexpr int kShift = 23 - kMantissa;
  const uint32_t bits = bits_as<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return kNan;
  uint32_t code = 0;
  if (magnitude < (uint32_t(128 - kBias) << 23)) {
    // Adding this power of two rounds at the unit of the subnormals.
    constexpr float kMagic =
        static_cast<float>(1 << (24 - kMantissa)) / static_cast<float>(1 << kBias);
    code = bits_as<uint32_t>(bits_as<float>(magnitude) + kMagic) - bits_as<uint32_t>(kMagic);
  } else {
    const uint32_t odd = (magnitude >> kShift) & 1;
    const uint32_t half =
        magnitude - (uint32_t(127 - kBias) << 23) + odd + ((1u << (kShift - 1)) - 1);
    code = half >> kShift;
  }
  if (code > kOverflow) code = kOverflow;
  // Also NaN from overflow, so that both get the same sign.
  if (code == kNan) return kNan;
  return code | ((bits & 0x80000000u) >> (31 - kExponent - kMantissa));
}

struct Float16 : FloatMath<float> {
  using Stored = uint16_t;
  static constexpr uint16_t kNanCode = 0x7e00;
  static WEIR_KERNEL float widen(uint16_t stored) {
#ifdef __CUDA_ARCH__
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(stored));
    return value;
#else
    const float value = widen_code<5, 10>(stored);
    // The top exponent, 31, maps to 143 and must be 255.
    if ((stored & 0x7fffu) < 0x7c00u) return value;
    return bits_as<float>(bits_as<uint32_t>(value) + (112u << 23));
#endif
  }
  static WEIR_KERNEL uint16_t narrow(float wide) {
#ifdef __CUDA_ARCH__
    uint16_t stored;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(stored) : "f"(wide));
    return is_nan(wide) ? kNanCode : stored;
#else
    return static_cast<uint16_t>(narrow_code<5, 10, 0x7c00u, kNanCode>(wide));
#endif
  }
};

struct Bfloat16 : FloatMath<float> {
  using Stored = uint16_t;
  static constexpr uint16_t kNanCode = 0x7fc0;
  static WEIR_KERNEL float widen(uint16_t stored) { return bits_as<float>(uint32_t(stored) << 16); }
  // The carry runs into the exponent, and from the largest number into infinity.
  static WEIR_KERNEL uint16_t narrow(float wide) {
    const uint32_t bits = bits_as<uint32_t>(canonical(wide));
    return static_cast<uint16_t>((bits + ((bits >> 16) & 1) + 0x7fffu) >> 16);
  }
};

// 0x7f and 0xff are NaN; there is no infinity.
struct Float8E4M3 : FloatMath<float> {
  using Stored = uint8_t;
  static constexpr uint8_t kNanCode = 0x7f;
  static WEIR_KERNEL float widen(uint8_t stored) {
    if ((stored & 0x7fu) == 0x7fu) return bits_as<float>(BitsOf<float>::kNan);
    return widen_code<4, 3>(stored);
  }
  static WEIR_KERNEL uint8_t narrow(float wide) {
    return static_cast<uint8_t>(narrow_code<4, 3, 0x7eu, kNanCode>(wide));
  }
};

// The upper byte of a float16.
struct Float8E5M2 : FloatMath<float> {
  using Stored = uint8_t;
  static constexpr uint8_t kNanCode = 0x7f;
  static WEIR_KERNEL float widen(uint8_t stored) {
    return Float16::widen(static_cast<uint16_t>(stored << 8));
  }
  static WEIR_KERNEL uint8_t narrow(float wide) {
    return static_cast<uint8_t>(narrow_code<5, 2, 0x7bu, kNanCode>(wide));
  }
};

}  // namespace weir::kernels
