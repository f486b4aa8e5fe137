// SPDX-License-Identifier: Apache-2.0
// Small floats that are converted two at a time, by the instructions that newer architectures have:
// elements as in reduce_elements.h, and the same bits. `Instructions` has a function for each
// instruction (paired_instructions.h on devices, a model of them in the tests).
//
// What NVIDIA documents of them (PTX ISA, cvt) is what these elements rely on: rounding to nearest
// even, once; subnormal results; with .satfinite the largest number, with its sign, for all that is
// larger, infinity included, and infinity without; the sign of zero is kept. Which NaN a NaN
// becomes is not documented for all formats, so no result depends on it.
//
// The unit is a word of 32 bits, since that is what the instructions read and write without others
// that take bytes apart. Compiled by nvcc and by the host's compiler. Pure functions.
#pragma once

#include "cuda/kernels/reduce_elements.h"

namespace weir::kernels {

// `Words` has the conversions of a word; those of one element follow.
template <class Element, class Words>
struct Paired : Element {
  static constexpr bool kInPairs = true;
  using Stored = typename Element::Stored;
  static constexpr uint32_t kOfWord = sizeof(uint32_t) / sizeof(Stored);

  static WEIR_KERNEL void widen_word(uint32_t word, float* wide) { Words::widen(word, wide); }
  // A NaN gets any code: with_nan() has to follow.
  static WEIR_KERNEL uint32_t narrow_word(const float* wide) { return Words::narrow(wide); }
  static WEIR_KERNEL uint32_t with_nan(uint32_t word, uint32_t index) {
    constexpr uint32_t kBits = 8 * sizeof(Stored);
    constexpr uint32_t kMask = (1u << kBits) - 1;
    const uint32_t shift = index * kBits;
    return (word & ~(kMask << shift)) | uint32_t{Element::kNanCode} << shift;
  }

  static WEIR_KERNEL float widen(Stored stored) {
    float wide[kOfWord];
    Words::widen(stored, wide);
    return wide[0];
  }
  static WEIR_KERNEL Stored narrow(float value) {
    const float wide[kOfWord] = {value};
    return is_nan(value) ? Element::kNanCode : static_cast<Stored>(Words::narrow(wide));
  }
};

WEIR_KERNEL void widen_f16x2(uint32_t word, float* wide) {
  wide[0] = Float16::widen(static_cast<uint16_t>(word));
  wide[1] = Float16::widen(static_cast<uint16_t>(word >> 16));
}

template <class Instructions>
struct Float16Words {
  static WEIR_KERNEL void widen(uint32_t word, float* wide) { widen_f16x2(word, wide); }
  static WEIR_KERNEL uint32_t narrow(const float* wide) {
    return Instructions::f16x2(wide[1], wide[0]);
  }
};

template <class Instructions>
struct Bfloat16Words {
  static WEIR_KERNEL void widen(uint32_t word, float* wide) {
    wide[0] = bits_as<float>(word << 16);
    wide[1] = bits_as<float>(word & 0xffff0000u);
  }
  static WEIR_KERNEL uint32_t narrow(const float* wide) {
    return Instructions::bf16x2(wide[1], wide[0]);
  }
};

// `Format`: those of the instructions that a format of 8 bits has of its own.
template <class Instructions, class Format>
struct Float8Words {
  static WEIR_KERNEL void widen(uint32_t word, float* wide) {
    uint16_t low;
    uint16_t high;
    Instructions::split(word, &low, &high);
    widen_f16x2(Format::f16x2(low), wide);
    widen_f16x2(Format::f16x2(high), wide + 2);
  }
  static WEIR_KERNEL uint32_t narrow(const float* wide) {
    return Instructions::join(Format::satfinite(wide[1], wide[0]),
                              Format::satfinite(wide[3], wide[2]));
  }
};

template <class Instructions>
using PairedFloat16 = Paired<Float16, Float16Words<Instructions>>;
template <class Instructions>
using PairedBfloat16 = Paired<Bfloat16, Bfloat16Words<Instructions>>;
template <class Instructions>
using PairedFloat8E4M3 = Paired<Float8E4M3, Float8Words<Instructions, typename Instructions::E4M3>>;
template <class Instructions>
using PairedFloat8E5M2 = Paired<Float8E5M2, Float8Words<Instructions, typename Instructions::E5M2>>;

}  // namespace weir::kernels
