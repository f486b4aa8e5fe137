// SPDX-License-Identifier: Apache-2.0
// What the kernel tests share: a seed from the environment, hostile values, buffers at a chosen
// misalignment with guards around, and a scope that forces one instruction set.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "hwy/highway.h"
#include "offload/kernels/step_kernel.h"

namespace weir::offload::test {

inline uint64_t seed() {
  static const uint64_t value = [] {
    const char* text = std::getenv("WEIR_TEST_SEED");
    const uint64_t chosen = text != nullptr ? std::strtoull(text, nullptr, 0) : 20263;
    std::printf("WEIR_TEST_SEED=%llu\n", static_cast<unsigned long long>(chosen));
    return chosen;
  }();
  return value;
}

inline std::vector<int64_t> instruction_sets() {
  std::vector<int64_t> all;
  for (int64_t rest = step_kernel_targets(); rest != 0; rest &= rest - 1) {
    all.push_back(rest & -rest);
  }
  return all;
}

class ForcedTarget {
 public:
  explicit ForcedTarget(int64_t target) { hwy::SetSupportedTargetsForTest(target); }
  ~ForcedTarget() { hwy::SetSupportedTargetsForTest(0); }
};

// Bytes at `misalignment` past a line, with guards that the destructor checks.
class GuardedBytes {
 public:
  explicit GuardedBytes(size_t bytes, size_t misalignment = 0)
      : bytes_(bytes), all_(bytes + 2 * kGuard + 64, kPattern) {
    const auto address = reinterpret_cast<uintptr_t>(all_.data()) + kGuard;
    data_ = all_.data() + kGuard + (64 - address % 64) % 64 + misalignment % 64;
    if (misalignment % 64 + bytes + kGuard > bytes + 2 * kGuard) std::abort();
    std::memset(data_, 0, bytes);
  }
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;
  ~GuardedBytes() {
    for (const unsigned char* at = all_.data(); at < data_; ++at) check(at);
    for (const unsigned char* at = data_ + bytes_; at < all_.data() + all_.size(); ++at) check(at);
  }
  unsigned char* data() { return data_; }
  const unsigned char* data() const { return data_; }
  size_t size() const { return bytes_; }
  template <typename T>
  T* as() {
    return reinterpret_cast<T*>(data_);
  }
  std::vector<unsigned char> copy() const { return {data_, data_ + bytes_}; }

 private:
  static constexpr size_t kGuard = 128;
  static constexpr unsigned char kPattern = 0xa5;
  void check(const unsigned char* at) const {
    if (*at != kPattern) ADD_FAILURE() << "a byte outside the buffer was written";
  }
  size_t bytes_;
  std::vector<unsigned char> all_;
  unsigned char* data_;
};

template <typename T>
T read(const void* base, size_t index) {
  T value;
  std::memcpy(&value, static_cast<const unsigned char*>(base) + index * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void write(void* base, size_t index, T value) {
  std::memcpy(static_cast<unsigned char*>(base) + index * sizeof(T), &value, sizeof(T));
}

// How values are drawn: kTame is what training sees, kWide any finite exponent, kHostile any bits
// and the special ones, kEven evenly spread multiples of 2^-23, which no machine draws otherwise
// (a normal distribution goes through the logarithm of a library).
enum class Draw { kTame, kWide, kHostile, kEven };

class Values {
 public:
  Values(uint64_t seed, Draw draw) : random_(seed), draw_(draw) {}

  float next(float tame_scale) {
    switch (draw_) {
      case Draw::kTame:
        return static_cast<float>(normal_(random_)) * tame_scale;
      case Draw::kWide: {
        const int exponent = static_cast<int>(random_() % 60) - 30;
        return std::ldexp(static_cast<float>(normal_(random_)), exponent);
      }
      case Draw::kHostile:
        return hostile();
      case Draw::kEven:
        return (static_cast<float>(random_() >> 40) * 0x1p-23f - 1) * tame_scale;
    }
    return 0;
  }
  float next_positive(float tame_scale) { return std::fabs(next(tame_scale)); }
  uint64_t bits() { return random_(); }

 private:
  float hostile() {
    static constexpr float kInfinity = std::numeric_limits<float>::infinity();
    static constexpr float kSpecial[] = {
        0.0f,
        -0.0f,
        1e-40f,
        -1e-40f,
        1.17549435e-38f,
        -1.17549435e-38f,
        1e-45f,
        kInfinity,
        -kInfinity,
        3.4e38f,
        -3.4e38f,
        1.0f,
        -1.0f,
        65504.0f,
        65520.0f,
        6e-8f,
        3e-8f,
        1e19f,
        1.9e-19f,
        0.5f,
        1e-20f,
        -1e-20f,
        std::numeric_limits<float>::quiet_NaN(),
    };
    const uint64_t choice = random_();
    if (choice % 3 == 0) return kSpecial[(choice >> 8) % std::size(kSpecial)];
    return std::bit_cast<float>(static_cast<uint32_t>(choice >> 32));
  }
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
  Draw draw_;
};

inline uint16_t bf16_of(float value) {  // nearest even
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
inline float of_bf16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

inline double of_f16(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 0x3ff;
  double value =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(mantissa + 1024, exponent - 25);
  if (exponent == 31) {
    value = mantissa == 0 ? std::numeric_limits<double>::infinity()
                          : std::numeric_limits<double>::quiet_NaN();
  }
  return (bits & 0x8000) != 0 ? -value : value;
}
// Nearest even, by search among the codes: slow and plain. Subnormal f32 and NaN as the kernels
// say.
inline uint16_t f16_of(float value) {
  if (std::isnan(value)) return 0x7e00;
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  if (magnitude >= 65520) return sign | 0x7c00;
  uint16_t low = 0, high = 0x7c00;  // of_f16(low) <= magnitude < of_f16(high)
  while (high - low > 1) {
    const auto middle = static_cast<uint16_t>((low + high) / 2);
    (of_f16(middle) <= magnitude ? low : high) = middle;
  }
  const double above = high == 0x7c00 ? 65536.0 : of_f16(high);
  const double to_low = magnitude - of_f16(low);
  const double to_high = above - magnitude;
  const bool up = to_high < to_low || (to_high == to_low && (low & 1) != 0);
  return sign | (up ? high : low);
}

inline double load_element(const void* base, DataType type, size_t index) {
  switch (type) {
    case DataType::kBfloat16:
      return of_bf16(read<uint16_t>(base, index));
    case DataType::kFloat16:
      return of_f16(read<uint16_t>(base, index));
    default:
      return read<float>(base, index);
  }
}
inline void store_element(void* base, DataType type, size_t index, float value) {
  switch (type) {
    case DataType::kBfloat16:
      return write(base, index, bf16_of(value));
    case DataType::kFloat16:
      return write(base, index, f16_of(value));
    default:
      return write(base, index, value);
  }
}

inline constexpr DataType kGradientTypes[] = {DataType::kFloat32, DataType::kBfloat16,
                                              DataType::kFloat16};
inline constexpr Method kMethods[] = {Method::kAdamW, Method::kAdam, Method::kSgdMomentum,
                                      Method::kAdagrad, Method::kLion};
inline constexpr StateFormat kFormats[] = {StateFormat::kFloat32, StateFormat::kHalfMaster,
                                           StateFormat::kHalfMaster8};

}  // namespace weir::offload::test
