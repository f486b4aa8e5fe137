// SPDX-License-Identifier: Apache-2.0
#include "offload/kernels/state_format.h"

#include <gtest/gtest.h>

#include <cmath>

#include "offload/kernels/moment_code.h"
#include "offload/kernels/support.h"

namespace weir::offload {
namespace {

using namespace test;

TEST(ChunkLayout, PlanesAreAlignedApartAndInside) {
  for (const Method method : kMethods) {
    for (const StateFormat format : kFormats) {
      for (const uint64_t count : {0u, 1u, 31u, 256u, 257u, 65536u, 100001u}) {
        const ChunkLayout layout = chunk_layout(method, format, count);
        EXPECT_EQ(layout.state_bytes % kChunkAlignment, 0u);
        EXPECT_EQ(layout.chunk_bytes % kChunkAlignment, 0u);
        uint64_t end = 0;
        for (uint32_t i = 0; i < kPlaneCount; ++i) {
          const PlaneExtent& plane = layout.planes[i];
          if (plane.bytes == 0) continue;
          EXPECT_EQ(plane.offset_bytes % kPlaneAlignment, 0u);
          EXPECT_GE(plane.offset_bytes, end);
          end = plane.offset_bytes + plane.bytes;
          const bool copy = static_cast<Plane>(i) == Plane::kParameterCopy;
          EXPECT_LE(end, copy ? layout.chunk_bytes : layout.state_bytes);
          if (copy) {
            EXPECT_EQ(plane.offset_bytes, layout.state_bytes);
          }
        }
        EXPECT_EQ(layout.plane(Plane::kFirstMoment).bytes != 0,
                  count != 0 && has_first_moment(method));
        EXPECT_EQ(layout.plane(Plane::kSecondMoment).bytes != 0,
                  count != 0 && has_second_moment(method));
        EXPECT_EQ(layout.plane(Plane::kSecondScale).bytes != 0,
                  count != 0 && has_second_moment(method) && format == StateFormat::kHalfMaster8);
      }
    }
  }
}

TEST(ChunkLayout, BytesPerParameterAreWhatTheFormatsPromise) {
  constexpr uint64_t kCount = 1 << 20;
  const auto read = [](StateFormat format) {
    return static_cast<double>(chunk_layout(Method::kAdamW, format, kCount).state_bytes) / kCount;
  };
  const auto written = [](StateFormat format) {
    return static_cast<double>(chunk_layout(Method::kAdamW, format, kCount).chunk_bytes) / kCount;
  };
  EXPECT_EQ(read(StateFormat::kFloat32), 12);
  EXPECT_EQ(written(StateFormat::kFloat32), 12);
  EXPECT_EQ(read(StateFormat::kHalfMaster), 6);
  EXPECT_EQ(written(StateFormat::kHalfMaster), 8);
  EXPECT_EQ(read(StateFormat::kHalfMaster8), 4 + 8.0 / 256);
  EXPECT_EQ(written(StateFormat::kHalfMaster8), 6 + 8.0 / 256);
}

TEST(ChunkLayout, ElementsWithinIsTheLargestThatFits) {
  for (const Method method : kMethods) {
    for (const StateFormat format : kFormats) {
      for (const uint64_t bytes : {0u, 4096u, 65536u, 1u << 20, 3000000u}) {
        const uint64_t count = elements_within(method, format, bytes);
        EXPECT_EQ(count % kMomentBlock, 0u);
        EXPECT_LE(chunk_layout(method, format, count).chunk_bytes, bytes);
        EXPECT_GT(chunk_layout(method, format, count + kMomentBlock).chunk_bytes, bytes);
      }
    }
  }
}

TEST(HalfMaster, CopyAndLowBitsRestoreEveryFloat) {
  // Every upper half with the lower halves around both borders, then random ones.
  const uint32_t lows[] = {0, 1, 0x7ffe, 0x7fff, 0x8000, 0x8001, 0xfffe, 0xffff};
  for (uint32_t high = 0; high < 0x10000; ++high) {
    for (const uint32_t low : lows) {
      const uint32_t bits = (high << 16) | low;
      ASSERT_EQ(master_from(copy_of(bits), static_cast<uint16_t>(bits)), bits);
    }
  }
  std::mt19937_64 random(seed());
  for (int i = 0; i < 10'000'000; ++i) {
    const auto bits = static_cast<uint32_t>(random());
    ASSERT_EQ(master_from(copy_of(bits), static_cast<uint16_t>(bits)), bits);
  }
}

TEST(HalfMaster, TheCopyIsNearest) {
  Values values(seed(), Draw::kWide);
  for (int i = 0; i < 100'000; ++i) {
    const float value = values.next(1);
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const double error = std::fabs(double{of_bf16(copy_of(bits))} - value);
    EXPECT_LE(error, std::ldexp(1.0, std::ilogb(value) - 8));
  }
  EXPECT_EQ(copy_of(std::bit_cast<uint32_t>(1.0f + 1.0f / 256)), 0x3f81);  // a tie: away from zero
  EXPECT_EQ(copy_of(std::bit_cast<uint32_t>(-1.0f - 1.0f / 256)), 0xbf81);
}

TEST(State, EncodingRestoresMastersAndEncodingAgainChangesNothing) {
  for (const Method method : kMethods) {
    for (const StateFormat format : kFormats) {
      constexpr uint64_t kCount = 1000;
      const ChunkLayout layout = chunk_layout(method, format, kCount);
      Values values(seed(), Draw::kTame);
      std::vector<float> p(kCount), m(kCount), v(kCount), p2(kCount), m2(kCount), v2(kCount);
      for (uint64_t i = 0; i < kCount; ++i) {
        p[i] = values.next(1);
        m[i] = values.next(1e-3f);
        v[i] = i % 5 == 0 ? 0 : values.next_positive(1e-6f);
      }
      GuardedBytes chunk(layout.chunk_bytes), again(layout.chunk_bytes);
      std::vector<uint16_t> copy(kCount), copy2(kCount);
      // In two ranges, so that offsets within a chunk are used.
      for (const uint64_t first : {0u, 512u}) {
        encode_state(layout, first, std::min<uint64_t>(512, kCount - first), &p[first], &m[first],
                     &v[first], chunk.data(), &copy[first]);
      }
      decode_state(layout, 0, kCount, chunk.data(), copy.data(), p2.data(), m2.data(), v2.data());
      EXPECT_EQ(p, p2);
      const double relative = format == StateFormat::kFloat32      ? 0
                              : format == StateFormat::kHalfMaster ? 1.0 / 256
                                                                   : 1.0 / 16;
      for (uint64_t i = 0; i < kCount; ++i) {
        const double tiny = format == StateFormat::kHalfMaster8 ? 1e-7 : 0;
        if (has_first_moment(method)) {
          EXPECT_NEAR(m2[i], m[i], relative * std::fabs(m[i]) + tiny);
        }
        if (has_second_moment(method)) {
          EXPECT_NEAR(v2[i], v[i], relative * v[i] + tiny * 1e-7);
        }
        if (has_second_moment(method) && v[i] > 0) {
          EXPECT_GT(v2[i], 0);
        }
      }
      encode_state(layout, 0, kCount, p2.data(), m2.data(), v2.data(), again.data(), copy2.data());
      EXPECT_EQ(copy, copy2);
      EXPECT_EQ(chunk.copy(), again.copy());
    }
  }
}

TEST(MomentCode, EveryCodeSurvivesEveryScale) {
  for (const float largest : {1e-37f, 1e-20f, 0.75f, 1.0f, 3.0f, 1e30f}) {
    const MomentScale scale = moment_scale(std::bit_cast<uint32_t>(largest));
    EXPECT_GE(scale.scale, std::min(largest, 0x1p126f));
    EXPECT_EQ(scale.scale * scale.inverse, 1.0f);
    for (uint32_t code = 0; code < 256; ++code) {
      const float first = FirstMomentCode::decode(static_cast<uint8_t>(code)) * scale.scale;
      const float second = SecondMomentCode::decode(static_cast<uint8_t>(code)) * scale.scale;
      if (std::fabs(first) >= 1e-37f) {
        EXPECT_EQ(FirstMomentCode::encode_nearest(first, scale.inverse), code);
      }
      if (second >= 1e-37f) {
        EXPECT_EQ(SecondMomentCode::encode_nearest(second, scale.inverse), code);
      }
    }
  }
}

// What the kernel stores is one of the two neighbours of the moment, the nearer one more often.
TEST(MomentCode, KernelsStoreNeighboursWithoutBias) {
  constexpr uint64_t kCount = 1 << 16;
  for (const StateFormat format : {StateFormat::kHalfMaster, StateFormat::kHalfMaster8}) {
    const ChunkLayout layout = chunk_layout(Method::kAdam, format, kCount);
    const ChunkLayout plain = chunk_layout(Method::kAdam, StateFormat::kFloat32, kCount);
    GuardedBytes chunk(layout.chunk_bytes), whole(plain.chunk_bytes);
    std::vector<uint16_t> copy(kCount);
    Values values(seed(), Draw::kTame);
    std::vector<float> p(kCount), zero(kCount), gradient(kCount), m(kCount), v(kCount), m2(kCount),
        v2(kCount);
    for (float& g : gradient) g = values.next(1e-2f);
    encode_state(layout, 0, kCount, p.data(), nullptr, nullptr, chunk.data(), copy.data());
    StepRange range;
    range.layout = &layout;
    range.source = range.destination = chunk.data();
    range.count = kCount;
    range.gradient = gradient.data();
    range.copy_in = range.copy_out = copy.data();
    const StepFactors factors = step_factors(Method::kAdam, {}, 1);
    step_range(factors, range);
    range.layout = &plain;
    range.source = range.destination = whole.data();
    step_range(factors, range);
    decode_state(plain, 0, kCount, whole.data(), nullptr, nullptr, m.data(), v.data());
    decode_state(layout, 0, kCount, chunk.data(), copy.data(), nullptr, m2.data(), v2.data());
    double bias_m = 0, bias_v = 0;
    const double unit = format == StateFormat::kHalfMaster ? 1.0 / 128 : 1.0 / 8;
    for (uint64_t i = 0; i < kCount; ++i) {
      EXPECT_LE(std::fabs(m2[i] - m[i]), unit * std::fabs(m[i]) + 1e-7) << i;
      EXPECT_LE(std::fabs(v2[i] - v[i]), unit * v[i] + 1e-14) << i;
      bias_m += (double{m2[i]} - m[i]) / (1e-2 * 0.1);
      bias_v += (double{v2[i]} - v[i]) / (1e-4 * 0.001);
    }
    // Standard error of a mean of 65,536 errors of at most a unit or so.
    EXPECT_LT(std::fabs(bias_m) / kCount, 5 * unit / std::sqrt(kCount));
    EXPECT_LT(std::fabs(bias_v) / kCount, 15 * unit / std::sqrt(kCount));
  }
}

// With nearest rounding neither would move.
TEST(MomentCode, ASecondMomentDecaysWithoutGradient) {
  constexpr uint64_t kCount = 4096;
  for (const StateFormat format : {StateFormat::kHalfMaster, StateFormat::kHalfMaster8}) {
    const ChunkLayout layout = chunk_layout(Method::kAdam, format, kCount);
    GuardedBytes chunk(layout.chunk_bytes);
    std::vector<uint16_t> copy(kCount);
    std::vector<float> p(kCount, 1), m(kCount), v(kCount), gradient(kCount);
    for (uint64_t i = 0; i < kCount; ++i) v[i] = 1e-6f * (1.0f + static_cast<float>(i % 7) / 7);
    double before = 0, after = 0;
    for (const float value : v) before += value;
    encode_state(layout, 0, kCount, p.data(), m.data(), v.data(), chunk.data(), copy.data());
    StepRange range;
    range.layout = &layout;
    range.source = range.destination = chunk.data();
    range.count = kCount;
    range.gradient = gradient.data();
    range.copy_in = range.copy_out = copy.data();
    for (uint64_t step = 1; step <= 1000; ++step) {
      step_range(step_factors(Method::kAdam, {}, step), range);
    }
    decode_state(layout, 0, kCount, chunk.data(), copy.data(), nullptr, nullptr, v.data());
    for (const float value : v) after += value;
    EXPECT_NEAR(after / before, std::pow(0.999, 1000), 0.03) << name_of(format);
  }
}

}  // namespace
}  // namespace weir::offload
