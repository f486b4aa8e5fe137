// SPDX-License-Identifier: Apache-2.0
// Random: the numbers that a simulated run draws; the same seed gives the same ones everywhere
// (SplitMix64). A value.
#pragma once

#include <cstdint>

namespace weir::simnet {

// A number that depends on all of these and on nothing else.
inline uint64_t mix(uint64_t a, uint64_t b = 0, uint64_t c = 0) {
  uint64_t z = a * 0x9e3779b97f4a7c15u + b * 0xc2b2ae3d27d4eb4fu + c * 0x165667b19e3779f9u +
               0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next() { return mix(state_ += 0x9e3779b97f4a7c15u); }
  uint64_t below(uint64_t limit) { return limit < 2 ? 0 : next() % limit; }
  uint64_t between(uint64_t least, uint64_t most) { return least + below(most - least + 1); }
  bool one_in(uint64_t count) { return below(count) == 0; }
  // Small numbers as often as large ones: any magnitude up to `most` is as likely as any other.
  uint64_t of_any_size(uint64_t most) {
    uint64_t limit = 1;
    const uint64_t doublings = below(65 - (most == 0 ? 64 : __builtin_clzll(most)));
    limit <<= doublings;
    return below((limit < most ? limit : most) + 1);
  }

 private:
  uint64_t state_;
};

}  // namespace weir::simnet
