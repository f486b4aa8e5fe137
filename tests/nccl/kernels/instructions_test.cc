// SPDX-License-Identifier: Apache-2.0
// Conversions in pairs, with a model of the instructions, beside those of one element, which other
// architectures use: the same bits.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "cuda/kernels/reduce_pairs.h"
#include "nccl/kernels/instruction_model.h"

namespace weir::kernels {
namespace {

using Model = test::ModelInstructions;

// Rounding changes only halfway between neighbours: those points, the numbers beside them, and
// what is no number or far too large or small.
std::vector<float> points(const test::SmallFormat& format) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> all = {0.0f,
                            kInfinity,
                            std::numeric_limits<float>::max(),
                            std::numeric_limits<float>::min(),
                            std::numeric_limits<float>::denorm_min(),
                            1e-42f,
                            1e-20f,
                            1e20f,
                            bits_as<float>(0x7fc00000u),
                            bits_as<float>(0x7f800001u),
                            bits_as<float>(0x7fffffffu)};
  for (uint32_t code = 0; code <= format.largest; ++code) {
    const double low = test::value_of(format, code);
    // Beyond the largest number lies the one that would follow.
    const double high = code < format.largest ? test::value_of(format, code + 1)
                                              : 2 * low - test::value_of(format, code - 1);
    const auto half = static_cast<float>(low + (high - low) / 2);
    for (const float value : {static_cast<float>(low), half}) {
      for (const float near :
           {std::nextafter(value, 0.0f), value, std::nextafter(value, kInfinity)}) {
        all.push_back(near);
      }
    }
  }
  const size_t count = all.size();
  for (size_t i = 0; i < count; ++i)
    all.push_back(bits_as<float>(bits_as<uint32_t>(all[i]) ^ 0x80000000u));
  return all;
}

template <class One, class InPairs>
void compare(const test::SmallFormat& format) {
  size_t differ = 0;
  for (const float value : points(format)) {
    const uint32_t wanted = One::narrow(value);
    const uint32_t got = InPairs::narrow(value);
    if (wanted == got || ++differ > 5) continue;
    ADD_FAILURE() << std::hexfloat << value << " is " << std::hex << got << ", not " << wanted;
  }
  EXPECT_EQ(differ, 0u);
  for (uint32_t code = 0; code < (1u << format.bits()); ++code) {
    const float wanted = One::widen(static_cast<typename One::Stored>(code));
    const float got = InPairs::widen(static_cast<typename One::Stored>(code));
    if (std::isnan(wanted) && std::isnan(got)) continue;
    ASSERT_EQ(bits_as<uint32_t>(got), bits_as<uint32_t>(wanted)) << std::hex << code;
  }
}

TEST(PairedInstructions, RoundAndSaturateAsTheConversionsOfOneElement) {
  compare<Float8E4M3, PairedFloat8E4M3<Model>>(test::kModelFloat8E4M3);
  compare<Float8E5M2, PairedFloat8E5M2<Model>>(test::kModelFloat8E5M2);
  compare<Float16, PairedFloat16<Model>>(test::kModelFloat16);
  compare<Bfloat16, PairedBfloat16<Model>>(test::kModelBfloat16);
}

template <class InPairs>
void expect_places() {
  constexpr uint32_t kCount = InPairs::kOfWord;
  const float wide[] = {1, 2, -3, 4};
  float back[kCount];
  InPairs::widen_word(InPairs::narrow_word(wide), back);
  for (uint32_t i = 0; i < kCount; ++i) EXPECT_EQ(back[i], wide[i]);
  for (uint32_t nan = 0; nan < kCount; ++nan) {
    typename InPairs::Stored stored[kCount];
    const uint32_t word = InPairs::with_nan(InPairs::narrow_word(wide), nan);
    std::memcpy(stored, &word, sizeof stored);
    for (uint32_t i = 0; i < kCount; ++i) {
      EXPECT_EQ(stored[i], i == nan ? InPairs::kNanCode : InPairs::narrow(wide[i]));
    }
  }
}

TEST(PairedInstructions, ElementsStayInTheirPlacesOfAWord) {
  expect_places<PairedFloat16<Model>>();
  expect_places<PairedBfloat16<Model>>();
  expect_places<PairedFloat8E4M3<Model>>();
  expect_places<PairedFloat8E5M2<Model>>();
}

}  // namespace
}  // namespace weir::kernels
