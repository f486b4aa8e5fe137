// SPDX-License-Identifier: Apache-2.0
// Monotonic time and deadlines. Times are nanoseconds of CLOCK_MONOTONIC. Thread-safe.
#pragma once

#include <time.h>

#include <cstdint>

namespace weir {

inline uint64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(t.tv_nsec);
}

// Tells the processor that this is a spin loop.
inline void cpu_relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

}  // namespace weir
