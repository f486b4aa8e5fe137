// SPDX-License-Identifier: Apache-2.0
// FloatEnvironment: while it lives, the calling thread rounds to nearest, flushes subnormal results
// to zero and reads subnormal operands as zero; then it restores the previous settings, exception
// flags included. Idle rows, whose moments decay into the subnormals, would otherwise cost a
// hundred cycles an operation; and the kernels give the same bits whatever the caller had set. One
// thread.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace weir::offload {

class FloatEnvironment {
 public:
  FloatEnvironment() : saved_(read()) { write(kStepMode); }
  ~FloatEnvironment() { write(saved_); }
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

  // The control register: MXCSR on x86, FPCR on Arm, 0 elsewhere.
#if defined(__x86_64__)
  static constexpr uint64_t kStepMode = 0x1f80 | 0x8000 | 0x0040;  // all masked, FTZ, DAZ
  static uint64_t read() { return _mm_getcsr(); }
  static void write(uint64_t mode) { _mm_setcsr(static_cast<uint32_t>(mode)); }
#elif defined(__aarch64__)
  static constexpr uint64_t kStepMode = uint64_t{1} << 24;  // FZ
  static uint64_t read() {
    uint64_t mode;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
  }
  static void write(uint64_t mode) { asm volatile("msr fpcr, %0" ::"r"(mode) : "memory"); }
#else
  static constexpr uint64_t kStepMode = 0;
  static uint64_t read() { return 0; }
  static void write(uint64_t) {}
#endif

 private:
  const uint64_t saved_;
};

}  // namespace weir::offload
