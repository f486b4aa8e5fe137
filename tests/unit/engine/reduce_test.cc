// SPDX-License-Identifier: Apache-2.0
#include "core/engine/reduce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "hwy/targets.h"
#include "unit/engine/guarded_buffer.h"
#include "unit/engine/reduce_reference.h"

namespace weir {
namespace {

using test::GuardedBuffer;

constexpr Fold kFolds[] = {Fold::kSum, Fold::kProd, Fold::kMax, Fold::kMin};

std::vector<DataType> all_types() {
  std::vector<DataType> types;
  for (uint32_t type = 0; type < kDataTypeCount; ++type)
    types.push_back(static_cast<DataType>(type));
  return types;
}

uint64_t test_seed() {
  static const uint64_t seed = [] {
    const char* text = std::getenv("WEIR_TEST_SEED");
    const uint64_t chosen = text != nullptr ? std::strtoull(text, nullptr, 10) : 20240607;
    std::printf("WEIR_TEST_SEED=%llu\n", static_cast<unsigned long long>(chosen));
    return chosen;
  }();
  return seed;
}

// Instruction sets that this processor and the library have, best first; the one-lane one is last.
std::vector<int64_t> targets() {
  std::vector<int64_t> found;
  std::set<std::string> names;
  for (int bit = 0; bit < 63; ++bit) {
    const int64_t target = int64_t{1} << bit;
    const bool fallback = target == HWY_SCALAR || target == HWY_EMU128;
    if ((hwy::SupportedTargets() & target) == 0 && !fallback) continue;
    hwy::GetChosenTarget().Update(target);
    if (names.insert(reduce_kernel_target()).second) found.push_back(target);
  }
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  return found;
}

class Target {
 public:
  explicit Target(int64_t target) { hwy::GetChosenTarget().Update(target); }
  ~Target() { hwy::GetChosenTarget().Update(hwy::SupportedTargets()); }
};

bool is_float(DataType type) { return type >= DataType::kFloat16; }

// Random bytes are a fair sample of a float's special values only in the small formats; so some
// lanes get the ones that matter, and others the middle of the range, where sums round.
void fill_random(DataType type, std::mt19937_64& random, uint8_t* at, size_t count) {
  for (size_t i = 0; i < count * element_bytes(type); ++i) at[i] = static_cast<uint8_t>(random());
  const auto put = [&](size_t i, auto value) {
    std::memcpy(at + i * sizeof(value), &value, sizeof(value));
  };
  for (size_t i = 0; i < count; ++i) {
    if (random() % 4 == 0) continue;
    const double middle = std::ldexp(static_cast<double>(random() % 2000001) / 1e6 - 1.0,
                                     static_cast<int>(random() % 8));
    constexpr double kSpecial[] = {0.0,       -0.0, 1.0,   -1.0, INFINITY,
                                   -INFINITY, NAN,  1e-40, 3e38, -3e38};
    const double value = random() % 16 == 0 ? kSpecial[random() % std::size(kSpecial)] : middle;
    if (type == DataType::kFloat32) {
      put(i, static_cast<float>(value));
    } else if (type == DataType::kFloat64) {
      put(i, value);
    } else if (is_float(type)) {
      const uint32_t code = test::encode_small_float(type, static_cast<float>(value));
      if (element_bytes(type) == 2) {
        put(i, static_cast<uint16_t>(code));
      } else {
        put(i, static_cast<uint8_t>(code));
      }
    }
  }
}

struct Variant {
  bool scaled;
  uint32_t divisor;
};

// One case: expected bytes for the longest count, of which each shorter count is a prefix.
class Case {
 public:
  Case(DataType type, Fold fold, uint32_t source_count, Variant variant, size_t count_max,
       std::mt19937_64& random)
      : type_(type), fold_(fold), count_max_(count_max), random_(random) {
    const size_t bytes_max = count_max * element_bytes(type);
    inputs_.resize(source_count);
    for (auto& input : inputs_) {
      input.resize(bytes_max);
      fill_random(type, random, input.data(), count_max);
      input_pointers_.push_back(input.data());
      memory_.push_back(std::make_unique<GuardedBuffer>(bytes_max + 256));
    }
    dst_ = std::make_unique<GuardedBuffer>(bytes_max + 256);
    second_ = std::make_unique<GuardedBuffer>(bytes_max + 256);
    args_.sources = input_pointers_.data();
    args_.source_count = source_count;
    args_.element_count = count_max;
    args_.divisor = variant.divisor;
    if (variant.scaled) {
      scale_.resize(element_bytes(type));
      fill_random(type, random, scale_.data(), 1);
      args_.scaled_source = static_cast<uint32_t>(random() % source_count);
      args_.scale = scale_.data();
    }
    expected_ = test::reference_reduce(type, fold, args_);
  }

  // Runs `count` elements at random places of guarded memory; "" or what is wrong.
  std::string run(size_t count) {
    const size_t element = element_bytes(type_);
    const size_t bytes = count * element;
    std::vector<const void*> sources;
    for (size_t s = 0; s < inputs_.size(); ++s) {
      uint8_t* at = place(*memory_[s], bytes);
      std::memcpy(at, inputs_[s].data(), bytes);
      sources.push_back(at);
    }
    ReduceArgs args = args_;
    args.sources = sources.data();
    args.element_count = count;
    args.streaming = random_() % 2 == 0;
    args.second_streaming = args.streaming && random_() % 2 == 0;
    const bool in_place = random_() % 3 == 0;
    uint8_t* dst = place(*dst_, bytes);
    if (in_place)
      dst = static_cast<uint8_t*>(const_cast<void*>(sources[random_() % sources.size()]));
    uint8_t* second = random_() % 3 == 0 ? place(*second_, bytes) : nullptr;
    args.dst = dst;
    args.second_dst = second;
    if (!in_place) dst_->fill(dst, bytes);
    reduce_kernel(type_, fold_)(args);

    std::string wrong;
    if (const size_t i = first_difference(dst, bytes); i != bytes) {
      wrong += " dst element " + std::to_string(i / element);
    }
    if (second != nullptr && first_difference(second, bytes) != bytes) wrong += " second_dst";
    if (!in_place && !dst_->canaries_hold(dst, bytes, 192)) wrong += " writes outside dst";
    if (second != nullptr && !second_->canaries_hold(second, bytes, 192)) {
      wrong += " writes outside second_dst";
    }
    for (size_t s = 0; s < sources.size(); ++s) {
      if (sources[s] != dst && std::memcmp(sources[s], inputs_[s].data(), bytes) != 0) {
        wrong += " source " + std::to_string(s) + " changed";
      }
    }
    dst_->fill(dst_->from_begin(0), 0);
    if (!in_place) dst_->fill(dst, bytes);
    if (second != nullptr) second_->fill(second, bytes);
    if (wrong.empty()) return "";
    return std::string(reduce_kernel_target()) + " " + name_of(type_) + " " + name_of(fold_) +
           " of " + std::to_string(inputs_.size()) + " sources, count " + std::to_string(count) +
           (args.scaled_source != kNoSource ? ", scaled" : "") + ", divisor " +
           std::to_string(args.divisor) + (args.streaming ? ", streaming" : "") +
           (in_place ? ", in place" : "") + ":" + wrong;
  }

  size_t count_max() const { return count_max_; }

 private:
  // Against one of the two guards, at any byte or at one that suits the element.
  uint8_t* place(GuardedBuffer& buffer, size_t bytes) {
    size_t offset = random_() % 4 == 0 ? 0 : random_() % 128;
    if (random_() % 2 == 0) offset -= offset % element_bytes(type_);
    return random_() % 2 == 0 ? buffer.from_begin(offset) : buffer.to_end(offset, bytes);
  }

  size_t first_difference(const uint8_t* at, size_t bytes) const {
    return static_cast<size_t>(std::mismatch(at, at + bytes, expected_.begin()).first - at);
  }

  const DataType type_;
  const Fold fold_;
  const size_t count_max_;
  std::mt19937_64& random_;
  std::vector<std::vector<uint8_t>> inputs_;
  std::vector<const void*> input_pointers_;
  std::vector<std::unique_ptr<GuardedBuffer>> memory_;
  std::unique_ptr<GuardedBuffer> dst_;
  std::unique_ptr<GuardedBuffer> second_;
  std::vector<uint8_t> scale_;
  ReduceArgs args_;
  std::vector<uint8_t> expected_;
};

void expect_holds(size_t count_max, const std::vector<size_t>& counts,
                  const std::vector<uint32_t>& source_counts) {
  std::mt19937_64 random(test_seed());
  const std::vector<int64_t> all_targets = targets();
  constexpr Variant kVariants[] = {{false, 1}, {true, 1}, {false, 3}, {true, 8}};
  for (const DataType type : all_types()) {
    for (const Fold fold : kFolds) {
      for (const uint32_t source_count : source_counts) {
        for (const Variant& variant : kVariants) {
          Case one(type, fold, source_count, variant, count_max, random);
          for (const int64_t target : all_targets) {
            const Target chosen(target);
            for (const size_t count : counts) ASSERT_EQ(one.run(count), "");
          }
        }
      }
    }
  }
}

TEST(ReduceKernel, EveryTypeFoldAndTargetMatchesTheScalarReferenceUpTo130Elements) {
  std::vector<size_t> counts(131);
  for (size_t i = 0; i < counts.size(); ++i) counts[i] = i;
  expect_holds(130, counts, {1, 2, 3, 4, 5, 8, 17});
}

TEST(ReduceKernel, LongArraysMatchTheScalarReferenceOnEveryTarget) {
  expect_holds(5000, {255, 256, 257, 511, 512, 640, 1023, 1300, 2048, 4097, 5000}, {1, 2, 3, 6});
}

TEST(ReduceKernel, EveryDifferentTargetOfThisProcessorIsCovered) {
  std::set<std::string> names;
  for (const int64_t target : targets()) {
    const Target chosen(target);
    names.insert(reduce_kernel_target());
  }
  EXPECT_EQ(names.size(), targets().size());
  EXPECT_GE(names.size(), 2u);
  for (const std::string& name : names) std::printf("target %s\n", name.c_str());
}

// ---- Exact statements, on every target --------------------------------------------------------

template <typename T>
std::vector<T> reduce_values(DataType type, Fold fold, const std::vector<std::vector<T>>& sources,
                             uint32_t divisor = 1, Arithmetic arithmetic = Arithmetic::kIeee) {
  std::vector<const void*> pointers;
  for (const auto& source : sources) pointers.push_back(source.data());
  std::vector<T> out(sources[0].size());
  ReduceArgs args;
  args.dst = out.data();
  args.sources = pointers.data();
  args.source_count = static_cast<uint32_t>(pointers.size());
  args.element_count = out.size();
  args.divisor = divisor;
  reduce_kernel(type, fold, arithmetic)(args);
  return out;
}

template <typename Test>
void on_every_target(Test test) {
  for (const int64_t target : targets()) {
    const Target chosen(target);
    SCOPED_TRACE(reduce_kernel_target());
    test();
  }
}

TEST(ReduceKernel, EveryPairOf8BitValuesMatchesTheReference) {
  const std::vector<int64_t> all_targets = targets();
  std::vector<uint8_t> left(65536);
  std::vector<uint8_t> right(65536);
  for (size_t i = 0; i < left.size(); ++i) {
    left[i] = static_cast<uint8_t>(i >> 8);
    right[i] = static_cast<uint8_t>(i);
  }
  for (const DataType type : all_types()) {
    if (element_bytes(type) != 1) continue;
    for (const Fold fold : kFolds) {
      const void* sources[] = {left.data(), right.data()};
      ReduceArgs args;
      args.sources = sources;
      args.source_count = 2;
      args.element_count = left.size();
      const std::vector<uint8_t> expected = test::reference_reduce(type, fold, args);
      for (const int64_t target : all_targets) {
        const Target chosen(target);
        EXPECT_EQ(reduce_values<uint8_t>(type, fold, {left, right}), expected)
            << name_of(type) << " " << name_of(fold) << " " << reduce_kernel_target();
      }
    }
  }
}

TEST(ReduceKernel, Every16BitFloatSurvivesAddingNegativeZero) {
  std::vector<uint16_t> codes(65536);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint16_t>(i);
  const std::vector<uint16_t> zeros(codes.size(), 0x8000);
  for (const DataType type : {DataType::kFloat16, DataType::kBfloat16}) {
    const uint16_t nan = type == DataType::kFloat16 ? 0x7e00 : 0x7fc0;
    on_every_target([&] {
      const std::vector<uint16_t> out = reduce_values<uint16_t>(type, Fold::kSum, {codes, zeros});
      for (size_t i = 0; i < codes.size(); ++i) {
        const bool is_nan = std::isnan(test::decode_small_float(type, codes[i]));
        ASSERT_EQ(out[i], is_nan ? nan : codes[i]) << name_of(type) << " code " << i;
      }
    });
  }
}

TEST(ReduceKernel, ProductsOfRandom16BitFloatsRoundToNearestEven) {
  std::mt19937_64 random(test_seed());
  for (const DataType type : {DataType::kFloat16, DataType::kBfloat16}) {
    std::vector<uint16_t> left(200000);
    std::vector<uint16_t> right(left.size());
    for (auto& code : left) code = static_cast<uint16_t>(random());
    for (auto& code : right) code = static_cast<uint16_t>(random());
    const void* sources[] = {left.data(), right.data()};
    ReduceArgs args;
    args.sources = sources;
    args.source_count = 2;
    args.element_count = left.size();
    const std::vector<uint8_t> expected = test::reference_reduce(type, Fold::kProd, args);
    on_every_target([&] {
      const std::vector<uint16_t> out = reduce_values<uint16_t>(type, Fold::kProd, {left, right});
      ASSERT_EQ(std::memcmp(out.data(), expected.data(), expected.size()), 0) << name_of(type);
    });
  }
}

TEST(ReduceKernel, Float16RoundsOnceOverAllSources) {
  // 2048 + 1 is a tie that rounds back to 2048; added in f32 the two ones count.
  const uint16_t big = 0x6800;
  const uint16_t one = 0x3c00;
  on_every_target([&] {
    EXPECT_EQ(reduce_values<uint16_t>(DataType::kFloat16, Fold::kSum, {{big}, {one}})[0], big);
    EXPECT_EQ(reduce_values<uint16_t>(DataType::kFloat16, Fold::kSum, {{big}, {one}, {one}})[0],
              big + 1);
  });
}

TEST(ReduceKernel, OverflowOfSmallFloatsIsInfinityOrNanAndNeverALargeNumber) {
  on_every_target([&] {
    const auto sum16 = [](DataType type, uint16_t a, uint16_t b) {
      return reduce_values<uint16_t>(type, Fold::kSum, {{a}, {b}})[0];
    };
    const auto sum8 = [](DataType type, uint8_t a, uint8_t b) {
      return reduce_values<uint8_t>(type, Fold::kSum, {{a}, {b}})[0];
    };
    EXPECT_EQ(sum16(DataType::kFloat16, 0x7bff, 0x4b00), 0x7bff);  // 65504 + 14
    EXPECT_EQ(sum16(DataType::kFloat16, 0x7bff, 0x4c00), 0x7c00);  // 65504 + 16, the tie
    EXPECT_EQ(sum16(DataType::kFloat16, 0xfbff, 0xfbff), 0xfc00);
    EXPECT_EQ(sum16(DataType::kBfloat16, 0x7f7f, 0x7f7f), 0x7f80);
    EXPECT_EQ(sum8(DataType::kFloat8E4M3, 0x7e, 0x58), 0x7e);  // 448 + 16: tie to even, 448
    EXPECT_EQ(sum8(DataType::kFloat8E4M3, 0x7e, 0x59), 0x7f);  // 448 + 18
    EXPECT_EQ(sum8(DataType::kFloat8E4M3, 0xfe, 0xfe), 0x7f);
    EXPECT_EQ(sum8(DataType::kFloat8E5M2, 0x7b, 0x7b), 0x7c);  // 57344 twice
    EXPECT_EQ(sum8(DataType::kFloat8E5M2, 0xfb, 0xfb), 0xfc);
    EXPECT_EQ(sum8(DataType::kFloat8E5M2, 0x7c, 0xfc), 0x7f);  // inf - inf
  });
}

TEST(ReduceKernel, NanOfAnySourceWinsMaximumAndMinimum) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  on_every_target([&] {
    for (const Fold fold : {Fold::kMax, Fold::kMin}) {
      for (size_t where = 0; where < 3; ++where) {
        std::vector<std::vector<float>> sources(3, std::vector<float>(37, 1.0f));
        sources[where].assign(37, where == 1 ? -nan : nan);
        sources[(where + 1) % 3].assign(37, INFINITY);
        for (const float value : reduce_values<float>(DataType::kFloat32, fold, sources)) {
          EXPECT_EQ(std::bit_cast<uint32_t>(value), 0x7fc00000u);
        }
      }
    }
  });
}

// ---- NCCL's arithmetic, where it differs ------------------------------------------------------

// Of the plain result: what saturates there.
uint8_t saturated(DataType type, uint8_t plain, float exact) {
  if (std::isnan(exact)) return 0x7f;
  const bool is_e4m3 = type == DataType::kFloat8E4M3;
  if ((plain & 0x7f) != (is_e4m3 ? 0x7f : 0x7c)) return plain;
  return static_cast<uint8_t>((is_e4m3 ? 0x7e : 0x7b) | (std::signbit(exact) ? 0x80 : 0));
}

TEST(ReduceKernel, Fp8SaturatesInNcclsArithmeticForEveryPair) {
  std::vector<uint8_t> left(65536);
  std::vector<uint8_t> right(65536);
  for (size_t i = 0; i < left.size(); ++i) {
    left[i] = static_cast<uint8_t>(i >> 8);
    right[i] = static_cast<uint8_t>(i);
  }
  on_every_target([&] {
    for (const DataType type : {DataType::kFloat8E4M3, DataType::kFloat8E5M2}) {
      for (const Fold fold : kFolds) {
        const auto plain = reduce_values<uint8_t>(type, fold, {left, right});
        const auto out = reduce_values<uint8_t>(type, fold, {left, right}, 1, Arithmetic::kNccl);
        std::vector<uint8_t> expected(out.size());
        for (size_t i = 0; i < out.size(); ++i) {
          const float a = test::decode_small_float(type, left[i]);
          const float b = test::decode_small_float(type, right[i]);
          if (fold == Fold::kSum || fold == Fold::kProd) {
            expected[i] = saturated(type, plain[i], fold == Fold::kSum ? a + b : a * b);
          } else if (std::isnan(a) || std::isnan(b)) {
            const float other = std::isnan(a) ? b : a;
            expected[i] = saturated(type, std::isnan(a) ? right[i] : left[i], other);
          } else {
            expected[i] = saturated(type, plain[i], test::decode_small_float(type, plain[i]));
          }
        }
        EXPECT_EQ(out, expected) << name_of(type) << " " << name_of(fold);
      }
    }
  });
}

TEST(ReduceKernel, MaximumAndMinimumIgnoreNanInNcclsArithmetic) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  on_every_target([&] {
    for (const Fold fold : {Fold::kMax, Fold::kMin}) {
      for (size_t where = 0; where < 4; ++where) {
        std::vector<std::vector<float>> sources(3, std::vector<float>(37, nan));
        if (where < 3) sources[where].assign(37, 2.0f);
        const auto out =
            reduce_values<float>(DataType::kFloat32, fold, sources, 1, Arithmetic::kNccl);
        for (const float value : out) {
          EXPECT_EQ(std::bit_cast<uint32_t>(value), where < 3 ? 0x40000000u : 0x7fc00000u);
        }
      }
    }
  });
}

TEST(ReduceKernel, NegativeZeroIsLessThanPositiveZero) {
  on_every_target([&] {
    for (const auto& [a, b] : {std::pair{0.0, -0.0}, std::pair{-0.0, 0.0}}) {
      for (const size_t count : {size_t{1}, size_t{19}}) {
        const std::vector<std::vector<double>> sources = {std::vector<double>(count, a),
                                                          std::vector<double>(count, b)};
        for (const double value : reduce_values<double>(DataType::kFloat64, Fold::kMax, sources)) {
          EXPECT_FALSE(std::signbit(value));
        }
        for (const double value : reduce_values<double>(DataType::kFloat64, Fold::kMin, sources)) {
          EXPECT_TRUE(std::signbit(value));
        }
      }
    }
  });
}

TEST(ReduceKernel, IntegerSumsAndProductsWrap) {
  on_every_target([&] {
    const int32_t max32 = std::numeric_limits<int32_t>::max();
    const int64_t min64 = std::numeric_limits<int64_t>::min();
    EXPECT_EQ(reduce_values<int32_t>(DataType::kInt32, Fold::kSum, {{max32}, {1}})[0],
              std::numeric_limits<int32_t>::min());
    EXPECT_EQ(reduce_values<int64_t>(DataType::kInt64, Fold::kSum, {{min64}, {-1}})[0],
              std::numeric_limits<int64_t>::max());
    EXPECT_EQ(reduce_values<int64_t>(DataType::kInt64, Fold::kProd,
                                     {{0x123456789abcdef}, {0x123456789abcdef}})[0],
              static_cast<int64_t>(0x123456789abcdefull * 0x123456789abcdefull));
    EXPECT_EQ(reduce_values<int8_t>(DataType::kInt8, Fold::kProd, {{100}, {100}})[0], 16);
  });
}

TEST(ReduceKernel, IntegerAveragesTruncateTowardsZero) {
  on_every_target([&] {
    EXPECT_EQ(reduce_values<int32_t>(DataType::kInt32, Fold::kSum, {{-4, 4}, {-3, 3}}, 2),
              (std::vector<int32_t>{-3, 3}));
    EXPECT_EQ(reduce_values<int8_t>(DataType::kInt8, Fold::kSum, {{-4, 4}, {-3, 3}}, 2),
              (std::vector<int8_t>{-3, 3}));
    EXPECT_EQ(reduce_values<int64_t>(DataType::kInt64, Fold::kSum, {{-4, 4}, {-3, 3}}, 4294967295u),
              (std::vector<int64_t>{0, 0}));
    EXPECT_EQ(
        reduce_values<uint32_t>(DataType::kUint32, Fold::kSum, {{0xfffffffe}, {1}}, 0xffffffffu),
        (std::vector<uint32_t>{1}));
    EXPECT_EQ(
        reduce_values<uint32_t>(DataType::kUint32, Fold::kSum, {{0xfffffffd}, {1}}, 0xffffffffu),
        (std::vector<uint32_t>{0}));
  });
}

TEST(ReduceKernel, EveryByteDividedByEveryDivisorTruncates) {
  std::vector<uint8_t> values(256);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint8_t>(i);
  const std::vector<uint8_t> zeros(256, 0);
  std::vector<uint32_t> divisors = {65535, 65536, 0x80000000u, 0xffffffffu};
  for (uint32_t divisor = 1; divisor <= 300; ++divisor) divisors.push_back(divisor);
  on_every_target([&] {
    for (const uint32_t divisor : divisors) {
      for (const DataType type : {DataType::kInt8, DataType::kUint8}) {
        const std::vector<uint8_t> out =
            reduce_values<uint8_t>(type, Fold::kSum, {values, zeros}, divisor);
        for (size_t i = 0; i < values.size(); ++i) {
          const int64_t value =
              type == DataType::kInt8 ? static_cast<int8_t>(i) : static_cast<int64_t>(i);
          ASSERT_EQ(out[i], static_cast<uint8_t>(value / static_cast<int64_t>(divisor)))
              << name_of(type) << " " << value << " / " << divisor;
        }
      }
    }
  });
}

TEST(ReduceKernel, OneSourceAloneIsCopiedBitForBit) {
  const std::vector<uint32_t> signalling(100, 0xff800001u);
  on_every_target([&] {
    for (const Fold fold : kFolds) {
      EXPECT_EQ(reduce_values<uint32_t>(DataType::kFloat32, fold, {signalling}), signalling);
    }
  });
}

TEST(ReduceKernel, IsTheSamePointerAtEveryLookUp) {
  for (const DataType type : all_types()) {
    for (const Fold fold : kFolds) {
      EXPECT_NE(reduce_kernel(type, fold), nullptr);
      EXPECT_EQ(reduce_kernel(type, fold), reduce_kernel(type, fold));
    }
  }
}

TEST(CopyBytes, CopiesEveryLengthAtEveryAlignmentWithoutTouchingMore) {
  std::mt19937_64 random(test_seed());
  constexpr size_t kBytesMax = 3000;
  GuardedBuffer from(kBytesMax + 256);
  GuardedBuffer to(kBytesMax + 256);
  on_every_target([&] {
    for (int round = 0; round < 3000; ++round) {
      const size_t bytes = round < 700 ? static_cast<size_t>(round) : random() % kBytesMax;
      uint8_t* src =
          random() % 2 == 0 ? from.from_begin(random() % 128) : from.to_end(random() % 3, bytes);
      uint8_t* dst =
          random() % 2 == 0 ? to.from_begin(random() % 128) : to.to_end(random() % 3, bytes);
      for (size_t i = 0; i < bytes; ++i) src[i] = static_cast<uint8_t>(random());
      copy_bytes(dst, src, bytes, round % 4 != 0);
      ASSERT_EQ(std::memcmp(dst, src, bytes), 0) << bytes;
      ASSERT_TRUE(to.canaries_hold(dst, bytes, 192)) << bytes;
      to.fill(dst, bytes);
    }
    copy_bytes(to.from_begin(0), to.from_begin(0), 512, true);
    ASSERT_TRUE(to.canaries_hold(to.from_begin(512), 0, 512));
    copy_bytes(nullptr, nullptr, 0, false);
  });
}

}  // namespace
}  // namespace weir
