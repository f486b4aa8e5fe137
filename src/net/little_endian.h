// SPDX-License-Identifier: Apache-2.0
// Integers as little-endian bytes, in frames and files. Pure functions; thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace weir::net {

// Each `put` returns the place behind what it wrote.
template <typename Integer>
unsigned char* put(unsigned char* out, Integer value) {
  for (size_t i = 0; i < sizeof value; ++i) {
    out[i] = static_cast<unsigned char>(static_cast<uint64_t>(value) >> (8 * i));
  }
  return out + sizeof value;
}

template <size_t kBytes>
unsigned char* put(unsigned char* out, const std::array<unsigned char, kBytes>& bytes) {
  std::memcpy(out, bytes.data(), kBytes);
  return out + kBytes;
}

template <typename Integer>
Integer get(const unsigned char* in) {
  uint64_t value = 0;
  for (size_t i = 0; i < sizeof(Integer); ++i) value |= static_cast<uint64_t>(in[i]) << (8 * i);
  return static_cast<Integer>(value);
}

}  // namespace weir::net
