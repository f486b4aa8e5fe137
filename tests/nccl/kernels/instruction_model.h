// SPDX-License-Identifier: Apache-2.0
// A model of the instructions that convert small floats in pairs (cuda/kernels/reduce_pairs.h), as
// NVIDIA documents them (PTX ISA, cvt): computed with the C library's double, not with the
// arithmetic of the kernels. What is not documented, which NaN a NaN becomes, changes from one call
// to the next. For one thread.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace weir::kernels::test {

struct SmallFormat {
  int exponent_bits;
  int mantissa_bits;
  bool satfinite;  // of the instruction that makes it
  uint32_t largest;
  uint32_t infinity;  // kNone: the format has none
  std::vector<uint32_t> nans;

  static constexpr uint32_t kNone = 0xffffffffu;
  int bits() const { return 1 + exponent_bits + mantissa_bits; }
  uint32_t sign() const { return 1u << (bits() - 1); }
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
};

inline const SmallFormat kModelFloat16{5,      10,     false,
                                       0x7bff, 0x7c00, {0x7fff, 0x7e00, 0xfe00, 0x7c01, 0xffff}};
inline const SmallFormat kModelBfloat16{8,      7,      false,
                                        0x7f7f, 0x7f80, {0x7fff, 0x7fc0, 0xffc0, 0x7f81, 0xffff}};
inline const SmallFormat kModelFloat8E4M3{4, 3, true, 0x7e, SmallFormat::kNone, {0x7f, 0xff}};
inline const SmallFormat kModelFloat8E5M2{5, 2, true, 0x7b, 0x7c, {0x7f, 0xff, 0x7d, 0xfe, 0x7e}};

inline double value_of(const SmallFormat& format, uint32_t code) {
  const uint32_t magnitude = code & (format.sign() - 1);
  const double sign = (code & format.sign()) != 0 ? -1 : 1;
  if (magnitude == format.infinity) return sign * std::numeric_limits<double>::infinity();
  if (magnitude > format.largest) return std::numeric_limits<double>::quiet_NaN();
  const auto exponent = static_cast<int>(magnitude >> format.mantissa_bits);
  const uint32_t mantissa = magnitude & ((1u << format.mantissa_bits) - 1);
  const uint32_t digits = exponent == 0 ? mantissa : mantissa | 1u << format.mantissa_bits;
  const int unit = (exponent == 0 ? 1 : exponent) - format.bias() - format.mantissa_bits;
  return sign * std::ldexp(digits, unit);
}

// To nearest, of two that are equally near the even one.
inline uint32_t code_of(const SmallFormat& format, double value) {
  static uint32_t turn = 0;
  if (std::isnan(value)) return format.nans[++turn % format.nans.size()];
  const uint32_t sign = std::signbit(value) ? format.sign() : 0;
  const double magnitude = std::fabs(value);
  const uint32_t too_large = format.satfinite ? format.largest : format.infinity;
  if (std::isinf(value)) return sign | too_large;
  const int exponent_min = 1 - format.bias();
  const int exponent =
      magnitude < std::ldexp(1, exponent_min) ? exponent_min : std::ilogb(magnitude);
  const int unit = exponent - format.mantissa_bits;
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(magnitude, -unit)), unit);
  if (rounded > value_of(format, format.largest)) return sign | too_large;
  if (rounded < std::ldexp(1, exponent_min)) {
    return sign | static_cast<uint32_t>(std::ldexp(rounded, -unit));
  }
  const int final_exponent = std::ilogb(rounded);
  const auto digits =
      static_cast<uint32_t>(std::ldexp(rounded, format.mantissa_bits - final_exponent));
  // The leading digit adds one to the exponent.
  const auto exponent_code = static_cast<uint32_t>(final_exponent + format.bias() - 1);
  return sign | ((exponent_code << format.mantissa_bits) + digits);
}

struct ModelInstructions {
  static uint32_t f16x2(float high, float low) { return pair(kModelFloat16, high, low); }
  static uint32_t bf16x2(float high, float low) { return pair(kModelBfloat16, high, low); }
  template <const SmallFormat& kFormat>
  struct Float8 {
    static uint16_t satfinite(float high, float low) {
      return static_cast<uint16_t>(pair(kFormat, high, low));
    }
    static uint32_t f16x2(uint16_t codes) {
      return pair(kModelFloat16, value_of(kFormat, codes >> 8), value_of(kFormat, codes & 0xffu));
    }
  };
  using E4M3 = Float8<kModelFloat8E4M3>;
  using E5M2 = Float8<kModelFloat8E5M2>;
  static void split(uint32_t word, uint16_t* low, uint16_t* high) {
    *low = static_cast<uint16_t>(word);
    *high = static_cast<uint16_t>(word >> 16);
  }
  static uint32_t join(uint16_t low, uint16_t high) { return uint32_t{high} << 16 | low; }

 private:
  static uint32_t pair(const SmallFormat& format, double high, double low) {
    return code_of(format, high) << format.bits() | code_of(format, low);
  }
};

}  // namespace weir::kernels::test
