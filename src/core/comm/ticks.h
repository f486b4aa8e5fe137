// SPDX-License-Identifier: Apache-2.0
// The cheapest clock of the processor: what the recorder can afford. It counts evenly, in a unit
// that only samples of both clocks tell; not ordered with the code around it. Thread-safe.
#pragma once

#include <cstdint>

#include "core/base/clock.h"

namespace weir::comm {

inline uint64_t ticks() {
#if defined(__x86_64__) || defined(__i386__)
  return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  uint64_t count;
  asm volatile("mrs %0, cntvct_el0" : "=r"(count));
  return count;
#else
  return now_ns();
#endif
}

}  // namespace weir::comm
