// SPDX-License-Identifier: Apache-2.0
// The 8-bit codes of moments (state_format.h), one value at a time: the computation of every lane
// of the vector kernels, with a given rounding. Values; thread-safe.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace weir::offload {

struct MomentScale {
  float scale;    // a power of two, 2^-126 to 2^126
  float inverse;  // exactly 1 / scale
};

// From the bits of the largest magnitude of a block, sign cleared.
constexpr MomentScale moment_scale(uint32_t largest_bits) {
  const uint32_t ceiling = std::min(largest_bits, 0x7f000000u) + 0x007fffffu;
  const uint32_t bits = std::clamp(ceiling & 0xff800000u, 0x00800000u, 0x7e800000u);
  return {std::bit_cast<float>(bits), std::bit_cast<float>(0x7f000000u - bits)};
}

// A float of kExponent and kMantissa bits with subnormals, whose top exponent stands for [1, 2).
template <int kExponent, int kMantissa>
struct SmallCode {
  static constexpr int kBias = (1 << kExponent) - 1;
  static constexpr int kShift = 23 - kMantissa;  // bits dropped
  static constexpr uint32_t kRebias = static_cast<uint32_t>(127 - kBias) << 23;
  static constexpr uint32_t kSmallestNormal = kRebias + (1u << 23);          // as float bits
  static constexpr uint32_t kLargest = (1u << (kExponent + kMantissa)) - 1;  // as code
  // Subnormals are multiples of this unit; the rounding works on it times 2^kShift.
  static constexpr float kUnit =
      std::bit_cast<float>(static_cast<uint32_t>(127 + 1 - kBias - kMantissa) << 23);
  static constexpr float kFixedPoint =
      std::bit_cast<float>(static_cast<uint32_t>(127 - 1 + kBias + 23) << 23);

  // Magnitude bits of a scaled value; `round` in [0, 2^kShift) is added before the truncation.
  static constexpr uint32_t encode(uint32_t bits, uint32_t round) {
    if (bits > 0x7f000000u) return kLargest;
    const uint32_t fixed = bits < kSmallestNormal
                               ? static_cast<uint32_t>(std::bit_cast<float>(bits) * kFixedPoint)
                               : bits - kRebias;
    return std::min((fixed + round) >> kShift, kLargest);
  }
  static constexpr float decode(uint32_t code) {
    if (code < (1u << kMantissa)) return static_cast<float>(code) * kUnit;
    return std::bit_cast<float>((code << kShift) + kRebias);
  }
};

struct FirstMomentCode : SmallCode<4, 3> {
  static uint8_t encode_nearest(float value, float inverse_scale) {
    const uint32_t bits = std::bit_cast<uint32_t>(value * inverse_scale);
    const uint32_t sign = (bits >> 31) << 7;
    return static_cast<uint8_t>(sign | encode(bits & 0x7fffffffu, 1u << (kShift - 1)));
  }
  static float decode(uint8_t code) {
    const float value = SmallCode::decode(code & 0x7fu);
    return (code & 0x80u) != 0 ? -value : value;
  }
};

struct SecondMomentCode : SmallCode<5, 3> {
  static uint8_t encode_nearest(float value, float inverse_scale) {
    const uint32_t bits = std::bit_cast<uint32_t>(value * inverse_scale) & 0x7fffffffu;
    const uint32_t code = encode(bits, 1u << (kShift - 1));
    return static_cast<uint8_t>(value != 0 ? std::max(code, 1u) : code);
  }
  static float decode(uint8_t code) { return SmallCode::decode(code); }
};

}  // namespace weir::offload
