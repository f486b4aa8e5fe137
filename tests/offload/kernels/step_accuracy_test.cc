// SPDX-License-Identifier: Apache-2.0
// Every method on f32 state against the double-precision reference, element by element.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "offload/kernels/step_reference.h"
#include "offload/kernels/support.h"

namespace weir::offload {
namespace {

using namespace test;

constexpr double kUlpMax = 2;

struct Case {
  Method method;
  DataType gradient_type;
  Draw draw;
  uint64_t count;
  size_t misalignment;
  uint64_t step;
};

// Scales at which parameter, update and moments compete.
struct Scales {
  float parameter, gradient, moment, second;
};

double largest_error(const Case& c, uint64_t case_seed) {
  Values values(case_seed, c.draw);
  Hyper hyper;
  hyper.learning_rate = 1e-3 * static_cast<double>(1 + values.bits() % 1000);
  hyper.weight_decay = c.step % 2 == 0 ? 0 : 0.01 * static_cast<double>(1 + values.bits() % 9);
  hyper.beta1 = 0.9 - 0.001 * static_cast<double>(values.bits() % 100);
  hyper.eps = values.bits() % 2 == 0 ? 1e-8 : 1e-3;
  const StepFactors factors = step_factors(c.method, hyper, c.step);
  const Scales scales =
      c.step % 3 == 0 ? Scales{1e-4f, 1e-2f, 1e-2f, 1e-4f} : Scales{1, 1e-3f, 1e-3f, 1e-6f};

  const ChunkLayout layout = chunk_layout(c.method, StateFormat::kFloat32, c.count);
  GuardedBytes chunk(layout.chunk_bytes);
  GuardedBytes gradient(c.count * element_bytes(c.gradient_type), c.misalignment);
  std::vector<float> p(c.count), m(c.count), v(c.count);
  for (uint64_t i = 0; i < c.count; ++i) {
    p[i] = values.bits() % 8 == 0 ? 0 : values.next(scales.parameter);
    m[i] = values.next(scales.moment);
    v[i] = values.next_positive(scales.second);
    store_element(gradient.data(), c.gradient_type, i, values.next(scales.gradient));
  }
  encode_state(layout, 0, c.count, p.data(), m.data(), v.data(), chunk.data(), nullptr);

  StepRange range;
  range.layout = &layout;
  range.source = range.destination = chunk.data();
  range.count = c.count;
  range.gradient = gradient.data();
  range.gradient_type = c.gradient_type;
  range.gradient_factor = values.bits() % 2 == 0 ? 1.0f : 0.37f;
  EXPECT_TRUE(validate(range).ok());
  step_range(factors, range);

  std::vector<float> new_p(c.count), new_m(c.count), new_v(c.count);
  decode_state(layout, 0, c.count, chunk.data(), nullptr, new_p.data(), new_m.data(), new_v.data());
  double worst = 0;
  for (uint64_t i = 0; i < c.count; ++i) {
    const double stored = load_element(gradient.data(), c.gradient_type, i);
    const ReferenceStep r =
        reference_moments(factors, p[i], stored, range.gradient_factor, m[i], v[i]);
    double error = 0;
    if (has_first_moment(c.method)) error = error_in_ulp(new_m[i], r.first_moment);
    if (has_second_moment(c.method)) {
      error = std::max(error, error_in_ulp(new_v[i], r.second_moment));
    }
    const float m_used = c.method == Method::kLion ? m[i] : new_m[i];
    error = std::max(error, error_in_ulp(new_p[i], reference_parameter(factors, p[i], r.gradient,
                                                                       m_used, new_v[i])));
    if (error > kUlpMax) {
      ADD_FAILURE() << name_of(c.method) << " gradient " << name_of(c.gradient_type) << " step "
                    << c.step << " element " << i << " of " << c.count << ": " << error
                    << " ulp; p " << p[i] << " -> " << new_p[i] << " m " << m[i] << " -> "
                    << new_m[i] << " v " << v[i] << " -> " << new_v[i] << " g " << r.gradient;
      return error;
    }
    worst = std::max(worst, error);
  }
  return worst;
}

void run(Draw draw, const std::vector<uint64_t>& counts, uint64_t steps) {
  double worst = 0;
  for (const int64_t target : instruction_sets()) {
    const ForcedTarget forced(target);
    for (const Method method : kMethods) {
      for (const DataType type : kGradientTypes) {
        for (const uint64_t count : counts) {
          for (uint64_t step = 1; step <= steps; ++step) {
            const size_t misalignment = (step * 2 + count) % 32 * 2;
            const Case c{method, type, draw, count, misalignment, step};
            worst = std::max(worst, largest_error(c, seed() + step * 1000003 + count));
            if (testing::Test::HasFailure()) return;
          }
        }
      }
    }
  }
  std::printf("largest error %.3f ulp\n", worst);
}

const std::vector<uint64_t> kSizes = {1,  2,  3,  7,  8,   15,  16,  17,  31,  32,   33,
                                      63, 64, 65, 96, 127, 255, 256, 257, 511, 1000, 1025};

TEST(StepAccuracy, TameValuesAreWithinTwoUlp) { run(Draw::kTame, kSizes, 4); }
TEST(StepAccuracy, WideValuesAreWithinTwoUlp) { run(Draw::kWide, kSizes, 4); }
TEST(StepAccuracy, HostileValuesAreWithinTwoUlp) { run(Draw::kHostile, kSizes, 4); }
TEST(StepAccuracy, ManyValuesAreWithinTwoUlp) {
  run(Draw::kTame, {20011}, 6);
  run(Draw::kWide, {20011}, 6);
}

TEST(StepFactors, AreTheirLongDoubleValuesRoundedOnce) {
  std::mt19937_64 random(seed());
  for (int round = 0; round < 2000; ++round) {
    Hyper hyper;
    hyper.learning_rate = std::ldexp(1.0 + static_cast<double>(random() % 1000) / 1000, -10);
    hyper.beta1 = static_cast<double>(random() % 1000) / 1000;
    hyper.beta2 = 1 - static_cast<double>(1 + random() % 1000) / 1e5;
    hyper.weight_decay = static_cast<double>(random() % 100) / 100;
    const uint64_t step = 1 + (round < 50 ? static_cast<uint64_t>(round) : random() % 200000);
    const StepFactors f = step_factors(Method::kAdamW, hyper, step);
    const auto power = [&](double beta) {
      return std::pow(static_cast<long double>(beta), static_cast<long double>(step));
    };
    const long double root = std::sqrt(1 - power(hyper.beta2));
    const long double size = hyper.learning_rate * root / (1 - power(hyper.beta1));
    // Double's own error may turn a tie of the rounding.
    const auto half_ulp = [](float value) {
      return 0.5001L * std::ldexp(1.0L, std::ilogb(value) - 23);
    };
    EXPECT_LE(std::fabs(f.step_size - size), half_ulp(f.step_size)) << "step " << step;
    EXPECT_LE(std::fabs(f.eps - hyper.eps * root), half_ulp(f.eps)) << "step " << step;
    EXPECT_EQ(f.beta1_other, static_cast<float>(1 - hyper.beta1));
    EXPECT_EQ(f.decay, static_cast<float>(hyper.learning_rate * hyper.weight_decay));
    EXPECT_EQ(f.l2, 0);
  }
}

TEST(Hyper, BadFieldsAreNamed) {
  Hyper hyper;
  EXPECT_TRUE(validate(Method::kAdamW, hyper).ok());
  hyper.beta2 = 1;
  EXPECT_NE(validate(Method::kAdamW, hyper).text().find("beta2"), std::string::npos);
  EXPECT_TRUE(validate(Method::kSgdMomentum, hyper).ok());
  hyper = {};
  hyper.learning_rate = std::nan("");
  EXPECT_NE(validate(Method::kLion, hyper).text().find("learning_rate"), std::string::npos);
  EXPECT_FALSE(validate(static_cast<Method>(9), Hyper()).ok());
}

TEST(Step, BadRangesAreRefusedWithTheReason) {
  const ChunkLayout layout = chunk_layout(Method::kAdamW, StateFormat::kHalfMaster8, 600);
  GuardedBytes chunk(layout.chunk_bytes);
  std::vector<float> gradient(600);
  std::vector<uint16_t> copy(600);
  StepRange range;
  range.layout = &layout;
  range.source = range.destination = chunk.data();
  range.gradient = gradient.data();
  range.count = 600;
  EXPECT_NE(validate(range).text().find("bf16 copy"), std::string::npos);
  range.copy_in = range.copy_out = copy.data();
  EXPECT_TRUE(validate(range).ok());
  range.first = 256;
  EXPECT_NE(validate(range).text().find("do not lie"), std::string::npos);
  range.count = 344;
  EXPECT_TRUE(validate(range).ok());
  range.count = 343;
  EXPECT_NE(validate(range).text().find("multiples of 256"), std::string::npos);
  range.count = 344;
  range.gradient_type = DataType::kInt8;
  EXPECT_NE(validate(range).text().find("int8"), std::string::npos);
}

}  // namespace
}  // namespace weir::offload
