// SPDX-License-Identifier: Apache-2.0
// The reference of adam_perf: a loop that moves the same bytes as a step and computes almost
// nothing. It reads, changes and writes every state byte in place, reads every gradient byte, and
// writes every byte of a parameter copy past the caches, with the vectors of the instruction set in
// use. Thread-safe over disjoint elements.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weir::perf {

struct StreamPlane {
  unsigned char* data = nullptr;
  size_t element_bytes = 0;
};

inline constexpr size_t kStreamPlanesMax = 4;

struct Stream {
  StreamPlane in_place[kStreamPlanesMax];
  size_t in_place_count = 0;
  StreamPlane read;     // always there
  StreamPlane written;  // data == nullptr: none
  bool prefetch = false;
  uint32_t mask = 0;  // of the added data; 0 leaves the data unchanged
};

// Elements begin to end, multiples of 64.
void stream(const Stream& stream, uint64_t begin, uint64_t end);

}  // namespace weir::perf
