// SPDX-License-Identifier: Apache-2.0
// The counter-based generator of stochastic rounding: 32 random bits that are a function of (seed,
// step, stream, element index) and of nothing else, so that rounding is the same for any sharding,
// chunking, thread count and instruction set. Not for cryptography. Values; thread-safe.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace weir::offload {

enum class RandomStream : uint8_t { kMoments = 0, kParameter = 1 };

struct RandomKey {
  uint32_t before = 0;
  uint32_t between = 0;
};

// Two rounds of splitmix64 (Steele, Lea, Flood 2014) over each part.
constexpr RandomKey random_key(uint64_t seed, uint64_t step, RandomStream stream) {
  uint64_t state = 0;
  for (const uint64_t part : {seed, step, static_cast<uint64_t>(stream)}) {
    state = (state ^ part) + 0x9e3779b97f4a7c15u;
    state = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9u;
    state = (state ^ (state >> 27)) * 0x94d049bb133111ebu;
    state ^= state >> 31;
  }
  return {static_cast<uint32_t>(state), static_cast<uint32_t>(state >> 32)};
}

inline constexpr uint32_t kRandomMix0 = 0xed5ad4bbu;
inline constexpr uint32_t kRandomMix1 = 0xac4c1b51u;
inline constexpr uint32_t kRandomMix2 = 0x31848babu;
inline constexpr uint32_t kRandomHigh = 0x9e3779b9u;

// Three multiply-xorshift rounds (the constants of Wellons' triple32), keyed before the first and
// between the first and the second.
constexpr uint32_t random_bits(RandomKey key, uint64_t index) {
  const uint32_t high = static_cast<uint32_t>(index >> 32);
  uint32_t x = static_cast<uint32_t>(index) ^ key.before;
  x = (x ^ (x >> 17)) * kRandomMix0;
  x += key.between + high * kRandomHigh;
  x = (x ^ (x >> 11)) * kRandomMix1;
  x = (x ^ (x >> 15)) * kRandomMix2;
  return x ^ (x >> 14);
}

}  // namespace weir::offload
