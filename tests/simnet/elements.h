// SPDX-License-Identifier: Apache-2.0
// Small whole numbers as elements of every data type, so that what a reduction must give is known
// to the bit without any arithmetic of the library's. Pure functions.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "weir/weir.h"

namespace weir::simnet {

// `value` in a format of 1 sign bit, `exponent_bits` and `mantissa_bits`; it must fit exactly.
inline uint32_t small_float(uint32_t value, uint32_t exponent_bits, uint32_t mantissa_bits) {
  if (value == 0) return 0;
  const uint32_t bias = (1u << (exponent_bits - 1)) - 1;
  const auto exponent = static_cast<uint32_t>(31 - std::countl_zero(value));
  const uint32_t fraction = value - (1u << exponent);
  const uint32_t mantissa = exponent <= mantissa_bits ? fraction << (mantissa_bits - exponent)
                                                      : fraction >> (exponent - mantissa_bits);
  return (exponent + bias) << mantissa_bits | mantissa;
}

inline void put_element(int type, uint32_t value, unsigned char* out) {
  const auto put = [out](auto element) { std::memcpy(out, &element, sizeof element); };
  switch (type) {
    case WEIR_INT8:
    case WEIR_UINT8:
      return put(static_cast<uint8_t>(value));
    case WEIR_INT32:
    case WEIR_UINT32:
      return put(value);
    case WEIR_INT64:
    case WEIR_UINT64:
      return put(uint64_t{value});
    case WEIR_FLOAT16:
      return put(static_cast<uint16_t>(small_float(value, 5, 10)));
    case WEIR_BFLOAT16:
      return put(static_cast<uint16_t>(small_float(value, 8, 7)));
    case WEIR_FLOAT32:
      return put(static_cast<float>(value));
    case WEIR_FLOAT64:
      return put(static_cast<double>(value));
    case WEIR_FLOAT8_E4M3:
      return put(static_cast<uint8_t>(small_float(value, 4, 3)));
    default:
      return put(static_cast<uint8_t>(small_float(value, 5, 2)));
  }
}

}  // namespace weir::simnet
