// SPDX-License-Identifier: Apache-2.0
// The cheapest clock of the processor, cheap enough for the recorder. It counts at a constant rate,
// which only samples of both clocks tell; reads of it are not ordered with the code around them.
// Thread-safe.
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
