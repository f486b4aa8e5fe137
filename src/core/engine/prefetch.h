// SPDX-License-Identifier: Apache-2.0
// Prefetches the cache lines of a result before it is computed, so that their transfer from memory
// overlaps with the wait for a peer. A hint: no effect on values. Thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>

namespace weir::engine {

// As many lines as a core can fetch at once and still keep in its nearest cache.
inline constexpr uint64_t kPrefetchBytesMax = 16 * 1024;

inline void prefetch_for_write(unsigned char* to, uint64_t bytes) {
  const uint64_t end = std::min(bytes, kPrefetchBytesMax);
  for (uint64_t at = 0; at < end; at += 64) __builtin_prefetch(to + at, 1, 3);
}

}  // namespace weir::engine
