// SPDX-License-Identifier: Apache-2.0
// The clock by which this transport waits. Thread-safe.
#pragma once

#include <time.h>

#include <cstdint>

namespace weir::plugins::tcp {

inline uint64_t monotonic_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(t.tv_nsec);
}

}  // namespace weir::plugins::tcp
