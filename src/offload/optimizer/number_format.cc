// SPDX-License-Identifier: Apache-2.0
#include "offload/optimizer/number_format.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "offload/kernels/random.h"

namespace weir::offload {
namespace {

float from_half(uint16_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x8000u) << 16;
  const uint32_t exponent = (code >> 10) & 31;
  const uint32_t mantissa = code & 0x3ffu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float tiny = static_cast<float>(mantissa) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(tiny));
}

uint16_t half_code(uint32_t bits, uint32_t rounded) {
  return static_cast<uint16_t>(((bits >> 16) & 0x8000u) | std::min(rounded, 0x7c00u));
}

uint16_t to_half(float value, const uint32_t* random) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0x7e00;
  if (magnitude >= 0x47800000u) return half_code(bits, 0x7c00);  // 2^16 and more
  const bool tiny = magnitude < (uint32_t{113} << 23);
  if (random != nullptr) {
    const uint32_t fixed = tiny ? static_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p37f)
                                : magnitude - (uint32_t{112} << 23);
    return half_code(bits, (fixed + (*random >> 19)) >> 13);
  }
  if (tiny) {
    const float sum = std::bit_cast<float>(magnitude) + 0.5f;  // rounds at 2^-24
    return half_code(bits, std::bit_cast<uint32_t>(sum) - std::bit_cast<uint32_t>(0.5f));
  }
  const uint32_t fixed = magnitude - (uint32_t{112} << 23);
  return half_code(bits, (fixed + 0xfffu + ((fixed >> 13) & 1)) >> 13);
}

uint16_t to_bfloat(float value, const uint32_t* random) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
  bits += random != nullptr ? *random >> 16 : 0x7fffu + ((bits >> 16) & 1);
  return static_cast<uint16_t>(bits >> 16);
}

}  // namespace

void to_float(const void* from, DataType type, uint64_t count, float* to) {
  if (type == DataType::kFloat32) {
    std::memcpy(to, from, count * sizeof(float));
    return;
  }
  const auto* const bytes = static_cast<const unsigned char*>(from);
  for (uint64_t i = 0; i < count; ++i) {
    uint16_t code;
    std::memcpy(&code, bytes + 2 * i, sizeof code);
    to[i] = type == DataType::kFloat16 ? from_half(code)
                                       : std::bit_cast<float>(static_cast<uint32_t>(code) << 16);
  }
}

void from_float(const float* from, uint64_t count, const Rounding& rounding, DataType type,
                void* to) {
  if (type == DataType::kFloat32) {
    std::memcpy(to, from, count * sizeof(float));
    return;
  }
  const RandomKey key = random_key(rounding.seed, rounding.step, RandomStream::kParameter);
  auto* const bytes = static_cast<unsigned char*>(to);
  for (uint64_t i = 0; i < count; ++i) {
    const uint32_t random = random_bits(key, rounding.first_index + i);
    const uint32_t* const chosen = rounding.stochastic ? &random : nullptr;
    const uint16_t code =
        type == DataType::kFloat16 ? to_half(from[i], chosen) : to_bfloat(from[i], chosen);
    std::memcpy(bytes + 2 * i, &code, sizeof code);
  }
}

}  // namespace weir::offload
