// SPDX-License-Identifier: Apache-2.0
// Stochastic rounding: the vector generator is the scalar one, results are neighbours, the mean is
// the value, and bits look independent over elements and steps.
#include <gtest/gtest.h>

#include <cmath>

#include "offload/kernels/random.h"
#include "offload/kernels/support.h"

namespace weir::offload {
namespace {

using namespace test;

// Parameters as they are (a step of size zero), rounded into `type`.
std::vector<uint16_t> rounded(const std::vector<float>& values, DataType type, uint64_t step,
                              uint64_t first_index, bool stochastic = true) {
  const uint64_t count = values.size();
  const ChunkLayout layout = chunk_layout(Method::kSgdMomentum, StateFormat::kFloat32, count);
  GuardedBytes chunk(layout.chunk_bytes);
  encode_state(layout, 0, count, values.data(), nullptr, nullptr, chunk.data(), nullptr);
  std::vector<float> gradient(count);
  std::vector<uint16_t> out(count);
  StepRange range;
  range.layout = &layout;
  range.source = range.destination = chunk.data();
  range.count = count;
  range.gradient = gradient.data();
  range.parameter_out = out.data();
  range.parameter_type = type;
  range.stochastic_rounding = stochastic;
  range.seed = 12345;
  range.first_index = first_index;
  Hyper hyper;
  hyper.learning_rate = 0;
  step_range(step_factors(Method::kSgdMomentum, hyper, step), range);
  return out;
}

std::vector<float> normal_values(uint64_t count, float scale) {
  Values values(seed(), Draw::kTame);
  std::vector<float> all(count);
  for (float& value : all) value = values.next(scale);
  return all;
}

TEST(StochasticRounding, VectorsUseTheScalarGenerator) {
  const std::vector<float> values = normal_values(1000, 1);
  for (const int64_t target : instruction_sets()) {
    const ForcedTarget forced(target);
    for (const uint64_t first : {uint64_t{0}, (uint64_t{1} << 32) - 500, (uint64_t{7} << 32) + 3}) {
      const auto out = rounded(values, DataType::kBfloat16, 5, first);
      const RandomKey key = random_key(12345, 5, RandomStream::kParameter);
      for (uint64_t i = 0; i < values.size(); ++i) {
        const uint32_t random = random_bits(key, first + i) >> 16;
        const auto expected =
            static_cast<uint16_t>((std::bit_cast<uint32_t>(values[i]) + random) >> 16);
        ASSERT_EQ(out[i], expected) << hwy::TargetName(target) << " element " << i;
      }
    }
  }
}

TEST(StochasticRounding, NearestIsToEven) {
  std::vector<float> values = normal_values(5000, 1);
  Values hostile(seed() + 1, Draw::kHostile);
  for (int i = 0; i < 5000; ++i) values.push_back(hostile.next(1));
  for (int i = 0; i < 5000; ++i) {
    values.push_back(std::ldexp(hostile.bits() % 4096 / 4.0f, -26));  // f16's subnormals, with ties
    values.push_back(of_bf16(static_cast<uint16_t>(hostile.bits() % 0x7f00)) * 1.00390625f);
  }
  for (const int64_t target : instruction_sets()) {
    const ForcedTarget forced(target);
    const auto bf16 = rounded(values, DataType::kBfloat16, 1, 0, false);
    const auto f16 = rounded(values, DataType::kFloat16, 1, 0, false);
    for (size_t i = 0; i < values.size(); ++i) {
      float value = values[i];
      // A step makes zero of a subnormal, and NaN of an infinite parameter times no decay.
      if (std::fabs(value) < 1.17549435e-38f || std::isinf(value)) continue;
      ASSERT_EQ(bf16[i], bf16_of(value)) << value << " " << hwy::TargetName(target);
      ASSERT_EQ(f16[i], f16_of(value)) << value << " " << hwy::TargetName(target);
    }
  }
}

// 200,000 draws of one value: the mean is within five standard errors, and only neighbours appear.
void expect_unbiased(float value, DataType type, double below, double above) {
  constexpr uint64_t kDraws = 200'000;
  const auto out = rounded(std::vector<float>(kDraws, value), type, 3, 17);
  uint64_t ups = 0;
  for (const uint16_t code : out) {
    const double got = type == DataType::kBfloat16 ? double{of_bf16(code)} : of_f16(code);
    ASSERT_TRUE(got == below || got == above) << value << " became " << got;
    ups += got == above ? 1 : 0;
  }
  const double chance = (value - below) / (above - below);
  const double deviation = std::sqrt(chance * (1 - chance) / kDraws) + 1e-9;
  EXPECT_NEAR(static_cast<double>(ups) / kDraws, chance, 5 * deviation + 1.0 / 8192) << value;
}

TEST(StochasticRounding, TheMeanIsTheValue) {
  for (const float part : {0.01f, 0.25f, 0.5f, 0.8f, 0.999f}) {
    expect_unbiased(1 + part / 128, DataType::kBfloat16, 1, 1 + 1.0 / 128);
    expect_unbiased(-3e-20f * 0 + std::ldexp(1 + part / 128, -80), DataType::kBfloat16,
                    std::ldexp(1.0, -80), std::ldexp(1 + 1.0 / 128, -80));
    expect_unbiased(1 + part / 1024, DataType::kFloat16, 1, 1 + 1.0 / 1024);
    expect_unbiased(std::ldexp(5 + part, -24), DataType::kFloat16, std::ldexp(5, -24),
                    std::ldexp(6, -24));  // subnormal there
  }
}

TEST(StochasticRounding, WhatFitsStays) {
  std::vector<float> values;
  for (uint32_t code = 0x0400; code < 0x7c00; ++code) {
    values.push_back(static_cast<float>(of_f16(static_cast<uint16_t>(code))));
  }
  const auto f16 = rounded(values, DataType::kFloat16, 9, 0);
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(of_f16(f16[i]), values[i]);
  for (float& value : values) value = of_bf16(bf16_of(value));
  const auto bf16 = rounded(values, DataType::kBfloat16, 9, 0);
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(of_bf16(bf16[i]), values[i]);
}

TEST(RandomBits, EachBitIsOneHalfOfTheTimeAndIndependentOfNeighbours) {
  constexpr uint64_t kDraws = 1 << 18;
  for (const uint64_t step : {uint64_t{1}, uint64_t{2}, uint64_t{100'000}}) {
    const RandomKey key = random_key(7, step, RandomStream::kMoments);
    const RandomKey next_step = random_key(7, step + 1, RandomStream::kMoments);
    const RandomKey other = random_key(7, step, RandomStream::kParameter);
    for (int bit = 0; bit < 32; ++bit) {
      uint64_t ones = 0, same_next = 0, same_step = 0, same_stream = 0, same_high = 0;
      for (uint64_t i = 0; i < kDraws; ++i) {
        const uint32_t b = random_bits(key, i) >> bit & 1;
        ones += b;
        same_next += b == (random_bits(key, i + 1) >> bit & 1);
        same_step += b == (random_bits(next_step, i) >> bit & 1);
        same_stream += b == (random_bits(other, i) >> bit & 1);
        same_high += b == (random_bits(key, i + (uint64_t{1} << 32)) >> bit & 1);
      }
      const double half = kDraws / 2.0, five_sigma = 5 * std::sqrt(kDraws / 4.0);
      EXPECT_NEAR(static_cast<double>(ones), half, five_sigma) << "bit " << bit;
      EXPECT_NEAR(static_cast<double>(same_next), half, five_sigma) << "bit " << bit;
      EXPECT_NEAR(static_cast<double>(same_step), half, five_sigma) << "bit " << bit;
      EXPECT_NEAR(static_cast<double>(same_stream), half, five_sigma) << "bit " << bit;
      EXPECT_NEAR(static_cast<double>(same_high), half, five_sigma) << "bit " << bit;
    }
  }
}

TEST(RandomBits, HighHalfIsUniform) {
  constexpr uint32_t kBuckets = 1 << 16;
  constexpr uint32_t kPerBucket = 32;
  const RandomKey key = random_key(seed(), 11, RandomStream::kParameter);
  std::vector<uint32_t> counts(kBuckets);
  for (uint64_t i = 0; i < uint64_t{kBuckets} * kPerBucket; ++i)
    ++counts[random_bits(key, i) >> 16];
  double chi2 = 0;
  for (const uint32_t count : counts) chi2 += std::pow(double(count) - kPerBucket, 2) / kPerBucket;
  EXPECT_NEAR(chi2, kBuckets, 6 * std::sqrt(2.0 * kBuckets));
}

}  // namespace
}  // namespace weir::offload
