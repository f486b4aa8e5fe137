// SPDX-License-Identifier: Apache-2.0
// The instructions of reduce_pairs.h, and the small floats of the architecture that is compiled
// for: in pairs where it has the instructions, one by one elsewhere. For nvcc.
#pragma once

#include "cuda/kernels/reduce_pairs.h"

namespace weir::kernels {

// The first operand goes into the upper half.
struct PairedInstructions {
  // sm_80
  static WEIR_KERNEL uint32_t f16x2(float high, float low) {
    uint32_t code;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(code) : "f"(high), "f"(low));
    return code;
  }
  static WEIR_KERNEL uint32_t bf16x2(float high, float low) {
    uint32_t code;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(code) : "f"(high), "f"(low));
    return code;
  }
  // sm_89
  struct E4M3 {
    static WEIR_KERNEL uint16_t satfinite(float high, float low) {
      uint16_t code;
      asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(code) : "f"(high), "f"(low));
      return code;
    }
    static WEIR_KERNEL uint32_t f16x2(uint16_t pair) {
      uint32_t code;
      asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(code) : "h"(pair));
      return code;
    }
  };
  struct E5M2 {
    static WEIR_KERNEL uint16_t satfinite(float high, float low) {
      uint16_t code;
      asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(code) : "f"(high), "f"(low));
      return code;
    }
    static WEIR_KERNEL uint32_t f16x2(uint16_t pair) {
      uint32_t code;
      asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(code) : "h"(pair));
      return code;
    }
  };
  // The halves of a word, which become operands of the instructions above: shifts do not.
  static WEIR_KERNEL void split(uint32_t word, uint16_t* low, uint16_t* high) {
    asm("mov.b32 {%0, %1}, %2;" : "=h"(*low), "=h"(*high) : "r"(word));
  }
  static WEIR_KERNEL uint32_t join(uint16_t low, uint16_t high) {
    uint32_t word;
    asm("mov.b32 %0, {%1, %2};" : "=r"(word) : "h"(low), "h"(high));
    return word;
  }
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
using DeviceFloat16 = PairedFloat16<PairedInstructions>;
using DeviceBfloat16 = PairedBfloat16<PairedInstructions>;
#else
using DeviceFloat16 = Float16;
using DeviceBfloat16 = Bfloat16;
#endif

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
using DeviceFloat8E4M3 = PairedFloat8E4M3<PairedInstructions>;
using DeviceFloat8E5M2 = PairedFloat8E5M2<PairedInstructions>;
#else
using DeviceFloat8E4M3 = Float8E4M3;
using DeviceFloat8E5M2 = Float8E5M2;
#endif

}  // namespace weir::kernels
