// SPDX-License-Identifier: Apache-2.0
#include "perf/harness/pattern.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <numeric>
#include <random>

namespace weir::perf {
namespace {

uint64_t seed() {
  const char* text = std::getenv("WEIR_TEST_SEED");
  const uint64_t value =
      text != nullptr ? std::strtoull(text, nullptr, 10) : std::random_device{}();
  std::cout << "WEIR_TEST_SEED=" << value << "\n";
  return value;
}

// To the type's significant bits, to nearest even: what storing a partial result does to it.
double stored(const ElementType& type, double value) {
  if (!type.is_float) return value;
  if (value == 0) return 0;
  int exponent = 0;
  std::frexp(value, &exponent);
  const double unit = std::ldexp(1.0, exponent - type.mantissa_bits - 1);
  return std::nearbyint(value / unit) * unit;
}

uint64_t element_at(const std::vector<uint8_t>& data, const ElementType& type, size_t i) {
  uint64_t bits = 0;
  std::memcpy(&bits, &data[i * type.bytes], type.bytes);
  return bits;
}

// Folds the inputs of element i in the given order, storing each partial result in the type.
double fold(const ElementType& type, Reduction reduction,
            const std::vector<std::vector<uint8_t>>& inputs, const std::vector<int>& order,
            size_t i, const Pattern& pattern) {
  double value = 0;
  for (size_t k = 0; k < order.size(); ++k) {
    const auto rank = static_cast<size_t>(order[k]);
    double operand = decode(type, element_at(inputs[rank], type, i));
    if (reduction == Reduction::kMulSum) {
      operand = stored(type, operand * decode(type, pattern.factor_bits(order[k])));
    }
    if (k == 0) {
      value = operand;
    } else if (reduction == Reduction::kProd) {
      value *= operand;
    } else if (reduction == Reduction::kMax) {
      value = std::max(value, operand);
    } else if (reduction == Reduction::kMin) {
      value = std::min(value, operand);
    } else {
      value += operand;
    }
    value = stored(type, value);
  }
  if (reduction == Reduction::kAvg) {
    value /= static_cast<double>(order.size());
    value = type.is_float ? stored(type, value) : std::trunc(value);
  }
  return value;
}

TEST(Pattern, TheReductionIsTheSameInAnyOrderOfTheRanks) {
  std::mt19937_64 random(seed());
  constexpr size_t kCount = 500;
  for (const int rank_count : {1, 2, 3, 4, 7, 16, 17, 64, 300}) {
    for (const ElementType& type : element_types()) {
      if (rank_count > 20 && type.exact_max > 300)
        continue;  // only narrow types get scarce of room
      for (const Reduction reduction : reductions()) {
        if (reduction == Reduction::kProd && !type.is_float) continue;  // wraps; see below
        Pattern pattern(type, reduction, rank_count);
        std::vector<std::vector<uint8_t>> inputs;
        for (int rank = 0; rank < rank_count; ++rank) {
          inputs.emplace_back(kCount * type.bytes);
          pattern.fill(inputs.back().data(), rank, 0, kCount, 5);
        }
        std::vector<uint8_t> reduced(kCount * type.bytes);
        pattern.fill(reduced.data(), Pattern::kReduced, 0, kCount, 5);
        std::vector<int> order(static_cast<size_t>(rank_count));
        std::iota(order.begin(), order.end(), 0);
        for (size_t i = 0; i<kCount; i += rank_count> 20 ? 25 : 1) {
          std::shuffle(order.begin(), order.end(), random);
          ASSERT_EQ(fold(type, reduction, inputs, order, i, pattern),
                    decode(type, element_at(reduced, type, i)))
              << type.name << " " << reduction_name(reduction) << ", " << rank_count
              << " ranks, element " << i;
        }
      }
    }
  }
}

TEST(Pattern, IntegerProductsWrap) {
  const ElementType& type = *find_element_type("int8");
  constexpr size_t kCount = 100;
  constexpr int kRankCount = 9;
  Pattern pattern(type, Reduction::kProd, kRankCount);
  std::vector<uint8_t> product(kCount, 1);
  for (int rank = 0; rank < kRankCount; ++rank) {
    std::vector<uint8_t> input(kCount);
    pattern.fill(input.data(), rank, 0, kCount, 0);
    for (size_t i = 0; i < kCount; ++i) {
      product[i] = static_cast<uint8_t>(product[i] * input[i]);
    }
  }
  EXPECT_EQ(pattern.count_wrong(product.data(), Pattern::kReduced, 0, kCount, 0, nullptr), 0u);
}

TEST(Pattern, ResultsAreNotAllAlike) {
  for (const ElementType& type : element_types()) {
    for (const Reduction reduction : reductions()) {
      for (const int rank_count : {2, 3, 16}) {
        // More ranks than exact integers: an exact average has no room but for zero.
        if (reduction == Reduction::kAvg && rank_count > type.exact_max) continue;
        Pattern pattern(type, reduction, rank_count);
        std::vector<uint8_t> reduced(1000 * type.bytes);
        pattern.fill(reduced.data(), Pattern::kReduced, 0, 1000, 0);
        std::vector<uint64_t> values;
        for (size_t i = 0; i < 1000; ++i) values.push_back(element_at(reduced, type, i));
        std::sort(values.begin(), values.end());
        values.erase(std::unique(values.begin(), values.end()), values.end());
        EXPECT_GE(values.size(), 2u)
            << type.name << " " << reduction_name(reduction) << ", " << rank_count << " ranks";
      }
    }
  }
}

TEST(Pattern, EachDamagedElementIsCounted) {
  std::mt19937_64 random(seed());
  for (const ElementType& type : element_types()) {
    for (const Reduction reduction : {Reduction::kNone, Reduction::kSum}) {
      Pattern pattern(type, reduction, 2);
      const int source = reduction == Reduction::kNone ? 1 : Pattern::kReduced;
      constexpr size_t kCount = 3 * Pattern::kPeriod + 17;
      std::vector<uint8_t> data(kCount * type.bytes);
      pattern.fill(data.data(), source, 33, kCount, 2);
      ASSERT_EQ(pattern.count_wrong(data.data(), source, 33, kCount, 2, nullptr), 0u);
      std::vector<size_t> damaged;
      for (int k = 0; k < 20; ++k) {
        const size_t index = random() % kCount;
        if (std::find(damaged.begin(), damaged.end(), index) != damaged.end()) continue;
        damaged.push_back(index);
        data[index * type.bytes] ^= 0x11;
      }
      Mismatch first;
      EXPECT_EQ(pattern.count_wrong(data.data(), source, 33, kCount, 2, &first), damaged.size())
          << type.name;
      EXPECT_EQ(first.index, *std::min_element(damaged.begin(), damaged.end()));
      EXPECT_NE(first.actual_bits, first.expected_bits);
    }
  }
}

TEST(Pattern, ABlockInTheWrongPlaceOrOfTheWrongRankOrIterationIsNoticed) {
  const ElementType& type = *find_element_type("float");
  Pattern pattern(type, Reduction::kNone, 4);
  std::vector<uint8_t> data(1024 * type.bytes);
  pattern.fill(data.data(), 1, 0, 1024, 0);
  for (size_t shift = 1; shift <= size_t{1} << 30; shift *= 2) {
    EXPECT_GT(pattern.count_wrong(data.data(), 1, shift, 1024, 0, nullptr), 1000u) << shift;
  }
  EXPECT_GT(pattern.count_wrong(data.data(), 2, 0, 1024, 0, nullptr), 1000u);
  EXPECT_GT(pattern.count_wrong(data.data(), 1, 0, 1024, 1, nullptr), 1000u);
}

TEST(Pattern, TheSignOfZeroIsNotAnError) {
  const ElementType& type = *find_element_type("float");
  Pattern pattern(type, Reduction::kSum, 2);
  std::vector<float> data(1000);
  pattern.fill(data.data(), Pattern::kReduced, 0, data.size(), 0);
  data[17] = 0;
  const size_t before = pattern.count_wrong(data.data(), Pattern::kReduced, 0, 1000, 0, nullptr);
  data[17] = -0.0f;
  EXPECT_EQ(pattern.count_wrong(data.data(), Pattern::kReduced, 0, 1000, 0, nullptr), before);
}

}  // namespace
}  // namespace weir::perf
