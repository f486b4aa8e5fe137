// SPDX-License-Identifier: Apache-2.0
// Gradient statistics, accumulation and the exact sum under them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "offload/kernels/exact_sum.h"
#include "offload/kernels/gradient_accumulate.h"
#include "offload/kernels/gradient_stats.h"
#include "offload/kernels/support.h"
#include "offload/kernels/worker_pool.h"

namespace weir::offload {
namespace {

using namespace test;

__extension__ using Wide = unsigned __int128;

TEST(ExactSum, OrderDoesNotMatterAndRoundingIsOnce) {
  std::mt19937_64 random(seed());
  for (int round = 0; round < 200; ++round) {
    // Whole multiples of 2^-40 below 2^20 times a power of two: their sum is exact in 128 bits.
    const int shift = static_cast<int>(random() % 400) - 300;
    std::vector<double> terms(1 + random() % 500);
    Wide exact = 0;
    for (double& term : terms) {
      const uint64_t whole = random() >> (11 + random() % 50);
      exact += whole;
      term = std::ldexp(static_cast<double>(whole), shift);
    }
    const double expected =
        std::ldexp(static_cast<double>(static_cast<long double>(exact)), shift);  // < 2^63: exact
    ExactSum forward, backward, left, right;
    for (const double term : terms) forward.add(term);
    std::shuffle(terms.begin(), terms.end(), random);
    for (const double term : terms) backward.add(term);
    for (size_t i = 0; i < terms.size(); ++i) (i % 3 == 0 ? left : right).add(terms[i]);
    left.add(right);
    EXPECT_EQ(forward.value(), expected);
    EXPECT_EQ(backward.value(), expected);
    EXPECT_EQ(left.value(), expected);
  }
}

TEST(ExactSum, TiesGoToEvenAndWhatIsBelowBreaksThem) {
  ExactSum sum;
  sum.add(1);
  sum.add(std::ldexp(1.0, -53));
  EXPECT_EQ(sum.value(), 1);
  sum.add(std::ldexp(1.0, -300));
  EXPECT_EQ(sum.value(), 1 + std::ldexp(1.0, -52));
  ExactSum odd;
  odd.add(1 + std::ldexp(1.0, -52));
  odd.add(std::ldexp(1.0, -53));
  EXPECT_EQ(odd.value(), 1 + std::ldexp(1.0, -51));
  EXPECT_EQ(ExactSum().value(), 0);
}

TEST(ExactSum, InfinityAndNanStay) {
  ExactSum sum;
  sum.add(1);
  sum.add(HUGE_VAL);
  EXPECT_EQ(sum.value(), HUGE_VAL);
  ExactSum other;
  other.add(sum);
  EXPECT_EQ(other.value(), HUGE_VAL);
  other.add(std::nan(""));
  EXPECT_TRUE(std::isnan(other.value()));
  other.add(HUGE_VAL);
  EXPECT_TRUE(std::isnan(other.value()));
}

std::vector<unsigned char> gradients(DataType type, uint64_t count, Draw draw) {
  Values values(seed() + count, draw);
  std::vector<unsigned char> all(count * element_bytes(type));
  for (uint64_t i = 0; i < count; ++i) {
    float value = values.next(1e-2f);
    if (!std::isfinite(value) || std::fabs(value) > 6e4f) value = 3;
    store_element(all.data(), type, i, value);
  }
  return all;
}

TEST(GradientStats, SumIsThatOfLongDouble) {
  for (const int64_t target : instruction_sets()) {
    const ForcedTarget forced(target);
    for (const DataType type : kGradientTypes) {
      for (const uint64_t count : {0u, 1u, 31u, 32u, 33u, 4095u, 4096u, 4097u, 50000u}) {
        const auto all = gradients(type, count, Draw::kWide);
        long double expected = 0;
        for (uint64_t i = 0; i < count; ++i) {
          const long double g = load_element(all.data(), type, i);
          expected += g * g;
        }
        GradientStats stats;
        stats.add(all.data(), type, count);
        EXPECT_NEAR(stats.sum_of_squares(), static_cast<double>(expected),
                    static_cast<double>(expected) * 1e-14);
        EXPECT_TRUE(stats.all_finite());
      }
    }
  }
}

TEST(GradientStats, BitsDoNotDependOnTheWay) {
  constexpr uint64_t kCount = 37 * kStatsBlock + 123;
  for (const DataType type : kGradientTypes) {
    const auto all = gradients(type, kCount, Draw::kHostile);
    const size_t bytes = element_bytes(type);
    GradientStats whole;
    whole.add(all.data(), type, kCount);
    for (const int64_t target : instruction_sets()) {
      const ForcedTarget forced(target);
      GradientStats other;
      other.add(all.data(), type, kCount);
      EXPECT_EQ(other.sum_of_squares(), whole.sum_of_squares()) << hwy::TargetName(target);
    }
    for (const uint32_t threads : {1u, 2u, 5u}) {
      auto pool = WorkerPool::create({.thread_count = threads});
      ASSERT_TRUE(pool.ok());
      GradientStats other;
      other.add(*pool.value(), all.data(), type, kCount);
      EXPECT_EQ(other.sum_of_squares(), whole.sum_of_squares()) << threads << " threads";
    }
    for (const uint64_t blocks : {1u, 3u, 10u}) {
      GradientStats front, back;  // as of two ranks, submitted from the last piece on
      const uint64_t piece = blocks * kStatsBlock;
      for (uint64_t begin = (kCount - 1) / piece * piece;; begin -= piece) {
        GradientStats& rank = begin / piece % 2 == 0 ? front : back;
        rank.add(all.data() + begin * bytes, type, std::min(piece, kCount - begin));
        if (begin == 0) break;
      }
      front.add(back);
      EXPECT_EQ(front.sum_of_squares(), whole.sum_of_squares());
    }
    for (size_t shift = 1; shift < 8; ++shift) {
      GuardedBytes moved(all.size(), shift);
      std::memcpy(moved.data(), all.data(), all.size());
      GradientStats other;
      other.add(moved.data(), type, kCount);
      EXPECT_EQ(other.sum_of_squares(), whole.sum_of_squares());
    }
  }
}

TEST(GradientStats, OneBadElementAnywhereIsFound) {
  for (const int64_t target : instruction_sets()) {
    const ForcedTarget forced(target);
    for (const DataType type : kGradientTypes) {
      for (const uint64_t count : {1u, 33u, 5000u}) {
        for (uint64_t at = 0; at < count; at += 1 + count / 37) {
          for (const float bad : {HUGE_VALF, -HUGE_VALF, std::nanf("")}) {
            auto all = gradients(type, count, Draw::kTame);
            store_element(all.data(), type, at, bad);
            GradientStats stats;
            stats.add(all.data(), type, count);
            EXPECT_FALSE(stats.all_finite()) << name_of(type) << " element " << at;
          }
        }
      }
    }
  }
}

TEST(GradientStats, TheLargestFloatsDoNotOverflow) {
  const std::vector<float> all(10000, -3.4028234e38f);
  GradientStats stats;
  stats.add(all.data(), DataType::kFloat32, all.size());
  EXPECT_TRUE(stats.all_finite());
  EXPECT_NEAR(std::sqrt(stats.sum_of_squares()) / 3.4028234e40, 1, 1e-7);
}

TEST(GradientFactor, UnscalesAndClips) {
  EXPECT_EQ(gradient_factor(100, 1, 0), 1.0f);
  EXPECT_EQ(gradient_factor(100, 1024, 0), 1.0f / 1024);
  EXPECT_EQ(gradient_factor(100, 1, 20), 1.0f);  // the norm is 10
  EXPECT_EQ(gradient_factor(100, 1, 5), 0.5f);
  EXPECT_EQ(gradient_factor(100 * 64.0 * 64, 64, 5), 0.5f / 64);
  EXPECT_EQ(gradient_factor(0, 1, 5), 1.0f);
}

TEST(GradientFactor, ANormThatOverflowsIsNotClippedToZero) {
  EXPECT_EQ(gradient_factor(1e74, 1e-300, 5), HUGE_VALF);
  EXPECT_EQ(gradient_factor(HUGE_VAL, 2, 5), 0.5f);
}

TEST(GradientAccumulate, IsTheFloatSumOnEveryInstructionSet) {
  for (const int64_t target : instruction_sets()) {
    const ForcedTarget forced(target);
    for (const DataType type : kGradientTypes) {
      for (const uint64_t count : {1u, 5u, 16u, 31u, 32u, 100u, 3001u}) {
        const size_t shift = count % 13 * 2;
        GuardedBytes total(count * 4, shift * 2), gradient(count * element_bytes(type), shift);
        Values values(seed() + count, Draw::kWide);
        std::vector<float> expected(count);
        for (uint64_t i = 0; i < count; ++i) {
          const float before = values.next(1);
          store_element(gradient.data(), type, i, values.next(1));
          write(total.data(), i, before);
          expected[i] = before + static_cast<float>(load_element(gradient.data(), type, i));
        }
        gradient_accumulate(total.as<float>(), gradient.data(), type, count);
        for (uint64_t i = 0; i < count; ++i) {
          ASSERT_EQ(read<float>(total.data(), i), expected[i]) << name_of(type) << " " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace weir::offload
