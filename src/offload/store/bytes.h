// SPDX-License-Identifier: Apache-2.0
// Little-endian numbers in byte buffers: the store's format consists of nothing else. Stateless.
#pragma once

#include <cstdint>
#include <type_traits>

namespace weir::offload {

template <typename T>
void put_little(unsigned char* to, T value) {
  static_assert(std::is_unsigned_v<T>);
  for (unsigned i = 0; i < sizeof(T); ++i) to[i] = static_cast<unsigned char>(value >> (8 * i));
}

template <typename T>
T get_little(const unsigned char* from) {
  static_assert(std::is_unsigned_v<T>);
  T value = 0;
  for (unsigned i = 0; i < sizeof(T); ++i) value |= static_cast<T>(T{from[i]} << (8 * i));
  return value;
}

}  // namespace weir::offload
